"""Shipped kernels in the simulator: every valid pair of options, strict, against float64; `make sim-full` has the rest.

Each kernel of the option grid walks many tiles with one block, and runs one more problem, in turn another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlagen.runtime.simulator import Simulator
from mlagen.trials import Trial, run_trial, run_trials
from mlagen.verify.problems import problem_names
from tests.gpu.kernels import grid_specs, spec_of

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

WALK = "integer walk"
GRID = grid_specs()


def assert_passes(spec: KernelSpec, problem: str, schedule: str = "lazy") -> None:
    """Run one problem and show what is wrong with it."""
    verdict = run_trial(Trial(spec, problem, backend=Simulator(schedule)))
    assert verdict.passed, "\n".join([verdict.key, *verdict.complaints])
    assert verdict.findings == (), verdict.key


@pytest.mark.parametrize(("index", "label"), list(enumerate(GRID)), ids=list(GRID))
def test_kernels_of_the_grid(index: int, label: str) -> None:
    spec = GRID[label]
    others = [name for name in problem_names(spec) if name != WALK]
    assert_passes(spec, WALK)
    assert_passes(spec, others[index % len(others)])


KERNELS = {
    "causal": spec_of(mask="causal"),
    "pages of 64": spec_of(mask="causal", k_rope="paged_64"),
    "dense": spec_of(mask="causal", q_layout="dense", kv="dense"),
    "256x256": spec_of(geometry="256x256"),
}


def test_an_output_of_another_dtype() -> None:
    spec = KERNELS["causal"].model_copy(update={"output_dtype": "float16"})
    assert_passes(spec, "random")


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_priorities_find_nothing(kernel: str, seed: int) -> None:
    assert_passes(KERNELS[kernel], WALK, f"pct:{seed}")


@pytest.mark.parametrize("kernel", KERNELS)
def test_problems_reach_every_line(kernel: str) -> None:
    spec = KERNELS[kernel]
    unreached: list[set[int]] = []
    for problem in problem_names(spec):
        verdict = run_trial(Trial(spec, problem, backend=Simulator("eager")))
        assert verdict.passed, "\n".join([verdict.key, *verdict.complaints])
        unreached.append(set(verdict.unreached))
    assert set.intersection(*unreached) == set()


def test_trials_run_in_several_processes() -> None:
    specs = (KERNELS["causal"], KERNELS["256x256"])
    trials = [Trial(spec, "no keys", backend=Simulator()) for spec in specs]
    verdicts = list(run_trials(trials, jobs=2))
    assert {verdict.key for verdict in verdicts} == {trial.key for trial in trials}
    assert all(verdict.passed for verdict in verdicts)
