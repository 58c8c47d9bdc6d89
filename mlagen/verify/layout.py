"""Operands as the tensors that a spec wants, with NaN in every element that no kernel may use.

Such elements are columns before the rope, rows past a sequence's end, slots past a page table's last key, spare pages,
and the keys of a padding that no query sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.plan.arguments import takes_cache_seqlens
from mlagen.plan.key_maps import page_size_of
from mlagen.plan.mask import is_padded_throughout, key_ranges, takes_valid_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from mlagen.spec.model import KernelSpec
    from mlagen.verify.operands import Lengths, Operands

    Array = NDArray[Any]  # Any: every float dtype and int32 alike

# A page id that no cache has: entries past a sequence's last page are never used.
UNUSED_PAGE = 1 << 30
# The least step of a tensor map's strides.
_ADDED_BYTES = 16
_SPARE_PAGES = 2


def lay_out(
    spec: KernelSpec,
    lengths: Lengths,
    operands: Operands,
    *,
    strided: bool = False,
    padding: int = 0,
    shares_pages: bool = False,
    random: np.random.Generator,
) -> dict[str, Array]:
    """The tensors under the names that `run` takes.

    Args:
        spec: Says which tensors there are and how they lie.
        lengths: As `fit_lengths` returns them.
        operands: Values.
        strided: Make every tensor a view into a larger one, with strides of its own.
        padding: Rows that belong to no sequence behind the last one of ragged tensors, and behind each sequence of
            dense keys with lengths.
        shares_pages: Let all sequences begin with the full pages of the first one.
        random: For the order of pages.
    """
    layout = _Layout(spec, lengths, strided, padding, shares_pages, random)
    if is_padded_throughout(key_ranges(spec.mask) or ()) and not shares_pages:
        operands = _without_padding(operands, lengths)
    tensors = {**layout.queries(operands), **layout.keys(operands), **layout.offsets()}
    if spec.sink:
        tensors["sinks"] = operands.sinks
    if any(mod.kind == "alibi" and mod.slopes == "tensor" for mod in spec.score_mods):
        tensors["alibi_slopes"] = operands.alibi_slopes
    return tensors | layout.biases(operands)


@dataclass(frozen=True, slots=True)
class _Layout:
    spec: KernelSpec
    lengths: Lengths
    strided: bool
    padding: int
    shares_pages: bool
    random: np.random.Generator

    def queries(self, operands: Operands) -> dict[str, Array]:
        q = operands.q
        if self.spec.q_layout == "dense":
            q = q.reshape(self.lengths.batch, -1, *q.shape[1:])
        elif self.padding:
            q = self._spread(q, self.lengths.queries, self.lengths.queries, self._query_padding())
        q = self._view(q)
        if self.spec.q_form == "fused":
            return {"q": q}
        nope = self.spec.geometry.qk_nope_head_dim
        parts = {"q_nope": q[..., :nope], "q_pe": q[..., nope:]}
        return parts if self.strided else {name: part.copy() for name, part in parts.items()}

    def keys(self, operands: Operands) -> dict[str, Array]:
        layout, k, v = self.spec.k_rope.layout, operands.k_nope, operands.v
        if layout == "fused":
            k = np.concatenate([k, operands.k_rope], axis=-1)
        kv_layout, pages = self.spec.kv.layout, self._draw_pages()
        if self.strided:  # k and v are slices of one tensor, as models project them
            both = self._view(self._place(np.concatenate([k, v], axis=-1), kv_layout, pages))
            tensors = {"k": both[..., : k.shape[-1]], "v": both[..., k.shape[-1] :]}
        else:
            tensors = {
                "k": self._place(k, kv_layout, pages),
                "v": self._place(v, kv_layout, pages),
            }
        if layout != "fused":
            rows = self._view(self._place(self._rows(operands.k_rope), layout, pages))
            tensors["k_rope"] = self._without_single_head(rows)
        if pages is not None:
            tensors["block_table"] = self._view(pages.table(), filler=UNUSED_PAGE)
        return tensors

    def biases(self, operands: Operands) -> dict[str, Array]:
        kinds = {mod.kind for mod in self.spec.score_mods}
        tensors = {}
        if "bias" in kinds:
            (rank,) = (mod.rank for mod in self.spec.score_mods if mod.kind == "bias")
            bias = {2: operands.bias[0, 0], 3: operands.bias[:, 0], 4: operands.bias}[rank]
            tensors["bias"] = self._view(bias)
        if "relative_bias" in kinds:
            bias = operands.relative_bias
            if self.spec.q_layout == "dense":
                bias = bias.reshape(self.lengths.batch, -1, *bias.shape[1:])
            elif self.padding:
                queries = self.lengths.queries
                bias = self._spread(bias, queries, queries, self._query_padding())
            tensors["relative_bias"] = self._view(bias)
        return tensors

    def offsets(self) -> dict[str, Array]:
        spec, lengths = self.spec, self.lengths
        tensors = {}
        if spec.q_layout == "ragged":
            tensors["cu_seqlens_q"] = _running_totals(lengths.queries)
        if spec.kv.layout == "ragged" and spec.kv.row_offsets:
            tensors["cu_seqlens_k"] = _running_totals(self._capacities())
        if takes_cache_seqlens(spec):
            own = lengths.queries if spec.kv_length_counts == "prefix" else (0,) * lengths.batch
            counts = [keys - queries for keys, queries in zip(lengths.keys, own, strict=True)]
            tensors["cache_seqlens"] = np.array(counts, dtype=np.int32)
        if takes_valid_lengths(spec.mask):
            tensors["valid_lengths"] = np.array(lengths.valid, dtype=np.int32)
        return tensors

    def _query_padding(self) -> int:
        """Rows behind the last query: sequences of `max_seqlen` could still fill the tensor."""
        if self.spec.max_seqlen == "dynamic":
            return self.padding
        return min(
            self.padding, self.lengths.batch * self.spec.max_seqlen - sum(self.lengths.queries)
        )

    def _capacities(self) -> tuple[int, ...]:
        """Rows between two entries of `cu_seqlens_k`: more than keys where lengths stand beside."""
        if self.spec.kv_length_counts == "total":
            return self.lengths.keys
        return tuple(keys + 3 * (index % 3) for index, keys in enumerate(self.lengths.keys))

    def _place(self, rows: Array, layout: str, pages: _Pages | None) -> Array:
        """Rows of keys, packed by sequence, in a ragged or dense tensor or in pages."""
        lengths = self.lengths.keys
        if layout == "ragged":
            return self._spread(rows, lengths, self._capacities(), self.padding)
        if layout == "paged":
            assert pages is not None
            return pages.filled(rows, lengths)
        may_be_longer = self.spec.kv.layout == "ragged" or self.spec.kv.seqlens
        capacity = max(lengths, default=0) + (self.padding if may_be_longer else 0)
        placed = _filled((len(lengths), capacity, *rows.shape[1:]), rows.dtype)
        for part, sequence in zip(placed, _split(rows, lengths), strict=True):
            part[: len(sequence)] = sequence
        return placed

    def _spread(
        self, rows: Array, lengths: Sequence[int], capacities: Sequence[int], padding: int
    ) -> Array:
        """Packed rows, each sequence moved to the start of its own capacity, and `padding` rows behind the last."""
        placed = _filled((sum(capacities) + padding, *rows.shape[1:]), rows.dtype)
        first = 0
        for sequence, capacity in zip(_split(rows, lengths), capacities, strict=True):
            placed[first : first + len(sequence)] = sequence
            first += capacity
        return placed

    def _rows(self, rope: Array) -> Array:
        """Rope rows at the end of rows as wide as the spec says."""
        width = self.spec.k_rope.row_width
        assert width is not None
        rows = _filled((*rope.shape[:-1], width), rope.dtype)
        rows[..., width - rope.shape[-1] :] = rope
        return rows

    def _draw_pages(self) -> _Pages | None:
        """Pages in random order for what the block table finds; None if there is nothing."""
        size, lengths = page_size_of(self.spec), self.lengths.keys
        if size is None:
            return None
        counts = [-(-keys // size) for keys in lengths]
        total = sum(counts) + (_SPARE_PAGES if self.padding else 0)
        order = self.random.permutation(total)
        owned = [
            order[end - count : end]
            for count, end in zip(counts, np.cumsum(counts, dtype=int), strict=True)
        ]
        if self.shares_pages:
            for pages, keys in zip(owned, lengths, strict=True):
                shared = min(keys, lengths[0]) // size
                pages[:shared] = owned[0][:shared]
        return _Pages(size, total, tuple(owned))

    def _without_single_head(self, rows: Array) -> Array:
        return rows if self.spec.k_rope.num_heads > 1 else rows[..., 0, :]

    def _view(self, values: Array, *, filler: float = np.nan) -> Array:
        """The values, or with `strided` a copy inside a larger tensor, whose strides are its own."""
        if not self.strided:
            return values
        # No rows are added behind a sequence: batch and rows are one dimension of some maps, so that the batch stride
        # must be a whole number of rows.
        *outer, inner, columns = values.shape
        added = _ADDED_BYTES // values.itemsize
        larger = np.full((*outer, inner + 1, columns + added), filler, dtype=values.dtype)
        inside = larger[tuple(slice(size) for size in values.shape)]
        inside[...] = values
        return inside


@dataclass(frozen=True, slots=True)
class _Pages:
    """Which pages of a cache each sequence has.

    Attributes:
        size: Rows of a page.
        total: Pages of the cache.
        owned: Of each sequence, in the order of its keys.
    """

    size: int
    total: int
    owned: tuple[NDArray[np.int64], ...]

    def filled(self, rows: Array, lengths: Sequence[int]) -> Array:
        """A cache with the rows of each sequence, packed, in its pages."""
        cache = _filled((self.total, self.size, *rows.shape[1:]), rows.dtype)
        for own, sequence in zip(self.owned, _split(rows, lengths), strict=True):
            padded = _filled((len(own) * self.size, *rows.shape[1:]), rows.dtype)
            padded[: len(sequence)] = sequence
            cache[own] = padded.reshape(len(own), self.size, *rows.shape[1:])
        return cache

    def table(self) -> Array:
        """The table that finds them."""
        width = max(map(len, self.owned), default=0)
        table = np.full((len(self.owned), width), UNUSED_PAGE, dtype=np.int32)
        for row, own in zip(table, self.owned, strict=True):
            row[: len(own)] = own
        return table


def _without_padding(operands: Operands, lengths: Lengths) -> Operands:
    """The operands with NaN in the keys and values behind each sequence's valid ones."""
    key = np.concatenate([np.arange(count) for count in (*lengths.keys, 0)])
    is_padding = key >= np.repeat(lengths.valid, lengths.keys)
    hidden = {}
    for name in ("k_nope", "k_rope", "v"):
        hidden[name] = getattr(operands, name).copy()
        hidden[name][is_padding] = np.nan
    return replace(operands, **hidden)


def _filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.full(shape, np.nan, dtype=dtype)


def _running_totals(lengths: Iterable[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int32)


def _split(rows: Array, lengths: Sequence[int]) -> Iterator[Array]:
    """The rows of each sequence."""
    first = 0
    for length in lengths:
        yield rows[first : first + length]
        first += length
