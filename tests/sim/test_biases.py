"""Biases from tensors in whole kernels of both architectures, against float64, and with faults planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulator
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import make_problem
from tests.mutation.bench import Bench
from tests.mutation.rules.edits import replaced
from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes

BIAS: dict[str, Any] = {"score_mod": {"kind": "bias", "rank": 4}, "lse": True}
RELATIVE: dict[str, Any] = {"score_mod": {"kind": "relative_bias", "extent": 100}, "lse": True}
KERNELS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a bias, a sink, no tickets": (
        BIAS | {"sink": True, "scheduler": "persistent"},
        WALK,
        "bias ends early",
    ),
    "a bias a batch has, parts, a window": (
        {
            "score_mod": {"kind": "bias", "rank": 3},
            "partition": "split_kv",
            "mask": {"kind": "sliding_window", "left": 50, "right": 9},
            "lse": True,
            "arch": "sm_100a",
        },
        "blocks share keys",
        "hostile values",
    ),
    "a bias of distances": (
        RELATIVE | {"mask": "causal", "arch": "sm_100a"},
        "random",
        "hostile values",
    ),
    "a bias of distances, dense": (
        RELATIVE | {"q_layout": "dense", "kv": "dense"},
        "random",
        "more queries than keys",
    ),
}


@pytest.mark.parametrize(("options", "first", "second"), KERNELS.values(), ids=KERNELS)
def test_biases(options: dict[str, Any], first: str, second: str) -> None:
    kernel = spec(**options)
    assert_passes(kernel, first)
    assert_passes(kernel, second, "pct:1")


@pytest.mark.parametrize("shared", [(0, 1), (1, 2)], ids=["batch, heads", "heads, queries"])
def test_what_all_share_has_a_size_of_one(shared: tuple[int, int]) -> None:
    kernel = spec(**BIAS)
    problem = make_problem(kernel, "bias ends early")
    bias = problem.tensors["bias"]
    for dimension in shared:
        bias = bias.take([0], axis=dimension)
    bias[~np.isfinite(bias)] = 0.5
    problem = replace(problem, tensors=problem.tensors | {"bias": bias})
    outputs = Outputs.of(kernel, problem)
    simulated = load(kernel).simulate(
        {**problem.tensors, **problem.options, **outputs.arguments()},
        simulator=Simulator(ctas=problem.ctas),
    )
    verdict = judge(
        Trial(kernel, problem.name, backend=Simulator()),
        outputs,
        expected(kernel, problem),
        simulated=simulated,
        seconds=0.0,
    )
    assert verdict.passed, verdict.complaints


# Kernel, pattern, what stands there instead, the problem that finds it.
FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "rows without gaps": (
        BIAS,
        r"\* arguments\.bias_row_stride",
        "* arguments.bias_keys",
        "bias ends early",
    ),
    "the first head's": (
        BIAS | {"arch": "sm_100a"},
        r"head \* arguments\.bias_head",
        "0 * arguments.bias_head",
        "longer keys",
    ),
    "in base 2": (BIAS, r"kLog2E / (arguments\.softmax_scale_log2)", r"1.0f / \1", "random"),
    "queries without end": (
        RELATIVE | {"arch": "sm_100a"},
        r"min\((query[^,]*), queries\.length - 1\)",
        r"(\1)",
        WALK,
    ),
    "a distance too many": (RELATIVE, r"1 - kRelativeExtent", "-kRelativeExtent", "random"),
}


@pytest.mark.parametrize(("options", "pattern", "text", "problem"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_caught(
    options: dict[str, Any], pattern: str, text: str, problem: str
) -> None:
    bench = Bench(spec(**options))
    bench.problem_names = [problem]
    (mutant, *_) = replaced("fault", "", pattern, text).sites(bench.source)
    assert bench.run(mutant).status == "caught"
