"""Groups of bulk copies that write from shared memory: every thread has its own (PTX ISA 9.7.9.25.6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import AsyncOperation, Waitable
from mlagen.sim.ptx import Immediate

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Handler, Path, Warp
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Findings

UNIT = "bulk"


class GroupedCopy(AsyncOperation):
    """A copy that its thread waits for by groups.

    Attributes:
        reading: Stands for its reads of the source, which are over earlier than its writes; never submitted.
        source_is_free: Whether its thread has waited for its reads.
    """

    __slots__ = ("_groups", "reading", "source_is_free")

    def __init__(self, name: str, cta: Cta, groups: BulkGroups) -> None:
        """A copy that is in no group yet."""
        super().__init__(name, cta)
        self.reading = AsyncOperation(name, cta)
        self.source_is_free = False
        self._groups = groups

    def complete(self) -> None:
        """Move the data, then let those who wait look again."""
        self.move()
        self._groups.wake()

    def move(self) -> None:
        """Move the data."""
        raise NotImplementedError


@dataclass(slots=True)
class ThreadGroups:
    """The copies of one thread.

    Attributes:
        open: Those that no group holds yet.
        groups: Committed, oldest first.
    """

    open: list[GroupedCopy] = field(default_factory=list)
    groups: deque[list[GroupedCopy]] = field(default_factory=deque)

    def older(self, newest: int) -> list[GroupedCopy]:
        """The copies of all groups but the newest ones."""
        count = max(len(self.groups) - newest, 0)
        return [copy for group in list(self.groups)[:count] for copy in group]

    def every(self) -> list[GroupedCopy]:
        """All copies that have not been waited for to their end."""
        return [*(copy for group in self.groups for copy in group), *self.open]


class BulkGroups(Waitable):
    """The copies of a warp's threads, by lane."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        """No copy yet."""
        super().__init__()
        self.lanes: dict[int, ThreadGroups] = {}

    def of(self, lane: int) -> ThreadGroups:
        """The copies of one lane."""
        return self.lanes.setdefault(lane, ThreadGroups())

    def describe(self, path: Path) -> str:
        """How many copies have to complete."""
        count = sum(not copy.done for lane in self.lanes.values() for copy in lane.every())
        return f"{count} bulk copies to complete"


def groups_of(warp: Warp) -> BulkGroups:
    """The groups of a warp's threads."""
    groups = warp.units.get(UNIT)
    if groups is None:
        groups = warp.units[UNIT] = BulkGroups()
    assert isinstance(groups, BulkGroups)
    return groups


def decode_commit(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.bulk.commit_group`: closes the group of each lane, which may be empty."""
    if len(instruction.parts) != 4:
        raise UnsupportedPtxError(instruction.opcode)

    def commit(path: Path) -> None:
        groups = groups_of(path.warp)
        for number in path.lanes:
            lane = groups.of(number)
            lane.groups.append(lane.open)
            lane.open = []

    return commit


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.bulk.wait_group{.read} N`: all groups of each lane but the N newest are over, or have been read."""
    match instruction.parts[4:]:
        case ():
            reads_only = False
        case ("read",):
            reads_only = True
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    (operand,) = instruction.operands
    if not isinstance(operand, Immediate):
        raise UnsupportedPtxError(instruction.text)
    newest = operand.value

    def wait(path: Path) -> Waitable | None:
        groups = groups_of(path.warp)
        lanes = [groups.lanes[lane] for lane in path.lanes if lane in groups.lanes]
        older = [copy for lane in lanes for copy in lane.older(newest)]
        if not all(copy.done for copy in older):
            return groups
        order = path.warp.cta.simulation.order
        fresh = [copy for copy in older if not copy.source_is_free]
        order.acquire_operations(path.warp, [copy.reading for copy in fresh], asynchronous=True)
        for copy in fresh:
            copy.source_is_free = True
        if not reads_only:
            order.acquire_operations(path.warp, older, asynchronous=True)
            for lane in lanes:
                for _ in range(len(lane.groups) - newest):
                    lane.groups.popleft()
        return None

    return wait


def report_open(cta: Cta, findings: Findings) -> None:
    """Report copies whose source a CTA takes with it."""
    for warp in cta.warps:
        groups = warp.units.get(UNIT)
        if groups is None:
            continue
        for lane in groups.lanes.values():
            for copy in lane.every():
                if copy.source_is_free:
                    continue
                what = "committed it to a group" if copy in lane.open else "waited for its group"
                findings.add(
                    "exit-in-flight",
                    f"the CTA has ended, and its thread has not {what}: {copy.name} may still read shared memory",
                    copy.site,
                )
