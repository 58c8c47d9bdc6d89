"""What the kernels should compute, in float64, and how far from it they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp32": np.dtype(np.float32),
}
LOG2_E = float(np.log2(np.e))
_BF16_ROUNDING = 2.0**-9


def integers(seed: int, shape: tuple[int, ...], dtype: str, most: int = 3) -> NDArray[np.generic]:
    """Small integers: products of them are exact in float32, so any misplaced element shows."""
    values = np.random.default_rng(seed).integers(-most, most + 1, shape)
    return values.astype(DTYPES[dtype])


def normal(seed: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Normal values in bf16."""
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES["bf16"])


def matmul(a: NDArray[np.generic], b: NDArray[np.generic]) -> Array:
    """`a b`."""
    product: Array = a.astype(np.float64) @ b.astype(np.float64)
    return product


def rounded(values: Array, dtype: str) -> Array:
    """Values as a kernel stores them that has the exact ones in float32."""
    return values.astype(np.float32).astype(DTYPES[dtype]).astype(np.float64)


def attention(
    q: NDArray[np.generic],
    k: NDArray[np.generic],
    v: NDArray[np.generic],
    scale_log2: float,
    *,
    causal: bool,
) -> tuple[Array, Array, Array]:
    """Output `[heads, queries, head]`, its bound, and the log2 of the sum of exponentials.

    The bound: rounding of the output to bf16, and of the probabilities, whose errors add up to at most half a unit of
    the weighted values' magnitudes; twice that for the rest (float32 sums, approximate exponentials).
    """
    q, k, v = (one.astype(np.float64) for one in (q, k, v))
    scores = np.einsum("hqd,hkd->hqk", q, k) * scale_log2
    if causal:
        queries, keys = scores.shape[1:]
        seen = np.arange(keys)[None] <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(seen, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = 2.0 ** (scores - largest)
    norm = weights.sum(-1, keepdims=True)
    out = np.einsum("hqk,hkd->hqd", weights / norm, v)
    magnitude = np.einsum("hqk,hkd->hqd", weights / norm, np.abs(v))
    bound = 2 * _BF16_ROUNDING * (np.abs(out) + magnitude)
    return out, bound, (largest + np.log2(norm))[..., 0]
