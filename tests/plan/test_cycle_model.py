"""The cycle model: steps by hand, what a tile visits, and the figures that the documents show."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.publish import shown
from benchmarks.timeline import deepseek, timeline
from mlagen.bench.document import grouped
from mlagen.bench.installed import OURS
from mlagen.plan.cycle_model import (
    B200,
    BLOCK_CYCLES,
    H200,
    LAUNCH_S,
    NUM_HEADS,
    SEQLENS,
    makespan,
    predict,
    predictions,
    step_of,
    tile_costs,
    visible,
    visited_blocks,
)
from tests.plan.kernels import plan

if TYPE_CHECKING:
    from mlagen.plan.cycle_model import Device
    from mlagen.plan.plan import KernelPlan

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "kernels/prefill_sm100.md").read_text(encoding="utf-8")
DENSE = {"q_layout": "dense", "kv": "dense"}
KERNELS = {
    (arch, name): plan(arch=arch, mask=mask, **DENSE)
    for arch in ("sm_90a", "sm_100a")
    for name, mask in (("causal", "causal"), ("dense", "none"))
}
MASKS = {
    "none": "none",
    "causal": "causal",
    "window": {"kind": "sliding_window", "left": 200, "right": 3},
    "open window": {"kind": "sliding_window", "left": 200, "right": None},
    "chunk": {"kind": "chunked", "size": 160},
    "whole chunk": {"kind": "chunked", "size": 160, "causal": False},
}


def measured() -> dict[str, float]:
    """TFLOP/s of ours in short bursts, in the run that the model was fitted to."""
    run = json.loads((DOCS / "performance/2026-12-02-h200.json").read_text(encoding="utf-8"))
    found = grouped(run["results"]["figures"]["results"])
    return {
        shown(row).removesuffix(" tokens"): float(one[OURS]["tflops"])
        for (row, regime), one in found.items()
        if regime == "cool"
    }


def test_a_step_on_hopper_by_hand() -> None:
    units = step_of(KERNELS["sm_90a", "dense"], H200).units
    assert units["tensor cores"] == 128 * 128 * (192 + 128) * 2 / 4096
    assert units["exp2"] == 128 * 128 / 16
    # Q 48 KiB; K 48 and V 32 KiB for each of two warpgroups; 80 KiB that TMA writes.
    assert units["shared memory"] == (48 + 2 * (48 + 32) + 80) * 1024 / 128
    assert units["L2"] == pytest.approx(80 * 1024 / 33.6)
    # Scores of 64 rows at the full rate, 64 exponentials a lane, and what lies around them; P V runs beside it.
    assert units["softmax chain"] == 64 * 128 * 192 * 2 / 4096 + 64 * 8 + 300
    assert step_of(KERNELS["sm_90a", "dense"], H200).bound_by == "tensor cores"


def test_a_step_of_fp8_on_hopper_by_hand() -> None:
    step = step_of(plan(dtype="float8_e4m3fn", **DENSE), H200)
    assert step.units["tensor cores"] == 128 * 128 * (192 + 128) * 2 / 8192
    # Half of what 16 bits take, and V once more read and written.
    assert step.units["shared memory"] == (144 + 2 * 16) * 1024 / 128
    # Both products of 64 rows, since the output is added up before the exponentials.
    assert step.chain == 64 * 128 * (192 + 128) * 2 / 8192 + 64 * 8 + 300
    assert step.bound_by == "softmax chain"


def test_a_step_on_blackwell_by_hand() -> None:
    step = step_of(KERNELS["sm_100a", "dense"], B200)
    assert step.units["tensor cores"] == 256 * 128 * (192 + 128) * 2 / 8192
    assert step.units["exp2"] == 256 * 128 / 16
    # Q 96 KiB; K 48 and V 32 KiB for each half; 80 KiB that TMA writes.
    assert step.units["shared memory"] == (96 + 2 * (48 + 32) + 80) * 1024 / 128
    # Both products of 128 rows, three quarters of 128 exponentials a lane, and what lies around them.
    assert step.units["softmax chain"] == 128 * 128 * 320 * 2 / 8192 + 0.75 * 128 * 8 + 300
    assert step.bound_by == "shared memory"
    assert step.cycles == pytest.approx(2688 * 1.07)
    # One half alone: all of K and V all the same, and as fast as L2 delivers them.
    assert step.lone_units["tensor cores"] == 1280
    assert step.lone_units["shared memory"] == (48 + 48 + 32 + 80) * 1024 / 128
    assert step.lone_units["L2"] == step.units["L2"] > step.chain
    assert step.cycles_alone == step.cycles_in_turn == pytest.approx(step.units["L2"] * 1.07)


def test_a_step_of_a_pair_by_hand() -> None:
    single, pair = KERNELS["sm_100a", "dense"], plan(arch="sm_100a", config={"cta_group": 2})
    step = step_of(pair, B200)
    # Q 96 KiB; of K 24 and of V 16 KiB for each half; 40 KiB that TMA writes.
    assert step.units["shared memory"] == (96 + 2 * (24 + 16) + 40) * 1024 / 128
    assert step.bound_by == "tensor cores"
    assert step.chain == step_of(single, B200).chain
    # Half as many tiles of twice the rows, for half as many pairs of SMs: dense work is as even as before.
    assert len(list(tile_costs(pair, step, 2048, 1))) == 4


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("arch", "ctas"), [("sm_90a", 1), ("sm_100a", 1), ("sm_100a", 2)])
def test_visited_blocks_are_those_that_a_loop_finds(arch: str, ctas: int, mask: object) -> None:
    kernel, seqlen = plan(arch=arch, mask=mask, config={"cta_group": ctas}), 900
    halves = 1 if arch == "sm_90a" else 2
    rows = kernel.tile_rows // halves
    for row in range(0, seqlen, kernel.tile_rows):
        seen: list[set[int]] = []
        for half in range(halves):
            first = row + half * rows
            queries = range(first, max(first, min(first + rows, seqlen)))
            keys = {key for q in queries for key in range(*visible(kernel.spec.mask, q, seqlen))}
            seen.append({key // kernel.tile_n for key in keys})
        both = set.intersection(*seen)
        alone = sum(len(blocks - both) for blocks in seen)
        assert visited_blocks(kernel, row, seqlen) == (len(both), alone)


def test_tiles_go_to_the_sm_that_is_free_first_or_by_a_fixed_stride() -> None:
    tiles = [5.0, 4.0, 3.0, 3.0, 3.0]
    assert makespan(tiles, 2, "queued") == 10  # 5 + 3, 4 + 3 + 3
    assert makespan(tiles, 2, "persistent") == 11  # 5 + 3 + 3, 4 + 3
    assert makespan(tiles, 2, "transient") == 10 + 3 * BLOCK_CYCLES
    assert makespan([], 4, "queued") == 0


@pytest.mark.parametrize("order", ["longest_first", "natural", "rotate"])
def test_every_order_hands_out_the_same_tiles(order: str) -> None:
    kernel = plan(arch="sm_100a", mask="causal", scheduler={"order": order})
    step = step_of(kernel, B200)
    one, two = (list(tile_costs(kernel, step, 1024, heads)) for heads in (1, 2))
    ascending = sorted(one)
    expected = {
        "longest_first": sorted(ascending * 2, reverse=True),
        "natural": ascending * 2,
        "rotate": ascending + ascending[::-1],
    }
    assert two == expected[order]


def test_longer_sequences_come_nearer_to_the_peak() -> None:
    for kernel in KERNELS.values():
        of_peak = [prediction.of_peak for prediction in predictions(kernel)]
        assert of_peak == sorted(of_peak)
        assert 0.5 < of_peak[0] < of_peak[-1] < 1 / 1.07


def test_few_heads_leave_sms_idle() -> None:
    kernel = KERNELS["sm_100a", "dense"]
    few, many = (predict(kernel, B200, 2048, heads).of_peak for heads in (8, 128))
    assert few < many * 8 * 8 / 148 * 1.1  # 64 tiles for 148 SMs


def test_emulated_exponentials_leave_the_exp2_unit() -> None:
    before, after = (
        step_of(plan(arch="sm_100a", config={"exp2_emulation_share": share}), B200).units
        for share in (0, 0.25)
    )
    assert after["exp2"] == 0.75 * before["exp2"] == 0.75 * 2048
    assert after["instruction issue"] > before["instruction issue"]


def test_known_error_on_hopper_is_within_two_percent() -> None:
    rows = measured()
    assert set(rows) == {"causal 2k", "causal 4k", "causal 8k", "dense 8k"}
    for shape, tflops in rows.items():
        name, length = shape.split()
        seqlen = int(length[:-1]) * 1024
        predicted = predict(KERNELS["sm_90a", name], H200, seqlen, NUM_HEADS)
        assert abs(predicted.tflops / tflops - 1) < 0.02, shape
        line = f"| {shape} | {predicted.tflops:.0f} | {tflops:.0f} | {predicted.tflops / tflops - 1:+.1%} |"
        assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"


@pytest.mark.parametrize("name", ["causal", "dense"])
@pytest.mark.parametrize("seqlen", SEQLENS)
def test_page_shows_what_the_model_predicts_for_a_b200(name: str, seqlen: int) -> None:
    found = predict(KERNELS["sm_100a", name], B200, seqlen, NUM_HEADS)
    line = f"| {found.shape} | {found.time_ms:.3f} | {found.tflops:.0f} | {found.of_peak:.0%} | {found.bound_by} |"
    assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"


@pytest.mark.parametrize("mask", ["causal", "none"])
@pytest.mark.parametrize("seqlen", SEQLENS)
def test_page_shows_what_a_pair_would_gain(mask: str, seqlen: int) -> None:
    single, pair = (
        predict(plan(arch="sm_100a", mask=mask, config=config), B200, seqlen, NUM_HEADS)
        for config in ({}, {"cta_group": 2})
    )
    line = f"| {pair.shape} | {single.tflops:.0f} | {pair.tflops:.0f} | {pair.bound_by} |"
    assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"


def test_page_shows_the_units_of_a_step() -> None:
    hopper = step_of(KERNELS["sm_90a", "dense"], H200)
    blackwell = step_of(KERNELS["sm_100a", "dense"], B200)
    for unit, cycles in blackwell.units.items():
        line = f"| {unit} | {hopper.units[unit]:.0f} | {cycles:.0f} |"
        assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"
    assert math.isclose(max(blackwell.units.values()), 2688)


def test_page_says_what_the_picture_of_the_schedule_shows() -> None:
    bars = {(bar.lane, bar.name): bar for bar in timeline(deepseek())}
    products = [bar for (lane, _), bar in bars.items() if lane == "tensor cores"]
    names = [bar.name for bar in products]
    begin = {bar.name: bar.begin for bar in products}
    assert names[:6] == ["S0(n)", "S1(n)", "P0 V(n)", "S0(n-1)", "P1 V(n)", "S1(n-1)"]
    step = begin["S0(n-2)"] - begin["S0(n-1)"]
    assert step == pytest.approx(max(step_of(deepseek(), B200).units.values()))
    slack = begin["P0 V(n-1)"] - bars["softmax 0", "exp P0(n-1)"].end
    k, v = bars["load: K", "K(n-2)"], bars["load: V", "V(n-2)"]
    for line in (
        f"| a step: four products | {step:.0f} |",
        f"| most of P is there before its product's turn by | {slack:.0f} |",
        f"| to rescale an output | {bars['correction 0', 'O0 *= c(n-1)'].cycles:.0f} |",
        f"| to load K, 48 KiB: {48 * 1024 / k.cycles:.0f} bytes a cycle | {k.cycles:.0f} |",
        f"| to load V, 32 KiB: {32 * 1024 / v.cycles:.0f} bytes a cycle | {v.cycles:.0f} |",
        f"| tensor cores idle at a tile's begin | {begin['P0 V(n)'] - products[1].end:.0f} |",
        f"| and at its end | {products[-1].begin - products[-2].end:.0f} |",
    ):
        assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("16 of 17 to 4096", [17 + i * (4096 - 17) // 15 for i in range(16)]),
        ("64 of 300", [300] * 64),
    ],
)
@pytest.mark.parametrize("l2_bytes_per_cycle", [33.6, 64])
def test_page_shows_what_last_tiles_gain(
    name: str, lengths: list[int], l2_bytes_per_cycle: float
) -> None:
    kernel = plan(arch="sm_100a", mask="causal")
    device = replace(B200, l2_bytes_per_cycle=l2_bytes_per_cycle)
    idle, in_turn = (
        batch_ms(replace(kernel, turns_in_tails=turns), device, lengths) for turns in (False, True)
    )
    line = f"| {name} | {l2_bytes_per_cycle} | {idle:.3f} | {in_turn:.3f} | {in_turn / idle - 1:+.1%} |"
    assert line in PAGE, f"docs/kernels/prefill_sm100.md lacks: {line}"


def batch_ms(kernel: KernelPlan, device: Device, lengths: list[int]) -> float:
    """What a causal batch takes, its longest tiles first."""
    step = step_of(kernel, device)
    tiles = sorted(
        (cycles for length in lengths for cycles in tile_costs(kernel, step, length, NUM_HEADS)),
        reverse=True,
    )
    return makespan(tiles, device.sms, "queued") / device.clock_ghz / 1e6 + LAUNCH_S * 1e3
