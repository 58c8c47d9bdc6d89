"""Integer and bit opcodes, one row each, against Python integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.sim.alu import THREADS, execute, run, width_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Any: a reference takes as many integers or values as its instruction has sources.
Reference = Callable[..., Any]


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
    return _signed(pattern, width_of(kind)) if kind[0] == "s" else pattern


def _shift_right(a: int, b: int, bits: int) -> int:
    return a >> min(b, bits)


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _amount(amount: int, bits: int) -> int:
    """The low byte; of 64-bit fields an H200 takes all of it."""
    return amount & 255 if bits == 32 else min(amount, 255)


def _field(a: int, position: int, length: int, kind: str) -> int:
    bits = width_of(kind)
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
        bits = width_of(kind)
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
        bits = width_of(kind)
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
    return value & (1 << width_of(kind)) - 1


def _limits(kind: str) -> tuple[int, int]:
    bits = width_of(kind)
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
            else _integers(width_of(kind), seed),
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
    got = execute(opcode, columns, result)
    mask = (1 << width_of(result)) - 1
    for lane in range(THREADS):
        arguments = [_read(values[lane], kind) for kind, values in columns]
        expected = int(reference(*arguments)) & mask
        assert got[lane] == expected, (opcode, lane, arguments, hex(got[lane]), hex(expected))


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


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_packed_integers(opcode: str) -> None:
    a, b = np.full(THREADS, 0x8000_0001, np.uint32), np.full(THREADS, 0x7FFF_FFFF, np.uint32)
    got = run(f"{opcode}.s16x2 %r0, %r1, %r2; {opcode}.u16x2 %r3, %r1, %r2;", {"%r1": a, "%r2": b})
    signed, unsigned = {"min": (0x8000_FFFF, 0x7FFF_0001), "max": (0x7FFF_0001, 0x8000_FFFF)}[
        opcode
    ]
    assert (got["%r0"] == signed).all()
    assert (got["%r3"] == unsigned).all()


def _wide(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> list[int]:
    return [int(one) << 32 | int(other) for one, other in zip(high, low, strict=True)]


def test_extended_precision() -> None:
    names = [f"%r{index}" for index in range(1, 5)]
    inputs = {name: np.array(_integers(32, seed), np.uint32) for seed, name in enumerate(names)}
    got = run(
        """add.cc.u32 %r5, %r1, %r3; addc.cc.u32 %r6, %r2, %r4; addc.u32 %r7, 0, 0;
        sub.cc.s32 %r8, %r1, %r3; subc.cc.s32 %r9, %r2, %r4; subc.s32 %r10, 0, 0;
        mad.lo.cc.u32 %r11, %r1, %r3, %r2; madc.hi.u32 %r12, %r1, %r3, %r4;""",
        inputs,
    )
    a, b = _wide(inputs["%r2"], inputs["%r1"]), _wide(inputs["%r4"], inputs["%r3"])
    mask = (1 << 64) - 1
    assert _wide(got["%r6"], got["%r5"]) == [x + y & mask for x, y in zip(a, b, strict=True)]
    assert got["%r7"].tolist() == [x + y >> 64 for x, y in zip(a, b, strict=True)]
    assert _wide(got["%r9"], got["%r8"]) == [x - y & mask for x, y in zip(a, b, strict=True)]
    assert got["%r10"].tolist() == [0xFFFF_FFFF * (x < y) for x, y in zip(a, b, strict=True)]
    added = _wide(inputs["%r4"], inputs["%r2"])
    products = [int(x) * int(y) for x, y in zip(inputs["%r1"], inputs["%r3"], strict=True)]
    assert _wide(got["%r12"], got["%r11"]) == [
        x + y & mask for x, y in zip(products, added, strict=True)
    ]
