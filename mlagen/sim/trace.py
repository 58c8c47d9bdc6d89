"""What a run leaves behind besides results and findings: counters, covered lines, its steps, and a trace on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mlagen.sim.hardware import Actor, AsyncOperation, Path
    from mlagen.sim.ptx import Instruction

EventKind = Literal["run", "wait", "issue", "complete"]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened, in the order of steps; it says nothing of time.

    Attributes:
        step: The simulation's stamp.
        cta: Running number of the CTA.
        warp: Index in the CTA; of the issuer for `issue`, None for `complete`.
        operation: Number of the operation, for `issue` and `complete`.
        kind: `run` an instruction, `wait` at it, `issue` or `complete` an operation.
        pc: Of the instruction, -1 if there is none.
        source_line: Of the CUDA source, if known.
        label: The opcode, or the operation's name.
        call_lines: Lines of the calls through which it was inlined, innermost first.
    """

    step: int
    cta: int
    warp: int | None
    operation: int | None
    kind: EventKind
    pc: int
    source_line: int | None
    label: str
    call_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counters:
    """How much a run did.

    Attributes:
        instructions: Instructions, once a warp.
        visible: Those of them that other warps can notice, attempts that ended in a wait included.
        operations: Asynchronous operations.
        steps: Choices of the schedule.
    """

    instructions: int
    visible: int
    operations: int
    steps: int


class Recorder:
    """Counts; cheap enough to be always on, but for the trace.

    Attributes:
        instructions: Instructions, once a warp.
        visible: Visible instructions and attempts.
        covered: Per pc, whether a step that starts there has run.
        steps: Numbers of the actors that were chosen.
        events: The trace; None if nobody asked for one.
    """

    __slots__ = ("covered", "events", "instructions", "steps", "visible")

    def __init__(self, pcs: int, *, trace: bool) -> None:
        """Nothing has happened yet."""
        self.instructions = 0
        self.visible = 0
        self.covered = bytearray(pcs)
        self.steps: list[int] = []
        self.events: list[TraceEvent] | None = [] if trace else None

    def chosen(self, actor: Actor) -> None:
        """The schedule's choice."""
        self.steps.append(actor.number)

    def executed(self, path: Path, instruction: Instruction, kind: EventKind) -> None:
        """Trace an instruction that a path has executed or waits at."""
        if self.events is None:
            return
        cta = path.warp.cta
        self.events.append(
            TraceEvent(
                cta.simulation.step,
                cta.number,
                path.warp.index,
                None,
                kind,
                instruction.index,
                instruction.source_line,
                instruction.opcode,
                instruction.call_lines,
            )
        )

    def issued(self, operation: AsyncOperation, path: Path, instruction: Instruction) -> None:
        """Trace an operation's issue."""
        if self.events is None:
            return
        self.events.append(
            TraceEvent(
                operation.cta.simulation.step,
                operation.cta.number,
                path.warp.index,
                operation.number,
                "issue",
                instruction.index,
                instruction.source_line,
                operation.name,
                instruction.call_lines,
            )
        )

    def completed(self, operation: AsyncOperation) -> None:
        """Trace an operation's completion."""
        if self.events is None:
            return
        cta = operation.cta
        self.events.append(
            TraceEvent(
                cta.simulation.step,
                cta.number,
                None,
                operation.number,
                "complete",
                -1,
                operation.site.source_line if operation.site else None,
                operation.name,
            )
        )
