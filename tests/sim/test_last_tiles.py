"""Last tiles of at most 128 rows on Blackwell, whose keys both halves take in turn, among tiles of two halves.

One block walks all tiles of a batch, so that tiles of both kinds follow each other, in either order.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any  # Any: fields of a spec, and tensors by name

import ml_dtypes
import numpy as np
import pytest

from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulated, Simulator
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import Problem
from tests.plan.kernels import spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.spec.model import KernelSpec

# Queries and keys of a sequence. Its last tile has 1 to 128 rows (both halves at its keys), or 129 to 256 (for both).
MIXED = (
    (300, 300),  # a tile of 256, then 44 rows with 3 blocks
    (384, 640),  # then 128 rows with 5
    (257, 385),  # then 1 row with 4
    (255, 255),
    (127, 127),  # 1 block: the second half has nothing to do
    (129, 300),
    (1, 257),
    (128, 256),
    (64, 0),  # no key at all
    (256, 256),
    (60, 20),  # under a causal mask, rows without keys
    (383, 0),
    (2, 130),
)
LAST = ((44, 300), (128, 640), (1, 385), (127, 127), (64, 0), (128, 128), (1, 1))
CAUSAL = {"mask": "causal", "lse": True, "sink": True}
FIELDS: dict[str, dict[str, Any]] = {
    "causal": CAUSAL,
    "in the order of rows": CAUSAL | {"scheduler": {"kind": "persistent", "order": "natural"}},
    "no mask": {"mask": "none", "lse": True},
    "a window": {"mask": {"kind": "sliding_window", "left": 150, "right": 20}, "lse": True},
    "turns at exponentials": CAUSAL | {"config": {"softmax_order": True}},
    "blocks of 64 keys": CAUSAL | {"config": {"tile_n": 64}},
    "fp8": CAUSAL | {"dtype": "float8_e4m3fn"},
}
KERNELS = {name: spec(arch="sm_100a", **fields) for name, fields in FIELDS.items()}
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}


def batch(kernel: KernelSpec, sequences: Sequence[tuple[int, int]]) -> Problem:
    """Random operands of one head; the sinks weigh as much as some keys."""
    random = np.random.default_rng(5)
    queries, keys = zip(*sequences, strict=True)

    def draw(rows: int, columns: int) -> Any:
        return random.standard_normal((rows, 1, columns)).astype(TYPES[kernel.dtype])

    tensors: dict[str, Any] = {
        "q": draw(sum(queries), 192),
        "k": draw(sum(keys), 192),
        "v": draw(sum(keys), 128),
        "cu_seqlens_q": np.cumsum([0, *queries]).astype(np.int32),
        "cu_seqlens_k": np.cumsum([0, *keys]).astype(np.int32),
    }
    if kernel.sink:
        tensors["sinks"] = np.array([3.0], np.float32)
    return Problem("last tiles", tensors, {"softmax_scale": 0.1})


loaded = functools.cache(load)


def run_right(
    kernel: KernelSpec, problem: Problem, schedule: str = "lazy", *, trace: bool = False
) -> Simulated:
    """Run it with one block and hold it against float64, findings and all."""
    simulator = Simulator(schedule, ctas=1, trace=trace)
    outputs = Outputs.of(kernel, problem)
    given = {**problem.tensors, **problem.options, **outputs.arguments()}
    simulated = loaded(kernel).simulate(given, simulator=simulator)
    verdict = judge(
        Trial(kernel, problem.name, backend=simulator),
        outputs,
        expected(kernel, problem),
        simulated=simulated,
        seconds=0.0,
    )
    assert verdict.passed, "\n".join(verdict.complaints)
    assert verdict.findings == ()
    return simulated


@pytest.mark.parametrize("kernel", ["causal", "in the order of rows", "no mask", "a window"])
def test_tiles_of_both_kinds_follow_each_other(kernel: str) -> None:
    run_right(KERNELS[kernel], batch(KERNELS[kernel], MIXED))


@pytest.mark.parametrize("kernel", ["turns at exponentials", "blocks of 64 keys", "fp8"])
def test_last_tiles_follow_each_other(kernel: str) -> None:
    run_right(KERNELS[kernel], batch(KERNELS[kernel], LAST))


@pytest.mark.parametrize("schedule", ["eager", "pct:1", "pct:2", "pct:3", "pct:4"])
def test_no_order_of_warps_disturbs_them(schedule: str) -> None:
    run_right(KERNELS["causal"], batch(KERNELS["causal"], MIXED), schedule)


@pytest.mark.parametrize(
    ("queries", "keys", "first", "second"),
    [
        pytest.param(128, 128, 1, 0, id="one block"),
        pytest.param(1, 640, 3, 2, id="one row, blocks in turn"),
        pytest.param(129, 640, 5, 5, id="a row for the second half"),
    ],
)
def test_blocks_are_dealt_to_both_halves(queries: int, keys: int, first: int, second: int) -> None:
    kernel = KERNELS["no mask"]
    simulated = run_right(kernel, batch(kernel, [(queries, keys)]), trace=True)
    assert simulated.result is not None
    # A softmax warp loads its scores of a block in four pieces.
    loads = [
        event.warp
        for event in simulated.result.trace
        if event.kind == "run" and event.label.startswith("tcgen05.ld")
    ]
    assert [loads.count(warp) // 4 for warp in (0, 4)] == [first, second]


@pytest.mark.parametrize(
    "option",
    [{"config": {"cta_group": 2}}, {"partition": {"kind": "split_kv", "splits": 2}}],
    ids=str,
)
def test_pairs_and_parts_leave_the_second_half_idle(option: dict[str, Any]) -> None:
    text = render_kernel(plan_kernel(spec(arch="sm_100a", mask="causal", **option)))
    assert not re.search(r"takes_turns|in_turn", text)
