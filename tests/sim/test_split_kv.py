"""Kernels whose blocks share the keys of a tile: right, the same from run to run, and what keeps them so is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: options before validation

import numpy as np
import pytest

import mlagen
from mlagen.runtime.simulator import Simulator
from mlagen.verify.problems import make_problem
from tests.mutation.bench import Bench, compile_ptx
from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

ARCHS = ("sm_90a", "sm_100a")


def three_parts(arch: str) -> KernelSpec:
    """Three parts, with everything that must be counted once."""
    options: dict[str, Any] = {"mask": "causal", "sink": True, "lse": True}
    return spec(arch=arch, partition={"kind": "split_kv", "splits": 3}, **options)


@pytest.mark.parametrize("arch", ARCHS)
def test_three_parts(arch: str) -> None:
    kernel = three_parts(arch)
    assert_passes(kernel, WALK)
    assert_passes(kernel, "many keys", "pct:1")
    assert_passes(kernel, "more queries than keys")


@pytest.mark.parametrize(("arch", "scheduler"), [("sm_90a", "transient"), ("sm_100a", "queued")])
def test_as_many_parts_as_pay(arch: str, scheduler: str) -> None:
    kernel = spec(arch=arch, lse=True, partition="split_kv", scheduler=scheduler)
    assert_passes(kernel, "blocks share keys", "pct:2")


def test_a_half_that_ends_first_passes_its_turns_first() -> None:
    # It hands over two numbers by a mailbox of one, which is emptied when the other half is done.
    kernel = spec(
        arch="sm_100a",
        mask={"kind": "sliding_window", "left": 60, "right": 0},
        kv_length_counts="prefix",
        partition={"kind": "split_kv", "splits": 1},
        config={"softmax_order": True, "tile_n": 64},
    )
    assert_passes(kernel, WALK)


@pytest.mark.parametrize("arch", ARCHS)
def test_results_do_not_depend_on_who_comes_last(arch: str) -> None:
    kernels = mlagen.load(three_parts(arch), backend="sim")
    problem = make_problem(three_parts(arch), "random")
    found = []
    for schedule, ctas in (("lazy", 1), ("eager", 3), ("pct:1", 3), ("pct:2", 2)):
        simulator = Simulator(schedule, ctas=ctas)
        simulated = kernels.simulate(problem.tensors, simulator=simulator, **problem.options)
        simulated.check()
        found.append((simulated.out.tobytes(), simulated.lse.tobytes()))
    assert np.isfinite(simulated.lse).all()
    assert len(set(found)) == 1


FAULTS = {
    "an arrival that orders nothing": ("atom.acq_rel.gpu", "atom.relaxed.gpu", "race"),
    "an arrival before the states are written": (
        "  named_barrier_sync(barrier, 128);\n  bool is_last",
        "  bool is_last",
        "race",
    ),
    "the first to come merges": ("== tile.parts - 1;", "== 0;", "race"),
    "a part without its weight": (
        "exp2_approx(own_log2 - reference_log2)",
        "1.0f",
        "numerics",
    ),
    "a part that begins too late": (
        "tile.part * least + min(tile.part, uneven)",
        "tile.part * least + min(tile.part, uneven) + tile.part",
        "numerics",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str) -> None:
    right, wrong, kind = FAULTS[fault]
    kernel = Bench(three_parts(ARCHS[len(fault) % 2]))
    assert kernel.source.count(right) == 1
    source = kernel.source.replace(right, wrong)
    found = kernel.simulate(source, compile_ptx(source, kernel.plan), "blocks share keys")
    assert kind in {name for name, _ in found}, found
