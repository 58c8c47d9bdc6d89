"""`barrier.cluster.arrive` and `.wait` (PTX ISA 9.7.13.3): all threads of a cluster that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import Waitable
from mlagen.sim.order import Knowledge
from mlagen.sim.strong import fences_of

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Warp
    from mlagen.sim.ptx import Instruction

UNIT = "cluster barrier"
_NOTHING = Knowledge(0, 0, 0)


class ClusterBarrier(Waitable):
    """The barrier of one cluster; every warp counts its own arrivals.

    Attributes:
        ctas: Of the cluster.
        arrivals: How often each warp has arrived.
        waits: How often each warp has waited.
        lanes: Those of a warp that have arrived while others are still to come.
        handed_over: By the arrivals of each phase.
    """

    __slots__ = ("arrivals", "ctas", "handed_over", "lanes", "waits")

    def __init__(self, ctas: list[Cta]) -> None:
        """Nobody has arrived."""
        super().__init__()
        self.ctas = ctas
        self.arrivals: dict[Warp, int] = {}
        self.waits: dict[Warp, int] = {}
        self.lanes: dict[Warp, tuple[int, Knowledge]] = {}
        self.handed_over: list[Knowledge] = []

    def arrive(self, warp: Warp, knowledge: Knowledge) -> None:
        """A whole warp arrives."""
        phase = self.arrivals.get(warp, 0)
        self.lanes.pop(warp, None)
        self.arrivals[warp] = phase + 1
        while len(self.handed_over) <= phase:
            self.handed_over.append(_NOTHING)
        self.handed_over[phase] |= knowledge
        self.wake()

    def missing(self, phase: int) -> list[Warp]:
        """Warps with live lanes that have not arrived in a phase."""
        return [
            warp
            for cta in self.ctas
            for warp in cta.warps
            if warp.alive and self.arrivals.get(warp, 0) <= phase
        ]

    def describe(self, path: Path) -> str:
        """Who is missing."""
        missing = self.missing(self.waits.get(path.warp, 0))
        shown = ", ".join(f"CTA {warp.cta.number} warp {warp.index}" for warp in missing[:8])
        return f"the cluster barrier: {shown} have not arrived"


def _barrier_of(cta: Cta) -> ClusterBarrier:
    first = cta.cluster[0]
    found = first.units.get(UNIT)
    if found is None:
        found = first.units[UNIT] = ClusterBarrier(cta.cluster)
    assert isinstance(found, ClusterBarrier)
    return found


def lanes_ended(warp: Warp) -> None:
    """Lanes have returned: nobody waits for them any more."""
    barrier = warp.cta.cluster[0].units.get(UNIT)
    if barrier is None:
        return
    came, known = barrier.lanes.get(warp, (0, _NOTHING))
    if warp.alive and came & warp.alive == warp.alive:
        barrier.arrive(warp, known)
    barrier.wake()


def _words(instruction: Instruction, known: frozenset[str]) -> frozenset[str]:
    words = frozenset(instruction.parts[3:])
    if words - known:
        raise UnsupportedPtxError(instruction.opcode)
    return words


def decode_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`barrier.cluster.arrive[.release|.relaxed]`; a relaxed one hands over what its warp knew at its last fence."""
    words = _words(instruction, frozenset({"aligned", "release", "relaxed"}))
    relaxed = "relaxed" in words

    def arrive(path: Path) -> None:
        warp = path.warp
        barrier = _barrier_of(warp.cta)
        order = warp.cta.simulation.order
        if barrier.arrivals.get(warp, 0) > barrier.waits.get(warp, 0):
            site = warp.cta.simulation.findings.site(path, instruction)
            text = "a second arrival at the cluster barrier without a wait between"
            warp.cta.simulation.findings.add("barrier-twice", text, site)
        known = fences_of(warp).released_wide if relaxed else order.publish(warp)
        came, earlier = barrier.lanes.get(warp, (0, _NOTHING))
        came, known = came | path.mask, earlier | known
        if came & warp.alive == warp.alive:
            barrier.arrive(warp, known)
        else:
            barrier.lanes[warp] = came, known

    return arrive


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`barrier.cluster.wait[.acquire]`."""
    _words(instruction, frozenset({"aligned", "acquire"}))

    def wait(path: Path) -> Waitable | None:
        warp = path.warp
        barrier = _barrier_of(warp.cta)
        phase = barrier.waits.get(warp, 0)
        if barrier.arrivals.get(warp, 0) <= phase:
            site = warp.cta.simulation.findings.site(path, instruction)
            text = "a wait at the cluster barrier without an arrival before it"
            warp.cta.simulation.findings.add("barrier-wait", text, site)
            return None
        if barrier.missing(phase):
            return barrier
        warp.cta.simulation.order.acquire(warp, barrier.handed_over[phase])
        barrier.waits[warp] = phase + 1
        return None

    return wait


DECODERS: dict[str, Decoder] = {
    "barrier.cluster.arrive": decode_arrive,
    "barrier.cluster.wait": decode_wait,
}
ALIGNED = frozenset(
    {
        "barrier.cluster.arrive.aligned",
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.arrive.relaxed.aligned",
        "barrier.cluster.wait.aligned",
        "barrier.cluster.wait.acquire.aligned",
    }
)
