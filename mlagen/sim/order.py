"""Happens-before: which accesses are ordered, and by which rule; finds races in any one schedule.

Every asynchronous operation and every stretch of a warp between two releases is an *event*, a bit in the sets that each
actor holds (`hardware.Actor`): `ordered`, `async_visible` and `tensor_ordered`, the latter two subsets of the first.

    event                                      rule
    release (arrive, bar, cluster barrier)     the actor's sets go into the barrier; its later accesses are a new event
    acquire (a wait that has ended)            the barrier's sets are joined to the actor's, but for tensor_ordered
    issue of an operation                      it knows what its issuer knows; that one's later accesses are a new event
    complete_tx                                gives that operation alone: it is not transitive (PTX ISA 8.9.1.1)
    wait_group                                 the operations join ordered; of wgmma and bulk copies async_visible too
    fence.proxy.async                          async_visible := ordered
    tcgen05.fence::before_thread_sync          completed tensor operations of the thread join ordered
    tcgen05.fence::after_thread_sync           tensor_ordered := ordered
    generic read                               the last writer is in ordered
    generic write                              so are the last writer and all readers; bytes that do not change may race
    async read (wgmma, TMA store, tcgen05)     the last writer is in async_visible; if only in ordered: `proxy-fence`
    async write (TMA load)                     likewise, and all readers are in ordered; strict: in async_visible
    access of tensor memory                    writer and readers are in tensor_ordered or pipelined with the access; if
                                               only in ordered: `tcgen05-fence`
    strong access (atomics, flags)             as generic, but strong accesses do not race with each other

Sources: PTX ISA, "Memory Consistency Model" (causality order, 8.10), "Async proxy" (8.9.1), "tcgen05 Memory
Consistency Model" (9.7.16.6). By the letter a generic read and a later asynchronous write of the same bytes need a
proxy fence between them; working kernels (those of CUTLASS and Triton) arrive on an "empty" barrier without one, so
`practice` does not ask for it.

Accesses of an operation are checked and recorded when it is issued, so the verdict does not depend on when it
completes. Knowledge is a warp's, whichever of its paths has gained it, but for waits for mbarriers (`lane_knowledge`):
an order between the accesses of lanes of one warp, without `__syncwarp`, is outside the model. So are the state space
that a proxy fence names and the scope of a barrier.

Readers that a reading warp already knows are dropped from a cell: whoever comes after the new reader comes after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mlagen.sim.cell_states import (
    BEFORE,
    EventSites,
    Shadow,
    State,
    StateTable,
    distinct,
    replace,
)
from mlagen.sim.hardware import Warp
from mlagen.sim.knowledge import Knowledge
from mlagen.sim.lane_knowledge import waited_apart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.cell_states import Cells
    from mlagen.sim.hardware import Actor, AsyncOperation
    from mlagen.sim.report import Findings, Severity, Site

__all__ = ["BEFORE", "SHARED_MEMORY", "Knowledge", "Order", "Shadow"]

SHARED_MEMORY = "shared memory"

_MISSING_FENCE = {
    "proxy-fence": "ordered, but not visible to the async proxy: fence.proxy.async is missing",
    "tcgen05-fence": "ordered, but not for tensor memory: a tcgen05.fence is missing",
}


class _Access(NamedTuple):
    """An access that is being checked: by whom, what it relies on, and what a report says of it."""

    shadow: Shadow
    cells: Cells
    actor: Actor
    site: Site | None
    known: int
    verb: str
    fence: str = "proxy-fence"


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
            strict: Whether a missing `tcgen05.fence`, or a missing proxy fence between a generic and an asynchronous
                write, is an error, else a note; and whether asynchronous writes need a proxy fence after generic
                reads.
        """
        self.enabled = enabled
        self._strict = strict
        self._findings = findings
        self._sites = EventSites()
        self._states = StateTable()
        # Loads and stores of tensor memory that their warps have waited for.
        self._waited = 0

    # Events.

    def register(self, actor: Actor, issuer: Warp | None, site: Site | None) -> None:
        """Give an actor its event, and what its issuer knows at this moment."""
        actor.event = self._sites.begin(site)
        actor.site = site
        own = 1 << actor.event
        if issuer is None:
            actor.ordered = BEFORE | own
            actor.async_visible = actor.tensor_ordered = BEFORE
            return
        known = self.publish(issuer)
        actor.ordered = known.ordered | own
        actor.async_visible = known.async_visible | own
        actor.tensor_ordered = known.tensor_ordered | own

    def mark(self, actor: Actor, site: Site | None) -> int:
        """Give something that an actor does beside its accesses, such as `mbarrier.init`, an event of its own."""
        event = self._sites.begin(site)
        actor.ordered |= 1 << event
        return event

    def site_of(self, event: int) -> Site | None:
        """Where an event acted first."""
        return self._sites.first(event)

    # Edges.

    def publish(self, actor: Actor) -> Knowledge:
        """What an actor hands over by a release. An operation hands over itself alone."""
        own = 1 << actor.event
        if not isinstance(actor, Warp):
            return Knowledge(own, own, own)
        if not self._sites.acted(actor.event):
            # The present event stays for later accesses, so nobody may know it yet.
            return Knowledge(actor.ordered & ~own, actor.async_visible, actor.tensor_ordered)
        known = Knowledge(actor.ordered, actor.async_visible, actor.tensor_ordered)
        actor.event = self._sites.begin(None)
        actor.ordered |= 1 << actor.event
        return known

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
        """Join operations that a warp has waited for; the async proxy and accesses of tensor memory, if they may."""
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
        warp.async_visible |= self.publish(warp).ordered

    def wait_tensor(self, operations: int) -> None:
        """`tcgen05.wait`: a warp has waited for some of its loads and stores; only for the texts of findings."""
        self._waited |= operations

    def fence_tensor_before(self, warp: Warp, operations: int) -> None:
        """`tcgen05.fence::before_thread_sync`, for a set of completed tensor operations."""
        warp.ordered |= operations

    def fence_tensor_after(self, warp: Warp) -> None:
        """`tcgen05.fence::after_thread_sync`."""
        warp.tensor_ordered |= self.publish(warp).ordered

    # Accesses.

    def read(self, shadow: Shadow, cells: Cells, actor: Actor, site: Site) -> None:
        """A generic read."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        event = actor.event
        self._sites.note(event, shadow, cells, site)
        states, after_read = self._states, self._states.after_read
        numbers = shadow.states[cells]
        before = distinct(numbers)
        after = []
        for number in before:
            then = after_read.get((number, event))
            if then is None:
                state = states[number]
                access = _Access(shadow, cells, actor, site, actor.ordered, "reads")
                self._check_contents(access, number)
                # See the module: the new reader stands for those that it knows.
                earlier = (
                    state.readers & ~actor.ordered if isinstance(actor, Warp) else state.readers
                )
                then = states.number(state._replace(readers=earlier | 1 << event))
                after_read[number, event] = then
            after.append(then)
        replace(shadow, cells, numbers, before, after)

    def write(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site, *, same: bool = False
    ) -> None:
        """A generic write; `same` if the bytes do not change."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        self._sites.note(actor.event, shadow, cells, site)
        if same:
            self._join_writers(shadow, cells, actor.event)
            return
        access = _Access(shadow, cells, actor, site, actor.ordered, "writes")
        self._check_overwrite(access, actor.ordered)
        self._set_writer(shadow, cells, actor)

    def strong(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site, *, writes: bool
    ) -> None:
        """An atomic access or one of a flag: it races with ordinary accesses only."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        self._sites.note(actor.event, shadow, cells, site)
        access = _Access(shadow, cells, actor, site, actor.ordered, "writes" if writes else "reads")
        own = 1 << actor.event
        numbers = shadow.states[cells]
        before = distinct(numbers)
        after = []
        for number in before:
            state = self._states[number]
            if not state.writers & actor.ordered:
                self._report(access, number, state.writers)
            if writes:
                self._check(access, number, state.readers, actor.ordered)
                state = state._replace(strong_writers=state.strong_writers | own)
            else:
                state = state._replace(strong_readers=state.strong_readers | own)
            after.append(self._states.number(state))
        replace(shadow, cells, numbers, before, after)

    def async_read(self, shadow: Shadow, cells: Cells, operation: AsyncOperation) -> None:
        """A read by an asynchronous operation, at its issue."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        known = operation.async_visible
        self._read_cells(_Access(shadow, cells, operation, operation.site, known, "reads"))

    def async_write(self, shadow: Shadow, cells: Cells, operation: AsyncOperation) -> None:
        """A write by an asynchronous operation, at its issue."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        known = operation.async_visible
        access = _Access(shadow, cells, operation, operation.site, known, "writes")
        self._check_overwrite(access, known if self._strict else operation.ordered)
        self._set_writer(shadow, cells, operation)

    def tensor_read(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site | None, own: int = 0
    ) -> None:
        """A read of tensor memory; `own` are events that the hardware pipelines with it."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        known = actor.tensor_ordered | own
        self._read_cells(_Access(shadow, cells, actor, site, known, "reads", "tcgen05-fence"))

    def tensor_write(
        self, shadow: Shadow, cells: Cells, actor: Actor, site: Site | None, own: int = 0
    ) -> None:
        """A write of tensor memory; `own` are events that the hardware pipelines with it."""
        if not self.enabled:
            return
        cells = self._begin_access(shadow, cells)
        known = actor.tensor_ordered | own
        access = _Access(shadow, cells, actor, site, known, "writes", "tcgen05-fence")
        self._check_overwrite(access, known)
        self._set_writer(shadow, cells, actor)

    def read_known(self, shadow: Shadow, cells: Cells, operation: AsyncOperation) -> bool:
        """A read by an asynchronous operation, if all cells have been written, and it knows by whom.

        Returns:
            Whether that is so; if not, nothing has happened.
        """
        cells = self._begin_access(shadow, cells)
        states, known, own = self._states, operation.async_visible, 1 << operation.event
        numbers = shadow.states[cells]
        before = distinct(numbers)
        after = []
        for number in before:
            state = states[number]
            if not state.writers & known & ~BEFORE or state.strong_writers & ~known:
                return False
            after.append(states.number(state._replace(readers=state.readers | own)))
        replace(shadow, cells, numbers, before, after)
        return True

    # Rules.

    def _begin_access(self, shadow: Shadow, cells: Cells) -> Cells:
        """Cells as NumPy takes them."""
        self._states.watch(shadow)
        if isinstance(cells, range):
            return slice(cells.start, cells.stop, cells.step)
        return cells

    def _check_contents(self, access: _Access, number: int) -> None:
        """A reader relies on the last ordinary write, or one of the same bytes, and on all strong ones."""
        state = self._states[number]
        if not state.writers & access.known:
            self._report(access, number, state.writers)
        self._check(access, number, state.strong_writers, access.known)

    def _check_overwrite(self, access: _Access, knows_reads: int) -> None:
        """A writer comes after everything."""
        own = 1 << access.actor.event
        overwrites = access._replace(verb="overwrites")
        for number in distinct(access.shadow.states[access.cells]):
            state = self._states[number]
            if state.writers == own and not state.readers:
                continue
            self._check(access, number, state.writers | state.strong_writers, access.known)
            self._check(overwrites, number, state.readers | state.strong_readers, knows_reads)

    def _check(self, access: _Access, number: int, events: int, known: int) -> None:
        unknown = events & ~known
        if unknown:
            self._report(access, number, unknown)

    def _read_cells(self, access: _Access) -> None:
        """Check a read of an operation and add it to the readers."""
        shadow, cells, states = access.shadow, access.cells, self._states
        own = 1 << access.actor.event
        numbers = shadow.states[cells]
        before = distinct(numbers)
        after = []
        for number in before:
            self._check_contents(access, number)
            state = states[number]
            after.append(states.number(state._replace(readers=state.readers | own)))
        replace(shadow, cells, numbers, before, after)

    def _set_writer(self, shadow: Shadow, cells: Cells, actor: Actor) -> None:
        shadow.states[cells] = self._states.number(State(1 << actor.event))

    def _join_writers(self, shadow: Shadow, cells: Cells, event: int) -> None:
        """The bytes that the last writer wrote are written again."""
        numbers, own = shadow.states[cells], 1 << event
        before = distinct(numbers)
        states = [self._states[number] for number in before]
        after = [one._replace(writers=one.writers | own) for one in states]
        replace(shadow, cells, numbers, before, [self._states.number(one) for one in after])

    def _report(self, access: _Access, number: int, events: int) -> None:
        """Report the newest of some events that cells in a state should have come after."""
        shadow, actor, cells = access.shadow, access.actor, access.cells
        wrong = np.unique(np.arange(len(shadow.states))[cells][shadow.states[cells] == number])
        cell = int(wrong[0])
        place = shadow.place(cell, len(wrong))
        region = None
        cta = getattr(actor, "cta", None)  # accesses of tensor memory are actors without one
        if shadow.name == SHARED_MEMORY and cta is not None:
            offset = cell * shadow.cell_bytes - cta.simulation.dynamic_shared_base
            region = self._findings.region_name(offset)
        event = events.bit_length() - 1
        earlier = self._sites.find(event, shadow, cell)
        if actor.ordered >> event & 1:
            kind = access.fence
            # Triton refills by TMA what a thread wrote and all have read, without a fence between them.
            is_custom = kind == "tcgen05-fence" or access.verb != "reads"
            severity: Severity = "note" if is_custom and not self._strict else "error"
            text = f"{access.verb} {place}: the earlier access is {_MISSING_FENCE[kind]}"
        else:
            kind, severity = "race", "error"
            text = f"{access.verb} {place} without waiting for the earlier access"
            warps = [actor] if isinstance(actor, Warp) else cta.warps if cta is not None else ()
            if any(waited_apart(warp, event) for warp in warps):
                text += ": only some lanes of a warp have waited, and no __syncwarp follows"
            if self._waited >> event & 1:
                text += ", or that warp's tcgen05.fence::before_thread_sync is missing before it arrives"
        self._findings.add(
            kind, text, access.site, earlier=earlier, region=region, severity=severity
        )
