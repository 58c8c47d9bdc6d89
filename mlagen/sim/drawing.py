"""A trace as an SVG: a lane for each role and for each kind of operation. It shows the order of steps, not time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from mlagen.sim.report import role_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlagen.sim.report import Names
    from mlagen.sim.trace import TraceEvent

WIDTH = 1600
MARGIN = 150  # of the lanes' names
ROW = 7
GAP = 10
HEAD = 46
# Steps of a warp that are no further apart are drawn as one bar if they are of one kind.
_NEAR_STEPS = 24

# First part of an opcode -> what it is to a reader.
_KINDS = {
    "wgmma": "tensor core",
    "tcgen05": "tensor core",
    "cp": "copy",
    "mbarrier": "barrier",
    "bar": "barrier",
    "barrier": "barrier",
    "fence": "barrier",
    "setmaxnreg": "barrier",
}
_COLOURS = {
    "tensor core": "#4e79a7",
    "copy": "#59a14f",
    "barrier": "#b07aa1",
    "other": "#8c8c8c",
    "waits": "#f3c9bf",
}


@dataclass(frozen=True, slots=True)
class _Bar:
    """Something from one step to another.

    Attributes:
        first: Its first step.
        end: The step behind its last.
        kind: A key of `_COLOURS`.
        title: What a pointer over it is told.
    """

    first: int
    end: int
    kind: str
    title: str


@dataclass(slots=True)
class _Lane:
    """Rows of bars under one name."""

    name: str
    rows: list[list[_Bar]] = field(default_factory=list)

    def pack(self, bar: _Bar) -> None:
        """Put a bar into the first row that has room behind its last bar."""
        for row in self.rows:
            if row[-1].end <= bar.first:
                row.append(bar)
                return
        self.rows.append([bar])


def draw(events: Sequence[TraceEvent], names: Names) -> str:
    """An SVG of a trace; lanes in the order of blocks and warps, operations below the roles of their block."""
    source = names.source.splitlines()
    steps = max((event.step for event in events), default=0) + 1
    lanes = list(_lanes(events, names, source, steps))
    scale = (WIDTH - MARGIN) / steps
    height = HEAD + sum(len(lane.rows) * ROW + GAP for lane in lanes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="4" y="14">{steps} steps of the simulator from left to right: order, not time</text>',
        *_legend(),
    ]
    top = HEAD
    for lane in lanes:
        parts.append(f'<text x="4" y="{top + ROW}">{escape(lane.name)}</text>')
        for row in lane.rows:
            parts += [_rectangle(bar, top, scale) for bar in row]
            top += ROW
        top += GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    """A sample and a word for each colour."""
    for index, (kind, colour) in enumerate(_COLOURS.items()):
        left = MARGIN + 110 * index
        yield f'<rect x="{left}" y="22" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{left + 16}" y="32">{kind}</text>'


def _rectangle(bar: _Bar, top: int, scale: float) -> str:
    left, width = MARGIN + bar.first * scale, max((bar.end - bar.first) * scale, 0.4)
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" '
        f'fill="{_COLOURS[bar.kind]}"><title>{escape(bar.title)}</title></rect>'
    )


def _lanes(
    events: Sequence[TraceEvent], names: Names, source: list[str], steps: int
) -> Iterator[_Lane]:
    """The lanes of each block: its roles, a row a warp, then its operations."""
    of_cta: dict[int, list[TraceEvent]] = defaultdict(list)
    for event in events:
        of_cta[event.cta].append(event)
    for cta, own in sorted(of_cta.items()):
        warps: dict[int, list[TraceEvent]] = defaultdict(list)
        for event in own:
            if event.warp is not None and event.operation is None:
                warps[event.warp].append(event)
        roles: dict[str, _Lane] = {}
        for warp, steps_of_warp in sorted(warps.items()):
            name = role_of(names, warp) or f"warps {4 * (warp // 4)}-{4 * (warp // 4) + 3}"
            lane = roles.setdefault(name, _Lane(f"block {cta}: {name}"))
            lane.rows.append(list(_bars_of_warp(steps_of_warp, source)))
        yield from roles.values()
        yield from _operations(cta, own, source, steps)


def _bars_of_warp(events: Sequence[TraceEvent], source: list[str]) -> Iterator[_Bar]:
    """Waits up to the warp's next step; what is run near to each other and of one kind as one."""
    run: _Bar | None = None
    for event, after in zip(events, [*events[1:], None], strict=True):
        kind = _KINDS.get(event.label.partition(".")[0], "other")
        title = _title(event, source)
        if event.kind == "run":
            if run and run.kind == kind and event.step - run.end < _NEAR_STEPS:
                run = _Bar(run.first, event.step + 1, kind, run.title)
                continue
            if run:
                yield run
            run = _Bar(event.step, event.step + 1, kind, title)
        elif event.kind == "wait" and after is not None and after.step - event.step > 1:
            if run:
                yield run
            run = None
            yield _Bar(event.step, after.step, "waits", f"waits: {title}")
    if run:
        yield run


def _operations(
    cta: int, events: Sequence[TraceEvent], source: list[str], steps: int
) -> Iterator[_Lane]:
    """A lane for each kind of operation, from issue to completion."""
    ends = {event.operation: event.step for event in events if event.kind == "complete"}
    lanes: dict[str, _Lane] = {}
    for event in events:
        if event.kind == "issue":
            end = ends.get(event.operation, steps)
            lane = lanes.setdefault(event.label, _Lane(f"block {cta}: {event.label}"))
            kind = "copy" if "tma" in event.label or "copy" in event.label else "tensor core"
            lane.pack(_Bar(event.step, max(end, event.step + 1), kind, _title(event, source)))
    yield from lanes.values()


def _title(event: TraceEvent, source: list[str]) -> str:
    """What happened, at which step and line, and through which calls it came to that line."""
    text = f"{event.label}, step {event.step}"
    if event.source_line is None:
        return text
    lines = (event.source_line, *event.call_lines)
    return f"{text}, " + "\n".join(
        f"line {line}" + (f": {source[line - 1].strip()}" if 0 < line <= len(source) else "")
        for line in lines
    )
