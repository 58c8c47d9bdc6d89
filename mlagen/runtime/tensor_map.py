"""Tensor maps: from a plan and a tensor's geometry to what the driver encodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.launch_record import TensorMapSpec

if TYPE_CHECKING:
    from mlagen.plan.plan import TensorMapPlan

# A `clipped` map's row coordinate counts back from here, so that rows at or past a sequence's end
# are out of bounds.
CLIPPED_ROWS = 2**30
# The two further dimensions only carry offsets; 2^31 - 1 is the most that a 32-bit signed
# coordinate reaches.
CLIPPED_OFFSETS = 2**31 - 1
# CLIPPED_ROWS steps of this stride are 2^64, which is no step at all.
CLIPPED_WRAP_BYTES = 2**34


@dataclass(frozen=True, slots=True)
class TensorGeometry:
    """What a tensor map needs to know of a tensor besides its address.

    Attributes:
        shape: Elements per dimension, outermost first.
        strides: Steps in elements; the last is 1.
        columns: Columns that the map spans: the last ones of a row. A cache row of 576 gives its 64
            rope columns.
        outer: Dimensions before the heads: 1 of `[T, H, D]`, 2 of `[batch, seqlen, H, D]` and of
            pages.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    columns: int
    outer: int


def tensor_map_spec(plan: TensorMapPlan, geometry: TensorGeometry) -> TensorMapSpec:
    """The encoder's arguments for a tensor at address 0; `tensor_map_at` moves them.

    A tensor without a head dimension gets one of size 1. Dimensions of size 0 become 1, as the
    encoder demands; the kernel issues no copy there. Strides of dimensions of size 1 mean nothing
    and are replaced by ones that the encoder accepts.

    Args:
        plan: Order of dimensions and box.
        geometry: The tensor.

    Returns:
        Dimensions innermost first, as `TensorMapPlan.addressing` defines them.
    """
    item = plan.dtype.size_bytes
    outer, heads = _split_dimensions(geometry, item)
    dims = tuple(size for size, _ in reversed(outer))
    strides = tuple(stride for _, stride in reversed(outer))
    if plan.addressing in ("packed", "clipped") and len(outer) == 2:
        # Rows of all sequences as one dimension: inputs.py has checked that they are evenly spaced.
        strides = strides[:1] if dims[0] > 1 else strides[1:]
        dims = (dims[0] * dims[1],)
    if plan.addressing == "clipped":
        row = strides[0]
        dims = (CLIPPED_ROWS, CLIPPED_OFFSETS, CLIPPED_OFFSETS)
        strides = (row, CLIPPED_WRAP_BYTES - row, row)
    address = (geometry.shape[-1] - geometry.columns) * item
    if plan.addressing == "paged_clipped":
        (page_size, pages), (row, page) = dims, strides
        dims, strides = (page_size, page_size + 1, pages), (row, row, page)
        address -= page_size * row
    return TensorMapSpec(
        address=address,
        element_type=plan.dtype.name if item > 1 else "uint8",  # maps know no 8-bit floats
        dims=(geometry.columns, heads[0], *dims),
        strides_bytes=(heads[1], *strides),
        box=(plan.box_columns, 1, plan.box_rows, *(1 for _ in dims[1:])),
        swizzle_bytes=plan.swizzle_bytes,
    )


def tensor_map_at(spec: TensorMapSpec, address: int) -> TensorMapSpec:
    """The map of a tensor at address 0, moved to where its first element lies, a multiple of 16 bytes."""
    return dataclasses.replace(spec, address=address + spec.address)


def _split_dimensions(
    geometry: TensorGeometry, item: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """`(size, stride in bytes)` of the dimensions outside the heads, outermost first, and of the heads."""
    any_stride = (
        -(-geometry.shape[-1] * item // 16) * 16
    )  # one that the encoder accepts, where none is ever taken
    empty = 0 in geometry.shape
    sized = [
        (max(size, 1), any_stride if empty or size <= 1 else stride * item)
        for size, stride in zip(geometry.shape[:-1], geometry.strides[:-1], strict=True)
    ]
    heads = sized[geometry.outer] if len(sized) > geometry.outer else (1, any_stride)
    return sized[: geometry.outer], heads
