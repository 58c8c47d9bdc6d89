"""Tile schedulers: which tile a ticket stands for in each order, and whole kernels of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlagen.render import render_kernel
from mlagen.runtime.parameters import ArgumentStruct
from mlagen.sim.memory import GlobalMemory
from tests.plan.kernels import plan, spec
from tests.sim.cuda import run
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

HEADS = 3
# Query lengths in rows: of no tile, of one, of several, the last not full.
LENGTHS = (0, 1, 300, 128)
PROBE = """
extern "C" __global__ void probe(const __grid_constant__ Arguments arguments, int* tiles) {
  TileFinder finder(arguments);
  Tile tile;
  int ticket = 0;
  for (; finder.find(arguments, ticket, tile); ++ticket) {
    if (threadIdx.x != 0) continue;
    tiles[3 * ticket] = tile.queries.batch;
    tiles[3 * ticket + 1] = tile.head;
    tiles[3 * ticket + 2] = tile.row;
  }
  if (threadIdx.x == 0) tiles[3 * ticket] = kNoTile;
}
"""


def listed_tiles(kernel: KernelPlan) -> list[tuple[int, int, int]]:
    """(sequence, head, first row) of each ticket, as the kernel's own scheduler finds them."""
    text = render_kernel(kernel)
    functions = text[: text.index("// Shared memory\n")].rpartition("// ---")[0]
    offsets = np.cumsum([0, *LENGTHS]).astype(np.int32)
    values = {"num_heads": HEADS, "batch": len(LENGTHS), "total_q": 429, "max_seqlen_q": 429}
    arguments = ArgumentStruct(
        kernel, values | {"softmax_scale_log2": 1.0, "inverse_scale_log2": 1.0, "total_k": 429}
    )
    memory = GlobalMemory()
    address = memory.add(offsets, "offsets", read_only=True)
    tiles = np.full((64, 3), -2, np.int32)
    packed = arguments.pack([(slot, address) for slot in arguments.open_slots.values()])
    run(
        functions + PROBE,
        np.frombuffer(packed, np.uint8)[None].view(f"V{len(packed)}")[0, 0],
        tiles,
        memory=memory,
    )
    count = int(np.flatnonzero(tiles[:, 0] == -1)[0])
    return [tuple(tile) for tile in tiles[:count].tolist()]


def test_natural_order_goes_by_rows_heads_and_sequences() -> None:
    assert listed_tiles(plan(scheduler={"order": "natural"})) == [
        (sequence, head, row)
        for sequence, rows in ((1, (0,)), (2, (0, 128, 256)), (3, (0,)))
        for head in range(HEADS)
        for row in rows
    ]


def test_rotated_order_takes_odd_heads_backwards() -> None:
    second = [tile for tile in listed_tiles(plan(scheduler={"order": "rotate"})) if tile[0] == 2]
    assert [(head, row) for _, head, row in second] == [
        *((0, 0), (0, 128), (0, 256)),
        *((1, 256), (1, 128), (1, 0)),
        *((2, 0), (2, 128), (2, 256)),
    ]


def test_longest_first_takes_the_last_rows_of_all_heads_first() -> None:
    second = [tile for tile in listed_tiles(plan()) if tile[0] == 2]
    assert [(head, row) for _, head, row in second] == [
        (head, row) for row in (256, 128, 0) for head in range(HEADS)
    ]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("kind", "order"), [("transient", "rotate"), ("persistent", "natural")])
def test_kernels_of_every_kind(arch: str, kind: str, order: str) -> None:
    kernel = spec(arch=arch, mask="causal", lse=True, scheduler={"kind": kind, "order": order})
    # Sequences without queries leave transient blocks without a tile; three blocks walk or share the tiles.
    assert_passes(kernel, WALK)
    assert_passes(kernel, "three blocks walk", "pct:1")
    assert_passes(kernel, "many sequences")
