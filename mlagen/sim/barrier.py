"""Instructions on mbarriers (PTX ISA 9.7.13.15), and the mbarriers of a CTA by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import cluster_barrier, fences, named_barrier
from mlagen.sim.access import all_lanes, lane_values
from mlagen.sim.cp_async import outstanding
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.mbarrier import MOST_ARRIVALS, OBJECT_BYTES, MBarrier
from mlagen.sim.ptx import Sink
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.cp_async import Copy
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Waitable
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Findings, Site

_SPACES = frozenset({"shared", "shared::cta", "shared::cluster"})
_SCOPES = frozenset({"cta", "cluster"})


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
        """`mbarrier.init`."""
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
        simulation.order.mark(path.warp, site)
        self.live[address] = MBarrier(self._cta, address, count, path.warp.event)

    def invalidate(self, address: int, path: Path, site: Site) -> None:
        """`mbarrier.inval`: its bytes are memory again."""
        if self.at(address, path, site) is not None:
            del self.live[address]


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report barriers that still expect something."""
    for barrier in cta.barriers.live.values():
        barrier.at_exit()


def _modifiers(instruction: Instruction, known: frozenset[str], *, skip: int) -> list[str]:
    """The modifiers behind the first `skip` words; all must be known."""
    words = [word for word in instruction.parts[skip:] if word not in _SPACES]
    for word in words:
        if word not in known:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{word}")
    return words


def _addressed(bind: Binder, operand: Operand) -> Callable[[Path], list[tuple[int, Cta, int]]]:
    """`(lane, CTA, address)` of the barrier that each lane of a path names."""
    read = bind.address(operand)

    def addressed(path: Path) -> list[tuple[int, Cta, int]]:
        cta = path.warp.cta
        values = lane_values(read(path), path)
        return [
            (lane, *locate_shared(cta, int(value)))
            for lane, value in zip(path.lanes, values.tolist(), strict=True)
        ]

    return addressed


def decode_init(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.init [address], count`."""
    _modifiers(instruction, frozenset({"b64"}), skip=2)
    addressed = _addressed(bind, instruction.operands[0])
    counts = bind.reader(instruction.operands[1], "u32")

    def init(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        for (_, cta, address), count in zip(
            addressed(path), lane_values(counts(path), path).tolist(), strict=True
        ):
            cta.barriers.init(address, int(count), path, site)

    return init


def decode_invalidate(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.inval [address]`."""
    _modifiers(instruction, frozenset({"b64"}), skip=2)
    addressed = _addressed(bind, instruction.operands[0])

    def invalidate(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        for _, cta, address in addressed(path):
            cta.barriers.invalidate(address, path, site)

    return invalidate


_ARRIVE = frozenset({"b64", "release", "relaxed", "expect_tx", "noComplete"}) | _SCOPES


def decode_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.arrive` and `arrive_drop`, with `.expect_tx` or a count.

    A remote arrive of the default scope hands over what its warp knows, as a local one does: an "empty" signal behind
    reads releases no writes, and none was ever seen to fail on an H200.
    """
    words = _modifiers(instruction, _ARRIVE, skip=2)
    if "noComplete" in words:
        raise UnsupportedPtxError(instruction.opcode)
    drops = instruction.parts[1] == "arrive_drop"
    operands = list(instruction.operands)
    has_result = len(operands) > 1 and not _is_address(operands[0])
    result = operands.pop(0) if has_result else Sink()
    addressed = _addressed(bind, operands[0])
    amount = bind.reader(operands[1], "u32") if len(operands) > 1 else None
    write = bind.writer(result, "u64")
    expects, relaxed = "expect_tx" in words, "relaxed" in words

    def arrive(path: Path) -> None:
        warp = path.warp
        simulation = warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        amounts = (
            [1] * len(path.lanes) if amount is None else lane_values(amount(path), path).tolist()
        )
        knowledge = None if relaxed else simulation.order.publish(warp)
        tokens = np.zeros(len(path.lanes), dtype=np.uint64)
        for place, ((_, cta, address), number) in enumerate(
            zip(addressed(path), amounts, strict=True)
        ):
            barrier = cta.barriers.at(address, path, site)
            if barrier is None:
                continue
            if cta is not warp.cta and not barrier.is_fenced:
                barrier.report_init(site)
            if expects:
                # Before the arrival: it may be the last.
                barrier.bytes += int(number)
            tokens[place] = barrier.arrive(
                1 if expects else int(number), knowledge, site, drops=drops
            )
        write(path, all_lanes(tokens, path))

    return arrive


def _is_address(operand: Operand) -> bool:
    return type(operand).__name__ == "Address"


def decode_bytes(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.expect_tx` and `mbarrier.complete_tx`."""
    _modifiers(instruction, frozenset({"b64", "relaxed"}) | _SCOPES, skip=2)
    addressed = _addressed(bind, instruction.operands[0])
    sizes = bind.reader(instruction.operands[1], "u32")
    expects = instruction.parts[1] == "expect_tx"

    def change(path: Path) -> None:
        simulation = path.warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        for (_, cta, address), size in zip(
            addressed(path), lane_values(sizes(path), path).tolist(), strict=True
        ):
            barrier = cta.barriers.at(address, path, site)
            if barrier is None:
                continue
            if expects:
                barrier.expect_bytes(int(size), site)
                continue
            operation = AsyncOperation("complete_tx", cta)
            simulation.order.register(operation, path.warp, site)
            barrier.complete_bytes(int(size), operation)

    return change


_WAIT = frozenset({"b64", "parity", "acquire", "relaxed"}) | _SCOPES


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.try_wait` and `test_wait`, by parity or token: wait until it is true in all lanes."""
    words = _modifiers(instruction, _WAIT, skip=2)
    result, address, phase = instruction.operands[:3]  # a time hint means nothing here
    addressed = _addressed(bind, address)
    write = bind.writer(result, "pred")
    by_parity, relaxed = "parity" in words, "relaxed" in words
    phases = bind.reader(phase, "u32" if by_parity else "u64")

    def wait(path: Path) -> Waitable | None:
        warp = path.warp
        simulation = warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        asked = lane_values(phases(path), path).tolist()
        seen: dict[tuple[int, int], MBarrier] = {}
        for (_, cta, place), value in zip(addressed(path), asked, strict=True):
            if (place, value) in seen:
                continue
            if cta is not warp.cta:
                simulation.findings.add(
                    "mbarrier-remote-wait", "only a CTA's own mbarriers can be waited for", site
                )
            barrier = cta.barriers.at(place, path, site)
            if barrier is None:
                continue
            ended = barrier.test(int(value)) if by_parity else barrier.test_phase(int(value))
            if not ended:
                return barrier
            seen[place, value] = barrier
        if not relaxed:
            for barrier in seen.values():
                simulation.order.acquire(warp, barrier.completed)
        write(path, np.True_)
        return None

    return wait


def decode_pending_count(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.pending_count`: of a token, which holds the phase alone here."""
    raise UnsupportedPtxError(instruction.opcode)


class CopyArrival(AsyncOperation):
    """Arrives when the copies before it have completed."""

    __slots__ = ("_barrier", "_copies")

    def __init__(self, cta: Cta, barrier: MBarrier, copies: list[Copy]) -> None:
        """Bind the arrival to copies, which complete first."""
        super().__init__("cp.async arrive", cta, after=copies[-1] if copies else None)
        self._barrier = barrier
        self._copies = copies

    def complete(self) -> None:
        """Arrive, handing over the copies."""
        order = self.cta.simulation.order
        knowledge = order.publish(self)
        for copy in self._copies:
            own = order.publish(copy)
            # The copies are generic writes: the async proxy needs a fence after the wait.
            knowledge |= type(own)(own.ordered, 0, 0)
        self._barrier.arrive(1, knowledge, self.site)


def decode_copy_arrive(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.mbarrier.arrive[.noinc]`: one arrival a lane when its earlier `cp.async` have completed."""
    words = _modifiers(instruction, frozenset({"b64", "noinc"}), skip=4)
    addressed = _addressed(bind, instruction.operands[0])
    increments = "noinc" not in words

    def arrive(path: Path) -> None:
        warp = path.warp
        simulation = warp.cta.simulation
        site = simulation.findings.site(path, instruction)
        copies = outstanding(path)
        for copy in copies:
            copy.is_awaited = True
        for lane, cta, address in addressed(path):
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
    "mbarrier.try_wait": decode_wait,
    "mbarrier.test_wait": decode_wait,
    "mbarrier.pending_count": decode_pending_count,
    "cp.async.mbarrier.arrive": decode_copy_arrive,
    **named_barrier.DECODERS,
    **cluster_barrier.DECODERS,
    **fences.DECODERS,
}
ALIGNED = named_barrier.ALIGNED | cluster_barrier.ALIGNED
