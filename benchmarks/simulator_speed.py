"""Time the simulator with all checks on; needs NVRTC, but no GPU.

    python -m benchmarks.simulator_speed

One tile: a block that walks one tile of a causal kernel over 512 keys, once it is lowered. Many: the first
100 kernels of the option grid of `tests/gpu`, each compiled into an empty cache, lowered, and run on its problems
until 10 blocks have run; references and comparisons count too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.plan import plan_kernel
from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulator
from mlagen.trials import Trial, run_trials
from mlagen.verify.problems import make_problem, problem_names
from tests.gpu.kernels import grid_specs, spec_of

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

GOALS = {"one_tile_s": 0.25, "many_s": 300.0, "most_memory_gib": 1.0}
KERNELS = 100
BLOCKS = 10
KEYS = 512


def main() -> int:
    """Measure; the exit status is 1 if a figure is above its goal or a run fails."""
    parser = argparse.ArgumentParser(description="Time the simulator with all checks on.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLAGEN_CACHE_DIR"] = folder
        figures = {"one_tile_s": one_tile(arguments.repeats), **many(arguments.jobs)}
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            goal = f"  (goal {GOALS[name]:g})" if name in GOALS else ""
            print(f"{name:16} {value:10.3f}{goal}")
    return int(figures["failed"] > 0 or any(figures[name] > goal for name, goal in GOALS.items()))


def one_tile(repeats: int) -> float:
    """Median seconds of a block that walks one tile over 512 keys."""
    spec = spec_of(mask="causal")
    kernels = load(spec)
    rows, geometry = plan_kernel(spec).tile_m, spec.geometry
    random = np.random.default_rng(0)
    dtype = make_problem(spec, "random").tensors["v"].dtype
    tensors: dict[str, Any] = {
        name: random.standard_normal(shape).astype(dtype)
        for name, shape in (
            ("q", (rows, 1, geometry.qk_head_dim)),
            ("k", (KEYS, 1, geometry.qk_head_dim)),
            ("v", (KEYS, 1, geometry.v_head_dim)),
        )
    }
    tensors["cu_seqlens_q"] = np.array([0, rows], np.int32)
    tensors["cu_seqlens_k"] = np.array([0, KEYS], np.int32)
    seconds = []
    for _ in range(repeats + 1):  # the first one lowers
        begin = time.perf_counter()
        kernels.simulate(tensors, simulator=Simulator("lazy")).check()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def many(jobs: int) -> dict[str, float]:
    """Seconds of the first kernels of the grid, with the memory of the largest process."""
    trials = [
        Trial(spec, problem, backend=Simulator("lazy"))
        for spec in list(grid_specs().values())[:KERNELS]
        for problem in _problems(spec)
    ]
    begin = time.perf_counter()
    verdicts = list(run_trials(trials, jobs=jobs))
    return {
        "many_s": time.perf_counter() - begin,
        "runs": float(len(verdicts)),
        "failed": float(sum(not verdict.passed for verdict in verdicts)),
        "most_memory_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
    }


def _problems(spec: KernelSpec) -> list[str]:
    """The first problems of a kernel that together take as many blocks as asked for."""
    chosen, blocks = [], 0
    for name in problem_names(spec):
        if blocks >= BLOCKS:
            break
        chosen.append(name)
        blocks += make_problem(spec, name).ctas
    return chosen


if __name__ == "__main__":
    sys.exit(main())
