"""The mbarrier object: counts, bytes and phases (PTX ISA 9.7.13.15), beside the shared memory that it occupies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim.hardware import Waitable, Warp
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.sim.hardware import Actor, AsyncOperation, Cta, Path, Simulation
    from mlagen.sim.report import Severity, Site

UNIT = "mbarrier"
OBJECT_BYTES = 8
MOST_ARRIVALS = 2**20 - 1
MOST_BYTES = 2**20 - 1
# What the machine leaves in `path.pending` of a wait that it lets time out.
TIMED_OUT = -1
_SHOWN_ARRIVERS = 4
_NOTHING = Knowledge(0, 0, 0)
# A token holds the phase above the pending arrivals; both as they were before the arrival that returned it.
_COUNT_BITS = 20
# Under this name a simulation keeps the events that came before copies whose bytes count in another CTA.
_CARRIED = "mbarrier carried"


def token_of(phase: int, pending: int) -> int:
    """The state that an arrival returns, opaque to kernels."""
    return phase << _COUNT_BITS | pending


def pending_of(token: int) -> int:
    """Pending arrivals of a state (`mbarrier.pending_count`)."""
    return token & ((1 << _COUNT_BITS) - 1)


class MBarrier(Waitable):
    """One barrier between `init` and `inval`.

    Rules after PTX ISA 9.7.13.15.2 to .5: a phase ends when its pending arrivals and its transaction bytes are both
    zero; the next begins at once; a wait may ask for the current phase or the one before; and "for each phase, at
    least one test_wait or try_wait must return true before an arrive-on operation in the subsequent phase". Nobody
    has to wait for the last phase.

    Attributes:
        cta: In whose shared memory it lies.
        address: `shared::cta` address.
        count: Expected arrivals of a phase.
        pending: Arrivals that the current phase lacks.
        bytes: Transaction bytes that are announced and have not come; negative while they run ahead.
        phase: Number of the current phase.
        completed: What the arrivals of the phase before have handed over.
        followers: What is woken together with it.
        was_observed: Whether somebody has seen the phase before end.
        init_event: Event of the initialisation.
        commit: The last `tcgen05.commit` that has arrived.
        users: Events of its uses, for whoever invalidates it; empty if the kernel never does.
    """

    __slots__ = (
        "_arrivers",
        "_last_seen",
        "_observers",
        "_published",
        "address",
        "bytes",
        "commit",
        "completed",
        "count",
        "cta",
        "followers",
        "init_event",
        "pending",
        "phase",
        "users",
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
        self.followers: list[Waitable] = []
        self.was_observed = True
        self.commit: AsyncOperation | None = None
        self.init_event = init_event
        self.users = 0
        self._published = _NOTHING
        self._arrivers: list[int] = []
        # The last phase that each warp of the CTA has seen end.
        self._last_seen: dict[int, int] = {}
        # Events of the waits that have seen the phase before end.
        self._observers = 0

    def arrive(
        self,
        count: int,
        knowledge: Knowledge | None,
        site: Site | None,
        *,
        drops: bool = False,
        may_complete: bool = True,
    ) -> int:
        """Arrive `count` times.

        Args:
            count: Arrivals.
            knowledge: What a release hands over; None if it is relaxed.
            site: Who arrives.
            drops: Whether later phases expect that many fewer.
            may_complete: Whether it may end the phase; not that of `.noComplete`.

        Returns:
            The state before, as a token.
        """
        token = token_of(self.phase, self.pending)
        if self.phase and not self.was_observed:
            self.report(
                "mbarrier-unobserved",
                f"an arrival in phase {self.phase} although nobody has seen phase {self.phase - 1} end",
                site,
                severity="error" if self.cta.simulation.strict else "note",
            )
            self.was_observed = True
        if count > self.pending:
            self.report(
                "mbarrier-over-arrival",
                f"{count} arrivals, phase {self.phase} lacks only {self.pending} of {self.count}",
                site,
            )
            count = self.pending
        self.pending -= count
        if drops:
            self.count -= count
        if site is not None:
            self._arrivers = [*self._arrivers, site.warp][-_SHOWN_ARRIVERS:]
        if knowledge is not None:
            self._published |= knowledge
        self._check_bytes(site)
        if not may_complete and not self.pending and not self.bytes:
            self.report("mbarrier-complete", "a .noComplete arrival ends the phase", site)
        self._advance()
        return token

    def announce_bytes(self, size: int, site: Site | None) -> None:
        """Announce transaction bytes together with an arrival that follows."""
        self.bytes += size
        self._check_bytes(site)

    def expect_bytes(self, size: int, site: Site | None) -> None:
        """Announce transaction bytes of the current phase."""
        self.announce_bytes(size, site)
        self._advance()  # bytes may have come before they were announced

    def take_bytes(self, size: int, site: Site | None) -> None:
        """Bytes have come, of which nothing else is known (`mbarrier.complete_tx`)."""
        self.bytes -= size
        self._check_bytes(site)
        self._advance()

    def complete_bytes(self, size: int, operation: AsyncOperation) -> None:
        """An operation has moved bytes: the phase's waiters will know of it, and of nothing that it knew."""
        self.check_fenced(operation.async_visible, operation.site)
        self.note_user(operation, operation.site)
        if operation.site is not None and operation.site.cta != self.cta.number:
            units = self.cta.simulation.units
            units[_CARRIED] = units.get(_CARRIED, 0) | operation.ordered
        self._published |= self.cta.simulation.order.publish(operation)
        self.take_bytes(size, operation.site)

    def expect_arrival(self) -> None:
        """One more pending arrival of this phase (`cp.async.mbarrier.arrive` without `.noinc`)."""
        self.pending += 1

    def test(self, parity: int) -> bool:
        """Whether the phase of this parity, the current one or that before, has ended."""
        ended = parity != self.phase & 1
        self.was_observed = self.was_observed or ended
        return ended

    def test_token(self, token: int) -> bool:
        """Whether the phase that an arrival's token names has ended."""
        ended = self.phase > token >> _COUNT_BITS
        self.was_observed = self.was_observed or ended
        return ended

    def note_seen(self, warp: Warp, site: Site | None) -> None:
        """A warp has seen the phase before end."""
        self._last_seen[warp.index] = self.phase - 1
        order = self.cta.simulation.order
        if order.enabled:
            self._observers |= 1 << order.mark(warp, site)

    def check_turn(self, knowledge: Knowledge, site: Site | None) -> None:
        """Report a warp's arrival that nothing orders behind the end of the phase before: it may count there."""
        if self.completed.ordered & ~knowledge.ordered and self.cta.simulation.order.enabled:
            self.report(
                "mbarrier-early",
                f"an arrival in phase {self.phase} that may come before the end of phase {self.phase - 1}",
                site,
                severity="error" if self.cta.simulation.strict else "note",
            )

    def missed_phase(self, path: Path) -> int | None:
        """The phase that a waiting path would want next, if that and the one behind it have ended: it came too late.

        What a parity means depends on the phase that the warp saw last, and nobody waits for a phase that ended two
        phases ago. A warp that leaves phases to others may be mistaken for one, so this matters in deadlocks only.
        """
        last = self._last_seen.get(path.warp.index)
        if last is None or path.pending is None:
            return None
        is_next = int(path.pending) & 1 == (last + 1) & 1
        return last + 1 if is_next and self.phase >= last + 3 else None

    def check_user(self, warp: Warp, site: Site | None) -> None:
        """Report a use that the initialisation is not ordered before."""
        if warp.cta.simulation.order.enabled and not warp.ordered >> self.init_event & 1:
            self.report(
                "mbarrier-init-order",
                "used without waiting for the warp that initialised it",
                site,
                earlier=warp.cta.simulation.order.site_of(self.init_event),
            )
            self.init_event = 0

    def check_fenced(self, async_visible: int, site: Site | None) -> None:
        """Report a use by the async proxy or another CTA that the initialisation may not have reached."""
        simulation = self.cta.simulation
        if not simulation.order.enabled or async_visible >> self.init_event & 1:
            return
        self.report(
            "mbarrier-init-fence",
            "no fence.mbarrier_init (or fence.proxy.async) follows its initialisation",
            site,
            earlier=simulation.order.site_of(self.init_event),
            severity="error" if simulation.strict else "note",
        )
        self.init_event = 0  # the event before the launch, which everybody knows: once is enough

    def note_user(self, user: Actor, site: Site | None) -> None:
        """Remember a use, if the kernel invalidates barriers: that must come after all uses."""
        simulation = self.cta.simulation
        if not _invalidates(simulation):
            return
        is_warp = isinstance(user, Warp)
        self.users |= 1 << (simulation.order.mark(user, site) if is_warp else user.event)

    def check_invalidated(self, warp: Warp, site: Site | None) -> None:
        """Report uses that `mbarrier.inval` does not come after."""
        late = self.users & ~warp.ordered
        if late:
            earlier = self.cta.simulation.order.site_of(late.bit_length() - 1)
            self.report("race", "invalidated without waiting for its users", site, earlier=earlier)
        if self.waiters or self.followers:
            self.report("mbarrier-invalidated", "invalidated while threads wait for it", site)

    def report(
        self,
        kind: str,
        message: str,
        site: Site | None,
        *,
        earlier: Site | None = None,
        severity: Severity = "error",
    ) -> None:
        """Report something about this barrier."""
        self.cta.simulation.findings.add(
            kind,
            f"{self.name}: {message}",
            site,
            earlier=earlier,
            barrier=self.name,
            severity=severity,
        )

    @property
    def name(self) -> str:
        """Its name in the plan, or its address."""
        offset = self.address - self.cta.simulation.dynamic_shared_base
        return self.cta.simulation.findings.barrier_name(offset) or f"mbarrier at {self.address:#x}"

    def describe(self, path: Path) -> str:
        """What it is asked for, and what its phase lacks."""
        lacks = []
        if self.pending:
            lacks.append(f"{self.pending} of {self.count} arrivals")
        if self.bytes:
            lacks.append(f"{self.bytes} bytes")
        role = self.cta.simulation.findings.role
        by = ", ".join(dict.fromkeys(role(warp) or f"warp {warp}" for warp in self._arrivers))
        asked = "" if path.pending is None else f" parity {int(path.pending) & 1}"
        text = (
            f"{self.name}{asked}: phase {self.phase} (parity {self.phase & 1})"
            f" lacks {' and '.join(lacks) or 'nothing'}"
        )
        if by:
            text += f"; last arrivals by {by}"
        missed = self.missed_phase(path)
        if missed is not None:
            text += f"; phase {missed}, which this warp would see next, has ended and so has the one behind it"
        return text

    def at_exit(self) -> None:
        """Report bytes that were announced and never came."""
        if self.bytes:
            self.report(
                "mbarrier-exit", f"the CTA has ended, and {self.bytes} bytes are outstanding", None
            )

    def check_commit(self, seen: Mapping[Cta, int]) -> None:
        """Report that the CTA has ended, and nobody has waited for a commit of another CTA: it may come later.

        Args:
            seen: Issuing CTA -> event of its last commit that somebody has waited for; those before have come, too.
        """
        commit = self.commit
        if commit is None or commit.cta is self.cta or self.was_observed:
            return
        if commit.event > seen.get(commit.cta, -1):
            self.report(
                "exit-in-flight",
                f"the CTA has ended, and nobody has waited for {commit.name}, which another CTA has issued",
                commit.site,
                severity="error" if self.cta.simulation.strict else "note",
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
        self._check_observers()
        self.phase += 1
        self.pending = self.count
        self.completed, self._published = self._published, _NOTHING
        self.was_observed = False
        self._arrivers = []
        self.wake()
        for follower in self.followers:
            follower.wake()
        self.followers.clear()

    def _check_observers(self) -> None:
        """Report waits for the phase before that nothing orders before the end of this one.

        In another schedule the phase ends twice before they look: then its parity is what it was, and they hang.
        """
        late = self._observers & ~self._published.ordered
        # A copy hands over itself alone, but it came after what its issuer had waited for: where its bytes count on
        # another CTA's barrier, no arrival goes along with it.
        late &= ~self.cta.simulation.units.get(_CARRIED, 0)
        self._observers = 0
        if late:
            self.report(
                "mbarrier-missed",
                f"phase {self.phase} may end before this wait has seen the end of phase {self.phase - 1}",
                self.cta.simulation.order.site_of(late.bit_length() - 1),
                severity="error" if self.cta.simulation.strict else "note",
            )


def _invalidates(simulation: Simulation) -> bool:
    """Whether the kernel has an `mbarrier.inval`."""
    found = simulation.units.get(UNIT)
    if found is None:
        instructions = simulation.function.instructions
        found = simulation.units[UNIT] = any(
            one.opcode.startswith("mbarrier.inval") for one in instructions
        )
    return bool(found)
