"""The sum that a Hopper tensor core makes of products and an accumulator, to the last bit.

Found by asking an H200 (`docs/validation.md`), where it agrees with every product that was recorded:

1. The exponent of a product is the sum of its factors' exponents, a denormal's being that of the smallest normal.
2. All products of one instruction and the accumulator are aligned to the largest exponent among them, and cut to
   multiples of 2^-25 of it; of 2^-13 for 8-bit floats. Cutting is toward zero.
3. What is left is added without error.
4. The sum becomes float32 by cutting toward zero, with 13 bits behind the leading one for 8-bit floats; or float16 by
   rounding to nearest even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOWEST = {"bf16": -126, "tf32": -126, "f32": -126, "f16": -14, "e5m2": -14, "e4m3": -6}
_NOTHING = -8192  # the exponent of zero; two of them fit into 16 bits
_BITS, _BITS_OF_BYTES = 25, 13
_SAFE = (-100, 120)  # largest exponents with which float32 holds all products, as far as they count
_TERMS = 8  # below 2^28 each, so that 32 bits hold their sum
_F32_FRACTION, _F64_FRACTION = 23, 52


def aligned_sum(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, a_type: str, b_type: str, d_type: str
) -> NDArray[np.float32]:
    """`a @ b.T + c` for floats.

    Args:
        a: `[m, k]` float32, with values of `a_type`.
        b: `[n, k]` float32.
        c: `[m, n]` float32, with values of `d_type`; None for zeros.
        a_type: `bf16`, `f16`, `tf32`, `e4m3` or `e5m2`.
        b_type: The same kind.
        d_type: `f32` or `f16`.
    """
    finite = all(part is None or np.isfinite(part).all() for part in (a, b, c))
    if finite:
        return _finite_sum(a, b, c, (a_type, b_type, d_type))
    with np.errstate(invalid="ignore"):
        plain = a.astype(np.float64) @ b.T.astype(np.float64)
        plain = plain if c is None else plain + c
    parts = [None if part is None else np.where(np.isfinite(part), part, 0) for part in (a, b, c)]
    assert parts[0] is not None
    assert parts[1] is not None
    found = _finite_sum(parts[0], parts[1], parts[2], (a_type, b_type, d_type))
    return np.where(np.isfinite(plain), found, plain).astype(np.float32)


def _finite_sum(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, types: tuple[str, str, str]
) -> NDArray[np.float32]:
    a_type, b_type, d_type = types
    is_bytes = a_type in {"e4m3", "e5m2"}
    bits = _BITS_OF_BYTES if is_bytes else _BITS
    a, b = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    largest = _largest_exponents(_exponents(a, a_type), _exponents(b, b_type))
    if c is not None:
        np.maximum(largest, _exponents(c, d_type), out=largest)
    np.maximum(largest, 2 * _LOWEST["f32"], out=largest)
    is_safe = largest.min() >= _SAFE[0] and largest.max() <= _SAFE[1]
    dtype = np.float32 if is_safe else np.float64
    total = _sum_of_cut_terms(a.astype(dtype), b.astype(dtype), c, _power(bits - largest, dtype))
    total *= _power(largest - bits, np.float64)
    if d_type == "f16":
        with np.errstate(over="ignore"):
            return total.astype(np.float16).astype(np.float32)
    return _cut(total, _BITS_OF_BYTES if is_bytes else _F32_FRACTION)


def _exponents(values: NDArray[Any], kind: str) -> NDArray[np.int16]:
    """Of float32 values of a type, as its bits show them."""
    field = (values.astype(np.float32, copy=False).view(np.uint32) >> 23 & 0xFF).astype(np.int16)
    found = np.maximum(field - 127, _LOWEST[kind])
    return np.where(values == 0, np.int16(_NOTHING), found).astype(np.int16)


def _largest_exponents(a: NDArray[np.int16], b: NDArray[np.int16]) -> NDArray[np.int16]:
    """`[m, n]` of the products of `[k, m]` and `[k, n]`."""
    largest = np.full((a.shape[1], b.shape[1]), 2 * _NOTHING, np.int16)
    one = np.empty_like(largest)
    for column, row in zip(a, b, strict=True):
        np.add(column[:, None], row, out=one)
        np.maximum(largest, one, out=largest)
    return largest


def _power(exponents: NDArray[np.int16], dtype: Any) -> NDArray[Any]:  # Any: a NumPy type
    """2 to the exponents, which are those of normal numbers."""
    if dtype is np.float32:
        return (exponents.astype(np.int32) + 127 << _F32_FRACTION).view(np.float32)
    return (exponents.astype(np.int64) + 1023 << _F64_FRACTION).view(np.float64)


def _sum_of_cut_terms(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, scale: NDArray[Any]
) -> NDArray[np.float64]:
    """Products of `[k, m]` and `[k, n]` and c, each in whole units of `1 / scale`, toward zero."""
    product, whole = np.empty_like(scale), np.empty(scale.shape, np.int32)
    total = np.zeros(scale.shape) if c is None else np.trunc(c * scale).astype(np.float64)
    for start in range(0, len(a), _TERMS):
        part = np.zeros(scale.shape, np.int32)
        for column, row in zip(a[start : start + _TERMS], b[start : start + _TERMS], strict=True):
            np.multiply(column[:, None], row, out=product)
            np.multiply(product, scale, out=product)
            np.copyto(whole, product, casting="unsafe")  # toward zero
            np.add(part, whole, out=part)
        total += part
    return total


def _cut(values: NDArray[np.float64], fraction_bits: int) -> NDArray[np.float32]:
    """Float64 with few bits behind the leading one, as float32; infinite if it is too large."""
    mask = np.int64(-1) << np.int64(_F64_FRACTION - fraction_bits)
    cut = (values.view(np.int64) & mask).view(np.float64)
    tiny = np.abs(cut) < np.finfo(np.float32).tiny
    if tiny.any():  # denormals have fewer bits
        unit = np.float64(np.finfo(np.float32).smallest_subnormal)
        cut = np.where(tiny, np.trunc(cut / unit) * unit, cut)
    with np.errstate(over="ignore"):
        return cut.astype(np.float32)
