"""Conversions and sums, against exact fractions rounded by definition."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import choices, numerics
from mlagen.sim.conversions import FLOAT_TYPES, find_conversion
from tests.sim.alu import THREADS, run
from tests.sim.exact import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    FORMATS,
    Format,
    Value,
    add,
    interesting,
    multiply,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_LETTERS = {16: "h", 32: "r", 64: "d"}
_DTYPES = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _same(got: int, expected: int, form: Format) -> bool:
    return got == expected or (_is_nan(form.decode(got)) and _is_nan(form.decode(expected)))


def _convert(
    opcode: str, columns: list[list[int]], source_bits: int, result_bits: int
) -> list[int]:
    letter = _LETTERS[source_bits]
    inputs = {
        f"%{letter}{index + 1}": np.array(column, _DTYPES[source_bits])
        for index, column in enumerate(columns)
    }
    result = f"%{_LETTERS[result_bits]}0"
    return [int(one) for one in run(f"{opcode} {result}, {', '.join(inputs)};", inputs)[result]]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("f16", "f32"),
        ("bf16", "f32"),
        ("f32", "f64"),
        ("f16", "f64"),
        ("f32", "f16"),
        ("f32", "bf16"),
        ("f64", "f32"),
    ],
)
def test_floats_to_floats(target: str, source: str, mode: str) -> None:
    to, of = FORMATS[target], FORMATS[source]
    is_exact = to.bits > of.bits
    patterns = interesting(of, THREADS, 5)
    if not is_exact:  # values near those of the narrow type, and halfway between two of them
        for index in range(0, THREADS, 2):
            near = to.decode(patterns[index] & (1 << to.bits) - 1)
            if isinstance(near, Fraction):
                step = 1 << max(of.mantissa - to.mantissa - 1, 0)
                patterns[index] = of.encode(near) + step * (index % 4 // 2)
    name = f"cvt.{target}.{source}" if is_exact else f"cvt.{mode}.{target}.{source}"
    got = _convert(name, [patterns], of.bits, to.bits)
    for pattern, result in zip(patterns, got, strict=True):
        expected = to.encode(of.decode(pattern), mode)
        assert _same(result, expected, to), (hex(pattern), hex(result), hex(expected))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
def test_integers_to_floats(target: str, source: str, mode: str) -> None:
    bits, to = int(source[1:]), FORMATS[target]
    generator = np.random.default_rng(bits)
    numbers = generator.integers(0, 1 << 64, THREADS, dtype=np.uint64)
    shifts = generator.integers(64 - bits, 64, THREADS)
    values = [int(one) >> int(shift) for one, shift in zip(numbers, shifts, strict=True)]
    values[:6] = [0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1, (1 << bits - 1) + 1]
    got = _convert(f"cvt.{mode}.{target}.{source}", [values], bits, to.bits)
    for pattern, result in zip(values, got, strict=True):
        number = pattern - (1 << bits) if source[0] == "s" and pattern >> bits - 1 else pattern
        assert result == to.encode(Fraction(number), mode), (number, hex(result))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("source", ["f32", "f64", "f16"])
@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64", "s8", "u8"])
def test_floats_to_integers(target: str, source: str, mode: str) -> None:
    bits, of = int(target[1:]), FORMATS[source]
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
    )
    patterns = interesting(of, THREADS, 6)
    edges = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        2.0**31,
        2.0**63,
        2.0**64,
        -(2.0**31),
        -(2.0**63),
        1e30,
        -1e30,
        65535.5,
    ]
    patterns[: len(edges)] = [of.encode(edge) for edge in edges]
    got = _convert(f"cvt.{mode}.{target}.{source}", [patterns], of.bits, max(bits, 16))
    for pattern, result in zip(patterns, got, strict=True):
        value = of.decode(pattern)
        if _is_nan(value):
            expected = 1 << bits - 1 if source == "f64" or bits == 64 else 0
        elif isinstance(value, float) and math.isinf(value):
            expected = high if value > 0 else low
        else:
            exact = Fraction(value)
            rounding: dict[str, Callable[[Fraction], int]] = {
                "rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil,
            }  # fmt: skip
            expected = max(low, min(high, rounding[mode](exact)))
        mask = (1 << bits) - 1
        assert result & mask == expected & mask, (value, result, expected)


@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("flags", ["rn", "rz", "rn.relu", "rn.satfinite"])
def test_pairs_of_halves_take_the_first_source_high(name: str, flags: str) -> None:
    to = FORMATS[name]
    high, low = interesting(F32, THREADS, 7), interesting(F32, THREADS, 8)
    got = _convert(f"cvt.{flags}.{name}x2.f32", [high, low], 32, 32)
    for result, *sources in zip(got, low, high, strict=True):
        for half, source in enumerate(sources):
            value: Value = F32.decode(source)
            if "relu" in flags and not _is_nan(value) and math.copysign(1, value) < 0:
                value = 0.0
            expected = to.encode(value, flags[:2])
            if (
                "satfinite" in flags
                and not _is_nan(value)
                and expected & 0x7FFF == to.encode(math.inf)
            ):
                expected -= 1
            if _is_nan(value):
                expected = 0x7FFF
            assert result >> 16 * half & 0xFFFF == expected, (value, hex(result), half)


_SMALL = {
    "e4m3": (E4M3, 448.0, 0x7F),
    "e5m2": (E5M2, 57344.0, 0x7F),
    "e2m1": (E2M1, 6.0, E2M1.encode(6.0)),
    "e2m3": (E2M3, 7.5, E2M3.encode(7.5)),
    "e3m2": (E3M2, 28.0, E3M2.encode(28.0)),
}


def _small_bits(value: Value, form: Format, largest: float, nan: int) -> int:
    if _is_nan(value):
        return nan
    sign = 1 << form.bits - 1 if math.copysign(1, value) < 0 else 0
    if abs(float(value)) >= largest:
        return sign | form.encode(Fraction(largest))
    return form.encode(value)


@pytest.mark.parametrize("name", list(_SMALL))
def test_pairs_of_small_floats(name: str) -> None:
    form, largest, nan = _SMALL[name]
    columns = []
    for seed in (9, 10):
        column = interesting(F32, THREADS, seed)
        for index in range(0, THREADS, 2):  # the type's own values, and halfway between them
            near = form.decode(index & (1 << form.bits) - 1)
            if isinstance(near, Fraction):
                column[index] = F32.encode(near) + (index % 4 // 2 << 22 - form.mantissa)
        columns.append(column)
    got = _convert(f"cvt.rn.satfinite.{name}x2.f32", columns, 32, 16)
    step = 4 if name == "e2m1" else 8
    for result, *sources in zip(got, *reversed(columns), strict=True):
        for half, source in enumerate(sources):
            expected = _small_bits(F32.decode(source), form, largest, nan)
            assert result >> step * half & (1 << step) - 1 == expected, (
                F32.decode(source),
                hex(result),
            )


@pytest.mark.parametrize("name", list(_SMALL))
def test_small_floats_back_to_halves(name: str) -> None:
    form, _, _ = _SMALL[name]
    step = 4 if name == "e2m1" else 8
    patterns = [
        index % (1 << form.bits) | (index * 7 + 3) % (1 << form.bits) << step
        for index in range(THREADS)
    ]
    got = _convert(f"cvt.rn.f16x2.{name}x2", [patterns], 16, 32)
    for pattern, result in zip(patterns, got, strict=True):
        for half in range(2):
            value = form.decode(pattern >> step * half & (1 << form.bits) - 1)
            if name == "e4m3" and pattern >> step * half & 0x7F == 0x7F:
                value = math.nan
            assert _same(result >> 16 * half & 0xFFFF, F16.encode(value), F16), (
                hex(pattern),
                hex(result),
            )


def test_halves_to_small_floats_keep_their_places() -> None:
    pair = np.full(THREADS, F16.encode(Fraction(3)) << 16 | F16.encode(Fraction(-1, 2)), np.uint32)
    got = run("cvt.rn.satfinite.e4m3x2.f16x2 %h0, %r1;", {"%r1": pair})["%h0"]
    assert int(got[0]) == E4M3.encode(Fraction(3)) << 8 | E4M3.encode(Fraction(-1, 2))


def test_scales_round_up_or_down_to_powers_of_two() -> None:
    values = np.resize(
        np.array([1.0, 1.5, 2.0**-126, 0.0, 2.0**127, np.nan, 3.4e38], np.float32), THREADS
    )
    got = run("cvt.rz.satfinite.ue8m0x2.f32 %h0, %r1, %r1; cvt.rp.satfinite.ue8m0x2.f32 %h1, %r1, %r1;"
              "cvt.rn.bf16x2.ue8m0x2 %r0, %h0;", {"%r1": values})  # fmt: skip
    down = [int(one) & 255 for one in got["%h0"][:7]]
    up = [int(one) >> 8 for one in got["%h1"][:7]]
    assert down == [127, 127, 1, 0, 254, 255, 254]
    assert up == [127, 128, 1, 0, 254, 255, 254]
    back = [BF16.decode(int(one) & 0xFFFF) for one in got["%r0"][:6]]
    assert back[:5] == [1, 1, Fraction(2) ** -126, Fraction(2) ** -127, 2**127]
    assert _is_nan(back[5])


def test_tf32_keeps_ten_bits_of_fraction() -> None:
    values = [
        F32.encode(Fraction(one)) for one in (1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1.0)
    ]
    source = np.resize(np.array(values, np.uint32), THREADS)
    got = run("cvt.rna.tf32.f32 %r0, %r1;", {"%r1": source})["%r0"].view(np.float32)[:4]
    assert got.tolist() == [1 + 2.0**-10, 1 + 2 * 2.0**-10, -1 - 2.0**-10, 1.0]


def test_rounding_to_integral_floats() -> None:
    values = np.resize(np.array([0.5, 1.5, -0.5, 2.7, np.inf], np.float32), THREADS)
    got = run("cvt.rni.f32.f32 %r0, %r1; cvt.rzi.f32.f32 %r2, %r1; cvt.rmi.f32.f32 %r3, %r1; cvt.rpi.f32.f32 %r4, %r1;",
              {"%r1": values})  # fmt: skip
    floats = {name: got[name].view(np.float32)[:5].tolist() for name in got}
    assert floats["%r0"] == [0.0, 2.0, -0.0, 3.0, math.inf]
    assert floats["%r2"] == [0.0, 1.0, -0.0, 2.0, math.inf]
    assert floats["%r3"] == [0.0, 1.0, -1.0, 2.0, math.inf]
    assert floats["%r4"] == [1.0, 2.0, -0.0, 3.0, math.inf]


@pytest.mark.parametrize(
    "opcode", ["cvt.rs.f16x2.f32", "cvt.rn.e4m3x2.f32", "cvt.rn.f8.f32", "cvt.rn.odd.f16.f32"]
)
def test_unknown_conversions_are_refused(opcode: str) -> None:
    with pytest.raises(UnsupportedPtxError, match="conversion"):
        find_conversion(opcode, 2 if "x2" in opcode else 1)


_BITS_32, _BITS_64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


def _array(pattern: int, dtype: Any, view: Any) -> NDArray[Any]:
    return np.array([pattern], dtype).view(view)


@given(_BITS_32, _BITS_32, _BITS_32)
def test_fma_rounds_once(a: int, b: int, c: int) -> None:
    _check_fma(a, b, c)


@given(st.integers(0, 1 << 23), st.integers(0, 1 << 23), st.integers(1, 40), st.booleans())
def test_fma_near_ties_rounds_once(a: int, b: int, distance: int, negative: bool) -> None:
    # A product with a long fraction, and a tiny third operand that decides a tie of its rounding.
    x, y = 0x3F80_0000 + a, 0x3F80_0000 + (b & ~0xFFF)
    _check_fma(x, y, 0x3F80_0000 - (distance << 23) | negative << 31)


def _check_fma(a: int, b: int, c: int) -> None:
    out = np.zeros(1, np.float32)
    with np.errstate(all="ignore"):
        x, y, z = (_array(one, np.uint32, np.float32) for one in (a, b, c))
        numerics.fma(x, y, z, out)
    values = [F32.decode(one) for one in (a, b, c)]
    expected = F32.encode(add(multiply(values[0], values[1]), values[2]))
    assert _same(int(out.view(np.uint32)[0]), expected, F32)


def _moderate_f64() -> st.SearchStrategy[int]:
    """Bits of float64 whose products neither overflow nor vanish."""
    return st.builds(
        lambda sign, exponent, fraction: sign << 63 | exponent << 52 | fraction,
        st.integers(0, 1), st.integers(1023 - 200, 1023 + 200), st.integers(0, (1 << 52) - 1),
    )  # fmt: skip


@given(_moderate_f64(), _moderate_f64(), _moderate_f64())
def test_fma_of_doubles_rounds_once(a: int, b: int, c: int) -> None:
    out = np.zeros(1, np.float64)
    x, y, z = (_array(one, np.uint64, np.float64) for one in (a, b, c))
    numerics.fma(x, y, z, out)
    values = [F64.decode(one) for one in (a, b, c)]
    assert int(out.view(np.uint64)[0]) == F64.encode(add(multiply(values[0], values[1]), values[2]))


@given(_BITS_64, st.sampled_from(["f16", "bf16", "f32"]), st.sampled_from(["rn", "rz", "rm", "rp"]))
def test_any_double_is_rounded_once(pattern: int, name: str, mode: str) -> None:
    form = FORMATS[name]
    out = np.zeros(1, FLOAT_TYPES[name])
    with np.errstate(all="ignore"):
        numerics.rounded(_array(pattern, np.uint64, np.float64), mode, out)
    bits = int(out.view(f"u{form.bits // 8}")[0])
    assert _same(bits, form.encode(F64.decode(pattern), mode), form)


@given(_BITS_64, _BITS_64)
def test_exact_sums_are_rounded_to_odd(a: int, b: int) -> None:
    values = [F64.decode(one) for one in (a, b)]
    with np.errstate(all="ignore"):
        total = numerics.exact_sum(*(_array(one, np.uint64, np.float64) for one in (a, b)))
    exact = add(*values)
    if not isinstance(exact, Fraction) or abs(exact) >= F64.decode(0x7FE0_0000_0000_0000):
        return
    got = F64.decode(int(total.view(np.uint64)[0]))
    assert got == exact or int(total.view(np.uint64)[0]) & 1


@pytest.mark.parametrize("threads", [1, 2, 128])
@pytest.mark.parametrize("rows", [4, 9, 65])
def test_rows_are_summed_in_their_order(rows: int, threads: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, threads)).astype(np.float32)
    values *= np.float32(2.0) ** np.arange(rows, dtype=np.float32)[::-1, None] % 1000
    expected = values[0].copy()
    for row in values[1:]:
        expected = expected + row
    out = np.zeros(threads, np.float32)
    numerics.sum_of_rows(values, out)
    assert (out == expected).all()
    strided = np.zeros((2 * rows, 3 * threads), np.float32)
    strided[::2, threads : 2 * threads] = values
    numerics.sum_of_rows(strided[::2, threads : 2 * threads], out)
    assert (out == expected).all()


@pytest.mark.parametrize("ufunc", [np.fmin, np.fmax])
def test_extremes_of_rows_know_signed_zeros_and_nan(ufunc: np.ufunc) -> None:
    rows = np.array([[0.0, -0.0, -0.0, np.nan, np.nan], [-0.0, 0.0, -0.0, np.nan, 1.0]], np.float32)
    out = np.zeros(5, np.float32)
    choices.extreme_of_rows(ufunc, rows, out)
    zero = 0.0 if ufunc is np.fmax else -0.0
    assert [math.copysign(1, one) for one in out[:3]] == [
        math.copysign(1, one) for one in (zero, zero, -0.0)
    ]
    assert np.isnan(out[3])
    assert out[4] == 1.0
