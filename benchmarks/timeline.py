"""The schedule of the Blackwell prefill as a picture to scale: docs/kernels/prefill_sm100.svg (`make docs`).

A tile of three blocks, its operations in the order in which the kernel issues them, each as long as the cycle model
(mlagen/plan/cycle_model.py) says. Predicted, not measured. Where the model knows no cost, the picture shows the time
that the schedule leaves.

    python -m benchmarks.timeline > docs/kernels/prefill_sm100.svg
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from mlagen.plan import plan_kernel
from mlagen.plan.cycle_model import (
    B200,
    EXP2_CYCLES,
    HANDED_OVER_FIRST,
    SOFTMAX_OVERHEAD_CYCLES,
    products,
    step_of,
)
from mlagen.spec.yaml import kernel_from_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.plan.plan import KernelPlan

BLOCKS = ("n", "n-1", "n-2")
LANES = (
    "load: K",
    "load: V",
    "tensor cores",
    "softmax 0",
    "softmax 1",
    "correction 0",
    "correction 1",
)
COLOURS = {
    "scores": "#9ecae1",
    "output": "#fdae6b",
    "maximum": "#d9d9d9",
    "exponentials": "#a1d99b",
    "time left": "none",
}

MARGIN = 100  # of the lanes' names
WIDTH = 1500
HEAD = 40
ROW = 42
BAR = 32


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that one lane does.

    Attributes:
        lane: One of `LANES`.
        name: What it is.
        kind: A key of `COLOURS`.
        begin: Its first cycle, from where Q, K(n), V(n) and K(n-1) have arrived.
        end: The cycle behind its last.
    """

    lane: str
    name: str
    kind: str
    begin: float
    end: float

    @property
    def cycles(self) -> float:
        """How long it takes."""
        return self.end - self.begin


@dataclass(slots=True)
class Timeline:
    """Operations of one tile, each as soon as what it waits for is there.

    Attributes:
        plan: Whose tile it is.
        bars: What has been placed.
        tensor_free: When the tensor cores are done with what they have.
        exp2_free: Likewise the exp2 unit, which is drawn as serving one half after the other.
    """

    plan: KernelPlan
    bars: list[Bar] = field(default_factory=list)
    tensor_free: float = 0.0
    exp2_free: float = 0.0

    def add(self, lane: str, name: str, kind: str, *, begin: float, end: float) -> Bar:
        """Place a bar."""
        self.bars.append(Bar(lane, name, kind, begin, end))
        return self.bars[-1]

    def multiply(self, name: str, kind: str, *, ready: float) -> Bar:
        """Place a product, which is as long as the unit that binds lets it be."""
        units = step_of(self.plan, B200).units
        pace = max(units.values()) / units["tensor cores"]
        begin = max(self.tensor_free, ready)
        bar = self.add(
            "tensor cores", name, kind, begin=begin, end=begin + pace * products(self.plan)[kind]
        )
        self.tensor_free = bar.end
        return bar

    def soften(self, half: int, block: str, scores: Bar) -> tuple[float, float]:
        """Place a half's softmax; returns when its factor is known and when most of P is there."""
        lane = f"softmax {half}"
        known = scores.end + SOFTMAX_OVERHEAD_CYCLES
        self.add(lane, "max", "maximum", begin=scores.end, end=known)
        begin = max(known, self.exp2_free)
        end = begin + EXP2_CYCLES * self.plan.tile_n
        handed_over = begin + HANDED_OVER_FIRST * (end - begin)
        self.add(lane, f"exp P{half}({block})", "exponentials", begin=begin, end=handed_over)
        self.add(lane, "rest", "exponentials", begin=handed_over, end=end)
        self.exp2_free = end
        return known, handed_over


def timeline(plan: KernelPlan) -> list[Bar]:
    """The bars of a tile whose halves see all blocks, in the order of the MMA warp (`MmaWarp::attend`)."""
    tile = Timeline(plan)
    scores: dict[tuple[int, str], Bar] = {}
    output: dict[tuple[int, str], Bar] = {}
    softmax: dict[tuple[int, str], tuple[float, float]] = {}

    def begin_block(half: int, block: str) -> None:
        scores[half, block] = tile.multiply(f"S{half}({block})", "scores", ready=0.0)
        softmax[half, block] = tile.soften(half, block, scores[half, block])

    begin_block(0, BLOCKS[0])
    begin_block(1, BLOCKS[0])
    for block, after in zip(BLOCKS, [*BLOCKS[1:], None], strict=True):
        for half in (0, 1):
            ready = softmax[half, block][1]
            output[half, block] = tile.multiply(f"P{half} V({block})", "output", ready=ready)
            if after:
                begin_block(half, after)
    for index, block in enumerate(BLOCKS[1:], start=1):
        before = BLOCKS[index - 1]
        for half in (0, 1):
            begin, end = softmax[half, block][0], output[half, block].begin
            tile.add(
                f"correction {half}", f"O{half} *= c({block})", "time left", begin=begin, end=end
            )
        # Of three slots in turn, V takes that of the K before, and K that of the V two blocks before.
        begin, end = scores[1, before].end, output[0, block].begin
        tile.add("load: V", f"V({block})", "time left", begin=begin, end=end)
        if index > 1:
            begin, end = output[1, BLOCKS[index - 2]].end, scores[0, block].begin
            tile.add("load: K", f"K({block})", "time left", begin=begin, end=end)
    return tile.bars


def draw(bars: list[Bar]) -> str:
    """The bars as an SVG, a lane a row, with their cycles."""
    scale = (WIDTH - MARGIN) / max(bar.end for bar in bars)
    height = HEAD + ROW * len(LANES) + 20
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *_legend(),
            *_grid(scale, height),
            *(line for bar in bars for line in _rectangle(bar, scale)),
            "</svg>\n",
        ]
    )


def _legend() -> Iterator[str]:
    """What it is, and a sample and a word for each colour."""
    yield '<text x="4" y="14">cycles, predicted</text>'
    for index, (kind, colour) in enumerate(COLOURS.items()):
        left = MARGIN + 110 * index
        yield f'<rect x="{left}" y="4" width="12" height="12" fill="{colour}" stroke="#555"/>'
        yield f'<text x="{left + 16}" y="14">{kind}</text>'


def _grid(scale: float, height: int) -> Iterator[str]:
    """The names of the lanes, and a line every 1000 cycles."""
    for index, lane in enumerate(LANES):
        yield f'<text x="4" y="{HEAD + ROW * index + BAR / 2 + 4:.0f}">{lane}</text>'
    for cycle in range(0, int((WIDTH - MARGIN) / scale), 1000):
        x = MARGIN + cycle * scale
        yield f'<line x1="{x:.1f}" y1="{HEAD - 8}" x2="{x:.1f}" y2="{height - 16}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{cycle}</text>'


def _rectangle(bar: Bar, scale: float) -> Iterator[str]:
    """A bar, its name and its cycles."""
    left, width = MARGIN + bar.begin * scale, bar.cycles * scale
    top, middle = HEAD + ROW * LANES.index(bar.lane), left + width / 2
    dashes = ' stroke-dasharray="4 3"' if bar.kind == "time left" else ""
    yield (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" '
        f'fill="{COLOURS[bar.kind]}" stroke="#555"{dashes}/>'
    )
    for line, text in enumerate((bar.name, f"{bar.cycles:.0f}")):
        y = top + 13 + 13 * line
        yield f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def deepseek() -> KernelPlan:
    """The kernel of the page: DeepSeek-V3's heads, 16 bits, a tile of 256 rows and blocks of 128 keys."""
    geometry = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    options = {"arch": "sm_100a", "op": "prefill", "geometry": geometry | {"kv_lora_rank": 512}}
    return plan_kernel(kernel_from_dict(options))


if __name__ == "__main__":
    sys.stdout.write(draw(timeline(deepseek())))
