"""Floating-point arithmetic as the hardware rounds it, on arrays; results are written to the last argument.

Approximate instructions give the correctly rounded result, from float64; those of `special_functions.py` do better.
NaNs are whatever NumPy makes of them, but conversions give the canonical NaN of their type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# Any: arrays of whatever type the caller's view has.
Array = NDArray[Any]
Call = Callable[..., None]

_EXPONENT = np.uint32(0x7F80_0000)
_SIGN = np.uint32(0x8000_0000)
_BF16_NAN = 0x7FFF
_LOW_OF_F64 = np.uint64((1 << 29) - 1)
_HALF_OF_F32 = np.uint64(1 << 28)


def to_odd(total: Array, error: Array) -> Array:
    """A float64 sum rounded to odd, so that rounding it again is rounding once.

    Args:
        total: The sum, rounded to nearest.
        error: What that left over; its sign alone matters.

    Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
    """
    even = (np.asarray(total).view(np.uint64) & np.uint64(1)) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(even & (error != 0) & np.isfinite(total), np.nextafter(total, towards), total)


def sum_error(a: Array, b: Array, total: Array) -> Array:
    """What `total`, the float64 nearest to `a + b`, leaves over, exactly (Knuth's TwoSum)."""
    back = total - a
    error: Array = (a - (total - back)) + (b - back)
    return error


def exact_sum(a: Array, b: Array) -> Array:
    """`a + b` in float64, rounded to odd."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    total = a + b
    return to_odd(total, sum_error(a, b, total))


def fma_f32(a: Array, b: Array, c: Array, out: Array) -> None:
    """`a * b + c`, rounded once: the product is exact in float64; sums that might round twice are looked at again."""
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    if ((total.view(np.uint64) & _LOW_OF_F64) == _HALF_OF_F32).any():
        total = exact_sum(product, c)
    out[...] = total


def _fma_f64(a: Array, b: Array, c: Array, out: Array) -> None:
    """`a * b + c` in float64, rounded once (Boldo and Melquiond; Veltkamp's splitting for the product)."""
    high = a * b
    low = _product_error(a, b, high)
    upper = low + c
    lower = sum_error(low, c, upper)
    total = high + upper
    rest = sum_error(high, upper, total)
    result = total + to_odd(rest + lower, sum_error(rest, lower, rest + lower))
    unlimited = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, high + c)
    out[...] = np.where(np.isfinite(result), result, unlimited)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    splitter = float((1 << 27) + 1)
    a_high = a * splitter - (a * splitter - a)
    b_high = b * splitter - (b * splitter - b)
    a_low, b_low = a - a_high, b - b_high
    error: Array = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return error


def _fma_small(a: Array, b: Array, c: Array, out: Array) -> None:
    """For f16 and bf16: products are exact in float64."""
    total = exact_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
    narrow(total, out)


def fma(a: Array, b: Array, c: Array, out: Array) -> None:
    """`fma.rn` of any type."""
    _FMA[out.dtype](a, b, c, out)


_FMA: dict[np.dtype[Any], Call] = {
    np.dtype(np.float32): fma_f32,
    np.dtype(np.float64): _fma_f64,
    np.dtype(np.float16): _fma_small,
    np.dtype(ml_dtypes.bfloat16): _fma_small,
}


def narrow(values: Array, out: Array) -> None:
    """Round float64 values to the type of `out`, once."""
    if out.dtype != ml_dtypes.bfloat16:
        out[...] = values
        return
    near = values.astype(
        np.float32
    )  # ml_dtypes rounds float64 to float32 on its way: let that be to odd
    error = values - near
    even = (near.view(np.uint32) & np.uint32(1)) == 0
    towards = np.where(error > 0, np.float32(np.inf), np.float32(-np.inf))
    odd = np.where(even & (error != 0) & np.isfinite(near), np.nextafter(near, towards), near)
    out[...] = odd.astype(ml_dtypes.bfloat16)


def rounded(values: Array, mode: str, out: Array) -> None:
    """Round float64 values, themselves exact or rounded to odd, to the type of `out`.

    Args:
        values: The values.
        mode: `rn`, `rna` (ties away from zero), `rz`, `rm` or `rp`.
        out: Takes them.
    """
    if mode == "rn" or out.dtype == np.float64:
        narrow(values, out)
        return
    near = np.empty(out.shape, out.dtype)
    narrow(values, near)
    back = near.astype(np.float64)
    if mode == "rna":
        middle = (
            back + np.nextafter(near, (2 * values - back).astype(near.dtype)).astype(np.float64)
        ) / 2
        away = (middle == values) & (np.abs(back) < np.abs(values))
        towards = np.copysign(np.inf, values)
    elif mode == "rz":
        away = np.abs(back) > np.abs(values)
        towards = np.zeros_like(back)
    else:
        away = back > values if mode == "rm" else back < values
        towards = np.full_like(back, -np.inf if mode == "rm" else np.inf)
    out[...] = np.where(away, np.nextafter(near, towards.astype(near.dtype)), near)


@functools.cache
def with_rounding(operation: str, mode: str) -> Call:
    """`add`, `sub`, `mul`, `fma` of f32 with directed rounding."""

    def call(*arguments: Array) -> None:
        *sources, out = arguments
        a, b, *rest = (source.astype(np.float64) for source in sources)
        if operation == "mul":
            rounded(a * b, mode, out)
            return
        if operation == "fma":
            a, b = a * b, rest[0]
        elif operation == "sub":
            b = -b
        exact = exact_sum(a, b)
        rounded(exact, mode, out)
        if mode == "rm":  # numbers that cancel leave -0
            positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
            np.copyto(out, np.float32(-0.0), where=(exact == 0) & ~positive)

    return call


_FLUSHED: dict[np.dtype[Any], tuple[Any, int, int]] = {  # Any: a NumPy type
    np.dtype(np.float32): (np.uint32, int(_EXPONENT), int(_SIGN)),
    np.dtype(np.float16): (np.uint16, 0x7C00, 0x8000),
    np.dtype(ml_dtypes.bfloat16): (np.uint16, 0x7F80, 0x8000),
}


def flushed(values: Array) -> Array:
    """The values, with f32, f16 and bf16 subnormals replaced by zeros of their sign; others as they are."""
    if values.dtype not in _FLUSHED:
        return values
    unsigned, exponent, sign = _FLUSHED[values.dtype]
    bits = values.view(unsigned)
    flat: Array = np.where((bits & unsigned(exponent)) == 0, bits & unsigned(sign), bits)
    return flat.view(values.dtype)


@functools.cache
def flush_to_zero(call: Call, results: int = 1) -> Call:
    """`.ftz`: subnormal f32, f16 and bf16 sources and results count as zeros."""

    def flush(*arguments: Array) -> None:
        sources = [flushed(a) for a in arguments[: -results or None]]
        outs = arguments[-results:]
        call(*sources, *outs)
        for out in outs:
            if out.dtype in _FLUSHED:
                out[...] = flushed(out)

    return flush


@functools.cache
def flush_product_to_zero(call: Call) -> Call:
    """`.ftz` of `mul` and `fma`: what is subnormal before it is rounded becomes zero (seen on an H200)."""
    flush = flush_to_zero(call)

    def product(*arguments: Array) -> None:
        flush(*arguments)
        out = arguments[-1]
        if out.dtype not in _FLUSHED:
            return
        smallest = np.finfo(out.dtype).smallest_normal
        if not (np.abs(out) == smallest).any():
            return
        a, b, *rest = (flushed(one).astype(np.float64) for one in arguments[:-1])
        exact = exact_sum(a * b, rest[0]) if rest else a * b
        tiny = (np.abs(out) == smallest) & (np.abs(exact) < smallest)
        out[...] = np.where(tiny, np.copysign(out.dtype.type(0), out), out)

    return product


@functools.cache
def saturate(call: Call) -> Call:
    """`.sat`: the result is clamped to [0, 1]; NaN becomes 0."""

    def clamp(*arguments: Array) -> None:
        call(*arguments)
        out = arguments[-1]
        one, zero = out.dtype.type(1), out.dtype.type(0)
        out[...] = np.where(out > one, one, np.where(out > zero, out, zero))

    return clamp


@functools.cache
def relu(call: Call) -> Call:
    """`.relu`: negative results and -0 become 0; NaN stays, canonical."""

    def clamp(*arguments: Array) -> None:
        call(*arguments)
        out = arguments[-1]
        out[...] = np.where(out <= out.dtype.type(0), out.dtype.type(0), out)

    return clamp


@functools.cache
def through_f64(function: Callable[[Array], Array]) -> Call:
    """A function of one argument, evaluated in float64 and rounded."""

    def call(a: Array, out: Array) -> None:
        narrow(function(a.astype(np.float64)), out)

    return call


def reciprocal_square_root(a: Array) -> Array:
    """`1 / sqrt(a)`."""
    result: Array = 1 / np.sqrt(a)
    return result


def div_approx_f32(a: Array, b: Array, out: Array) -> None:
    """`div.approx.f32`: a divisor beyond 2^126 gives 0 (PTX ISA 9.7.3.8)."""
    quotient = np.divide(a, b)
    huge = np.abs(b) > np.float32(2.0**126)
    lost = np.where(np.isfinite(a), np.float32(0), np.float32(np.nan))
    out[...] = np.where(huge & np.isfinite(b), lost, quotient)


@functools.cache
def canonical_nan(dtype: np.dtype[Any]) -> Array:
    """The NaN that the hardware makes: all bits but the sign."""
    bits = dtype.itemsize * 8
    return np.array((1 << (bits - 1)) - 1, f"u{bits // 8}").view(dtype)


def sum_of_rows(rows: Array, out: Array) -> None:
    """A chain of `add`: rows are added one after the other, in their order, each sum rounded."""
    if rows.shape[-1] > 1:
        np.add.reduce(rows, axis=0, out=out)
    else:  # NumPy would add a single column pairwise
        out[...] = np.add.accumulate(rows, 0)[-1]


# --- Packed conversions


def to_bf16_bits(values: Array) -> Array:
    """f32 values rounded to nearest even as the bits of bfloat16."""
    bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    lost = values != values
    if lost.any():
        bits = np.where(lost, np.uint16(_BF16_NAN), bits)
    return bits


def to_f16_bits(values: Array) -> Array:
    """f32 values rounded to nearest even as the bits of float16."""
    bits = values.astype(np.float16).view(np.uint16)
    lost = values != values
    if lost.any():
        bits = np.where(lost, np.uint16(_BF16_NAN), bits)
    return bits
