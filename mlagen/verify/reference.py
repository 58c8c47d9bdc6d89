"""Attention in float64, written from the definition of the options and of nothing else.

    score[q, k]  = softmax_scale * Q[q] . K[k], then the score mods in order; natural-log units
    weight[q, k] = exp(score[q, k])  where the mask lets q see k, else 0
    out[q]       = sum_k weight[q, k] V[k] / (sum_k weight[q, k] + exp(sink))
    lse[q]       = log sum_k weight[q, k]                      without the sink

Query i of a sequence with n queries and m keys stands at position i + m - n: the last query sees
the last key (bottom-right).
A row that sees no key has output 0 and LSE -inf. Key rows and cache slots that belong to no
sequence are never touched. `sequences.py` says what offsets and lengths mean that no caller should
give; rows of a page that does not exist are 0.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from mlagen.errors import UnsupportedError
from mlagen.verify.arrays import Array, Backend, backend_of
from mlagen.verify.sequences import sequences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlagen.spec.mask import Mask
    from mlagen.spec.model import KernelSpec
    from mlagen.spec.score_mod import ScoreMod
    from mlagen.verify.sequences import Sequence

# Scores held at once: 2^26 float64 are 512 MiB, and as much again for each temporary.
BLOCK_SCORES = 2**26


def reference(
    spec: KernelSpec,
    tensors: Mapping[str, Array],
    *,
    softmax_scale: float | None = None,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Array, Array]:
    """The exact output and LSE of one call.

    Args:
        spec: What to compute; architecture, dtype and config do not matter.
        tensors: NumPy arrays or torch tensors of any float dtype under the canonical names of
            `run`. Lengths and page ids are read on the host, which synchronises.
        softmax_scale: Overrides the geometry's own scale.
        q_scale: By which stored values of q are multiplied.
        k_scale: Likewise of k, rope part included.
        v_scale: Likewise of v.

    Returns:
        `out` `[total_q, H, v_head_dim]` or `[batch, seqlen_q, H, v_head_dim]` and `lse` without the
        last dimension, float64.
        Rows of `out` that belong to no sequence are 0, their LSE is -inf.
    """
    queries = _queries(spec, tensors)
    ops = backend_of(queries)
    scale = spec.geometry.softmax_scale if softmax_scale is None else softmax_scale
    scale *= q_scale * k_scale
    flat_q = queries.reshape(-1, *queries.shape[-2:])
    rows, num_heads = int(flat_q.shape[0]), int(flat_q.shape[1])
    out = ops.zeros((rows, num_heads, int(tensors["v"].shape[-1])))
    lse = ops.full((rows, num_heads), float("-inf"))
    for sequence in sequences(spec, tensors, ops):
        keys, values = _keys_and_values(spec, tensors, sequence, num_heads, ops)
        scorer = _Scorer(spec, tensors, sequence, scale, ops)
        for first_head, last_head, first, last in _blocks(sequence, num_heads):
            heads = slice(first_head, last_head)
            here = slice(sequence.first_query + first, sequence.first_query + last)
            block_q = ops.permute(ops.float64(flat_q[here, heads]), (1, 0, 2))
            scores, visible = scorer.scores(block_q, keys[heads], heads, first, last)
            block_out, block_lse = _softmax(
                scores, visible, values[heads] * v_scale, scorer.sinks(heads), ops
            )
            out[here, heads] = ops.permute(block_out, (1, 0, 2))
            lse[here, heads] = ops.permute(block_lse, (1, 0))
    leading = tuple(queries.shape[:-1])
    return out.reshape(*leading, out.shape[-1]), lse.reshape(leading)


def _queries(spec: KernelSpec, tensors: Mapping[str, Array]) -> Array:
    if spec.q_form == "fused":
        return tensors["q"]
    nope, rope = tensors["q_nope"], tensors.get("q_pe")
    return nope if rope is None else backend_of(nope).concatenate([nope, rope], axis=-1)


def _blocks(sequence: Sequence, num_heads: int) -> Iterator[tuple[int, int, int, int]]:
    """`(first head, end, first query, end)` of blocks whose scores fit in BLOCK_SCORES."""
    keys = max(sequence.num_keys, 1)
    rows = max(1, min(sequence.num_queries, BLOCK_SCORES // keys))
    heads = max(1, min(num_heads, BLOCK_SCORES // (keys * rows)))
    for first_head in range(0, num_heads, heads):
        for first in range(0, sequence.num_queries, rows):
            last = min(first + rows, sequence.num_queries)
            yield first_head, min(first_head + heads, num_heads), first, last


def _keys_and_values(
    spec: KernelSpec,
    tensors: Mapping[str, Array],
    sequence: Sequence,
    num_heads: int,
    ops: Backend,
) -> tuple[Array, Array]:
    """`[H, num_keys, qk]` and `[H, num_keys, v]` of one sequence, in float64."""
    if spec.kv.layout == "paged":
        table = tensors["block_table"]
        keys, values = (_rows_of_pages(tensors[name], table, sequence, ops) for name in ("k", "v"))
    else:
        here = slice(sequence.first_key, sequence.first_key + sequence.num_keys)
        keys, values = (
            ops.float64(tensors[name].reshape(-1, *tensors[name].shape[-2:])[here])
            for name in ("k", "v")
        )
    if spec.geometry.qk_rope_head_dim and spec.k_rope.layout != "fused":
        rows = ops.float64(_rope_rows(spec, tensors, sequence, ops))
        rope = rows[..., -spec.geometry.qk_rope_head_dim :]
        if len(rope.shape) == 2:
            rope = rope[:, None, :]
        group = num_heads // int(rope.shape[1])
        rope = rope[:, ops.arange(0, num_heads) // group, :]
        keys = ops.concatenate([keys, rope], axis=-1)
    return ops.permute(keys, (1, 0, 2)), ops.permute(values, (1, 0, 2))


def _rope_rows(
    spec: KernelSpec, tensors: Mapping[str, Array], sequence: Sequence, ops: Backend
) -> Array:
    """Rope rows of one sequence's keys, whole cache rows where they are such: `[num_keys, width]` or with heads."""
    rope, keys = tensors["k_rope"], sequence.num_keys
    if spec.k_rope.layout == "ragged":
        return rope[sequence.first_key : sequence.first_key + keys]
    if spec.k_rope.layout == "dense":
        return _filled_up(ops.float64(rope[sequence.index, :keys]), keys, ops)
    return _rows_of_pages(rope, tensors["block_table"], sequence, ops)


def _rows_of_pages(cache: Array, table: Array, sequence: Sequence, ops: Backend) -> Array:
    """Rows of one sequence's keys in a cache `[pages, page_size, ...]`, in float64."""
    page_size = int(cache.shape[1])
    used = -(-sequence.num_keys // page_size)
    ids = table[sequence.index, :used]
    exists = (ids >= 0) & (ids < cache.shape[0])
    # A page that does not exist is read as page 0, and then as zeros.
    pages = ops.float64(cache[ids * exists])
    some = (slice(None), *(None,) * (len(pages.shape) - 1))
    pages = ops.where(exists[some], pages, ops.zeros((1,) * len(pages.shape)))
    rows = pages.reshape(len(ids) * page_size, *cache.shape[2:])
    return _filled_up(rows[: sequence.num_keys], sequence.num_keys, ops)


def _filled_up(rows: Array, count: int, ops: Backend) -> Array:
    """The rows, and behind them zeros, so that there are `count`."""
    missing = count - int(rows.shape[0])
    if missing == 0:
        return rows
    return ops.concatenate([rows, ops.zeros((missing, *rows.shape[1:]))], axis=0)


class _Scorer:
    """Scores and visibility of blocks of one sequence."""

    def __init__(
        self,
        spec: KernelSpec,
        tensors: Mapping[str, Array],
        sequence: Sequence,
        scale: float,
        ops: Backend,
    ) -> None:
        """Keep what blocks share."""
        self._spec = spec
        self._tensors = tensors
        self._sequence = sequence
        self._scale = scale
        self._ops = ops
        self._key_positions = ops.arange(0, sequence.num_keys)[None, :]

    def scores(
        self, queries: Array, keys: Array, heads: slice, first: int, last: int
    ) -> tuple[Array, Array]:
        """`[h, q, k]` scores in natural-log units after the mods, and `[q, k]` visibility."""
        shift = self._sequence.num_keys - self._sequence.num_queries
        positions = self._ops.arange(first + shift, last + shift)[:, None]
        scores = (queries @ self._ops.permute(keys, (0, 2, 1))) * self._scale
        for mod in self._spec.score_mods:
            scores = self._modify(mod, scores, positions, heads, slice(first, last))
        return scores, visibility(
            self._spec.mask, positions, self._key_positions, self._valid_length()
        )

    def _valid_length(self) -> int:
        """Keys before the padding; behind the last key there is nothing to hide."""
        if "valid_lengths" not in self._tensors:
            return self._sequence.num_keys
        return self._ops.integers(self._tensors["valid_lengths"])[self._sequence.index]

    def sinks(self, heads: slice) -> Array | None:
        """`[h, 1, 1]` sink logits."""
        if not self._spec.sink:
            return None
        return self._ops.float64(self._tensors["sinks"])[heads, None, None]

    def _modify(
        self, mod: ScoreMod, scores: Array, positions: Array, heads: slice, rows: slice
    ) -> Array:
        ops = self._ops
        if mod.kind == "bias":
            return scores + self._bias(heads, rows)
        if mod.kind == "relative_bias":
            return scores + self._relative_bias(mod, positions, heads, rows)
        if mod.kind == "softcap":
            return mod.cap * ops.tanh(scores / mod.cap)
        if mod.kind == "alibi":
            distance = ops.float64(ops.absolute(positions - self._key_positions))
            return scores - self._slopes(mod, heads) * distance
        message = (
            f"score_mod: the reference does not know {mod.kind!r}\n  "
            "use identity, softcap, alibi, bias or relative_bias"
        )
        raise UnsupportedError(message)

    def _bias(self, heads: slice, rows: slice) -> Array:
        """`[h or 1, q, k]`: the bias of these rows; -inf outside of the tensor."""
        bias = self._tensors["bias"]
        while len(bias.shape) < 4:  # [q, k] and [batch, q, k] have no heads
            bias = bias[:, None] if len(bias.shape) == 3 else bias[None]
        own = bias[self._sequence.index if bias.shape[0] > 1 else 0]
        own = own[heads if own.shape[0] > 1 else slice(0, 1)]
        keys = min(self._sequence.num_keys, int(own.shape[2]))
        own = self._ops.float64(own[:, rows if own.shape[1] > 1 else slice(0, 1), :keys])
        found = self._ops.full(
            (int(own.shape[0]), rows.stop - rows.start, self._sequence.num_keys), float("-inf")
        )
        last = found.shape[1] if bias.shape[2] == 1 else own.shape[1]
        found[:, :last, :keys] = own
        return found

    def _relative_bias(self, mod: Any, positions: Array, heads: slice, rows: slice) -> Array:
        """`[h, q, k]`: that of the distance; 0 where there is none."""
        ops, first = self._ops, self._sequence.first_query
        table = self._tensors["relative_bias"]
        table = table.reshape(-1, *table.shape[-2:])[first + rows.start : first + rows.stop, heads]
        distance = positions - self._key_positions
        is_inside = (distance >= 0) & (distance < mod.extent)
        queries = ops.arange(0, rows.stop - rows.start)[:, None]
        found = ops.permute(ops.float64(table)[queries, :, distance * is_inside], (2, 0, 1))
        return ops.where(is_inside, found, ops.zeros((1, 1, 1)))

    def _slopes(self, mod: Any, heads: slice) -> Array:
        if mod.slopes == "tensor":
            return self._ops.float64(self._tensors["alibi_slopes"])[heads, None, None]
        queries = self._tensors["q"] if "q" in self._tensors else self._tensors["q_nope"]
        slopes = self._ops.zeros((int(queries.shape[-2]), 1, 1))
        for head, slope in enumerate(alibi_slopes(int(queries.shape[-2]))):
            slopes[head] = slope
        return slopes[heads]


def _softmax(
    scores: Array, visible: Array, values: Array, sinks: Array | None, ops: Backend
) -> tuple[Array, Array]:
    """`[h, q, v]` output and `[h, q]` LSE; -inf scores are how a hidden key weighs exactly 0."""
    if scores.shape[-1] == 0:
        shape = tuple(int(size) for size in scores.shape[:2])
        return ops.zeros((*shape, int(values.shape[-1]))), ops.full(shape, float("-inf"))
    hidden = float("-inf")
    scores = ops.where(visible, scores, ops.full((1, 1, 1), hidden))
    # What nobody sees may hold anything, and 0 * NaN is NaN.
    is_seen = ops.permute(visible, (1, 0)).any(-1)
    values = ops.where(is_seen[:, None], values, ops.zeros((1, 1, 1)))
    largest = ops.row_maximum(scores)
    largest = ops.where(largest == hidden, ops.zeros((1, 1, 1)), largest)
    weights = ops.exp(scores - largest)
    # A row without keys has weights of 0 throughout: 0 / 1 is its output, log 0 its LSE.
    total = ops.row_sum(weights)
    lse = (largest + ops.log(total))[..., 0]
    out = (weights @ values) / ops.where(total == 0, ops.full((1, 1, 1), 1.0), total)
    if sinks is None:
        return out, lse
    # The sink's share goes by its distance from the LSE: an exponential of its own would overflow far above the scores.
    return out / (1.0 + ops.exp(sinks - lse[..., None])), lse


def visibility(mask: Mask, queries: Array, keys: Array, valid_length: int) -> Array:
    """Where a query at position `queries` `[q, 1]` sees a key at `keys` `[1, k]`.

    Args:
        mask: Which keys are seen.
        queries: Positions of queries.
        keys: Positions of keys.
        valid_length: The key at which the padding begins.
    """
    everything = keys - queries == keys - queries
    if mask.kind == "none":
        return everything
    if mask.kind == "causal":
        return keys <= queries
    if mask.kind == "sliding_window":
        if mask.left is not None:
            everything = everything & (keys >= queries - mask.left)
        if mask.right is not None:
            everything = everything & (keys <= queries + mask.right)
        return everything
    if mask.kind == "chunked":
        same = keys // mask.size == queries // mask.size
        return same & (keys <= queries) if mask.causal else same
    if mask.kind == "padding":
        return everything & (keys < valid_length)
    if mask.kind in ("all", "any"):
        parts = [visibility(part, queries, keys, valid_length) for part in mask.of]
        combine = operator.and_ if mask.kind == "all" else operator.or_
        return functools.reduce(combine, parts)
    known = "none, causal, sliding_window, chunked, padding, all or any"
    message = f"mask: the reference does not know {mask.kind!r}\n  use {known}"
    raise UnsupportedError(message)


def alibi_slopes(num_heads: int) -> list[float]:
    """The slopes of ALiBi (arXiv 2108.12409), section 3, for any number of heads.

    For a power of two, head h has 2^(-8 (h + 1) / n). Otherwise the first heads have those of the
    next smaller power, the rest every other one of the power above it.
    """
    power = 1
    while power * 2 <= num_heads:
        power *= 2
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    slopes += [
        2.0 ** (-8.0 * (head + 1) / (2 * power)) for head in range(0, 2 * (num_heads - power), 2)
    ]
    return slopes[:num_heads]
