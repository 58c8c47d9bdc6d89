"""Hopper blocks that share the keys they load, in pairs: some kernels of `tests/sim/specs/cluster.yaml`.

`make sim-full SIM_SPECS=tests/sim/specs/cluster.yaml` has them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mlagen.runtime.simulator import Simulator
from mlagen.spec.yaml import load_spec_file
from mlagen.trials import Trial, run_trial
from mlagen.verify.problems import problem_names
from tests.sim.test_last_tiles import batch, run_right

KERNELS = load_spec_file(Path(__file__).parent / "specs" / "cluster.yaml").expand()
# One pair of blocks walks sequences of 127 to 257 rows; several pairs draw tiles.
PROBLEMS = ("lengths around blocks", "three blocks walk", "edge of the chunk")
# Under chunks of 400 keys that see one another, one half of a tile straddles two chunks: six blocks of 64 keys more are
# passed over by the other, in front of its own and behind them, between tiles of the ordinary kind.
STRADDLING = ((600, 800), (500, 800), (3, 100), (300, 500))


def name(place: int) -> str:
    """What a kernel of the file is about."""
    kernel = KERNELS[place]
    return (
        f"{place} {kernel.mask.kind} tile_n {kernel.config.tile_n} stages {kernel.config.v_stages}"
    )


# Without a mask; causal; blocks of keys before and behind; several of them, with one stage.
@pytest.mark.parametrize("schedule", ["lazy", "pct:1"])
@pytest.mark.parametrize("place", [0, 1, 2, 7, 9], ids=name)
def test_pairs_of_blocks_compute_what_one_does_and_keep_every_rule(
    place: int, schedule: str
) -> None:
    for problem in sorted(set(PROBLEMS) & set(problem_names(KERNELS[place]))):
        verdict = run_trial(Trial(KERNELS[place], problem, backend=Simulator(schedule)))
        assert verdict.passed, "\n".join([verdict.key, *verdict.complaints])
        assert verdict.findings == (), verdict.key


# Two stages, and one: there, the values that are passed over need the stage of the product that is still to be made.
@pytest.mark.parametrize("schedule", ["lazy", "pct:1", "pct:2"])
@pytest.mark.parametrize("place", [6, 7], ids=name)
def test_many_blocks_are_passed_over_on_either_side(place: int, schedule: str) -> None:
    run_right(KERNELS[place], batch(KERNELS[place], STRADDLING), schedule)
