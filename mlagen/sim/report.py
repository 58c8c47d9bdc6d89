"""Findings: what a run noticed, as values; and their texts."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mlagen.sim.finding_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.hardware import Path, Warp
    from mlagen.sim.ptx import Instruction

Severity = Literal["error", "note"]

MOST_FINDINGS = 50
_LANES = 32


@dataclass(frozen=True, slots=True)
class Names:
    """Names from a kernel's plan, for messages only.

    Attributes:
        barriers: Offset in dynamic shared memory of an mbarrier -> `k_full[1]`.
        regions: `(first byte, bytes, name)` in dynamic shared memory.
        roles: First warp -> role of the warps from there on: `{0: "load warp", 4: "math warpgroup 0"}`.
        named_barriers: Id of a `bar.sync` barrier -> name.
        source: The CUDA text, to quote lines from.
    """

    barriers: dict[int, str] = field(default_factory=dict)
    regions: tuple[tuple[int, int, str], ...] = ()
    roles: dict[int, str] = field(default_factory=dict)
    named_barriers: dict[int, str] = field(default_factory=dict)
    source: str = ""


class Site(NamedTuple):
    """Where something happened. A named tuple, because every visible instruction makes one.

    Attributes:
        cta: Running number of the CTA in the grid.
        warp: Index in the CTA.
        lanes: A bit for every lane.
        opcode: The instruction.
        ptx_line: Line in the PTX text.
        source_line: Line of the CUDA source, if the PTX says so.
        step: The simulation's stamp.
        call_lines: Lines of the calls through which that line was inlined, innermost first.
    """

    cta: int
    warp: int
    lanes: int
    opcode: str
    ptx_line: int
    source_line: int | None
    step: int
    call_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth a note.

    Attributes:
        kind: A word of `docs/simulator.md`'s table, such as `race` or `proxy-fence`.
        severity: An error fails a check.
        message: What is wrong, with names, addresses and values.
        site: The instruction that is wrong; None if the whole run is (a deadlock).
        earlier: The access that it conflicts with.
        barrier: Name of the barrier.
        region: Name of the memory.
    """

    kind: str
    severity: Severity
    message: str
    site: Site | None = None
    earlier: Site | None = None
    barrier: str | None = None
    region: str | None = None


class Findings:
    """The findings of a run, without repetitions.

    Attributes:
        names: For messages.
        items: In the order in which they were found, at most `MOST_FINDINGS`.
    """

    def __init__(self, names: Names) -> None:
        """Nothing is wrong yet."""
        self.names = names
        self.items: list[Finding] = []
        self._seen: set[tuple[Any, ...]] = set()  # Any: the parts of a key

    def add(
        self,
        kind: str,
        message: str,
        site: Site | None = None,
        *,
        earlier: Site | None = None,
        barrier: str | None = None,
        region: str | None = None,
        severity: Severity = "error",
    ) -> None:
        """Report something; the same kind at the same two places of the source counts once."""
        key = (
            kind,
            _source_place(site) if site else message,
            _source_place(earlier) if earlier else None,
            severity,
        )
        if key in self._seen or len(self.items) >= MOST_FINDINGS:
            return
        self._seen.add(key)
        self.items.append(Finding(kind, severity, message, site, earlier, barrier, region))

    def site(self, actor: Path | Warp, instruction: Instruction) -> Site:
        """Where an instruction is executed."""
        warp: Any = getattr(actor, "warp", actor)  # Any: a path's warp, or the warp itself
        lanes = getattr(actor, "mask", None)
        return Site(
            warp.cta.number,
            warp.index,
            warp.alive if lanes is None else lanes,
            instruction.opcode,
            instruction.line,
            instruction.source_line,
            warp.cta.simulation.step,
            instruction.call_lines,
        )

    def region_name(self, offset: int) -> str | None:
        """Name of the region at an offset in dynamic shared memory."""
        for first, size, name in self.names.regions:
            if first <= offset < first + size:
                return name
        return None

    def barrier_name(self, offset: int) -> str | None:
        """Name of the mbarrier at an offset in dynamic shared memory."""
        return self.names.barriers.get(offset)

    def role(self, warp: int) -> str | None:
        """Role of a warp of a CTA."""
        return role_of(self.names, warp)


def _source_place(site: Site) -> tuple[int, ...]:
    """What tells places in a kernel apart: lines of the source, if they are known."""
    if site.source_line is None:
        return (0, site.ptx_line)
    return (1, site.source_line, *site.call_lines)


def lines_text(source_line: int, call_lines: tuple[int, ...]) -> str:
    """`line 230, called in 294, 727`."""
    calls = ", ".join(str(line) for line in call_lines)
    return f"line {source_line}" + (f", called in {calls}" if calls else "")


def role_of(names: Names, warp: int) -> str | None:
    """Role of a warp: that of the nearest first warp at or before it."""
    starts = sorted(names.roles)
    place = bisect.bisect_right(starts, warp) - 1
    return names.roles[starts[place]] if place >= 0 else None


def render_text(findings: Iterable[Finding], names: Names) -> str:
    """Findings as a compiler would print them: what, where with the source line, the earlier access, what to do."""
    lines = names.source.splitlines()
    return "\n\n".join(_render(finding, names, lines) for finding in findings)


def _render(finding: Finding, names: Names, lines: list[str]) -> str:
    about = ", ".join(
        name for name in (finding.barrier, finding.region) if name and name not in finding.message
    )
    parts = [
        f"{finding.severity}: {finding.kind}: {finding.message}" + (f" ({about})" if about else "")
    ]
    if finding.site is not None:
        parts.append(_place("at", finding.site, names, lines))
    if finding.earlier is not None:
        parts.append(_place("earlier", finding.earlier, names, lines))
    kind = KINDS.get(finding.kind)
    if kind is not None and kind.advice:
        parts.append(f"  {kind.advice}")
    return "\n".join(parts)


def _place(word: str, site: Site, names: Names, lines: list[str]) -> str:
    role = role_of(names, site.warp)
    who = f"CTA {site.cta}, warp {site.warp}" + (f" ({role})" if role else "")
    where = f"line {site.source_line}" if site.source_line else f"PTX line {site.ptx_line}"
    text = f"  {word}: {where}, {who}{_lanes(site.lanes)}, step {site.step}: {site.opcode}"
    quoted = [line for line in (site.source_line, *site.call_lines) if line and line <= len(lines)]
    return "\n".join([text, *(f"    {line:5} | {lines[line - 1].strip()}" for line in quoted)])


def _lanes(lanes: int) -> str:
    """Which lanes, unless all of them: `, lanes 0-3 and 8`."""
    runs: list[tuple[int, int]] = []
    for lane in range(_LANES):
        if lanes >> lane & 1:
            first = runs.pop()[0] if runs and runs[-1][1] == lane - 1 else lane
            runs.append((first, lane))
    if runs == [(0, _LANES - 1)] or not runs:
        return ""
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return f", lane{'s' if lanes & (lanes - 1) else ''} {' and '.join(words)}"


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as values for `json.dumps`."""
    return [
        {
            one.name: value._asdict() if isinstance(value, Site) else value
            for one in fields(finding)
            for value in [getattr(finding, one.name)]
        }
        for finding in findings
    ]
