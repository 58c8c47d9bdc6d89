"""Tensor maps of tensors of every layout, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlagen.dtypes import BFLOAT16
from mlagen.plan.plan import TensorMapPlan
from mlagen.runtime.tensor_map import (
    TensorGeometry,
    tensor_map_at,
    tensor_map_spec,
)

PACKED = TensorMapPlan("k", "k", "packed", 128, 64, BFLOAT16)
CLIPPED = replace(PACKED, addressing="clipped", box_rows=64)
BATCHED = replace(PACKED, addressing="batched")
PAGED = replace(PACKED, addressing="paged", box_rows=16)
PAGED_CLIPPED = replace(PAGED, addressing="paged_clipped")
BASE = 0x10_0000


def geometry(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    columns: int | None = None,
    outer: int | None = None,
) -> TensorGeometry:
    return TensorGeometry(
        shape, strides, columns or shape[-1], len(shape) - 2 if outer is None else outer
    )


@pytest.mark.parametrize(
    ("plan", "tensor", "dims", "strides"),
    [
        (PACKED, geometry((272, 4, 192), (768, 192, 1)), (192, 4, 272), (384, 1536)),
        (PACKED, geometry((4, 272, 192), (192, 768, 1)), (192, 272, 4), (1536, 384)),
        (PACKED, geometry((272, 64), (64, 1), outer=1), (64, 1, 272), (128, 128)),
        (
            BATCHED,
            geometry((2, 300, 4, 192), (300_000, 768, 192, 1)),
            (192, 4, 300, 2),
            (384, 1536, 600_000),
        ),
        (
            BATCHED,
            geometry((2, 300, 576), (172_800, 576, 1), columns=64, outer=2),
            (64, 1, 300, 2),
            (1152, 1152, 345_600),
        ),
        (
            PAGED,
            geometry((7, 16, 2, 576), (18_432, 1152, 576, 1), columns=64),
            (64, 2, 16, 7),
            (1152, 2304, 36_864),
        ),
        (
            CLIPPED,
            geometry((169, 4, 128), (512, 128, 1)),
            (128, 4, 2**30, 2**31 - 1, 2**31 - 1),
            (256, 1024, 2**34 - 1024, 1024),
        ),
        (
            CLIPPED,
            geometry((2, 300, 4, 128), (153_600, 512, 128, 1)),
            (128, 4, 2**30, 2**31 - 1, 2**31 - 1),
            (256, 1024, 2**34 - 1024, 1024),
        ),
        (
            PACKED,
            geometry((3, 1, 4, 128), (5120, 7, 128, 1)),
            (128, 4, 3),
            (256, 10_240),
        ),
        (PACKED, geometry((0, 4, 192), (768, 192, 1)), (192, 4, 1), (384, 384)),
        (PACKED, geometry((1, 1, 24), (3, 5, 1)), (24, 1, 1), (48, 48)),
    ],
    ids=[
        "packed",
        "heads outermost",
        "no heads",
        "batched",
        "cache rows",
        "pages with heads",
        "clipped",
        "clipped batch",
        "batch of single rows",
        "empty",
        "sizes of one",
    ],
)
def test_dims_and_strides(
    plan: TensorMapPlan, tensor: TensorGeometry, dims: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    spec = tensor_map_at(tensor_map_spec(plan, tensor), BASE)
    assert spec.dims == dims
    assert spec.strides_bytes == strides
    assert spec.box == (64, 1, plan.box_rows, 1, 1)[: len(dims)]
    assert spec.address == BASE + (tensor.shape[-1] - tensor.columns) * 2
    assert spec.swizzle_bytes == 128


def test_clipped_coordinates_reach_each_row_and_no_other() -> None:
    """The address of row `r` of a sequence at `offset` is that of row `offset + r`, modulo 2^64."""
    spec = tensor_map_spec(CLIPPED, geometry((10_000, 4, 128), (512, 128, 1)))
    strides = (2, *spec.strides_bytes)
    for offset, length, row in ((0, 1, 0), (9000, 1000, 999), (4097, 129, 128)):
        coordinates = (0, 0, 2**30 - length + row, 2**30, offset + length)
        address = BASE + sum(at * stride for at, stride in zip(coordinates, strides, strict=True))
        assert address % 2**64 == BASE + (offset + row) * 1024
        assert coordinates[2] < spec.dims[2]
        assert 2**30 - length + length >= spec.dims[2], "the row behind the last is out of bounds"


def test_clipped_pages_reach_each_row_in_use_and_no_other() -> None:
    """The address of row `r` of a page is its own, whatever the rows in use; pages may lie apart."""
    pages = geometry((7, 16, 4, 128), (10_000, 512, 128, 1))
    spec = tensor_map_at(tensor_map_spec(PAGED_CLIPPED, pages), BASE)
    assert spec.dims == (128, 4, 16, 17, 7)
    strides = (2, *spec.strides_bytes)
    for page, length, row in ((0, 1, 0), (6, 16, 15), (3, 9, 8)):
        coordinates = (0, 0, 16 - length + row, length, page)
        place = sum(at * stride for at, stride in zip(coordinates, strides, strict=True))
        assert spec.address + place == BASE + page * 20_000 + row * 1024
        assert all(at < size for at, size in zip(coordinates, spec.dims, strict=True))
        assert 16 - length + length >= spec.dims[2], "the row behind the last is out of bounds"
