"""Reports of warps that cannot go on: who waits where, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim.hardware import ALL_LANES
from mlagen.sim.mbarrier import MBarrier
from mlagen.sim.program import Visible
from mlagen.sim.report import lines_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.hardware import Path, Warp
    from mlagen.sim.program import Program


def describe_deadlock(warps: Iterable[Warp], program: Program) -> str:
    """One line a path of every warp that has not ended, with equal lines of neighbouring warps joined."""
    lines: list[tuple[int, int, int, str]] = []  # CTA, first warp, last warp, text
    for warp in warps:
        for path in warp.paths:
            text = _describe_path(path, program)
            if lines:
                cta, first, last, before = lines[-1]
                if (cta, last + 1, before) == (warp.cta.number, warp.index, text):
                    lines[-1] = (cta, first, warp.index, text)
                    continue
            lines.append((warp.cta.number, warp.index, warp.index, text))
    if not lines:
        return "nobody can move"
    shown = [
        f"  cta {cta}, {f'warp {first}' if first == last else f'warps {first}-{last}'}{text}"
        for cta, first, last, text in lines
    ]
    return "\n".join(["nobody can move, and nothing is in flight:", *shown])


def report_stale_waits(warps: Iterable[Warp], program: Program) -> None:
    """Report who waits for a phase that ended two phases ago: its parity means another one by now."""
    for warp in warps:
        for path in warp.paths:
            barrier, step = path.waiting_on, program.steps[path.pc]
            if not (isinstance(barrier, MBarrier) and isinstance(step, Visible)):
                continue
            missed = barrier.missed_phase(path)
            if missed is not None:
                site = warp.cta.simulation.findings.site(path, step.instruction)
                text = f"waits for phase {missed}, which ended before phase {barrier.phase - 1} did"
                barrier.report("stale-wait", text, site)


def report_diverged(warp: Warp, program: Program) -> None:
    """Report a warp whose paths are all at collective instructions, but not together."""
    findings = warp.cta.simulation.findings
    places = []
    for path in warp.paths:
        step = program.steps[path.pc]
        assert isinstance(step, Visible)
        places.append(
            f"lanes {path.mask:#x} at {step.instruction.opcode} (PTX line {step.instruction.line})"
        )
    step = program.steps[warp.paths[0].pc]
    assert isinstance(step, Visible)
    findings.add(
        "diverged-aligned",
        "all live lanes must execute it together; " + ", ".join(places),
        findings.site(warp.paths[0], step.instruction),
    )


def report_spent_budget(path: Path, program: Program) -> None:
    """Report where a run was when its steps were spent."""
    findings = path.warp.cta.simulation.findings
    instructions = program.function.instructions
    findings.add(
        "step-budget",
        "the kernel has not ended after as many steps as it was given; a loop does not end",
        findings.site(path, instructions[min(path.pc, len(instructions) - 1)]),
    )


def _describe_path(path: Path, program: Program) -> str:
    """Role, lanes, line and what it waits for."""
    warp = path.warp
    role = warp.cta.simulation.findings.role(warp.index)
    lanes = "" if path.mask == ALL_LANES else f", lanes {path.mask:#x}"
    step = program.steps[path.pc]
    where = f"PTX line {program.lines[path.pc]}" if path.pc < len(program.lines) else "the end"
    what = ""
    if isinstance(step, Visible):
        source = step.instruction.source_line
        if source is not None:
            where = lines_text(source, step.instruction.call_lines)
        what = f" {step.instruction.opcode}"
    if path.waiting_on is not None:
        waits = f"waits for {path.waiting_on.describe(path)}"
    else:
        missing = warp.alive & ~path.mask
        waits = f"waits for lanes {missing:#x} of its warp to come here"
    return (
        f" ({role}){lanes}, at {where}{what}: {waits}"
        if role
        else f"{lanes}, at {where}{what}: {waits}"
    )
