"""One row per opcode of the ALU, against Python integers and exact fractions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.sim.alu import THREADS, run
from tests.sim.exact import F32, FORMATS, Format, Value, add, interesting, multiply

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Any: a reference takes as many integers or values as its instruction has sources.
Reference = Callable[..., Any]

_REGISTERS = {16: ("h", np.uint16), 32: ("r", np.uint32), 64: ("d", np.uint64), 1: ("p", np.bool_)}


def _width(kind: str) -> int:
    if kind == "pred":
        return 1
    return int("".join(letter for letter in kind if letter.isdigit()))


def _integers(bits: int, seed: int) -> list[int]:
    """Edges, small numbers and random patterns."""
    source = random.Random(seed)  # noqa: S311  # test data
    edges = [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    edges += [31, 32, 33, 63, 64, 65, 255, 256]
    values = edges + [source.getrandbits(source.randrange(1, bits + 1)) for _ in range(THREADS)]
    chosen = [value & (1 << bits) - 1 for value in values[:THREADS]]
    source.shuffle(chosen)
    return chosen


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _read(pattern: int, kind: str) -> int:
    return _signed(pattern, _width(kind)) if kind[0] == "s" else pattern


def _execute(opcode: str, sources: list[tuple[str, list[int]]], result: str) -> list[int]:
    """Run an instruction on columns of bit patterns."""
    names, inputs = [], {}  # type: ignore[var-annotated]  # NumPy's stubs, or a table of many types
    for number, (kind, patterns) in enumerate(sources):
        letter, dtype = _REGISTERS[_width(kind)]
        name = f"%{letter}{number + 1}"
        names.append(name)
        inputs[name] = np.array(patterns, dtype)
    letter, _ = _REGISTERS[_width(result)]
    values = run(f"{opcode} %{letter}0, {', '.join(names)};", inputs)[f"%{letter}0"]
    return [int(value) for value in values]


def _shift_right(a: int, b: int, bits: int) -> int:
    return a >> min(b, bits)


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _amount(amount: int, bits: int) -> int:
    """The low byte; of 64-bit fields an H200 takes all of it."""
    return amount & 255 if bits == 32 else min(amount, 255)


def _field(a: int, position: int, length: int, kind: str) -> int:
    bits = _width(kind)
    start, count = _amount(position, bits), _amount(length, bits)
    pattern = a & (1 << bits) - 1
    top = min(start + count - 1, bits - 1)
    sign = kind[0] == "s" and count > 0 and pattern >> top & 1
    out = 0
    for index in range(bits):
        bit = pattern >> (start + index) & 1 if index < count and start + index < bits else sign
        out |= int(bit) << index
    return out


def _inserted(a: int, b: int, position: int, length: int, bits: int) -> int:
    start, count = _amount(position, bits), _amount(length, bits)
    for index in range(count):
        if start + index < bits:
            b = b & ~(1 << start + index) | (a >> index & 1) << start + index
    return b


def _permuted(a: int, b: int, c: int) -> int:
    octets = [(b << 32 | a) >> 8 * index & 255 for index in range(8)]
    out = 0
    for index in range(4):
        selector = c >> 4 * index & 15
        octet = octets[selector & 7]
        out |= (octet if selector < 8 else 255 * (octet >> 7)) << 8 * index
    return out


def _highest(a: int, kind: str) -> int:
    return (~a if a < 0 else a).bit_length() - 1


def _clamped(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def _integer_cases() -> list[tuple[str, list[str], str, Reference]]:
    cases: list[tuple[str, list[str], str, Reference]] = []
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        bits = _width(kind)
        two, three = [kind] * 2, [kind] * 3
        cases += [
            (f"add.{kind}", two, kind, lambda a, b: a + b),
            (f"sub.{kind}", two, kind, lambda a, b: a - b),
            (f"mul.lo.{kind}", two, kind, lambda a, b: a * b),
            (f"mul.hi.{kind}", two, kind, lambda a, b, bits=bits: a * b >> bits),
            (f"mad.lo.{kind}", three, kind, lambda a, b, c: a * b + c),
            (f"mad.hi.{kind}", three, kind, lambda a, b, c, bits=bits: (a * b >> bits) + c),
            (f"sad.{kind}", three, kind, lambda a, b, c: abs(a - b) + c),
            (f"div.{kind}", two, kind, lambda a, b: _truncated(a, b) if b else -1),
            (f"rem.{kind}", two, kind, lambda a, b: a - b * _truncated(a, b) if b else a),
            (f"min.{kind}", two, kind, min),
            (f"max.{kind}", two, kind, max),
            (f"shr.{kind}", [kind, "u32"], kind, lambda a, b, bits=bits: _shift_right(a, b, bits)),
            (f"selp.{kind}", [kind, kind, "pred"], kind, lambda a, b, p: a if p else b),
            (f"mov.{kind}", [kind], kind, lambda a: a),
        ]
        if bits < 64:
            wide = f"{kind[0]}{2 * bits}"
            cases += [
                (f"mul.wide.{kind}", two, wide, lambda a, b: a * b),
                (f"mad.wide.{kind}", [kind, kind, wide], wide, lambda a, b, c: a * b + c),
            ]
        if kind[0] == "s":
            cases += [
                (f"abs.{kind}", [kind], kind, abs),
                (f"neg.{kind}", [kind], kind, lambda a: -a),
            ]
        for name, compare in (
            ("eq", int.__eq__), ("ne", int.__ne__), ("lt", int.__lt__), ("le", int.__le__),
            ("gt", int.__gt__), ("ge", int.__ge__),
        ):  # fmt: skip
            cases.append((f"setp.{name}.{kind}", two, "pred", compare))
    for name, compare in (
        ("lo", int.__lt__),
        ("ls", int.__le__),
        ("hi", int.__gt__),
        ("hs", int.__ge__),
    ):
        cases.append((f"setp.{name}.u32", ["u32", "u32"], "pred", compare))
    for kind in ("u32", "s32", "u64", "s64"):
        bits = _width(kind)
        cases += [
            (
                f"bfe.{kind}",
                [kind, "u32", "u32"],
                kind,
                lambda a, b, c, kind=kind: _field(a, b, c, kind),
            ),
            (f"bfind.{kind}", [kind], "u32", lambda a, kind=kind: _highest(a, kind)),
            (
                f"bfind.shiftamt.{kind}",
                [kind],
                "u32",
                lambda a, kind=kind, bits=bits: (
                    -1 if _highest(a, kind) < 0 else bits - 1 - _highest(a, kind)
                ),
            ),
        ]
    for bits in (16, 32, 64):
        kind, two = f"b{bits}", [f"b{bits}"] * 2
        cases += [
            (f"and.{kind}", two, kind, lambda a, b: a & b),
            (f"or.{kind}", two, kind, lambda a, b: a | b),
            (f"xor.{kind}", two, kind, lambda a, b: a ^ b),
            (f"not.{kind}", [kind], kind, lambda a: ~a),
            (f"cnot.{kind}", [kind], kind, lambda a: int(a == 0)),
            (f"shl.{kind}", [kind, "u32"], kind, lambda a, b, bits=bits: a << min(b, bits)),
            (f"shr.{kind}", [kind, "u32"], kind, lambda a, b, bits=bits: _shift_right(a, b, bits)),
        ]
    for bits in (32, 64):
        kind = f"b{bits}"
        cases += [
            (f"clz.{kind}", [kind], "u32", lambda a, bits=bits: bits - a.bit_length()),
            (f"popc.{kind}", [kind], "u32", int.bit_count),
            (f"brev.{kind}", [kind], kind, lambda a, bits=bits: int(f"{a:0{bits}b}"[::-1], 2)),
            (
                f"bfi.{kind}",
                [kind, kind, "u32", "u32"],
                kind,
                lambda a, b, c, d, bits=bits: _inserted(a, b, c, d, bits),
            ),
        ]
    cases += [
        ("add.sat.s32", ["s32", "s32"], "s32", lambda a, b: _clamped(a + b, -(2**31), 2**31 - 1)),
        ("sub.sat.s32", ["s32", "s32"], "s32", lambda a, b: _clamped(a - b, -(2**31), 2**31 - 1)),
        ("prmt.b32", ["b32"] * 3, "b32", _permuted),
        ("shf.l.wrap.b32", ["b32"] * 3, "b32", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32),
        ("shf.r.wrap.b32", ["b32"] * 3, "b32", lambda a, b, c: (b << 32 | a) >> (c & 31)),
        ("shf.l.clamp.b32", ["b32"] * 3, "b32", lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
        ("shf.r.clamp.b32", ["b32"] * 3, "b32", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
        ("and.pred", ["pred", "pred"], "pred", lambda a, b: a & b),
        ("or.pred", ["pred", "pred"], "pred", lambda a, b: a | b),
        ("xor.pred", ["pred", "pred"], "pred", lambda a, b: a ^ b),
        ("not.pred", ["pred"], "pred", lambda a: not a),
        ("mul24.lo.u32", ["u32", "u32"], "u32", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        (
            "mul24.lo.s32",
            ["s32", "s32"],
            "s32",
            lambda a, b: _signed(a & 0xFFFFFF, 24) * _signed(b & 0xFFFFFF, 24),
        ),
        ("bmsk.clamp.b32", ["b32", "b32"], "b32", lambda a, b: (1 << min(b, 32)) - 1 << min(a, 32)),
        ("szext.clamp.u32", ["u32", "u32"], "u32", lambda a, b: a & (1 << min(b, 32)) - 1),
        (
            "szext.clamp.s32",
            ["s32", "u32"],
            "s32",
            lambda a, b: _signed(a & (1 << min(b, 32)) - 1, min(b, 32)) if b else 0,
        ),
        (
            "dp4a.u32.u32",
            ["u32"] * 3,
            "u32",
            lambda a, b, c: c + sum(_byte(a, i) * _byte(b, i) for i in range(4)),
        ),
        (
            "dp4a.s32.s32",
            ["u32"] * 3,
            "u32",
            lambda a, b, c: (
                c + sum(_signed(_byte(a, i), 8) * _signed(_byte(b, i), 8) for i in range(4))
            ),
        ),
        (
            "dp2a.hi.u32.u32",
            ["u32"] * 3,
            "u32",
            lambda a, b, c: c + (a & 0xFFFF) * _byte(b, 2) + (a >> 16) * _byte(b, 3),
        ),
    ]
    for bits in (8, 16, 32, 64):
        for sign in "us":
            for other in (8, 16, 32, 64):
                for other_sign in "us":
                    target, given = f"{sign}{bits}", f"{other_sign}{other}"
                    stored = [f"{sign}{max(bits, 16)}", f"u{max(other, 16)}"]
                    cases.append(
                        (
                            f"cvt.{target}.{given}",
                            [stored[1]],
                            stored[0],
                            lambda a, t=target, g=given: _read(_low(_read(_low(a, g), g), t), t),
                        )
                    )
                    cases.append(
                        (
                            f"cvt.sat.{target}.{given}",
                            [stored[1]],
                            stored[0],
                            lambda a, t=target, g=given: _clamped(
                                _read(_low(a, g), g), *_limits(t)
                            ),
                        )
                    )
    return cases


def _byte(value: int, index: int) -> int:
    return value >> 8 * index & 255


def _low(value: int, kind: str) -> int:
    return value & (1 << _width(kind)) - 1


def _limits(kind: str) -> tuple[int, int]:
    bits = _width(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


@pytest.mark.parametrize(
    ("opcode", "sources", "result", "reference"),
    _integer_cases(),
    ids=[case[0] for case in _integer_cases()],
)
def test_integer_opcode(opcode: str, sources: list[str], result: str, reference: Reference) -> None:
    columns = [
        (
            kind,
            [value & 1 for value in _integers(8, seed)]
            if kind == "pred"
            else _integers(_width(kind), seed),
        )
        for seed, kind in enumerate(sources)
    ]
    if opcode.startswith(("shl", "shr", "shf", "bfe", "bfi", "bmsk", "szext")):
        # Amounts near the width as well as far beyond it.
        columns[1:] = [
            (kind, [v % 80 if index % 4 else v for index, v in enumerate(values)])
            if kind == "u32" or opcode[0] == "s"
            else (kind, values)
            for kind, values in columns[1:]
        ]
    got = _execute(opcode, columns, result)
    mask = (1 << _width(result)) - 1
    for lane in range(THREADS):
        arguments = [_read(values[lane], kind) for kind, values in columns]
        expected = int(reference(*arguments)) & mask
        assert got[lane] == expected, (opcode, lane, arguments, hex(got[lane]), hex(expected))


# --- Floats: operands and results are exact values, rounded by definition


def _maximum(*values: Value) -> Value:
    numbers = [value for value in values if not _is_nan(value)]
    if not numbers:
        return math.nan
    return max(numbers, key=lambda value: (value, math.copysign(1, value)))


def _minimum(*values: Value) -> Value:
    numbers = [value for value in values if not _is_nan(value)]
    if not numbers:
        return math.nan
    return min(numbers, key=lambda value: (value, math.copysign(1, value)))


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _divide(a: Value, b: Value) -> Value:
    if isinstance(a, float) or isinstance(b, float):
        if _is_nan(a) or _is_nan(b) or (a == 0 and b == 0) or (math.isinf(a) and math.isinf(b)):
            return math.nan
        sign = math.copysign(1, a) * math.copysign(1, b)
        return math.copysign(math.inf if b == 0 or math.isinf(a) else 0.0, sign)
    return a / b


def _negative(a: Value) -> Value:
    return -a


def _poison_nan(function: Reference) -> Reference:
    return lambda *values: math.nan if any(map(_is_nan, values)) else function(*values)


def _flush(value: Value, form: Format) -> Value:
    small = value != 0 and not _is_nan(value) and abs(value) < _smallest_normal(form)  # type: ignore[operator]  # NumPy's stubs, or a table of many types
    return math.copysign(0.0, value) if small else value


def _smallest_normal(form: Format) -> Value:
    return form.decode(1 << form.mantissa)


_FLOAT_CASES: list[tuple[str, str, int, Reference, str]] = [
    *(
        (f"add{mode}.{kind}", kind, 2, add, mode[1:] or "rn")
        for kind in FORMATS
        for mode in ("", ".rn")
    ),
    *((f"sub.{kind}", kind, 2, lambda a, b: add(a, -b), "rn") for kind in FORMATS),
    *((f"mul.{kind}", kind, 2, multiply, "rn") for kind in FORMATS),
    *(
        (f"fma.rn.{kind}", kind, 3, lambda a, b, c: add(multiply(a, b), c), "rn")
        for kind in FORMATS
    ),
    *((f"add.{mode}.f32", "f32", 2, add, mode) for mode in ("rz", "rm", "rp")),
    *((f"mul.{mode}.f32", "f32", 2, multiply, mode) for mode in ("rz", "rm", "rp")),
    *(
        (f"fma.{mode}.f32", "f32", 3, lambda a, b, c: add(multiply(a, b), c), mode)
        for mode in ("rz", "rm", "rp")
    ),
    *((f"neg.{kind}", kind, 1, _negative, "rn") for kind in FORMATS),
    *((f"abs.{kind}", kind, 1, abs, "rn") for kind in FORMATS),
    *((f"max.{kind}", kind, 2, _maximum, "rn") for kind in FORMATS),
    *((f"min.{kind}", kind, 2, _minimum, "rn") for kind in FORMATS),
    *((f"max.NaN.{kind}", kind, 2, _poison_nan(_maximum), "rn") for kind in ("f32", "f16", "bf16")),
    *((f"min.NaN.{kind}", kind, 2, _poison_nan(_minimum), "rn") for kind in ("f32", "f16", "bf16")),
    ("max.f32", "f32", 3, _maximum, "rn"),
    ("min.f32", "f32", 3, _minimum, "rn"),
    ("max.NaN.f32", "f32", 3, _poison_nan(_maximum), "rn"),
    ("div.rn.f32", "f32", 2, _divide, "rn"),
    ("div.full.f32", "f32", 2, _divide, "rn"),
    ("rcp.rn.f32", "f32", 1, lambda a: _divide(F32.decode(0x3F800000), a), "rn"),
    ("rcp.approx.f32", "f32", 1, lambda a: _divide(F32.decode(0x3F800000), a), "rn"),
    ("div.rn.f64", "f64", 2, _divide, "rn"),
]


@pytest.mark.parametrize(
    ("opcode", "kind", "count", "reference", "mode"),
    _FLOAT_CASES,
    ids=[f"{case[0]}-{case[2]}" for case in _FLOAT_CASES],
)
def test_float_opcode(opcode: str, kind: str, count: int, reference: Reference, mode: str) -> None:
    form = FORMATS[kind]
    columns = [interesting(form, THREADS, seed) for seed in range(count)]
    got = _execute(opcode, [(f"b{form.bits}", column) for column in columns], f"b{form.bits}")
    for lane in range(THREADS):
        values = [form.decode(column[lane]) for column in columns]
        expected = form.encode(reference(*values), mode)
        if mode == "rm" and expected == 0 and got[lane] == 1 << form.bits - 1:
            continue  # an exact zero sum is negative when rounding down; `add` does not know the mode
        assert _same(got[lane], expected, form), (
            opcode,
            lane,
            values,
            hex(got[lane]),
            hex(expected),
        )


def _same(got: int, expected: int, form: Format) -> bool:
    """Bits are equal, or both are NaN."""
    return got == expected or (_is_nan(form.decode(got)) and _is_nan(form.decode(expected)))


@pytest.mark.parametrize("opcode", ["add.ftz.f32", "mul.ftz.f32", "fma.rn.ftz.f32", "max.ftz.f32"])
def test_flushing_to_zero(opcode: str) -> None:
    count = 3 if opcode.startswith("fma") else 2
    columns = [interesting(F32, THREADS, seed + 20) for seed in range(count)]
    got = _execute(opcode, [("b32", column) for column in columns], "b32")
    compute: Reference = {  # type: ignore[assignment]  # NumPy's stubs, or a table of many types
        "add": add, "mul": multiply, "fma": lambda a, b, c: add(multiply(a, b), c), "max": _maximum,
    }[opcode[:3]]  # fmt: skip
    for lane in range(THREADS):
        values = [_flush(F32.decode(column[lane]), F32) for column in columns]
        rounded = F32.decode(F32.encode(compute(*values)))
        assert _same(got[lane], F32.encode(_flush(rounded, F32)), F32), (
            lane,
            values,
            hex(got[lane]),
        )


_COMPARISONS: dict[str, Reference] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b and not _is_nan(a) and not _is_nan(b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: a == b or _is_nan(a) or _is_nan(b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: a < b or _is_nan(a) or _is_nan(b),
    "leu": lambda a, b: a <= b or _is_nan(a) or _is_nan(b),
    "gtu": lambda a, b: a > b or _is_nan(a) or _is_nan(b),
    "geu": lambda a, b: a >= b or _is_nan(a) or _is_nan(b),
    "num": lambda a, b: not _is_nan(a) and not _is_nan(b),
    "nan": lambda a, b: _is_nan(a) or _is_nan(b),
}


@pytest.mark.parametrize("kind", list(FORMATS))
@pytest.mark.parametrize("compare", list(_COMPARISONS))
def test_comparison(compare: str, kind: str) -> None:
    form = FORMATS[kind]
    a, b = interesting(form, THREADS, 1), interesting(form, THREADS, 2)
    b = [x if lane % 3 == 0 else y for lane, (x, y) in enumerate(zip(a, b, strict=True))]
    got = _execute(f"setp.{compare}.{kind}", [(f"b{form.bits}", a), (f"b{form.bits}", b)], "pred")
    expected = [
        _COMPARISONS[compare](form.decode(x), form.decode(y)) for x, y in zip(a, b, strict=True)
    ]
    assert got == [int(value) for value in expected]


def _pattern(values: list[float]) -> NDArray[np.float32]:
    return np.resize(np.array(values, np.float32), THREADS)


@pytest.mark.parametrize("boolean", ["and", "or", "xor"])
def test_setp_with_boolean_and_both_results(boolean: str) -> None:
    a, b = np.arange(THREADS, dtype=np.int32), np.full(THREADS, 64, np.int32)
    c = np.arange(THREADS) % 2 == 0
    got = run(f"setp.lt.{boolean}.s32 %p0|%p1, %r1, %r2, !%p2;", {"%r1": a, "%r2": b, "%p2": c})
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[boolean]
    assert (got["%p0"] == combine(a < 64, ~c)).all()
    assert (got["%p1"] == combine(a >= 64, ~c)).all()


def test_setp_may_overwrite_the_predicate_that_it_reads() -> None:
    a = np.arange(THREADS, dtype=np.int32)
    c = np.arange(THREADS) % 2 == 0
    got = run("setp.lt.and.s32 %p0|%p1, %r1, 64, %p0;", {"%r1": a, "%p0": c})
    assert (got["%p0"] == ((a < 64) & c)).all()
    assert (got["%p1"] == ((a >= 64) & c)).all()


def test_set_gives_ones_or_one() -> None:
    a = _pattern([1.0, 2.0, math.nan])
    got = run(
        "set.lt.u32.f32 %r0, %r1, 0f3FC00000; set.ltu.f32.f32 %r2, %r1, 0f3FC00000;", {"%r1": a}
    )
    assert got["%r0"][:3].tolist() == [0xFFFFFFFF, 0, 0]
    assert got["%r2"].view(np.float32)[:3].tolist() == [1.0, 0.0, 1.0]


def test_slct_chooses_by_sign() -> None:
    chooser = _pattern([1.0, -1.0, -0.0, math.nan])
    got = run("slct.b32.f32 %r0, 1, 2, %r1; slct.u32.s32 %r2, 1, 2, %r1;", {"%r1": chooser})
    assert got["%r0"][:4].tolist() == [1, 2, 1, 2]
    assert got["%r2"][:4].tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xC0, 0x1B, 0xE8])
def test_lop3_looks_bits_up(table: int) -> None:
    columns = [_integers(32, seed) for seed in range(3)]
    names = {f"%r{index + 1}": np.array(column, np.uint32) for index, column in enumerate(columns)}
    got = run(f"lop3.b32 %r0, %r1, %r2, %r3, {table:#x};", names)["%r0"]
    for lane in range(THREADS):
        a, b, c = (column[lane] for column in columns)
        expected = sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
            for i in range(32)
        )
        assert got[lane] == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("f4e", ("3210", "4321", "5432", "6543")),
        ("b4e", ("5670", "6701", "7012", "0123")),
        ("rc8", ("0000", "1111", "2222", "3333")),
        ("ecl", ("3210", "3211", "3222", "3333")),
        ("ecr", ("0000", "1110", "2210", "3210")),
        ("rc16", ("1010", "3232", "1010", "3232")),
    ],
)
def test_prmt_modes(mode: str, expected: tuple[str, ...]) -> None:
    selector = np.arange(THREADS, dtype=np.uint32)
    got = run(f"prmt.b32.{mode} %r0, 0x33221100, 0x77665544, %r1;", {"%r1": selector})["%r0"]
    assert [f"{value:08x}" for value in got[:4]] == [
        "".join(2 * digit for digit in row) for row in expected
    ]


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("ex2.approx.f32", lambda x: 2.0**x),
        ("ex2.approx.ftz.f32", lambda x: 2.0**x),
        ("lg2.approx.f32", math.log2),
        ("sqrt.approx.f32", math.sqrt),
        ("sqrt.rn.f32", math.sqrt),
        ("rsqrt.approx.ftz.f32", lambda x: 1 / math.sqrt(x)),
        ("sin.approx.f32", math.sin),
        ("cos.approx.f32", math.cos),
        ("tanh.approx.f32", math.tanh),
    ],
)
def test_approximations_are_the_nearest_f32(
    opcode: str, function: Callable[[float], float]
) -> None:
    x = np.linspace(0.01, 20, THREADS).astype(np.float32)
    got = run(f"{opcode} %r0, %r1;", {"%r1": x})["%r0"].view(np.float32)
    expected = np.array([function(float(value)) for value in x]).astype(np.float32)
    # Two float64 libraries may differ in the last bit of 53; that moves a rounding to 24 bits about never.
    assert (got == expected).mean() >= 0.99
    assert np.allclose(got, expected, rtol=2**-23)


def test_ex2_of_extremes() -> None:
    x = _pattern([-math.inf, math.inf, math.nan, 0.0, -0.0, 128.0, -126.0, -127.0, -149.0, -151.0])
    got = run("ex2.approx.ftz.f32 %r0, %r1; ex2.approx.f32 %r2, %r1;", {"%r1": x})
    flushed, full = (got[name].view(np.float32)[:10] for name in ("%r0", "%r2"))
    head = [0.0, math.inf, math.nan, 1.0, 1.0, math.inf, 2.0**-126]
    assert np.array_equal(flushed, [*head, 0, 0, 0], equal_nan=True)
    assert np.array_equal(full, [*head, 2.0**-127, 2.0**-149, 0], equal_nan=True)


def test_division_by_huge_divisors_is_zero_when_approximate() -> None:
    a, b = _pattern([1.0, math.inf, 4.0]), _pattern([2.0**127, 2.0**127, 2.0])
    got = run("div.approx.f32 %r0, %r1, %r2;", {"%r1": a, "%r2": b})["%r0"].view(np.float32)
    assert np.array_equal(got[:3], [0.0, math.nan, 2.0], equal_nan=True)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("finite", [1, 1, 1, 0, 0]),
        ("infinite", [0, 0, 0, 1, 0]),
        ("number", [1, 1, 1, 1, 0]),
        ("notanumber", [0, 0, 0, 0, 1]),
        ("normal", [1, 0, 1, 0, 0]),
        ("subnormal", [0, 1, 0, 0, 0]),
    ],
)
def test_testp(opcode: str, expected: list[int]) -> None:
    values = _pattern([1.5, 1e-40, 0.0, -math.inf, math.nan])
    assert run(f"testp.{opcode}.f32 %p0, %r1;", {"%r1": values})["%p0"][:5].tolist() == expected


def test_saturation_and_relu() -> None:
    a = _pattern([-1.0, 0.25, 3.0, math.nan])
    got = run(
        "add.sat.f32 %r0, %r1, 0f00000000; cvt.sat.f32.f32 %r2, %r1; copysign.f32 %r3, 0fBF800000, %r1;",
        {"%r1": a},
    )
    assert got["%r0"].view(np.float32)[:4].tolist() == [0.0, 0.25, 1.0, 0.0]
    assert got["%r2"].view(np.float32)[:4].tolist() == [0.0, 0.25, 1.0, 0.0]
    assert got["%r3"].view(np.float32)[:3].tolist() == [-1.0, -0.25, -3.0]
    halves = np.resize(np.array([-1.0, 2.0], np.float16), THREADS)
    got = run(
        "fma.rn.relu.f16 %h0, %h1, %h1, %h2;",
        {"%h1": halves, "%h2": np.full(THREADS, -2.0, np.float16)},
    )
    assert got["%h0"].view(np.float16)[:2].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("packed", "kind", "letter"),
    [("f16x2", "f16", "r"), ("bf16x2", "bf16", "r"), ("f32x2", "f32", "d")],
)
@pytest.mark.parametrize("opcode", ["add.rn", "mul.rn", "fma.rn"])
def test_packed_arithmetic_works_on_both_halves(
    opcode: str, packed: str, kind: str, letter: str
) -> None:
    form = FORMATS[kind]
    count = 3 if opcode.startswith("fma") else 2
    columns = [
        [interesting(form, THREADS, seed) for seed in (2 * place, 2 * place + 1)]
        for place in range(count)
    ]
    dtype = np.uint64 if letter == "d" else np.uint32
    inputs = {
        f"%{letter}{place + 1}": np.array(
            [low | high << form.bits for low, high in zip(*pair, strict=True)], dtype
        )
        for place, pair in enumerate(columns)
    }
    got = run(f"{opcode}.{packed} %{letter}0, {', '.join(inputs)};", inputs)[f"%{letter}0"]
    compute: Reference = {  # type: ignore[assignment]  # NumPy's stubs, or a table of many types
        "add": add,
        "mul": multiply,
        "fma": lambda a, b, c: add(multiply(a, b), c),
    }[opcode[:3]]
    for lane in range(THREADS):
        for half in range(2):
            values = [form.decode(pair[half][lane]) for pair in columns]
            result = int(got[lane]) >> half * form.bits & (1 << form.bits) - 1
            assert _same(result, form.encode(compute(*values)), form), (lane, half, values)


def test_packed_constants_reach_both_halves() -> None:
    values = np.full(THREADS, 0x4000_3C00, np.uint32)  # 2.0, 1.0
    got = run("add.f16x2 %r0, %r1, 0x3C003C00;", {"%r1": values})["%r0"]
    assert (got == 0x4200_4000).all()  # 3.0, 2.0


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_packed_integers(opcode: str) -> None:
    a, b = np.full(THREADS, 0x8000_0001, np.uint32), np.full(THREADS, 0x7FFF_FFFF, np.uint32)
    got = run(f"{opcode}.s16x2 %r0, %r1, %r2; {opcode}.u16x2 %r3, %r1, %r2;", {"%r1": a, "%r2": b})
    signed, unsigned = {"min": (0x8000_FFFF, 0x7FFF_0001), "max": (0x7FFF_0001, 0x8000_FFFF)}[
        opcode
    ]
    assert (got["%r0"] == signed).all()
    assert (got["%r3"] == unsigned).all()


def test_vectors_are_packed_low_element_first() -> None:
    low, high = np.arange(THREADS, dtype=np.uint32), np.arange(THREADS, dtype=np.uint32) + 1000
    got = run(
        "mov.b64 %d0, {%r1, %r2}; mov.b64 {%r3, _}, %d0; mov.b64 {_, %r4}, %d0; mov.b32 {%h0, %h1}, %r2;"
        "mov.b64 %d1, {%h0, %h1, %h0, 7}; mov.b128 %q0, {%d0, %d1}; mov.b128 %q1, %q0; mov.b128 {%d2, %d3}, %q1;",
        {"%r1": low, "%r2": high},
    )
    assert (got["%d0"] == (high.astype(np.uint64) << np.uint64(32) | low)).all()
    assert (got["%r3"] == low).all()
    assert (got["%r4"] == high).all()
    assert (got["%h0"] == high.astype(np.uint16)).all()
    assert (
        got["%d1"]
        == (high.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32) | np.uint64(7 << 48))
    ).all()
    assert (got["%d2"] == got["%d0"]).all()
    assert (got["%d3"] == got["%d1"]).all()
