"""What the tcgen05 unit remembers: loads and stores of a warp, products and copies of a thread, queues of a CTA.

Why `own` sets exist: a thread's tcgen05 operations are asynchronous even among themselves. Only the pairs that PTX ISA
9.7.16.6.2 (Pipelined tcgen05 Instructions) lists run in the order of their issue; everything else waits for a
completion and goes through the tcgen05 fences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.sim.hardware import Actor, Cta, Path, Warp
    from mlagen.sim.report import Site

UNIT = "tcgen05"


def event_bit(actor: Actor) -> int:
    """The bit of an actor's event; none where order is not checked and nobody gets events."""
    return 1 << actor.event if actor.event >= 0 else 0


class TensorAccess(AsyncOperation):
    """A `tcgen05.ld` or `st`, or the read of A by an MMA: an actor with an event of its own, nothing to complete."""

    __slots__ = ()

    def complete(self) -> None:
        """Its data moved at issue."""


@dataclass(slots=True)
class WarpAccesses:
    """Loads and stores of one warp, as bitsets of events.

    Attributes:
        loads: Those that no `wait::ld` has covered.
        stores: Those that no `wait::st` has covered.
        completed: Those that have been waited for: later operations of the warp come after them.
        loaded_rows: Rows of `b32` registers that the loads write, a bitset.
    """

    loads: int = 0
    stores: int = 0
    completed: int = 0
    loaded_rows: int = 0


def accesses_of(warp: Warp) -> WarpAccesses:
    """The loads and stores of a warp."""
    found: WarpAccesses | None = warp.units.get(UNIT)
    if found is None:
        found = warp.units[UNIT] = WarpAccesses()
    return found


def own_accesses(warp: Warp) -> int:
    """Events of loads and stores that this warp need not order: waited for, or (in practice) just earlier.

    ISA 9.4 calls `st` and `ld` of one warp pipelined where 9.1 shows a `wait::st` between them; strict checks ask for
    the wait.
    """
    accesses = accesses_of(warp)
    if warp.cta.simulation.strict:
        return accesses.completed
    return accesses.completed | accesses.loads | accesses.stores


def record(path: Path, name: str, site: Site) -> TensorAccess:
    """An access of tensor memory with an event of its own, ordered after what its warp knows."""
    access = TensorAccess(name, path.warp.cta)
    path.warp.cta.simulation.order.register(access, path.warp, site)
    return access


@dataclass(slots=True)
class ThreadOperations:
    """MMAs, copies and shifts that one thread has issued.

    Attributes:
        everything: Their events, and those of their reads of A.
        chains: Accumulator address, shape, kind and group -> events of the MMAs on it.
        reads: Events of reads of A from tensor memory.
        copies: Events of `tcgen05.cp`.
        shifts: Events of `tcgen05.shift`.
        products: Events of all MMAs.
        knowledge: What they and everything they were ordered after know: what a commit hands over.
    """

    everything: int = 0
    chains: dict[tuple[object, ...], int] = field(default_factory=dict)
    reads: int = 0
    copies: int = 0
    shifts: int = 0
    products: int = 0
    knowledge: Knowledge = field(default_factory=lambda: Knowledge(0, 0, 0))

    def track(self, operation: AsyncOperation) -> None:
        """Let later commits cover an operation."""
        event = event_bit(operation)
        self.everything |= event
        self.knowledge |= Knowledge(
            ordered=operation.ordered | event,
            async_visible=operation.async_visible,
            tensor_ordered=0,
        )


@dataclass(slots=True)
class CtaQueue:
    """The operations of a CTA, or of a pair, which run in the order of their issue.

    Attributes:
        last: The newest.
        threads: `(CTA rank, warp, lane)` -> what that thread has issued.
    """

    last: AsyncOperation | None = None
    threads: dict[tuple[int, int, int], ThreadOperations] = field(default_factory=dict)

    def append(self, operation: AsyncOperation) -> None:
        """Hand an operation to the schedule, to complete behind all earlier ones."""
        operation.after = self.last
        self.last = operation
        operation.cta.simulation.submit(operation)

    def thread(self, path: Path) -> ThreadOperations:
        """What the issuing lane of a path has issued."""
        key = (path.warp.cta.rank, path.warp.index, path.first_lane)
        return self.threads.setdefault(key, ThreadOperations())


def queue_of(cta: Cta) -> CtaQueue:
    """The queue of the CTA; a pair shares that of its even CTA, whatever group an instruction names."""
    owner = cta.cluster[cta.rank & ~1]
    found: CtaQueue | None = owner.units.get(UNIT)
    if found is None:
        found = owner.units[UNIT] = CtaQueue()
    return found


def pair_of(cta: Cta, cta_group: int, site: Site) -> tuple[Cta, ...] | None:
    """The CTAs that an instruction works on, even one first; None after reporting that there is no pair.

    PTX ISA 9.7.16.3 (CTA pair): the CTAs of a cluster whose ranks differ in the last bit.
    """
    if cta_group == 1:
        return (cta,)
    even = cta.rank & ~1
    if even + 1 < len(cta.cluster):
        return (cta.cluster[even], cta.cluster[even + 1])
    cta.simulation.findings.add(
        "tcgen05-issue", "cta_group::2 in a cluster that has no peer CTA for this one", site
    )
    return None


def pending_operations(cta: Cta) -> Iterator[AsyncOperation]:
    """Operations in flight that touch the tensor memory of a CTA."""
    for operation in cta.simulation.operations:
        touched: tuple[Cta, ...] = getattr(operation, "tensor_ctas", ())
        if cta in touched and not operation.done:
            yield operation
