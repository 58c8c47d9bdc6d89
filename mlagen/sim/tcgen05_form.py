"""What decoding and reporting of every tcgen05 instruction shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import ALL_LANES

if TYPE_CHECKING:
    from mlagen.sim.hardware import Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site
    from mlagen.sim.tensor_memory import TensorMemory

GROUPS = frozenset({"cta_group::1", "cta_group::2"})
COLLECTIVE = frozenset({"sync", "aligned", "b32"})


def tensor_memory_of(path: Path) -> TensorMemory:
    """Tensor memory of the path's CTA, which every CTA of sm_100a has."""
    memory = path.warp.cta.tensor_memory
    assert memory is not None
    return memory


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
