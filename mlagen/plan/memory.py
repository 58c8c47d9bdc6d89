"""Shared memory: regions laid out one after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlagen.plan.plan import Barrier, Region

if TYPE_CHECKING:
    from collections.abc import Sequence

BARRIER_BYTES = 8

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
