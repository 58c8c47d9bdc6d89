"""A run as an SVG: a panel a regime, a group of bars a row, a bar an implementation."""

from __future__ import annotations

import math
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
HEAD = 62
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
_LETTER = 5.3  # width of a letter of the heading


def draw(document: Document) -> str:
    """The results of `make_document` as a picture; ours carries its speed relative to the best peer."""
    results = [one for one in document["results"] if one["tflops"] is not None]
    names = implementations(results)
    step = _step(max((one["tflops"] for one in results), default=1.0))
    end = step * max(1, math.ceil(max((one["tflops"] for one in results), default=1.0) / step))
    scale = (WIDTH - MARGIN - RIGHT) / end
    lines = list(_head(document["machine"], names))
    top: float = HEAD
    for regime, words in REGIMES.items():
        groups = {row: found for (row, its), found in grouped(results).items() if its == regime}
        if groups:
            panel, top = _panel(words, groups, names, top=top, scale=scale, step=step, end=end)
            lines += panel
    height = top + GAP
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11" fill="#222">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([start, background, *lines, "</svg>\n"])


def _step(largest: float) -> float:
    """Between two lines of the grid: 1, 2 or 5 times a power of ten, of at most `TICKS` lines."""
    power = 10.0 ** math.floor(math.log10(largest / TICKS))
    return next(one * power for one in (1, 2, 5, 10) if largest <= one * power * TICKS)


def _head(machine: Document, names: Sequence[str]) -> Iterator[str]:
    """What it is and was made on, and a colour for each implementation."""
    words = heading(machine).split(", ")
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}, {word}" if lines[-1] else word
        if len(longer) * _LETTER > WIDTH - 2 * GAP and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    yield f'<text x="{GAP}" y="18" font-size="13" font-weight="bold">TFLOP/s, more is better</text>'
    for index, line in enumerate(lines[:2]):
        yield f'<text x="{GAP}" y="{34 + 13 * index}" font-size="10" fill="#666">{escape(line)}</text>'
    left = WIDTH - RIGHT
    for name in reversed(names):
        left -= 40 + 6.2 * len(title(name))
        yield f'<rect x="{left:.0f}" y="8" width="11" height="11" fill="{COLOURS[name]}"/>'
        yield f'<text x="{left + 16:.0f}" y="18">{escape(title(name))}</text>'


def _panel(
    words: str,
    groups: dict[str, dict[str, Document]],
    names: Sequence[str],
    *,
    top: float,
    scale: float,
    step: float,
    end: float,
) -> tuple[list[str], float]:
    """The lines of one regime, and where they end."""
    heights = [BAR * len([name for name in names if name in found]) for found in groups.values()]
    bottom = top + PANEL_HEAD + sum(heights) + GAP * len(heights)
    lines = [f'<text x="{GAP}" y="{top + 24}" font-weight="bold">{escape(words)}</text>']
    for index in range(round(end / step) + 1):
        x = MARGIN + index * step * scale
        lines += [
            f'<line x1="{x:.1f}" y1="{top + 32}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{top + 28}" text-anchor="middle" fill="#666">{index * step:g}</text>',
        ]
    y: float = top + PANEL_HEAD
    for (row, found), height in zip(groups.items(), heights, strict=True):
        middle = y + height / 2 + 4
        lines.append(
            f'<text x="{MARGIN - GAP}" y="{middle:.1f}" text-anchor="end">{escape(row)}</text>'
        )
        for name in (name for name in names if name in found):
            lines += _bar(name, found[name], y=y, scale=scale)
            y += BAR
        y += GAP
    return lines, bottom


def _bar(name: str, result: Document, *, y: float, scale: float) -> Iterator[str]:
    """A bar and its numbers."""
    width = result["tflops"] * scale
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
