"""Where the sequences of a call lie, whatever the lengths and offsets on the device say.

Numbers that no caller should give still mean something, the same to every kernel: query offsets are kept inside the
tensor, and no sequence begins before another's end; key offsets are kept inside the tensor; a count of cached keys is
kept inside the sequence's rows. Those of well-formed calls are taken as they are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlagen.spec.model import KernelSpec
    from mlagen.verify.arrays import Array, Backend


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence: rows of the flattened query and key tensors.

    Attributes:
        index: Its place in the batch.
        first_query: Its first query row.
        num_queries: Query rows.
        first_key: Its first key row; 0 where keys lie in pages.
        num_keys: Key rows that are in use.
    """

    index: int
    first_query: int
    num_queries: int
    first_key: int
    num_keys: int


def sequences(spec: KernelSpec, tensors: Mapping[str, Array], ops: Backend) -> Iterator[Sequence]:
    """The sequences of a call; reads lengths and offsets on the host."""
    counted = ops.integers(tensors["cache_seqlens"]) if "cache_seqlens" in tensors else None
    rows = zip(_query_rows(spec, tensors, ops), _key_rows(spec, tensors, ops), strict=True)
    for index, ((first_query, num_queries), (first_key, room)) in enumerate(rows):
        num_keys = room
        if counted is not None:
            own = num_queries if spec.kv_length_counts == "prefix" else 0
            num_keys = min(_clamp(counted[index], 0, room) + own, room)
        yield Sequence(index, first_query, num_queries, first_key, num_keys)


def _query_rows(
    spec: KernelSpec, tensors: Mapping[str, Array], ops: Backend
) -> Iterator[tuple[int, int]]:
    """`(first row, rows)` of each sequence's queries."""
    queries = tensors["q"] if "q" in tensors else tensors["q_nope"]
    if spec.q_layout == "dense":
        batch, length = int(queries.shape[0]), int(queries.shape[1])
        yield from ((index * length, length) for index in range(batch))
        return
    total, largest_end = int(queries.shape[0]), 0
    for first, last in itertools.pairwise(ops.integers(tensors["cu_seqlens_q"])):
        begin, end = max(_clamp(first, 0, total), largest_end), _clamp(last, 0, total)
        yield begin, max(end - begin, 0)
        largest_end = max(largest_end, end)


def _key_rows(
    spec: KernelSpec, tensors: Mapping[str, Array], ops: Backend
) -> Iterator[tuple[int, int]]:
    """`(first row, rows)` of what each sequence has for its keys."""
    values = tensors["v"]
    if spec.kv.layout == "dense":
        batch, length = int(values.shape[0]), int(values.shape[1])
        yield from ((index * length, length) for index in range(batch))
        return
    if spec.kv.layout == "paged":
        pages, page_size = int(values.shape[0]), int(values.shape[1])
        batch, width = (int(size) for size in tensors["block_table"].shape)
        yield from ((0, width * page_size if pages else 0) for _ in range(batch))
        return
    offsets = tensors["cu_seqlens_k" if spec.kv.row_offsets else "cu_seqlens_q"]
    total = int(values.shape[0])
    for first, last in itertools.pairwise(ops.integers(offsets)):
        begin = _clamp(first, 0, total)
        yield begin, _clamp(last, begin, total) - begin


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
