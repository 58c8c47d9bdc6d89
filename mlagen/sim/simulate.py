"""`simulate`: one launch, from PTX and a launch record to findings; results are in the caller's arrays."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mlagen.sim.launch import Launch
from mlagen.sim.lower import lower
from mlagen.sim.machine import Machine
from mlagen.sim.order import Order
from mlagen.sim.parser import parse
from mlagen.sim.program import Program, Segment
from mlagen.sim.report import Findings, Names
from mlagen.sim.schedule import Lazy, encode_steps
from mlagen.sim.trace import Counters, Recorder

if TYPE_CHECKING:
    from mlagen.launch_record import LaunchRecord
    from mlagen.sim.memory import GlobalMemory
    from mlagen.sim.products import Accumulation
    from mlagen.sim.report import Finding
    from mlagen.sim.schedule import Schedule
    from mlagen.sim.trace import TraceEvent

MOST_STEPS = 5_000_000
RESIDENT_CLUSTERS = 4


@dataclass(frozen=True, slots=True)
class Checks:
    """How severe to be.

    Attributes:
        level: `strict` applies the rules by the letter; in `practice` those that working compilers break are notes.
        order: Whether to check what happens before what: the dearest check.
    """

    level: Literal["strict", "practice"] = "strict"
    order: bool = True

    @classmethod
    def strict(cls) -> Checks:
        """Everything, by the letter."""
        return cls()

    @classmethod
    def practice(cls) -> Checks:
        """Everything, as compilers of others see it."""
        return cls("practice")


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a run leaves behind besides the arrays that it has written.

    Attributes:
        findings: What was wrong, in the order in which it was found.
        counters: How much was done.
        steps: Who took each step, for `schedule`.
        covered_pcs: Instructions that some warp has executed.
        covered_lines: Their lines in the CUDA source.
        uncovered_lines: Lines of the source that have instructions, none of which was executed.
        trace: Events, if they were asked for.
    """

    findings: tuple[Finding, ...]
    counters: Counters
    steps: tuple[int, ...]
    covered_pcs: frozenset[int]
    covered_lines: frozenset[int]
    uncovered_lines: frozenset[int]
    trace: tuple[TraceEvent, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that fail a check."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def schedule(self) -> str:
        """The steps as one word, which `schedule.Replay` takes."""
        return encode_steps(self.steps)


@functools.lru_cache(maxsize=4)
def load_program(ptx: str, kernel: str | None = None) -> Program:
    """Parse and lower a kernel; the same text is done once.

    Raises:
        UnsupportedPtxError: It has instructions that the simulator does not know.
    """
    return lower(parse(ptx), kernel)


def simulate(
    ptx: str | Program,
    record: LaunchRecord,
    memory: GlobalMemory,
    *,
    schedule: Schedule = Lazy(),  # noqa: B008 (a frozen value)
    checks: Checks = Checks.strict(),  # noqa: B008 (a frozen value)
    names: Names = Names(),  # noqa: B008 (a frozen value)
    resident: int = RESIDENT_CLUSTERS,
    trace: bool = False,
    most_steps: int = MOST_STEPS,
    accumulation: Accumulation = "fast",
) -> SimulationResult:
    """Run one launch.

    Args:
        ptx: The kernel, as text or lowered.
        record: Grid, block, parameters; pointers among them are addresses of `memory`.
        memory: Device memory, whose arrays the kernel writes.
        schedule: Who goes when.
        checks: What to check.
        names: For messages.
        resident: Clusters (CTAs without clusters) that run at the same time.
        trace: Whether to record events.
        most_steps: After how many steps to give up.
        accumulation: How `wgmma` adds up; see `products`.

    Raises:
        UnsupportedPtxError: The kernel has instructions that the simulator does not know.
        SimulationError: The record does not fit the kernel.
    """
    program = ptx if isinstance(ptx, Program) else load_program(ptx, record.kernel)
    findings = Findings(names)
    is_strict = checks.level == "strict"
    launch = Launch(
        program,
        record,
        memory,
        findings=findings,
        order=Order(findings, enabled=checks.order, strict=is_strict),
        is_strict=is_strict,
    )
    launch.simulation.accumulation = accumulation
    recorder = Recorder(len(program.steps), trace=trace)
    machine = Machine(
        program, launch.simulation, recorder, most_steps=most_steps, on_end=launch.end
    )
    with np.errstate(all="ignore"):
        for _ in range(resident):
            machine.start(launch.start_cluster())
        machine.run(schedule)
    return _result(program, findings, recorder, launch.simulation.submitted)


def _result(
    program: Program, findings: Findings, recorder: Recorder, operations: int
) -> SimulationResult:
    """Gather what the recorder has counted."""
    pcs = _covered_pcs(program, recorder.covered)
    instructions = program.function.instructions
    lines = {one.source_line for one in instructions if one.source_line is not None}
    covered = {instructions[pc].source_line for pc in pcs} - {None}
    covered_lines = frozenset(line for line in covered if line is not None)
    return SimulationResult(
        findings=tuple(findings.items),
        counters=Counters(recorder.instructions, recorder.visible, operations, len(recorder.steps)),
        steps=tuple(recorder.steps),
        covered_pcs=pcs,
        covered_lines=covered_lines,
        uncovered_lines=frozenset(lines) - covered_lines,
        trace=tuple(recorder.events or ()),
    )


def _covered_pcs(program: Program, covered: bytearray) -> frozenset[int]:
    """All instructions of the steps that have run."""
    pcs: set[int] = set()
    for pc, step in enumerate(program.steps):
        if covered[pc] and step is not None and pc < len(program.function.instructions):
            pcs.update(range(pc, step.end if isinstance(step, Segment) else pc + 1))
    return frozenset(pcs)
