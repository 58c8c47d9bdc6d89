"""Every option alone and every valid pair of options, on a ragged mix of lengths, against float64."""

from __future__ import annotations

import pytest

from tests.gpu.calls import make_case, verify
from tests.gpu.kernels import grid_specs
from tests.gpu.workloads import Batch

GRID = grid_specs()

# Lengths around a warpgroup's 64 rows and a tile's 128, empty ones, and many tiles; q longer than kv and shorter, with
# kv - q no multiple of 64. Dense kernels take the longest of each.
MIXED = Batch(
    q_lens=(0, 1, 63, 64, 65, 127, 128, 129, 300, 190, 5, 70),
    kv_lens=(129, 0, 1, 1000, 63, 64, 300, 127, 128, 700, 0, 65),
)
SHORT = Batch(q_lens=(200, 130, 77), kv_lens=(90, 321, 64))


@pytest.mark.parametrize(("index", "label"), list(enumerate(GRID)), ids=list(GRID))
def test_kernel_of_the_grid(index: int, label: str) -> None:
    verify(make_case(GRID[label], MIXED, seed=index))


@pytest.mark.parametrize(("index", "label"), list(enumerate(GRID)), ids=list(GRID))
def test_kernel_of_the_grid_on_strided_tensors(index: int, label: str) -> None:
    """Every tensor a view with strides of its own, rows of NaN behind each, outputs with guard columns."""
    case = make_case(GRID[label], SHORT, seed=1000 + index, strided=True, padding=70)
    verify(case, strided_outputs=True)
