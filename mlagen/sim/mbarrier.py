"""The mbarrier object: counts, bytes and phases (PTX ISA 9.7.13.15), beside the shared memory that it occupies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim.hardware import Waitable
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    from mlagen.sim.hardware import AsyncOperation, Cta, Path, Warp
    from mlagen.sim.report import Site

OBJECT_BYTES = 8
MOST_ARRIVALS = 2**20 - 1
MOST_BYTES = 2**20 - 1
_SHOWN_ARRIVERS = 4
_NOTHING = Knowledge(0, 0, 0)


class MBarrier(Waitable):
    """One barrier between `init` and `inval`.

    Attributes:
        cta: In whose shared memory it lies.
        address: `shared::cta` address.
        count: Expected arrivals of a phase.
        pending: Arrivals that the current phase lacks.
        bytes: Transaction bytes that are announced and have not come; negative while they run ahead.
        phase: Number of the current phase.
        completed: What the arrivals of the phase before have handed over.
        was_observed: Whether somebody has seen the phase before end.
        is_fenced: Whether its initialisation has been made visible to the async proxy.
        init_event: Event of the initialisation.
    """

    __slots__ = (
        "_arrivers",
        "_published",
        "address",
        "bytes",
        "completed",
        "count",
        "cta",
        "init_event",
        "is_fenced",
        "pending",
        "phase",
        "was_observed",
    )

    def __init__(self, cta: Cta, address: int, count: int, init_event: int) -> None:
        """Phase 0 begins.

        Args:
            cta: In whose shared memory it lies.
            address: `shared::cta` address.
            count: Expected arrivals of a phase.
            init_event: Event of the initialisation.
        """
        super().__init__()
        self.cta = cta
        self.address = address
        self.count = self.pending = count
        self.bytes = 0
        self.phase = 0
        self.completed = _NOTHING
        self.was_observed = True
        self.is_fenced = False
        self.init_event = init_event
        self._published = _NOTHING
        self._arrivers: list[str] = []

    def arrive(
        self, count: int, knowledge: Knowledge | None, site: Site | None, *, drops: bool = False
    ) -> int:
        """Arrive `count` times.

        Args:
            count: Arrivals.
            knowledge: What a release hands over; None if it is relaxed.
            site: Who arrives.
            drops: Whether later phases expect that many fewer.

        Returns:
            The phase that was current before.
        """
        phase = self.phase
        if phase and not self.was_observed:
            self.report(
                "mbarrier-unobserved",
                f"an arrival in phase {phase} although nobody has seen phase {phase - 1} end",
                site,
            )
            self.was_observed = True
        if count > self.pending:
            self.report(
                "mbarrier-over-arrival",
                f"{count} arrivals, the phase lacks only {self.pending} of {self.count}",
                site,
            )
            count = self.pending
        self.pending -= count
        if drops:
            self.count -= count
        if site is not None:
            self._arrivers = [*self._arrivers, f"warp {site.warp}"][-_SHOWN_ARRIVERS:]
        if knowledge is not None:
            self._published |= knowledge
        self._advance()
        return phase

    def expect_bytes(self, size: int, site: Site | None) -> None:
        """Announce transaction bytes of the current phase."""
        self.bytes += size
        self._check_bytes(site)
        self._advance()  # bytes may have come before they were announced

    def complete_bytes(self, size: int, operation: AsyncOperation) -> None:
        """An operation has moved bytes: the phase's waiters will know of it, and of nothing that it knew."""
        if not self.is_fenced:
            self.report_init(operation.site)
        self.bytes -= size
        self._check_bytes(operation.site)
        self._published |= self.cta.simulation.order.publish(operation)
        self._advance()

    def expect_arrival(self) -> None:
        """One more pending arrival of this phase (`cp.async.mbarrier.arrive` without `.noinc`)."""
        self.pending += 1

    def test(self, parity: int) -> bool:
        """Whether the phase of this parity, the current one or that before, has ended."""
        ended = parity != self.phase & 1
        self.was_observed = self.was_observed or ended
        return ended

    def test_phase(self, phase: int) -> bool:
        """Whether a phase that an arrival's token names has ended."""
        ended = self.phase > phase
        self.was_observed = self.was_observed or ended
        return ended

    def check_user(self, warp: Warp, site: Site | None) -> None:
        """Report a use that the initialisation is not ordered before."""
        if warp.cta.simulation.order.enabled and not warp.ordered >> self.init_event & 1:
            self.report(
                "mbarrier-init-order",
                "used without waiting for the warp that initialised it",
                site,
            )
            warp.ordered |= 1 << self.init_event  # once is enough

    def report_init(self, site: Site | None) -> None:
        """Report a use by the async proxy or another CTA that the initialisation may not have reached."""
        simulation = self.cta.simulation
        simulation.findings.add(
            "mbarrier-init-fence",
            f"{self.name}: no fence.mbarrier_init (or fence.proxy.async) follows its initialisation",
            site,
            barrier=self.name,
            severity="error" if simulation.strict else "note",
        )
        self.is_fenced = True

    def report(self, kind: str, message: str, site: Site | None) -> None:
        """Report something about this barrier."""
        self.cta.simulation.findings.add(kind, f"{self.name}: {message}", site, barrier=self.name)

    @property
    def name(self) -> str:
        """Its name in the plan, or its address."""
        offset = self.address - self.cta.simulation.dynamic_shared_base
        return self.cta.simulation.findings.barrier_name(offset) or f"mbarrier at {self.address:#x}"

    def describe(self, path: Path) -> str:
        """Its phase and what that lacks."""
        lacks = []
        if self.pending:
            lacks.append(f"{self.pending} of {self.count} arrivals")
        if self.bytes:
            lacks.append(f"{self.bytes} bytes")
        by = f"; last arrivals by {', '.join(self._arrivers)}" if self._arrivers else ""
        return (
            f"{self.name}: phase {self.phase} (parity {self.phase & 1})"
            f" lacks {' and '.join(lacks)}{by}"
        )

    def at_exit(self) -> None:
        """Report bytes that were announced and never came."""
        if self.bytes:
            self.report(
                "mbarrier-exit", f"the CTA has ended, and {self.bytes} bytes are outstanding", None
            )

    def _check_bytes(self, site: Site | None) -> None:
        if abs(self.bytes) > MOST_BYTES:
            self.report("mbarrier-bytes", f"{self.bytes} transaction bytes in one phase", site)
        elif self.bytes < 0 and self.pending == 0:
            self.report(
                "mbarrier-bytes",
                f"{-self.bytes} bytes more than the phase has announced, and all have arrived",
                site,
            )

    def _advance(self) -> None:
        """End the phase if nothing is lacking."""
        if self.pending or self.bytes:
            return
        self.phase += 1
        self.pending = self.count
        self.completed, self._published = self._published, _NOTHING
        self.was_observed = False
        self._arrivers = []
        self.wake()
