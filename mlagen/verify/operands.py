"""What one call computes with, as NumPy arrays: lengths, and values drawn so that they reach a kernel's branches.

Operands are what attention means: one row a token, packed by sequence. `layout.py` puts them where a kernel's spec
says that it looks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

from mlagen.verify.cut_sums import cuts_sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.spec.model import KernelSpec

    Array = NDArray[Any]  # Any: bfloat16 and float16 alike

Values = Literal[
    "random",
    "integer",
    "rising",
    "falling",
    "threshold",
    "huge rising",
    "huge falling",
    "deep rising",
    "leading",
    "towering",
]

# With it, products of Q and K are base-2 logits: 2^integer is exact, and so are the scores of `profiled` values.
EXACT_SCALE = math.log(2.0)
_FAINT_SINK = -200.0
_SMALL_INTEGERS = 3
# Of integers, one in so many counts. Probabilities of 8 bits are exact down to 2^-17 of the largest.
_SPARSITY = {"float8_e4m3fn": 4}
_LARGEST_LOGIT = 60_000.0
# Where sums are cut: those up to 2^13 have neighbours that differ by 1.
_LARGEST_CUT_LOGIT = 8_000.0
# 2^this is not finite in fp32, nor in any narrower type.
_OVERFLOW = 256.0
# Rows that have columns of their own, where each row has logits of its own.
_ROW_PERIOD = 32
_LOGIT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of one call: sequence `i` has `queries[i]` queries on `keys[i]` keys, the first `valid[i]` no padding."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int
    valid: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.queries)


@dataclass(frozen=True, slots=True)
class Operands:
    """Values of one call, packed by sequence.

    Attributes:
        q: `[total_q, H, qk_head_dim]`.
        k_nope: `[total_k, H, qk_nope_head_dim]`.
        k_rope: `[total_k, rope heads, qk_rope_head_dim]`; a fused K has a rope part of its own in every head.
        v: `[total_k, H, v_head_dim]`.
        sinks: float32 `[H]`.
        alibi_slopes: float32 `[H]`.
        bias: float32 `[batch, H, queries, keys]`, NaN where a sequence has none; empty if the spec adds none.
        relative_bias: float32 `[total_q, H, extent]`; empty likewise.
    """

    q: Array
    k_nope: Array
    k_rope: Array
    v: Array
    sinks: Array
    alibi_slopes: Array
    bias: Array
    relative_bias: Array


def fit_lengths(spec: KernelSpec, lengths: Lengths) -> Lengths:
    """The lengths, those that the spec cannot express replaced by the nearest that it can.

    Where no valid lengths are given, those of five sequences are: all keys, half of them, all but one, none, one.
    """
    queries, keys = lengths.queries, lengths.keys
    if spec.q_layout == "dense":
        queries = (max(queries),) * len(queries)
    elif spec.max_seqlen != "dynamic":
        queries = tuple(min(count, spec.max_seqlen) for count in queries)
    if spec.kv.layout == "ragged" and not spec.kv.row_offsets:
        keys = queries
    elif spec.kv.layout == "dense" and not spec.kv.seqlens:
        keys = (max(keys),) * len(keys)
    if spec.kv_length_counts == "prefix":  # this call's own keys come on top
        keys = tuple(q + k for q, k in zip(queries, keys, strict=True))
    valid = lengths.valid
    if not valid:
        valid = tuple(
            (count, count // 2, count - 1, 0, 1)[index % 5] for index, count in enumerate(keys)
        )
    valid = tuple(max(0, min(own, count)) for own, count in zip(valid, keys, strict=True))
    return replace(lengths, queries=queries, keys=keys, valid=valid)


def rope_heads(spec: KernelSpec, heads: int) -> int:
    """Rope heads that share `heads` query heads between them."""
    return heads if spec.k_rope.layout == "fused" else spec.k_rope.num_heads


def draw_operands(
    spec: KernelSpec,
    lengths: Lengths,
    values: Values,
    *,
    tile_n: int,
    rescale_threshold: float,
    random: np.random.Generator,
) -> Operands:
    """Operands in the spec's dtype.

    Args:
        spec: The kernel.
        lengths: As `fit_lengths` returns them.
        values: `random`: normal draws. `integer`: small integers, whose products and sums are exact. The others are
            for calls with EXACT_SCALE: profiles of the base-2 logits along the keys, or `towering`: of each step one
            key, another one for each row, far above all others.
        tile_n: Keys of a step, by which profiles move.
        rescale_threshold: Base-2 logits around which `threshold` moves.
        random: Where draws come from.
    """
    operands = _draw_plain(spec, lengths, random, is_integer=values == "integer")
    if values == "towering":
        return _with_towers(operands, lengths, tile_n)
    profile = _PROFILES.get(values)
    if profile is None:
        return operands
    if values == "leading":  # what is missing shows where nothing cancels
        operands = replace(operands, v=np.abs(operands.v))
    key = np.concatenate([np.arange(count) for count in (*lengths.keys, 0)])
    largest = _LARGEST_CUT_LOGIT if cuts_sums(spec) else _LARGEST_LOGIT
    return _with_logits(operands, profile(key, tile_n, rescale_threshold, largest))


def _draw_plain(
    spec: KernelSpec, lengths: Lengths, random: np.random.Generator, *, is_integer: bool
) -> Operands:
    """Normal draws, or small integers."""
    geometry, heads = spec.geometry, lengths.heads
    dtype = np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))

    def draw(*shape: int, sparse: bool = False) -> Array:
        if not is_integer:
            return random.standard_normal(shape, dtype=np.float32).astype(dtype)
        if sparse:  # so that logits of hundreds of columns stay small
            drawn = random.integers(-1, 1, shape, endpoint=True)
            drawn *= random.integers(0, _SPARSITY.get(spec.dtype, 2), shape) == 1
        else:
            drawn = random.integers(-_SMALL_INTEGERS, _SMALL_INTEGERS, shape, endpoint=True)
        return drawn.astype(dtype)

    total_q, total_k = sum(lengths.queries), sum(lengths.keys)
    return Operands(
        q=draw(total_q, heads, geometry.qk_head_dim, sparse=True),
        k_nope=draw(total_k, heads, geometry.qk_nope_head_dim, sparse=True),
        k_rope=draw(total_k, rope_heads(spec, heads), geometry.qk_rope_head_dim, sparse=True),
        v=draw(total_k, heads, geometry.v_head_dim),
        # Among integers one that even alone is nothing in fp32, so that a row without keys divides by 0.
        sinks=np.full(heads, _FAINT_SINK, np.float32)
        if is_integer
        else random.standard_normal(heads, dtype=np.float32),
        alibi_slopes=0.3 * np.abs(random.standard_normal(heads, dtype=np.float32)),
        bias=_draw_bias(spec, lengths, random),
        relative_bias=_draw_relative_bias(spec, lengths, random),
    )


def _draw_bias(spec: KernelSpec, lengths: Lengths, random: np.random.Generator) -> Array:
    """A bias of its own for each score that its rank can tell apart; one in eight is -inf, and one row of all keys."""
    ranks = [mod.rank for mod in spec.score_mods if mod.kind == "bias"]
    if not ranks:
        return np.zeros((0, 0, 0, 0), np.float32)
    batch = lengths.batch if ranks[0] > 2 else 1
    heads = lengths.heads if ranks[0] > 3 else 1
    shape = (batch, heads, max(lengths.queries), max(lengths.keys))
    bias = 2 * random.standard_normal(shape, dtype=np.float32)
    bias[random.integers(0, 8, shape) == 0] = -np.inf
    bias[0, 0, :1] = -np.inf
    if ranks[0] > 2:
        for own, queries, keys in zip(bias, lengths.queries, lengths.keys, strict=True):
            own[:, queries:], own[..., keys:] = np.nan, np.nan
    return bias


def _draw_relative_bias(spec: KernelSpec, lengths: Lengths, random: np.random.Generator) -> Array:
    """A number for each query, head and distance; one in eight is -inf."""
    extents = [mod.extent for mod in spec.score_mods if mod.kind == "relative_bias"]
    if not extents:
        return np.zeros((0, 0, 0), np.float32)
    shape = (sum(lengths.queries), lengths.heads, extents[0])
    bias = 2 * random.standard_normal(shape, dtype=np.float32)
    bias[random.integers(0, 8, shape) == 0] = -np.inf
    return bias


def _with_logits(operands: Operands, logits: NDArray[np.float64]) -> Operands:
    """The operands with Q and K replaced by ones whose product is exactly `logits[key]` for each query and head."""
    q, k = np.zeros_like(operands.q), np.zeros_like(operands.k_nope)
    split = _in_digits if q.itemsize == 1 else _in_bytes
    for column, (weight, part) in enumerate(split(logits)):
        q[..., column] = weight
        k[..., column] = part[:, None].astype(k.dtype)
    return replace(operands, q=q, k_nope=k, k_rope=np.zeros_like(operands.k_rope))


def _with_towers(operands: Operands, lengths: Lengths, tile_n: int) -> Operands:
    """The operands with Q and K replaced by ones whose product is 0, but for one key of each step and row.

    If a row's maximum lacks this key, its exponential overflows. Half of the rows of a warp grow with every step, from
    the last one to the first; the others fall. In four steps such keys lie at all places of a step of up to 128 keys.
    """
    query = np.concatenate([np.arange(count) for count in (*lengths.queries, 0)])
    key = np.concatenate([np.arange(count) for count in (*lengths.keys, 0)])[:, None]
    step, place = key // tile_n, key % tile_n
    row = np.arange(_ROW_PERIOD)
    rises = row < _ROW_PERIOD // 2
    height = np.where(rises, step.max(initial=0) - step, step) + 1
    q, k = np.zeros_like(operands.q), np.zeros_like(operands.k_nope)
    q[np.arange(query.size), :, query % _ROW_PERIOD] = _OVERFLOW
    towers = np.where((4 * row + step) % tile_n == place, height, 0)
    k[..., :_ROW_PERIOD] = towers[:, None].astype(k.dtype)
    return replace(operands, q=q, k_nope=k, k_rope=np.zeros_like(operands.k_rope))


def _in_bytes(logits: NDArray[np.float64]) -> list[tuple[float, NDArray[np.float64]]]:
    """256 a + b + c with integers a and b of at most 8 bits and a fraction c: exact in bfloat16 and float16."""
    high = np.round(logits / 256)
    low = np.round(logits - 256 * high)
    return [(256.0, high), (1.0, low), (1.0, logits - 256 * high - low)]


def _in_digits(logits: NDArray[np.float64]) -> list[tuple[float, NDArray[np.float64]]]:
    """Multiples of 1/16 as sums of a digit up to 8 times a power of 16, which both factors share: exact in e4m3."""
    parts = []
    rest = logits * 16
    for power in range(_LOGIT_DIGITS):
        digit = rest - 16 * np.round(rest / 16)
        rest = (rest - digit) / 16
        weight = min(16.0 ** (power - 1), 256.0)
        parts.append((weight, digit * (16.0 ** (power - 1) / weight)))
    return parts


# Base-2 logit of key j, given the keys n of a step, the threshold t of the kernel and the largest logit m.
_PROFILES: dict[str, Callable[[NDArray[Any], int, float, float], NDArray[np.float64]]] = {
    "rising": lambda j, n, t, m: 20.0 * (j // n),
    "falling": lambda j, n, t, m: -20.0 * (j // n),
    # Just under the threshold, then just over it: visited from the last key to the first.
    "threshold": lambda j, n, t, m: np.where(j // n % 2, t + 0.25, t - 0.25) * -(j // n),
    "huge rising": lambda j, n, t, m: np.where(j < n, -m, m - j % 3),
    "huge falling": lambda j, n, t, m: np.where(j < n, m - j % 3, -m),
    # The largest are so far below 0 that 2^-logit overflows.
    "deep rising": lambda j, n, t, m: np.where(j < n, -m, -_OVERFLOW - j % 3),
    # Each of the others weighs little, all of them half: probabilities of 8 bits need their scaling.
    "leading": lambda j, n, t, m: np.where(j == 3, 10.0, j % 4 / -4),
}
