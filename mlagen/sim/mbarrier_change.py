"""Instructions that change mbarriers: initialise, arrive, announce and complete bytes (PTX ISA 9.7.13.15.9 to .15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.access import all_lanes, lane_values
from mlagen.sim.cp_async import outstanding
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.mbarrier_form import SCOPES, addressed, modifiers
from mlagen.sim.order import Knowledge
from mlagen.sim.ptx import Address, Sink
from mlagen.sim.strong import fences_of

if TYPE_CHECKING:
    from mlagen.sim.cp_async import Copy
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Warp
    from mlagen.sim.mbarrier import MBarrier
    from mlagen.sim.ptx import Instruction


def decode_init(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.init [address], count`."""
    modifiers(instruction, frozenset({"b64"}), skip=2)
    find = addressed(bind, instruction.operands[0])
    counts = bind.reader(instruction.operands[1], "u32")

    def init(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        for (cta, address), count in zip(
            find(path), lane_values(counts(path), path).tolist(), strict=True
        ):
            cta.barriers.init(address, int(count), path, site)

    return init


def decode_invalidate(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.inval [address]`."""
    modifiers(instruction, frozenset({"b64"}), skip=2)
    find = addressed(bind, instruction.operands[0])

    def invalidate(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        for cta, address in find(path):
            cta.barriers.invalidate(address, path, site)

    return invalidate


_ARRIVE = frozenset({"b64", "release", "relaxed", "expect_tx", "noComplete"}) | SCOPES


def decode_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.arrive` and `arrive_drop`, with `.expect_tx` or a count.

    A remote arrive of the default scope hands over what its warp knows, as a local one does: an "empty" signal behind
    reads releases no writes, and none was ever seen to fail on an H200.
    """
    words = modifiers(instruction, _ARRIVE, skip=2)
    operands = list(instruction.operands)
    result = Sink() if isinstance(operands[0], Address) else operands.pop(0)
    find = addressed(bind, operands[0])
    amount = bind.reader(operands[1], "u32") if len(operands) > 1 else None
    write = bind.writer(result, "u64")
    drops = instruction.parts[1] == "arrive_drop"
    expects, relaxed = "expect_tx" in words, "relaxed" in words
    may_complete = "noComplete" not in words

    def arrive(path: Path) -> None:
        warp = path.warp
        site = warp.cta.simulation.findings.site(path, instruction)
        lanes = len(path.lanes)
        amounts = [1] * lanes if amount is None else lane_values(amount(path), path).tolist()
        places = find(path)
        found = {place: place[0].barriers.at(place[1], path, site) for place in places}
        for barrier in found.values():
            if barrier is not None:
                barrier.note_user(warp, site)
                if barrier.cta is not warp.cta:
                    barrier.check_fenced(warp.async_visible, site)
        known = None if relaxed else warp.cta.simulation.order.publish(warp)
        tokens = np.zeros(lanes, dtype=np.uint64)
        for lane, (place, number) in enumerate(zip(places, amounts, strict=True)):
            barrier = found[place]
            if barrier is None:
                continue
            if expects:
                barrier.announce_bytes(int(number), site)  # first: the arrival may be the last
            if known is not None:
                barrier.check_turn(known, site)
            tokens[lane] = barrier.arrive(
                1 if expects else int(number),
                _fenced_before(warp, barrier) if known is None else known,
                site,
                drops=drops,
                may_complete=may_complete,
            )
        write(path, all_lanes(tokens, path))

    return arrive


def _fenced_before(warp: Warp, barrier: MBarrier) -> Knowledge:
    """What a relaxed arrival hands over: what its warp knew at its last fence."""
    fences = fences_of(warp)
    return fences.released if barrier.cta is warp.cta else fences.released_wide


def decode_bytes(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.expect_tx` and `mbarrier.complete_tx`."""
    modifiers(instruction, frozenset({"b64", "relaxed"}) | SCOPES, skip=2)
    find = addressed(bind, instruction.operands[0])
    sizes = bind.reader(instruction.operands[1], "u32")
    expects = instruction.parts[1] == "expect_tx"

    def change(path: Path) -> None:
        simulation = path.warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        for (cta, address), size in zip(
            find(path), lane_values(sizes(path), path).tolist(), strict=True
        ):
            barrier = cta.barriers.at(address, path, site)
            if barrier is None:
                continue
            barrier.note_user(path.warp, site)
            if expects:
                barrier.expect_bytes(int(size), site)
            else:
                # By hand and relaxed: it hands over nothing.
                barrier.take_bytes(int(size), site)

    return change


class CopyArrival(AsyncOperation):
    """Arrives when the copies before it have completed."""

    __slots__ = ("_barrier", "_copies")

    def __init__(self, cta: Cta, barrier: MBarrier, copies: list[Copy]) -> None:
        """Bind the arrival to copies, which complete first."""
        super().__init__("cp.async arrive", cta, after=copies[-1] if copies else None)
        self._barrier = barrier
        self._copies = copies

    def complete(self) -> None:
        """Arrive, handing over the copies: generic writes, so the async proxy needs a fence after the wait."""
        events = 0
        for copy in self._copies:
            events |= 1 << copy.event
        self._barrier.note_user(self, self.site)
        self._barrier.arrive(1, Knowledge(events, 0, 0), self.site)


def decode_copy_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.mbarrier.arrive[.noinc]`: one arrival a lane when its earlier `cp.async` have completed."""
    words = modifiers(instruction, frozenset({"b64", "noinc"}), skip=4)
    find = addressed(bind, instruction.operands[0])
    increments = "noinc" not in words

    def arrive(path: Path) -> None:
        warp = path.warp
        simulation = warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        copies = outstanding(path)
        for copy in copies:
            copy.unawaited &= ~path.mask
        for lane, (cta, address) in zip(path.lanes, find(path), strict=True):
            barrier = cta.barriers.at(address, path, site)
            if barrier is None:
                continue
            if increments:
                barrier.expect_arrival()
            own = [copy for copy in copies if copy.lanes >> lane & 1]
            operation = CopyArrival(cta, barrier, own)
            simulation.order.register(operation, warp, site)
            simulation.submit(operation)

    return arrive


DECODERS: dict[str, Decoder] = {
    "mbarrier.init": decode_init,
    "mbarrier.inval": decode_invalidate,
    "mbarrier.arrive": decode_arrive,
    "mbarrier.arrive_drop": decode_arrive,
    "mbarrier.expect_tx": decode_bytes,
    "mbarrier.complete_tx": decode_bytes,
    "cp.async.mbarrier.arrive": decode_copy_arrive,
}
