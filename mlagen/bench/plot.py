"""A run as an SVG: a panel a regime, a group of bars a row, a bar an implementation."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from mlagen.bench.document import grouped, heading, implementations, title
from mlagen.bench.installed import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Document = dict[str, Any]  # Any: JSON values

WIDTH = 960
MARGIN = 240  # of the rows' names
RIGHT = 90  # of a bar's own numbers
HEAD = 34  # above the facts of the machine
LINE = 13
LETTERS = 175  # of a line of facts
PANEL_HEAD = 44
BAR = 13
GAP = 10
TICKS = 6
REGIMES = {"cool": "cool: in short bursts", "hot": "hot: at the power limit"}
COLOURS = {
    OURS: "#1f6f4a",
    "torch_cudnn": "#8fb7d9",
    "flex": "#e0b36a",
    "fa4": "#c98ba8",
    "flashinfer": "#a7a1d6",
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """TFLOP/s along the width.

    Attributes:
        step: Between two lines of the grid.
        lines: How many there are, besides that at 0.
    """

    step: float
    lines: int

    @classmethod
    def up_to(cls, largest: float) -> _Axis:
        """The axis with a step of 1, 2 or 5 times a power of ten, and at most `TICKS` steps."""
        power = 10.0 ** math.floor(math.log10(largest / TICKS))
        step = next(one * power for one in (1, 2, 5, 10) if largest <= one * power * TICKS)
        return cls(step, math.ceil(largest / step))

    def width(self, tflops: float) -> float:
        """Of a bar."""
        return tflops * (WIDTH - MARGIN - RIGHT) / (self.step * self.lines)


def draw(document: Document) -> str:
    """The results of `make_document` as a picture; ours carries its speed relative to the best peer."""
    results = [one for one in document["results"] if one["tflops"] is not None]
    names = implementations(results)
    axis = _Axis.up_to(max((one["tflops"] for one in results), default=1.0))
    facts = textwrap.wrap(heading(document["machine"]), LETTERS)
    lines = list(_head(facts, names))
    top: float = HEAD + LINE * len(facts)
    for regime, words in REGIMES.items():
        groups = {row: found for (row, its), found in grouped(results).items() if its == regime}
        if groups:
            panel, top = _panel(words, groups, names, axis, top=top)
            lines += panel
    height = top + GAP
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" fill="#222">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([start, background, *lines, "</svg>\n"])


def _head(facts: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """What it is and was made on, and a colour for each implementation."""
    yield f'<text x="{GAP}" y="18" font-size="13" font-weight="bold">TFLOP/s, more is better</text>'
    for index, line in enumerate(facts):
        y = HEAD + LINE * index
        yield f'<text x="{GAP}" y="{y}" font-size="10" fill="#666">{escape(line)}</text>'
    left: float = WIDTH - RIGHT
    for name in reversed(names):
        left -= 40 + 6.2 * len(title(name))
        yield f'<rect x="{left:.0f}" y="8" width="11" height="11" fill="{COLOURS[name]}"/>'
        yield f'<text x="{left + 16:.0f}" y="18">{escape(title(name))}</text>'


def _panel(
    words: str,
    groups: dict[str, dict[str, Document]],
    names: Sequence[str],
    axis: _Axis,
    *,
    top: float,
) -> tuple[list[str], float]:
    """The lines of one regime, and where they end."""
    heights = [BAR * len([name for name in names if name in found]) for found in groups.values()]
    bottom = top + PANEL_HEAD + sum(heights) + GAP * len(heights)
    lines = [f'<text x="{GAP}" y="{top + 24}" font-weight="bold">{escape(words)}</text>']
    for tick in (axis.step * index for index in range(axis.lines + 1)):
        x = MARGIN + axis.width(tick)
        lines += [
            f'<line x1="{x:.1f}" y1="{top + 32}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{top + 28}" text-anchor="middle" fill="#666">{tick:g}</text>',
        ]
    y: float = top + PANEL_HEAD
    for (row, found), height in zip(groups.items(), heights, strict=True):
        middle = y + height / 2 + 4
        lines.append(
            f'<text x="{MARGIN - GAP}" y="{middle:.1f}" text-anchor="end">{escape(row)}</text>'
        )
        for name in (name for name in names if name in found):
            lines += _bar(name, found[name], axis, y=y)
            y += BAR
        y += GAP
    return lines, bottom


def _bar(name: str, result: Document, axis: _Axis, *, y: float) -> Iterator[str]:
    """A bar and its numbers."""
    width = axis.width(result["tflops"])
    text = f"{result['tflops']:.0f}"
    if result["is_wrong"]:
        text += " wrong"
    elif result.get("ratio"):
        text += f'<tspan dx="8">{result["ratio"]:.2f} ×</tspan>'
    weight = ' font-weight="bold"' if name == OURS else ""
    yield (
        f'<rect x="{MARGIN}" y="{y}" width="{width:.1f}" height="{BAR - 1}" fill="{COLOURS[name]}">'
        f"<title>{escape(title(name))}</title></rect>"
    )
    yield f'<text x="{MARGIN + width + 5:.1f}" y="{y + BAR - 3}"{weight}>{text}</text>'
