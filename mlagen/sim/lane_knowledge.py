"""What some lanes of a warp have waited for and the others have not.

A wait that only some lanes execute acquires for these (PTX ISA, "Causality order": a thread synchronises). Others learn
of it from `bar.warp.sync` or a barrier; neither reconvergence nor `elect`, `shfl` or `vote` orders memory. So by the
letter an access, of tensor memory too, product or copy must not rely on it if a lane that executes it has not waited.

A warp's sets hold what any lane has learned; `Warp.unshared` says which of that are not all lanes' own. It is empty
unless lanes have waited apart, and at the level `practice`, which keeps a warp's knowledge in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.hardware import Path, Waitable, Warp
    from mlagen.sim.knowledge import Knowledge
    from mlagen.sim.program import Visible

# Beginnings of opcodes by which each lane hands on what it knows itself: one that knows is enough.
_HANDS_ON = ("bar", "fence", "membar", "mbarrier.arrive", "cp.async.mbarrier", "tcgen05.fence")


def learn(path: Path, lanes: int, knowledge: Knowledge) -> None:
    """Lanes of a path acquire what a release has handed over."""
    warp = path.warp
    simulation = warp.cta.simulation
    news = knowledge.ordered & ~warp.ordered
    simulation.order.acquire(warp, knowledge)
    if warp.unshared:
        news = _tell(warp, lanes, news)
    if news and simulation.strict and warp.alive & ~lanes:
        warp.unshared.append((lanes, news))


def execute_apart(step: Visible, path: Path) -> Waitable | None:
    """Execute an instruction in a warp whose lanes know different things: what some of its lanes lack is hidden."""
    warp, opcode = path.warp, step.instruction.opcode
    hands_on = opcode.startswith(_HANDS_ON)
    hidden = 0
    for lanes, events in warp.unshared:
        is_known = path.mask & lanes if hands_on else not path.mask & ~lanes
        if not is_known:
            hidden |= events
    hidden_async = warp.async_visible & hidden
    hidden_tensor = warp.tensor_ordered & hidden
    warp.ordered &= ~hidden
    warp.async_visible &= ~hidden
    warp.tensor_ordered &= ~hidden
    waitable = step.handler(path)
    if waitable is None:
        is_meeting = opcode.startswith("bar") and "arrive" not in step.instruction.parts
        _tell(warp, path.mask, ~0 if is_meeting else warp.ordered & hidden)
    warp.ordered |= hidden
    warp.async_visible |= hidden_async
    warp.tensor_ordered |= hidden_tensor
    return waitable


def waited_apart(warp: Warp, event: int) -> bool:
    """Whether only some lanes of a warp know of an event."""
    return any(events >> event & 1 for _, events in warp.unshared)


def _tell(warp: Warp, lanes: int, events: int) -> int:
    """Lanes learn events that others of their warp may know already.

    Returns:
        Those that none of the others has learned alone.
    """
    left, unshared = events, []
    for knowing, known in warp.unshared:
        unshared += [(knowing | lanes, known & events), (knowing, known & ~events)]
        left &= ~known
    warp.unshared = [
        (knowing, known) for knowing, known in unshared if known and warp.alive & ~knowing
    ]
    return left
