"""Tensor maps: what makes one illegal, and which bytes of global memory a box means."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.layout import SWIZZLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.launch_record import TensorMapSpec
    from mlagen.sim.layout import Swizzle

_ADDRESS_BITS = 64
_MOST_DIMENSIONS = 5
_MOST_BOX = 256
CHUNK_BYTES = 16

ELEMENT_BYTES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


@functools.lru_cache(maxsize=1024)
def problems_of(spec: TensorMapSpec) -> tuple[str, ...]:
    """What `cuTensorMapEncodeTiled` refuses about a map (CUDA driver API, "Tensor Map Object Management")."""
    rank, size = len(spec.dims), ELEMENT_BYTES.get(spec.element_type)
    if size is None:
        return (f"element type {spec.element_type} is unknown",)
    if not 1 <= rank <= _MOST_DIMENSIONS:
        return (f"{rank} dimensions: 1 to {_MOST_DIMENSIONS}",)
    if len(spec.strides_bytes) != rank - 1 or len(spec.box) != rank:
        return (f"{len(spec.strides_bytes)} strides and a box of {len(spec.box)} for {rank} dims",)
    problems = []
    if spec.address % CHUNK_BYTES:
        problems.append(f"address {spec.address:#x} is not a multiple of 16")
    for number, extent in enumerate(spec.dims):
        if not 1 <= extent <= 1 << 32:
            problems.append(f"dimension {number} has {extent} elements: 1 to 2^32")
    for number, stride in enumerate(spec.strides_bytes, 1):
        if stride % CHUNK_BYTES or not 0 <= stride < 1 << 40:
            problems.append(
                f"stride {stride} of dimension {number} is not a multiple of 16 below 2^40"
            )
    for number, extent in enumerate(spec.box):
        if not 1 <= extent <= _MOST_BOX:
            problems.append(f"box has {extent} elements in dimension {number}: 1 to {_MOST_BOX}")
    row = spec.box[0] * size
    if row % CHUNK_BYTES:
        problems.append(f"a row of the box has {row} bytes, not a multiple of 16")
    if spec.swizzle_bytes not in SWIZZLES:
        problems.append(f"swizzle of {spec.swizzle_bytes} bytes: 0, 32, 64 or 128")
    elif spec.swizzle_bytes and row > spec.swizzle_bytes:
        problems.append(f"a row of the box has {row} bytes, its swizzle {spec.swizzle_bytes}")
    return tuple(problems)


def swizzle_of(spec: TensorMapSpec) -> Swizzle:
    """The map's swizzle."""
    return SWIZZLES[spec.swizzle_bytes]


@dataclass(frozen=True, slots=True)
class Region:
    """Evenly spaced runs of bytes in global memory, and where in a box they belong.

    Attributes:
        address: Of the first byte.
        shape: Runs per dimension, outermost first, and bytes of a run last.
        strides: Bytes between neighbours, the last is 1.
        inside: The box's part that it fills, outermost first, bytes last.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    inside: tuple[slice, ...]

    @property
    def size(self) -> int:
        """Bytes from the first to behind the last."""
        spans = zip(self.shape[:-1], self.strides[:-1], strict=True)
        return sum((count - 1) * stride for count, stride in spans) + self.shape[-1]

    def cells(self, offset: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The 4-byte cells that it covers, for an offset of its first byte in a buffer."""
        starts = np.array([offset], dtype=np.int64)
        for count, stride in zip(self.shape[:-1], self.strides[:-1], strict=True):
            starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
        # Strides are multiples of 16, so all runs begin at the same place in their cells.
        width = offset % 4 + self.shape[-1] + 3 >> 2
        return ((starts >> 2)[:, None] + np.arange(width)).ravel()


def box_shape(spec: TensorMapSpec, rows: int | None = None) -> tuple[int, ...]:
    """A box in shared memory: extents outermost first, bytes of a row last.

    Args:
        spec: The map.
        rows: For `gather4` and `scatter4`: 4 rows of one element each in the map's box.
    """
    row = spec.box[0] * ELEMENT_BYTES[spec.element_type]
    return (*reversed(spec.box[1:]), row) if rows is None else (rows, row)


def region_of(spec: TensorMapSpec, coordinates: Sequence[int]) -> Region | None:
    """The part of a box that lies inside the tensor; None if nothing does.

    Addresses are computed modulo 2^64, as hardware was seen to do: maps that clip at the end of a sequence rely on
    it (H200, loads and stores).

    Args:
        spec: A legal map.
        coordinates: Of the box's first element, innermost first; may be negative.
    """
    size = ELEMENT_BYTES[spec.element_type]
    strides = (size, *spec.strides_bytes)
    address = spec.address
    shape, inside = [], []
    for start, extent, box, stride in zip(coordinates, spec.dims, spec.box, strides, strict=True):
        first = max(-start, 0)
        last = min(extent - start, box)
        if last <= first:
            return None
        address += (start + first) * stride
        shape.append(last - first)
        inside.append(slice(first, last))
    run = inside[0]
    return Region(
        address=address % (1 << _ADDRESS_BITS),
        shape=(*reversed(shape[1:]), shape[0] * size),
        strides=(*reversed(strides[1:]), 1),
        inside=(*reversed(inside[1:]), slice(run.start * size, run.stop * size)),
    )


def row_regions(spec: TensorMapSpec, column: int, rows: Sequence[int]) -> list[Region]:
    """The parts of four rows that lie inside the tensor, for `tile::gather4` and `tile::scatter4` (PTX ISA 5.5.3.4)."""
    regions = []
    for number, row in enumerate(rows):
        found = region_of(spec, (column, row))
        if found is not None:
            inside = (slice(number, number + 1), found.inside[-1])
            regions.append(Region(found.address, (1, found.shape[-1]), found.strides, inside))
    return regions
