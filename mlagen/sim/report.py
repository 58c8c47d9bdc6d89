"""Findings: what a run noticed, as values; and their texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "note"]

MOST_FINDINGS = 50


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


@dataclass(frozen=True, slots=True)
class Site:
    """Where something happened.

    Attributes:
        cta: Running number of the CTA in the grid.
        warp: Index in the CTA.
        lanes: A bit for every lane.
        opcode: The instruction.
        ptx_line: Line in the PTX text.
        source_line: Line of the CUDA source, if the PTX says so.
        step: The simulation's stamp.
    """

    cta: int
    warp: int
    lanes: int
    opcode: str
    ptx_line: int
    source_line: int | None
    step: int


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
