"""What decoding and reporting of every tcgen05 instruction shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import ALL_LANES

if TYPE_CHECKING:
    from mlagen.sim.hardware import Path, Reader
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

GROUPS = frozenset({"cta_group::1", "cta_group::2"})
LaneValue = Callable[["Path"], int]

COLLECTIVE = frozenset({"sync", "aligned", "b32"})


def site_of(path: Path, instruction: Instruction) -> Site:
    """Where a path is."""
    return path.warp.cta.simulation.findings.site(path, instruction)


def cta_group_of(instruction: Instruction) -> int:
    """1 or 2."""
    for part in instruction.parts:
        if part in GROUPS:
            return int(part[-1])
    raise UnsupportedPtxError(f"{instruction.opcode}: no .cta_group")


def check_modifiers(instruction: Instruction, known: frozenset[str]) -> None:
    """Refuse an instruction with a modifier behind `tcgen05.<name>` that is not known."""
    for part in instruction.parts[2:]:
        if part not in known:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{part}")


def check_whole_warp(path: Path, site: Site) -> None:
    """Report a collective of a warp that has lost lanes: its behaviour is undefined (PTX ISA 9.7.16.7, 9.7.16.8)."""
    if path.mask != ALL_LANES:
        path.warp.cta.simulation.findings.add(
            "diverged-aligned",
            "threads of the warp have exited: the whole warp must take part",
            site,
        )


def check_one_lane(path: Path, site: Site) -> None:
    """Report an instruction of one thread that several execute: each would start an operation of its own.

    PTX ISA 9.7.16.5, Issue Granularity.
    """
    if path.mask & (path.mask - 1):
        path.warp.cta.simulation.findings.add(
            "tcgen05-issue",
            f"issued by {path.mask.bit_count()} threads, of which each starts the operation: is an elect.sync missing?",
            site,
        )


def lane_value(reader: Reader) -> LaneValue:
    """The value of an operand in the first lane of a path."""

    def value(path: Path) -> int:
        values = reader(path)
        return int(values[path.first_lane] if np.ndim(values) else values)

    return value
