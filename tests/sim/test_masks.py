"""Combined and padded masks in whole kernels of both architectures, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulator
from mlagen.verify.problems import make_problem
from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes

MASKS: dict[str, Any] = {
    "causal, padded": {"all": ["causal", "padding"]},
    # Beside the window a prefix is seen: between both lie keys that nobody sees.
    "a window or a prefix": {
        "any": [
            {"kind": "sliding_window", "left": 40, "right": 3},
            {"all": [{"kind": "chunked", "size": 300, "causal": False}, "padding"]},
        ]
    },
}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_combined_masks(arch: str, mask: Any) -> None:
    kernel = spec(arch=arch, mask=mask, lse=True)
    assert_passes(kernel, WALK)
    assert_passes(kernel, "valid lengths", "pct:1")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_hostile_valid_lengths(arch: str) -> None:
    assert_passes(
        spec(arch=arch, mask="padding", lse=True, q_layout="dense", kv="dense"), "hostile values"
    )


UNSEEN: dict[str, dict[str, Any]] = {
    "dense": {"kv": "dense", "q_layout": "dense", "mask": {"all": ["causal", "padding"]}},
    "paged": {"kv": {"layout": "paged", "page_size": 16}, "mask": "padding", "arch": "sm_100a"},
}


@pytest.mark.parametrize("options", UNSEEN.values(), ids=UNSEEN)
def test_what_no_query_sees_changes_no_bit(options: dict[str, Any]) -> None:
    kernel = spec(lse=True, **options)
    # Problems have NaN in every key that no query sees.
    problem = make_problem(kernel, "valid lengths")

    def run(*unseen: float) -> list[bytes]:
        tensors = dict(problem.tensors)
        for name in ("k", "v"):
            tensors[name] = tensors[name].copy()
            holes = np.isnan(tensors[name])
            assert holes.any()
            tensors[name][holes] = np.resize(np.array(unseen), holes.sum())
        arguments = {**tensors, **problem.options}
        simulated = load(kernel).simulate(
            arguments, simulator=Simulator("eager", ctas=problem.ctas)
        )
        simulated.check()
        return [simulated.out.tobytes(), simulated.lse.tobytes()]

    assert run(np.nan, np.inf, -np.inf) == run(1.0)
