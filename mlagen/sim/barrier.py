"""The mbarriers of a CTA by address, and the instructions of all units that synchronise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim import cluster_barrier, fences, mbarrier_change, mbarrier_wait, named_barrier
from mlagen.sim.mbarrier import MOST_ARRIVALS, OBJECT_BYTES, MBarrier

if TYPE_CHECKING:
    from mlagen.sim.hardware import Cta, Decoder, Path, Warp
    from mlagen.sim.report import Findings, Site


class BarrierFile:
    """The mbarriers of one CTA.

    Attributes:
        live: By `shared::cta` address.
    """

    def __init__(self, cta: Cta) -> None:
        """None is initialised."""
        self._cta = cta
        self.live: dict[int, MBarrier] = {}

    def at(self, address: int, path: Path | None, site: Site | None) -> MBarrier | None:
        """The barrier at an address; None after reporting that there is none.

        Args:
            address: `shared::cta` address.
            path: Who uses it, to check that the initialisation came before; None for an operation.
            site: Where.
        """
        barrier = self.live.get(address)
        if barrier is None:
            self._cta.simulation.findings.add(
                "mbarrier-uninitialised",
                f"no initialised mbarrier at shared address {address:#x}",
                site,
            )
            return None
        if path is not None:
            barrier.check_user(path.warp, site)
        return barrier

    def covers(self, address: int, size: int) -> bool:
        """Whether bytes belong to a live barrier."""
        first = address - address % OBJECT_BYTES
        if size <= OBJECT_BYTES:
            return first in self.live
        return any(address - OBJECT_BYTES < one < address + size for one in self.live)

    def init(self, address: int, count: int, path: Path, site: Site) -> None:
        """`mbarrier.init`: the bytes belong to the barrier from here on."""
        simulation = self._cta.simulation
        shared = self._cta.shared
        if not shared.check_range(address, OBJECT_BYTES, site):
            return
        if not shared.check_aligned(address, OBJECT_BYTES, site):
            return
        if not 1 <= count <= MOST_ARRIVALS:
            text = f"{count} expected arrivals: 1 to {MOST_ARRIVALS}"
            simulation.findings.add("mbarrier-count", text, site)
            return
        if address in self.live:
            self.live[address].report(
                "mbarrier-reinitialised", "initialised while it is in use", site
            )
        # Whoever used the bytes as memory came before.
        simulation.order.write(shared.shadow, shared.cells(address, OBJECT_BYTES), path.warp, site)
        event = simulation.order.mark(path.warp, site)
        self.live[address] = MBarrier(self._cta, address, count, event)

    def invalidate(self, address: int, path: Path, site: Site) -> None:
        """`mbarrier.inval`: its bytes are memory again, with unknown contents."""
        barrier = self.at(address, path, site)
        if barrier is None:
            return
        barrier.check_invalidated(path.warp, site)
        del self.live[address]
        shared = self._cta.shared
        cells = shared.cells(address, OBJECT_BYTES)
        self._cta.simulation.order.write(shared.shadow, cells, path.warp, site)
        shared.initialised[cells] = False


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report barriers that still expect something."""
    seen: dict[Cta, int] = {}
    for one in cta.cluster:
        for barrier in one.barriers.live.values():
            if barrier.commit and barrier.was_observed:
                issuer = barrier.commit.cta
                seen[issuer] = max(seen.get(issuer, -1), barrier.commit.event)
    for barrier in cta.barriers.live.values():
        barrier.at_exit()
        barrier.check_commit(seen)


def lanes_ended(warp: Warp) -> None:
    """Lanes have returned: barriers of all threads no longer wait for them."""
    named_barrier.lanes_ended(warp)
    cluster_barrier.lanes_ended(warp)


DECODERS: dict[str, Decoder] = {
    **mbarrier_change.DECODERS,
    **mbarrier_wait.DECODERS,
    **named_barrier.DECODERS,
    **cluster_barrier.DECODERS,
    **fences.DECODERS,
}
ALIGNED = named_barrier.ALIGNED | cluster_barrier.ALIGNED
