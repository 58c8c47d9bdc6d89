"""Fences between proxies, and of barrier initialisation (PTX ISA 9.7.13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction


def _fence_barriers(path: Path) -> None:
    """Every barrier whose initialisation the warp knows is from here on visible to all proxies."""
    warp = path.warp
    for barrier in warp.cta.barriers.live.values():
        if warp.ordered >> barrier.init_event & 1:
            barrier.is_fenced = True


def decode_async_proxy(instruction: Instruction, bind: Binder) -> Handler:
    """`fence.proxy.async` in every form: which memory it names makes no difference here."""

    def fence(path: Path) -> None:
        path.warp.cta.simulation.order.fence_async(path.warp)
        _fence_barriers(path)

    return fence


def decode_barrier_init(instruction: Instruction, bind: Binder) -> Handler:
    """`fence.mbarrier_init.release.cluster`."""
    return _fence_barriers


def decode_nothing(instruction: Instruction, bind: Binder) -> Handler:
    """Fences of proxies that are not modelled: tensor maps do not change during a run, and there are no aliases."""
    return lambda path: None


DECODERS: dict[str, Decoder] = {
    "fence.proxy.async": decode_async_proxy,
    "fence.proxy.async::generic": decode_async_proxy,
    "fence.mbarrier_init": decode_barrier_init,
    "fence.proxy.tensormap": decode_nothing,
    "fence.proxy.tensormap::generic": decode_nothing,
    "fence.proxy.alias": decode_nothing,
}
