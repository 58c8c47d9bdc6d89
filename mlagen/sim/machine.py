"""The machine: runs a program's steps in the warps of all resident CTAs, as a schedule decides.

A warp is a list of paths (`paths`). Register-only segments run for all warps of a warpgroup that are at the same one,
as nobody can notice; everything else runs warp by warp.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mlagen.sim.barrier import lanes_ended
from mlagen.sim.deadlock import (
    describe_deadlock,
    report_diverged,
    report_spent_budget,
    report_stale_waits,
)
from mlagen.sim.hardware import ALL_LANES, WARPS_OF_WARPGROUP, Warp
from mlagen.sim.lane_knowledge import execute_apart
from mlagen.sim.mbarrier_wait import WAITS, time_out
from mlagen.sim.paths import (
    held_before_segment,
    next_path,
    split,
    take_branch,
    take_indexed_branch,
)
from mlagen.sim.program import Branch, Exit, IndexedBranch, Segment, Visible
from mlagen.sim.register_watch import RegisterWatch
from mlagen.sim.schedule import Eager, Lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.hardware import AsyncOperation, Cta, Path, Simulation
    from mlagen.sim.program import Program
    from mlagen.sim.schedule import Choice, Schedule
    from mlagen.sim.trace import Recorder

# Steps that one warpgroup takes in a row before the next one's turn, in lockstep schedules.
_TURN = 32
# How often those who poll memory may look again although nobody has done anything else.
_MOST_FRUITLESS_POLLS = 1000
# How often all waits for mbarriers may time out in a run.
_MOST_TIMEOUTS = 10_000


class Warpgroup:
    """Four neighbouring warps, which run their segments together.

    Attributes:
        warps: In order.
        queued: Whether it is in the machine's queue.
    """

    __slots__ = ("queued", "warps")

    def __init__(self, warps: list[Warp]) -> None:
        """Not queued yet."""
        self.warps = warps
        self.queued = False


class Machine:
    """One run: `start` adds CTAs, `run` lets everything go until all have ended or nobody can move."""

    def __init__(
        self,
        program: Program,
        simulation: Simulation,
        recorder: Recorder,
        *,
        most_steps: int,
        on_end: Callable[[Cta], list[Cta]],
    ) -> None:
        """A machine without CTAs.

        Args:
            program: The kernel.
            simulation: What the units see.
            recorder: Where to count.
            most_steps: Give up after this many steps of the program, with the finding `step-budget`.
            on_end: Called when all warps of a CTA have ended; returns CTAs that start then.
        """
        self._program = program
        self._simulation = simulation
        self._recorder = recorder
        self._steps = program.steps
        self._steps_left = most_steps
        self._on_end = on_end
        self._groups: dict[Warp, Warpgroup] = {}
        self._queue: deque[Warpgroup] = deque()
        self._live: dict[Cta, int] = {}
        self._released: set[Path] = set()
        self._fruitless_polls = 0
        self._timeouts = 0
        self._failed = False
        instructions = program.function.instructions
        # Products look after their own registers; a wait is no progress by itself.
        self._products = {one.index for one in instructions if one.opcode.startswith("wgmma")}
        self._waits = {one.index for one in instructions if one.opcode.startswith(WAITS)}
        self._watch = RegisterWatch(program) if RegisterWatch.is_needed(program) else None

    def start(self, ctas: list[Cta]) -> None:
        """Let the warps of CTAs run."""
        for cta in ctas:
            self._live[cta] = len(cta.warps)
            for first in range(0, len(cta.warps), WARPS_OF_WARPGROUP):
                group = Warpgroup(cta.warps[first : first + WARPS_OF_WARPGROUP])
                self._groups.update(dict.fromkeys(group.warps, group))
                self._enqueue(group)

    def run(self, schedule: Schedule) -> None:
        """Run until every CTA has ended, nobody can move, or the budget is spent."""
        if isinstance(schedule, Eager | Lazy):
            self._run_in_lockstep(is_eager=isinstance(schedule, Eager))
        else:
            self._run_as_chosen(schedule.start())

    def _run_in_lockstep(self, *, is_eager: bool) -> None:
        """Warpgroups take turns; operations complete at once, or when no warp can run."""
        queue, operations = self._queue, self._simulation.operations
        while True:
            while queue and not self._failed:
                group = queue.popleft()
                group.queued = False
                for _ in range(_TURN):
                    ready = [warp for warp in group.warps if warp.ready]
                    if not ready or self._failed:
                        break
                    self._step(ready[0] if len(ready) == 1 else min(ready, key=_lowest_pc))
                    while is_eager and operations:
                        self._complete(operations[0])
                    self._wake()
                else:
                    self._enqueue(group)
            if self._failed:
                return
            if operations:
                self._complete(operations[0])
                self._wake()
            elif not self._live or not self._look_again():
                return

    def _run_as_chosen(self, choice: Choice) -> None:
        """The schedule is asked before every step."""
        while not self._failed:
            warps = [warp for warp in self._groups if warp.ready]
            operations = [
                one for one in self._simulation.operations if one.after is None or one.after.done
            ]
            if warps or operations:
                chosen = choice.pick(warps, operations)
                if isinstance(chosen, Warp):
                    self._step(chosen)
                else:
                    self._complete(chosen)
                self._wake()
            elif not self._live or not self._look_again():
                return

    def _enqueue(self, group: Warpgroup) -> None:
        """Give a warpgroup a turn."""
        if not group.queued:
            group.queued = True
            self._queue.append(group)

    def _wake(self) -> None:
        """Let those run again who have been woken since the last step."""
        woken = self._simulation.woken
        for warp in woken:
            if warp.paths:
                warp.ready = True
                self._enqueue(self._groups[warp])
        woken.clear()

    def _look_again(self) -> bool:
        """Nobody can run: let somebody go whom only caution holds up; else report a deadlock.

        Returns:
            Whether somebody can run now.
        """
        for warp in self._groups:
            path = held_before_segment(warp, self._steps)
            if path is not None and path not in self._released:
                self._released.add(path)
                self._simulation.woken.append(warp)
                self._wake()
                return True
        polled = [
            path.waiting_on
            for warp in self._groups
            for path in warp.paths
            if path.waiting_on is not None and path.polled is not None
        ]
        self._fruitless_polls += 1
        if self._fruitless_polls == 1 and self._timeouts < _MOST_TIMEOUTS:
            self._timeouts += 1
            if time_out(self._groups):
                self._wake()
                return True
        if polled and self._fruitless_polls <= _MOST_FRUITLESS_POLLS:
            for place in polled:
                place.wake()
            self._wake()
            return True
        text = describe_deadlock(self._groups, self._program)
        self._simulation.findings.add("deadlock", text)
        report_stale_waits(self._groups, self._program)
        self._failed = True
        return False

    def _complete(self, operation: AsyncOperation) -> None:
        """An operation's step."""
        simulation = self._simulation
        simulation.step += 1
        self._recorder.chosen(operation)
        simulation.operations.remove(operation)
        operation.complete()
        operation.done = True
        self._fruitless_polls = 0
        self._recorder.completed(operation)

    def _step(self, warp: Warp) -> None:
        """A warp's step: up to one visible instruction, which it executes or waits at."""
        steps, recorder = self._steps, self._recorder
        covered = recorder.covered
        recorder.chosen(warp)
        path = next_path(warp, steps, self._released)
        while path is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                self._give_up(path)
                return
            pc = path.pc
            step = steps[pc]
            covered[pc] = 1
            if isinstance(step, Segment):
                self._run_segment(step, path)
            elif isinstance(step, Visible):
                if self._execute(step, path):
                    break
            elif isinstance(step, Branch):
                recorder.instructions += 1
                take_branch(step, path)
            elif isinstance(step, Exit):
                if self._exit(step, path):
                    return
            elif isinstance(step, IndexedBranch):
                recorder.instructions += 1
                take_indexed_branch(step, path)
            else:
                path.pc += 1
            if path.waiting_on is not None or not path.mask or len(warp.paths) > 1:
                path = next_path(warp, steps, self._released)
        warp.ready = next_path(warp, steps, self._released) is not None
        if not warp.ready and all(path.waiting_on is None for path in warp.paths):
            report_diverged(warp, self._program)

    def _run_segment(self, segment: Segment, path: Path) -> None:
        """Run a segment for a path, and for neighbours that are there as well."""
        warp = path.warp
        if path.mask != ALL_LANES:
            self._released.discard(path)
            if self._watch is not None:
                self._watch.touch(path, segment.touched)
            segment.run_path(path)
            path.pc = segment.end
            self._recorder.instructions += segment.end - segment.start
            return
        warps = self._groups[warp].warps
        first = warp.index % WARPS_OF_WARPGROUP
        end = first + 1
        while first > 0 and _is_at(warps[first - 1], segment.start):
            first -= 1
        while end < len(warps) and _is_at(warps[end], segment.start):
            end += 1
        together = warps[first:end]
        for one in together:
            if self._watch is not None:
                self._watch.touch(one.paths[0], segment.touched)
            one.paths[0].pc = segment.end
        segment.run(warp.cta, together[0].index, together[-1].index + 1)
        self._recorder.instructions += (segment.end - segment.start) * len(together)

    def _execute(self, step: Visible, path: Path) -> bool:
        """Execute a visible instruction; False if its guard lets no lane do so."""
        if step.guard is not None:
            lanes = step.guard.lanes(path)
            if lanes == 0:
                path.pc += 1
                return False
            if lanes != path.mask:
                if step.aligned:
                    self._simulation.findings.add(
                        "diverged-aligned",
                        f"{step.instruction.opcode} is executed by lanes {lanes:#x} of {path.mask:#x}:"
                        " its guard must be the same in all lanes",
                        self._simulation.findings.site(path, step.instruction),
                    )
                split(path, path.mask & ~lanes, path.pc + 1)
                if step.aligned:
                    path.pc += 1
                    return False
        simulation, recorder = self._simulation, self._recorder
        if self._watch is not None and path.pc not in self._products:
            self._watch.touch(path, step.touched)
        simulation.step += 1
        recorder.visible += 1
        path.polled = None
        submitted = simulation.submitted
        waitable = execute_apart(step, path) if path.warp.unshared else step.handler(path)
        if simulation.submitted != submitted and recorder.events is not None:
            for operation in simulation.operations[submitted - simulation.submitted :]:
                recorder.issued(operation, path, step.instruction)
        if waitable is not None:
            path.waiting_on = waitable
            waitable.waiters.append(path)
            recorder.executed(path, step.instruction, "wait")
            return True
        recorder.instructions += 1
        recorder.executed(path, step.instruction, "run")
        if path.polled is None and path.pc not in self._waits:
            self._fruitless_polls = 0
        path.pending = None
        path.pc += 1
        return True

    def _exit(self, step: Exit, path: Path) -> bool:
        """End lanes; True if they were the warp's last."""
        warp = path.warp
        self._recorder.instructions += 1
        lanes = path.mask if step.guard is None else step.guard.lanes(path)
        if lanes and step.is_trap:
            site = self._simulation.findings.site(path, step.instruction)
            self._simulation.findings.add("trap", "the kernel has executed trap", site)
            self._failed = True
        path.mask &= ~lanes
        path.pc += 1
        warp.alive &= ~lanes
        if lanes:
            lanes_ended(warp)
        if path.mask:
            return False
        warp.paths.remove(path)
        if warp.paths:
            return False
        self._end(warp)
        return True

    def _end(self, warp: Warp) -> None:
        """A warp has ended, and perhaps its CTA."""
        cta = warp.cta
        warp.ready = False
        del self._groups[warp]
        self._live[cta] -= 1
        if self._live[cta] == 0:
            del self._live[cta]
            self.start(self._on_end(cta))

    def _give_up(self, path: Path) -> None:
        """The budget is spent."""
        report_spent_budget(path, self._program)
        self._failed = True


def _lowest_pc(warp: Warp) -> int:
    """Where a warp is."""
    paths = warp.paths
    return paths[0].pc if len(paths) == 1 else min(path.pc for path in paths)


def _is_at(warp: Warp, pc: int) -> bool:
    """Whether all lanes of a warp are at a pc and free to go on."""
    paths = warp.paths
    if len(paths) != 1:
        return False
    path = paths[0]
    return path.pc == pc and path.mask == ALL_LANES and path.waiting_on is None
