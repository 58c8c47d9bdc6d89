"""Fences between proxies, and of barrier initialisation (PTX ISA 9.7.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.order import Knowledge
from mlagen.sim.strong import fences_of

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction


def decode_async_proxy(instruction: Instruction, bind: Binder) -> Handler:
    """`fence.proxy.async` in every form: which memory it names makes no difference here.

    Of the one-way forms, `async::generic.release` orders generic accesses before asynchronous ones; the other one,
    `.acquire`, is needed for data of other CTAs' generic proxies. Both count as the full fence.
    """
    match instruction.parts[2:]:
        case ("async",) | ("async", "global" | "shared::cta" | "shared::cluster"):
            pass
        case ("async::generic", "acquire" | "release", restriction, "cluster") if restriction in {
            "sync_restrict::shared::cta",
            "sync_restrict::shared::cluster",
        }:
            pass
        case _:
            raise UnsupportedPtxError(instruction.opcode)

    def fence(path: Path) -> None:
        path.warp.cta.simulation.order.fence_async(path.warp)

    return fence


def decode_barrier_init(instruction: Instruction, bind: Binder) -> Handler:
    """`fence.mbarrier_init.release.cluster`: earlier `mbarrier.init` of the thread, and nothing else.

    They are visible to all proxies then, and a later relaxed arrival at a cluster barrier hands them over (PTX ISA
    9.7.13.4, the example of fence.mbarrier_init).
    """
    if instruction.parts[2:] != ("release", "cluster"):
        raise UnsupportedPtxError(instruction.opcode)

    def fence(path: Path) -> None:
        warp = path.warp
        events = 0
        for barrier in warp.cta.barriers.live.values():
            events |= warp.ordered & 1 << barrier.init_event
        warp.async_visible |= events
        fences = fences_of(warp)
        known = Knowledge(events, events, 0)
        fences.released = fences.released | known
        fences.released_wide = fences.released_wide | known

    return fence


def decode_nothing(instruction: Instruction, bind: Binder) -> Handler:
    """Fences of proxies that are not modelled: there are no aliases, and a copy reads its tensor map when it is issued.

    So nobody notices if the fence between making a map and using it is missing.
    """
    return lambda path: None


DECODERS: dict[str, Decoder] = {
    "fence.proxy.async": decode_async_proxy,
    "fence.proxy.async::generic": decode_async_proxy,
    "fence.mbarrier_init": decode_barrier_init,
    "fence.proxy.tensormap": decode_nothing,
    "fence.proxy.tensormap::generic": decode_nothing,
    "fence.proxy.alias": decode_nothing,
}
