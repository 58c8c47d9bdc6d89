"""Happens-before: which accesses are ordered, and by which rule; finds races in any one schedule.

Every asynchronous operation and every stretch of a warp between two releases is an *event*, a bit in the sets that each
actor holds (`hardware.Actor`): `ordered`, `async_visible` and `tensor_ordered`, the latter two subsets of the first.

    event                                      rule
    release (arrive, bar, cluster barrier)     the actor's sets go into the barrier; its later accesses are a new event
    acquire (a wait that has ended)            the barrier's sets are joined to the actor's, but for tensor_ordered
    complete_tx                                gives that operation alone: it is not transitive (PTX ISA 8.9.1.1)
    fence.proxy.async                          async_visible := ordered
    tcgen05.fence::before_thread_sync          completed tensor operations of the thread join ordered
    tcgen05.fence::after_thread_sync           tensor_ordered := ordered
    generic read                               the last writer is in ordered
    generic write                              so are the last writer and all readers; bytes that do not change may race
    async read (wgmma, TMA store, tcgen05)     the last writer is in async_visible; if only in ordered: `proxy-fence`
    async write (TMA load)                     likewise, and all readers are in ordered
    access of tensor memory                    writer and readers are in tensor_ordered or pipelined with the access; if
                                               only in ordered: `tcgen05-fence`
    strong access (atomics, flags)             as generic, but strong accesses do not race with each other

Sources: PTX ISA, "Memory Consistency Model" (causality order, 8.10), "Async proxy" (8.9.1), "tcgen05 Memory
Consistency Model" (9.7.16.6). Accesses of an operation are checked and recorded when it is issued, so the verdict does
not depend on when it completes. Knowledge is a warp's: an order between lanes of one warp, without `__syncwarp`, is
outside the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.hardware import Warp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mlagen.sim.hardware import Actor, AsyncOperation
    from mlagen.sim.report import Findings, Severity, Site

    Cells = slice | range | NDArray[np.int64]

SHARED_MEMORY = "shared memory"

# The event of everything before the launch, which everybody knows.
BEFORE = 1


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Three sets of events that a release hands over; see `hardware.Actor`."""

    ordered: int = BEFORE
    async_visible: int = BEFORE
    tensor_ordered: int = BEFORE

    def __or__(self, other: Knowledge) -> Knowledge:
        """What both know."""
        return Knowledge(
            self.ordered | other.ordered,
            self.async_visible | other.async_visible,
            self.tensor_ordered | other.tensor_ordered,
        )


class Shadow:
    """Who accessed each cell of a memory last.

    Attributes:
        name: Of the memory, for reports.
        cell_bytes: Bytes of a cell.
        writer: Event of the last write of each cell.
        readers: Set of the events that have read it since, as a number of `Order`'s table.
        strong_writers: Likewise of strong writes since the last ordinary one; None before the first.
        strong_readers: Likewise of strong reads.
    """

    __slots__ = ("cell_bytes", "name", "readers", "strong_readers", "strong_writers", "writer")

    def __init__(self, cells: int, cell_bytes: int, name: str) -> None:
        """Nobody has accessed anything."""
        self.name = name
        self.cell_bytes = cell_bytes
        self.writer = np.zeros(cells, dtype=np.int32)
        self.readers = np.zeros(cells, dtype=np.int32)
        self.strong_writers: NDArray[np.int32] | None = None
        self.strong_readers: NDArray[np.int32] | None = None

    def strong(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """`(strong_writers, strong_readers)`, made when they are first needed."""
        if self.strong_writers is None or self.strong_readers is None:
            self.strong_writers = np.zeros_like(self.writer)
            self.strong_readers = np.zeros_like(self.writer)
        return self.strong_writers, self.strong_readers


class Order:
    """The events of a run and the rules between them.

    Attributes:
        enabled: Whether accesses are checked; edges are kept either way.
    """

    def __init__(self, findings: Findings, *, enabled: bool = True, strict: bool = True) -> None:
        """Only the event before the launch exists.

        Args:
            findings: Where to report.
            enabled: Whether accesses are checked.
            strict: Whether a missing `tcgen05.fence` is an error; else a note.
        """
        self.enabled = enabled
        self._strict = strict
        self._findings = findings
        self._sites: list[Site | None] = [None]
        # Sets of events by number, and back; number 0 is the empty set.
        self._sets: list[int] = [0]
        self._numbers: dict[int, int] = {0: 0}
        self._with_event: dict[tuple[int, int], int] = {}
        # Loads and stores of tensor memory that their warps have waited for.
        self._waited = 0

    # Events.

    def register(self, actor: Actor, issuer: Warp | None, site: Site | None) -> None:
        """Give an actor its event, and what its issuer knows at this moment."""
        self._begin(actor, site)
        own = 1 << actor.event
        if issuer is None:
            actor.ordered = actor.tensor_ordered = BEFORE | own
            actor.async_visible = BEFORE
        else:
            actor.ordered = issuer.ordered | own
            actor.async_visible = issuer.async_visible | own
            actor.tensor_ordered = issuer.tensor_ordered | own

    def _begin(self, actor: Actor, site: Site | None) -> None:
        actor.event = len(self._sites)
        self._sites.append(site)
        actor.site = site

    def _begin_epoch(self, warp: Actor) -> None:
        """What a warp does from here on is another event, unless the last one is still unused."""
        if self._sites[warp.event] is None:
            return
        self._begin(warp, None)
        warp.ordered |= 1 << warp.event
        warp.tensor_ordered |= 1 << warp.event

    def mark(self, actor: Actor, site: Site) -> None:
        """Count the initialisation of a barrier among what an actor does in its present event."""
        self._sites[actor.event] = site

    # Edges.

    def publish(self, actor: Actor) -> Knowledge:
        """What an actor hands over by a release. An operation hands over itself alone."""
        if isinstance(actor, Warp):
            knowledge = Knowledge(actor.ordered, actor.async_visible, actor.tensor_ordered)
            self._begin_epoch(actor)
            return knowledge
        own = 1 << actor.event
        return Knowledge(own, own, own)

    def acquire(self, warp: Warp, knowledge: Knowledge) -> None:
        """Join what a release has handed over.

        What is ordered for tensor memory is not handed on: every thread needs a `fence::after_thread_sync` of its
        own behind its wait (PTX ISA 9.7.16.6.3).
        """
        warp.ordered |= knowledge.ordered
        warp.async_visible |= knowledge.async_visible

    def acquire_operations(
        self,
        warp: Warp,
        operations: Iterable[Actor],
        *,
        asynchronous: bool = False,
        tensor: bool = False,
    ) -> None:
        """Join operations that a warp has waited for.

        Args:
            warp: Who waited.
            operations: What has completed.
            asynchronous: Whether the async proxy may rely on it too.
            tensor: Whether accesses of tensor memory may.
        """
        events = 0
        for operation in operations:
            events |= 1 << operation.event
        warp.ordered |= events
        if asynchronous:
            warp.async_visible |= events
        if tensor:
            warp.tensor_ordered |= events

    def fence_async(self, warp: Warp) -> None:
        """`fence.proxy.async`: what is ordered so far is visible to the async proxy."""
        warp.async_visible |= warp.ordered
        self._begin_epoch(warp)

    def wait_tensor(self, operations: int) -> None:
        """`tcgen05.wait`: a warp has waited for some of its loads and stores; only for the texts of findings."""
        self._waited |= operations

    def fence_tensor_before(self, warp: Warp, operations: int) -> None:
        """`tcgen05.fence::before_thread_sync`, for a set of completed tensor operations."""
        warp.ordered |= operations

    def fence_tensor_after(self, warp: Warp) -> None:
        """`tcgen05.fence::after_thread_sync`."""
        warp.tensor_ordered |= warp.ordered

    # Accesses.

    def read(self, shadow: Shadow, cells: Cells, actor: Actor, site: Site) -> None:
        """A generic read."""
        if not self.enabled:
            return
        self._sites[actor.event] = site
        self._check_writers(shadow, cells, actor, site, actor.ordered, "reads")
        self._note_reader(shadow.readers, cells, actor.event)

    def write(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site, *, same: bool = False
    ) -> None:
        """A generic write; `same` if the bytes do not change."""
        if not self.enabled or same:
            return
        self._sites[actor.event] = site
        self._check_writers(shadow, cells, actor, site, actor.ordered, "writes")
        self._check_readers(shadow, cells, actor, site, actor.ordered)
        self._note_writer(shadow, cells, actor.event)

    def strong(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site, *, writes: bool
    ) -> None:
        """An atomic access or one of a flag: it races with ordinary accesses only."""
        if not self.enabled:
            return
        self._sites[actor.event] = site
        verb = "writes" if writes else "reads"
        strong_writers, strong_readers = shadow.strong()
        self._check_last_writer(shadow, cells, actor, site, actor.ordered, verb)
        if writes:
            self._check_set(shadow, shadow.readers, cells, actor, site, actor.ordered, "writes")
        self._note_reader(strong_writers if writes else strong_readers, cells, actor.event)

    def async_read(self, shadow: Shadow, cells: Cells, operation: AsyncOperation) -> None:
        """A read by an asynchronous operation, at its issue."""
        if not self.enabled:
            return
        site = operation.site
        self._check_writers(shadow, cells, operation, site, operation.async_visible, "reads")
        self._note_reader(shadow.readers, cells, operation.event)

    def async_write(self, shadow: Shadow, cells: Cells, operation: AsyncOperation) -> None:
        """A write by an asynchronous operation, at its issue."""
        if not self.enabled:
            return
        site = operation.site
        self._check_writers(shadow, cells, operation, site, operation.async_visible, "writes")
        self._check_readers(shadow, cells, operation, site, operation.ordered)
        self._note_writer(shadow, cells, operation.event)

    def knows(self, shadow: Shadow, cells: Cells, known: int) -> bool:
        """Whether a set of events holds the last writers of all cells."""
        return all(known >> event & 1 for event in _distinct(shadow.writer[cells]))

    def tensor_read(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site | None, own: int = 0
    ) -> None:
        """A read of tensor memory; `own` are events that the hardware pipelines with it."""
        if not self.enabled:
            return
        self._check_writers(
            shadow, cells, actor, site, actor.tensor_ordered | own, "reads", fence="tcgen05-fence"
        )
        self._note_reader(shadow.readers, cells, actor.event)

    def tensor_write(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site | None, own: int = 0
    ) -> None:
        """A write of tensor memory; `own` are events that the hardware pipelines with it."""
        if not self.enabled:
            return
        known = actor.tensor_ordered | own
        self._check_writers(shadow, cells, actor, site, known, "writes", fence="tcgen05-fence")
        self._check_readers(shadow, cells, actor, site, known, fence="tcgen05-fence")
        self._note_writer(shadow, cells, actor.event)

    # Rules.

    def _check_writers(
        self,
        shadow: Shadow,
        cells: Cells,
        actor: Actor,
        site: Site | None,
        known: int,
        verb: str,
        *,
        fence: str = "proxy-fence",
    ) -> None:
        self._check_last_writer(shadow, cells, actor, site, known, verb, fence=fence)
        if shadow.strong_writers is not None:
            self._check_set(
                shadow, shadow.strong_writers, cells, actor, site, known, verb, fence=fence
            )

    def _check_last_writer(
        self,
        shadow: Shadow,
        cells: Cells,
        actor: Actor,
        site: Site | None,
        known: int,
        verb: str,
        *,
        fence: str = "proxy-fence",
    ) -> None:
        writers = shadow.writer[cells]
        for event in _distinct(writers):
            if not known >> event & 1:
                self._report(shadow, cells, writers == event, actor, site, event, verb, fence)

    def _check_readers(
        self,
        shadow: Shadow,
        cells: Cells,
        actor: Actor,
        site: Site | None,
        known: int,
        *,
        fence: str = "proxy-fence",
    ) -> None:
        self._check_set(
            shadow, shadow.readers, cells, actor, site, known, "overwrites", fence=fence
        )
        if shadow.strong_readers is not None:
            self._check_set(
                shadow, shadow.strong_readers, cells, actor, site, known, "overwrites", fence=fence
            )

    def _check_set(
        self,
        shadow: Shadow,
        sets: NDArray[np.int32],
        cells: Cells,
        actor: Actor,
        site: Site | None,
        known: int,
        verb: str,
        *,
        fence: str = "proxy-fence",
    ) -> None:
        numbers = sets[cells]
        for number in _distinct(numbers):
            unknown = self._sets[number] & ~known
            if unknown:
                event = unknown.bit_length() - 1
                self._report(shadow, cells, numbers == number, actor, site, event, verb, fence)

    def _note_reader(self, sets: NDArray[np.int32], cells: Cells, event: int) -> None:
        numbers = sets[cells]
        distinct = _distinct(numbers)
        if len(distinct) == 1:
            sets[cells] = self._joined(distinct[0], event)
            return
        joined = numbers.copy()
        for number in distinct:
            joined[numbers == number] = self._joined(number, event)
        sets[cells] = joined

    def _joined(self, number: int, event: int) -> int:
        """Number of a set with one event more."""
        found = self._with_event.get((number, event))
        if found is None:
            members = self._sets[number] | 1 << event
            found = self._numbers.setdefault(members, len(self._sets))
            if found == len(self._sets):
                self._sets.append(members)
            self._with_event[number, event] = found
        return found

    def _note_writer(self, shadow: Shadow, cells: Cells, event: int) -> None:
        shadow.writer[cells] = event
        shadow.readers[cells] = 0
        if shadow.strong_writers is not None and shadow.strong_readers is not None:
            shadow.strong_writers[cells] = 0
            shadow.strong_readers[cells] = 0

    def _report(
        self,
        shadow: Shadow,
        cells: Cells,
        wrong: NDArray[np.bool_],
        actor: Actor,
        site: Site | None,
        event: int,
        verb: str,
        fence: str,
    ) -> None:
        numbers = np.arange(len(shadow.writer))[cells][wrong]
        cell = int(numbers.min())
        address = cell * shadow.cell_bytes
        place = f"{shadow.name} at {address:#x}, {len(numbers) * shadow.cell_bytes} bytes"
        region = None
        cta = getattr(actor, "cta", None)  # accesses of tensor memory are actors without one
        if shadow.name == SHARED_MEMORY and cta is not None:
            region = self._findings.region_name(address - cta.simulation.dynamic_shared_base)
        earlier = self._sites[event]
        if actor.ordered >> event & 1:
            advice = {
                "proxy-fence": "ordered, but not visible to the async proxy: fence.proxy.async is missing",
                "tcgen05-fence": "ordered, but not for tensor memory: a tcgen05.fence is missing",
            }[fence]
            severity: Severity = (
                "note" if fence == "tcgen05-fence" and not self._strict else "error"
            )
            text = f"{verb} {place}: the earlier access is {advice}"
            self._findings.add(fence, text, site, earlier=earlier, region=region, severity=severity)
            return
        text = f"{verb} {place} without waiting for the earlier access"
        if self._waited >> event & 1:
            text += (
                ", or that warp's tcgen05.fence::before_thread_sync is missing before it arrives"
            )
        self._findings.add("race", text, site, earlier=earlier, region=region)


def _distinct(values: NDArray[np.int32]) -> list[int]:
    """The distinct values; nearly always one."""
    if values.size == 1:
        return [int(values[0])]
    if values.size == 0:
        return []
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [low]
    distinct: list[int] = np.unique(values).tolist()
    return distinct
