"""How tensor cores add up: `D = A B + C` with the precision of each mode.

    fast      hardware for 8-bit floats on sm_90a, where it matters, f32 for all else
    hardware  as an H200 does, to the last bit (`tensor_core_sum`); f32 on sm_100a, of which nothing is known
    f32       products exact, summed in float32, then added to C: the order of summation is NumPy's
    f64       everything in float64, rounded once

The spread between modes is the tolerance that is due to summation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Accumulation = Literal["fast", "hardware", "f32", "f64"]


def multiply_add(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any] | None, mode: Literal["f32", "f64"]
) -> NDArray[Any]:
    """`a @ b.T + c` for floats.

    Args:
        a: `[m, k]` float32.
        b: `[n, k]` float32.
        c: `[m, n]` float32; None for zeros.
        mode: `f32` or `f64`.
    """
    if mode == "f32":
        product: NDArray[Any] = a @ b.T
        return product if c is None else np.add(product, c, out=product)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    return (exact if c is None else exact + c).astype(np.float32)


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
