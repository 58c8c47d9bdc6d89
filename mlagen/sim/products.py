"""How tensor cores add up: `D = A B + C` with the precision of each mode.

    f32       products exact, summed in float32, then added to C: the order of summation is NumPy's
    f64       everything in float64, rounded once
    truncate  products and C aligned to the largest of them, cut to 25 bits behind its leading one, added exactly, and
              cut to float32
    fp22      the same with 13 bits, for 8-bit floats on sm_90a: on an H200 addends 2^-16 of the largest vanished one
              by one, before they were summed; 13 bits are what DeepSeek-V3 (arXiv 2412.19437, section 3.5.2) reports
    hardware  what comes nearest: fp22 for 8-bit floats on sm_90a, f32 for all else

The spread between modes is the tolerance that is due to summation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Accumulation = Literal["hardware", "f32", "f64", "truncate", "fp22"]

_FP22_BITS = 13
_TRUNCATED_BITS = 25
_FLOAT32_BITS = 23


def multiply_add(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, mode: Accumulation
) -> NDArray[Any]:
    """`a @ b.T + c` for floats.

    Args:
        a: `[m, k]` float32.
        b: `[n, k]` float32.
        c: `[m, n]` float32; None for zeros.
        mode: Anything but `hardware`.
    """
    if mode == "f32":
        product: NDArray[Any] = a @ b.T
        return product if c is None else np.add(product, c, out=product)
    if mode == "f64":
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        return (exact if c is None else exact + c).astype(np.float32)
    if mode == "fp22":
        return _cut_bits(_aligned_sum(a, b, c, _FP22_BITS, np.float32))
    return _toward_zero(_aligned_sum(a, b, c, _TRUNCATED_BITS, np.float64))


def multiply_add_integers(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, *, saturate: bool
) -> NDArray[np.int32]:
    """`a @ b.T + c` for bytes, in s32: wrapping, or with the ends of its range."""
    # float64 holds every sum of products of bytes exactly, and NumPy multiplies it faster than integers.
    exact = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.int64)
    if c is not None:
        exact += c
    if saturate:
        exact = exact.clip(-(1 << 31), (1 << 31) - 1)
    return exact.astype(np.int32)


def _aligned_sum(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, bits: int, dtype: Any
) -> NDArray[Any]:
    """The sum of products and c, each cut to a multiple of 2^-bits of the largest one's leading bit.

    Args:
        a: `[m, k]`.
        b: `[n, k]`.
        c: `[m, n]`.
        bits: Kept behind the leading bit.
        dtype: Floats that hold the sum exactly. Any: a NumPy type.
    """
    terms = a.T.astype(dtype)[:, :, None] * b.T.astype(dtype)[:, None, :]
    if c is not None:
        terms = np.concatenate([terms, c.astype(dtype)[None]])
    largest = np.abs(terms).max(axis=0)
    quantum = np.frexp(np.where(np.isfinite(largest), largest, 1))[1] - 1 - bits
    cut = np.ldexp(np.trunc(np.ldexp(terms, -quantum)).sum(axis=0), quantum)
    total: NDArray[Any] = np.where(np.isfinite(largest), cut, terms.sum(axis=0))
    return total


def _cut_bits(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 with the mantissa bits of fp22 only."""
    mask = np.uint32(0xFFFFFFFF << (_FLOAT32_BITS - _FP22_BITS) & 0xFFFFFFFF)
    return np.where(
        np.isfinite(values), (values.view(np.uint32) & mask).view(np.float32), values
    ).astype(np.float32)


def _toward_zero(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Float64 to float32, rounded toward zero."""
    rounded = values.astype(np.float32)
    too_large = np.abs(rounded.astype(np.float64)) > np.abs(values)
    return np.where(too_large, np.nextafter(rounded, np.float32(0)), rounded)
