"""`barrier.cluster.arrive` and `.wait` (PTX ISA 9.7.13.3): all threads of a cluster that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import Waitable
from mlagen.sim.order import Knowledge

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
        handed_over: By the arrivals of each phase.
    """

    __slots__ = ("arrivals", "ctas", "handed_over", "lanes", "waits")

    def __init__(self, ctas: list[Cta]) -> None:
        """Nobody has arrived."""
        super().__init__()
        self.ctas = ctas
        self.arrivals: dict[Warp, int] = {}
        self.waits: dict[Warp, int] = {}
        self.lanes: dict[Warp, int] = {}
        self.handed_over: list[Knowledge] = []

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


def _words(instruction: Instruction, known: frozenset[str]) -> frozenset[str]:
    words = frozenset(instruction.parts[3:])
    if words - known:
        raise UnsupportedPtxError(instruction.opcode)
    return words


def decode_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`barrier.cluster.arrive[.release|.relaxed]`."""
    words = _words(instruction, frozenset({"aligned", "release", "relaxed"}))
    relaxed = "relaxed" in words

    def arrive(path: Path) -> None:
        warp = path.warp
        barrier = _barrier_of(warp.cta)
        came = barrier.lanes.get(warp, 0) | path.mask
        if came & warp.alive != warp.alive:
            barrier.lanes[warp] = came  # the rest of the warp is still to come
            return
        barrier.lanes[warp] = 0
        phase = barrier.arrivals.get(warp, 0)
        if phase > barrier.waits.get(warp, 0):
            site = warp.cta.simulation.findings.site(path, instruction)
            text = "a second arrival at the cluster barrier without a wait between"
            warp.cta.simulation.findings.add("barrier-over-arrival", text, site)
        barrier.arrivals[warp] = phase + 1
        while len(barrier.handed_over) <= phase:
            barrier.handed_over.append(_NOTHING)
        if not relaxed:
            barrier.handed_over[phase] |= warp.cta.simulation.order.publish(warp)
        barrier.wake()

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
