"""Shared memory: regions laid out one after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlagen.plan.mask import takes_valid_lengths
from mlagen.plan.plan import Barrier, Region
from mlagen.plan.split_kv import splits_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.spec.model import KernelSpec

BARRIER_BYTES = 8

# sizeof(Tile) in the template: rows of queries and of keys, head, first row; with padding, valid keys behind them; with
# several blocks to a tile, which part of its keys is meant; with blocks that share keys, the block's own first row.
TILE_BYTES, PADDED_TILE_BYTES, PART_TILE_BYTES = 32, 48, 64

RegionRequest = tuple[str, str, int, tuple[int, ...], str]


def barrier_region(barrier: Barrier) -> RegionRequest:
    """What to lay out for one array of mbarriers."""
    return (
        barrier.name,
        "barrier",
        BARRIER_BYTES,
        (barrier.copies,),
        f"{barrier.arrives} -> {barrier.waits}",
    )


def tile_bytes(spec: KernelSpec) -> int:
    """Size of an announced tile."""
    if splits_keys(spec):
        return PART_TILE_BYTES
    more = takes_valid_lengths(spec.mask) or spec.config.cluster_size == 2
    return PADDED_TILE_BYTES if more else TILE_BYTES


def lay_out(requests: Sequence[RegionRequest]) -> tuple[Region, ...]:
    """Place regions in order, each at the alignment that C++ gives its element type."""
    regions = []
    offset = 0
    for name, element, element_bytes, shape, comment in requests:
        alignment = min(element_bytes, 16)
        offset = -(-offset // alignment) * alignment
        regions.append(Region(name, element, element_bytes, shape, offset, comment))
        offset += element_bytes * math.prod(shape)
    return tuple(regions)
