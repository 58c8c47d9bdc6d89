"""The same call some hundred times, bit for bit: what races and leftover state would change."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.gpu.calls import FEW_BLOCKS, launch, make_case, make_outputs
from tests.gpu.kernels import spec_of
from tests.gpu.workloads import Batch

LAUNCHES = 300

KERNELS = {
    "causal ragged": (
        spec_of(mask="causal"),
        Batch((1, 129, 1000, 64, 300), (500, 129, 700, 1000, 64), heads=16),
    ),
    "causal dense": (
        spec_of(mask="causal", q_layout="dense", kv="dense"),
        Batch((700,) * 2, (900,) * 2, heads=16),
    ),
    "none": (spec_of(), Batch((300, 500), (1000, 300), heads=16)),
    "window": (spec_of(mask="window_left"), Batch((600, 700), (600, 100), heads=16)),
    "pages of 16": (
        spec_of(mask="causal", k_rope="paged_16"),
        Batch((300, 500), (1000, 300), heads=16),
    ),
    "256x256": (spec_of(geometry="256x256"), Batch((300, 500), (500, 300), heads=16)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_three_hundred_launches_give_the_same_bits(name: str) -> None:
    """With all blocks and with 3 to 6 in turn; outputs poisoned before each launch; nothing waits in between."""
    case = make_case(*KERNELS[name], seed=2)
    outputs = make_outputs(case)
    launch(case, outputs)
    outputs.check_guards(case.context)
    first = outputs.bits()
    differing = torch.zeros((), dtype=torch.int64, device=case.device)
    for _, blocks in zip(range(LAUNCHES), itertools.cycle((None, *FEW_BLOCKS)), strict=False):
        outputs.poison()
        launch(case, outputs, blocks=blocks)
        for now, before in zip(outputs.bits(), first, strict=True):
            differing += (now != before).sum()
    outputs.check_guards(case.context)
    assert int(differing) == 0, (
        f"{int(differing)} elements differ over {LAUNCHES} launches, {case.context}"
    )
