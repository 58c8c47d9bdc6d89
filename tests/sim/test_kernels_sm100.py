"""Blackwell kernels in the simulator, which is all the proof there is of them: strict, against float64.

Kernels of each form and of each kind of input, on the problems that are about them. Which options stand together is for
`test_option_pairs.py`; `make sim-full` has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlagen.runtime.simulator import Simulator
from mlagen.spec.config import FA4Config
from mlagen.trials import Trial, run_trial
from mlagen.verify.problems import problem_names
from tests.gpu.kernels import spec_of
from tests.plan.kernels import spec as make_spec
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec


def on_blackwell(spec: KernelSpec) -> KernelSpec:
    """The same kernel for sm_100a."""
    return spec.model_copy(update={"arch": "sm_100a"})


KERNELS = {
    "causal": on_blackwell(spec_of(mask="causal")),
    "pages of 64": on_blackwell(spec_of(mask="causal", k_rope="paged_64")),
    "dense": on_blackwell(spec_of(mask="causal", q_layout="dense", kv="dense")),
    "128x128": on_blackwell(spec_of(geometry="128x128")),
}


def with_config(spec: KernelSpec, **config: object) -> KernelSpec:
    """The same kernel, configured."""
    return spec.model_copy(update={"config": FA4Config.model_validate(config)})


@pytest.mark.parametrize(("schedule", "problem"), [("lazy", WALK), ("pct:1", "random")])
def test_turns_and_emulated_exponentials(schedule: str, problem: str) -> None:
    config = {"softmax_order": True, "exp2_emulation_share": 0.5}
    assert_passes(with_config(KERNELS["causal"], **config), problem, schedule)


ONE_TILE = {"tile_m": 128}
ONE_OUTPUT = {"tile_m": 128, "single_output": True}


@pytest.mark.parametrize("config", [ONE_TILE, ONE_OUTPUT], ids=["one tile", "one output"])
@pytest.mark.parametrize(
    ("problem", "schedule"),
    [
        (WALK, "lazy"),
        ("many keys", "pct:1"),  # five blocks a half
        ("one key", "lazy"),  # the second half has none
        ("huge rising walk", "pct:2"),
        ("three tiles walk", "eager"),  # an odd number of blocks
    ],
)
def test_halves_that_share_the_keys_of_128_rows(
    config: dict[str, object], problem: str, schedule: str
) -> None:
    assert_passes(with_config(KERNELS["causal"], **config), problem, schedule)


@pytest.mark.parametrize("config", [ONE_TILE, ONE_OUTPUT], ids=["one tile", "one output"])
def test_fp8_in_turns_at_the_keys_of_128_rows(config: dict[str, object]) -> None:
    assert_passes(with_config(FP8, **config, softmax_order=True), WALK)


FP8 = KERNELS["causal"].model_copy(update={"dtype": "float8_e4m3fn"})
FP8_PAGES = KERNELS["pages of 64"].model_copy(
    update={"dtype": "float8_e4m3fn", "output_dtype": "float16"}
)


@pytest.mark.parametrize(
    ("spec", "problem", "schedule"),
    [
        (FP8, WALK, "lazy"),
        (FP8, "random", "pct:1"),
        (FP8, "leading key", "lazy"),
        (FP8, "threshold", "eager"),
        (FP8_PAGES, "three blocks walk", "lazy"),
        (FP8_PAGES, "more queries than keys", "pct:2"),
    ],
)
def test_fp8(spec: KernelSpec, problem: str, schedule: str) -> None:
    assert_passes(spec, problem, schedule)


PAGES_OF_KEYS = {"layout": "paged", "page_size": 256}
PAIRS = {name: with_config(KERNELS[name], cta_group=2) for name in ("causal", "pages of 64")} | {
    "K and V in pages": make_spec(
        arch="sm_100a", mask="causal", kv=PAGES_OF_KEYS, config={"cta_group": 2}
    )
}


@pytest.mark.parametrize(
    ("kernel", "schedule", "problem"),
    [
        ("causal", "lazy", WALK),
        ("causal", "pct:2", "no keys"),
        ("pages of 64", "pct:1", "random"),
        ("K and V in pages", "lazy", WALK),
        ("K and V in pages", "pct:1", "shared pages"),
    ],
)
def test_pairs_of_blocks(kernel: str, schedule: str, problem: str) -> None:
    # 512 rows a tile: sequences end in the first block of a half, in the second, and between the halves.
    assert_passes(PAIRS[kernel], problem, schedule)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_priorities_find_nothing(kernel: str, seed: int) -> None:
    assert_passes(KERNELS[kernel], WALK, f"pct:{seed}")


@pytest.mark.parametrize("kernel", ["causal", "pages of 64", "dense"])
def test_problems_reach_every_line(kernel: str) -> None:
    spec = KERNELS[kernel]
    unreached: list[set[int]] = []
    for problem in problem_names(spec):
        verdict = run_trial(Trial(spec, problem, backend=Simulator("eager")))
        assert verdict.passed, "\n".join([verdict.key, *verdict.complaints])
        unreached.append(set(verdict.unreached))
    assert set.intersection(*unreached) == set()
