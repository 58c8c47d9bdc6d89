"""Named barriers, `bar` and `barrier` (PTX ISA 9.7.13.1), and `bar.warp.sync`.

Barriers count warps: "the arrival count is incremented by the warp size". An unaligned form waits for the other live
lanes of its warp first. Without a count a barrier is of all threads of the CTA that have not ended; with a count, warps
that have ended are missing like others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import lane_values
from mlagen.sim.hardware import ALL_LANES, LANES, Waitable
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    import numpy as np

    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Warp
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Severity, Site

UNIT = "named barriers"
BARRIERS = 16
_MEETING = "warp sync"
_NOTHING = Knowledge(0, 0, 0)


class NamedBarrier(Waitable):
    """One of the 16 barriers of a CTA.

    Attributes:
        cta: Whose it is.
        number: Its id.
        expected: Threads of the current phase; 0 while nobody has arrived.
        arrived: Warps that have arrived, in order.
        phase: Number of the current phase.
        completed: What the arrivals of the phase before handed over.
        result: What a reduction of the phase before gave.
    """

    __slots__ = (
        "_conjunction",
        "_disjunction",
        "_lanes",
        "_population",
        "_published",
        "arrived",
        "completed",
        "cta",
        "expected",
        "number",
        "of_all",
        "phase",
        "result",
    )

    def __init__(self, cta: Cta, number: int) -> None:
        """Nobody has arrived."""
        super().__init__()
        self.cta = cta
        self.number = number
        self.phase = 0
        self.completed = _NOTHING
        self.result = {"popc": 0, "and": 1, "or": 0}
        self._lanes: dict[Warp, int] = {}  # of warps that are not yet here as a whole
        self._begin()

    def _begin(self) -> None:
        self.expected = 0
        self.of_all = False
        self.arrived: list[Warp] = []
        self._published = _NOTHING
        self._population, self._conjunction, self._disjunction = 0, True, False

    @property
    def name(self) -> str:
        """Its name in the plan, or its id."""
        names = self.cta.simulation.findings.names.named_barriers
        return names.get(self.number, f"barrier {self.number}")

    def arrive(
        self, path: Path, expected: int | None, site: Site, values: np.ndarray | None
    ) -> int:
        """Lanes of a warp arrive; with the last of them the warp does.

        Args:
            path: Who arrives.
            expected: Threads of the barrier; None for all of the CTA.
            site: Where.
            values: Of a reduction, one a lane.

        Returns:
            The phase in which they did.
        """
        phase = self.phase
        self._expect(expected, site)
        if values is not None:
            self._population += int(values.sum())
            self._conjunction &= bool(values.all())
            self._disjunction |= bool(values.any())
        warp = path.warp
        lanes = self._lanes.get(warp, 0) | path.mask
        self._lanes[warp] = lanes
        if lanes & warp.alive == warp.alive:
            if warp in self.arrived:
                self._report(
                    "barrier-twice",
                    f"warp {warp.index} arrives a second time before the barrier has opened",
                    site,
                )
            self._count(warp, site)
            self._advance()
        return phase

    def lanes_ended(self, warp: Warp) -> None:
        """Lanes of a warp have returned: perhaps only they were missing."""
        if warp.alive and self._lanes.get(warp, 0) & warp.alive == warp.alive:
            self._count(warp, None)
        if self.arrived:
            self._advance()

    def describe(self, path: Path) -> str:
        """How many are missing, and who has come."""
        came = ", ".join(f"warp {warp.index}" for warp in self.arrived) or "nobody"
        return f"{self.name}: {LANES * len(self.arrived)} of {self.expected} threads ({came})"

    def _expect(self, expected: int | None, site: Site) -> None:
        """Check the number of threads against that of others in the same phase."""
        most = len(self.cta.warps) * LANES
        if expected is None:
            expected = most
            self.of_all = True
        if self.expected and expected != self.expected:
            text = f"{expected} threads here, {self.expected} elsewhere in the same phase"
            self._report("barrier-count", text, site)
        if expected % LANES or not LANES <= expected <= most:
            text = f"{expected} threads: a multiple of {LANES}, at most the {most} of the CTA"
            self._report("barrier-count", text, site)
        self.expected = expected

    def _count(self, warp: Warp, site: Site | None) -> None:
        """A warp has arrived; nothing but what it knows keeps it from arriving in the phase before."""
        del self._lanes[warp]
        self.arrived.append(warp)
        order = self.cta.simulation.order
        known = order.publish(warp)
        if self.completed.ordered & ~known.ordered and order.enabled:
            self._report(
                "barrier-early",
                f"warp {warp.index} may arrive before the barrier has opened for those before it",
                site,
                severity="error" if self.cta.simulation.strict else "note",
            )
        self._published |= known

    def _advance(self) -> None:
        """Open if nobody is missing."""
        if self.of_all:
            if any(warp.alive and warp not in self.arrived for warp in self.cta.warps):
                return
        elif LANES * len(self.arrived) < self.expected:
            return
        self.phase += 1
        self.completed = self._published
        self.result = {
            "popc": self._population,
            "and": int(self._conjunction),
            "or": int(self._disjunction),
        }
        self._begin()
        self.wake()

    def _report(
        self, kind: str, message: str, site: Site | None, *, severity: Severity = "error"
    ) -> None:
        self.cta.simulation.findings.add(
            kind, f"{self.name}: {message}", site, barrier=self.name, severity=severity
        )


def barrier_of(cta: Cta, number: int) -> NamedBarrier:
    """A barrier by its id."""
    barriers = cta.units.setdefault(UNIT, {})
    found = barriers.get(number)
    if found is None:
        found = barriers[number] = NamedBarrier(cta, number)
    assert isinstance(found, NamedBarrier)
    return found


def lanes_ended(warp: Warp) -> None:
    """Lanes have returned: barriers of all threads, and the rest of the warp, no longer wait for them."""
    if _MEETING in warp.units:
        warp.units[_MEETING].wake()
    for barrier in warp.cta.units.get(UNIT, {}).values():
        barrier.lanes_ended(warp)


def decode_bar(instruction: Instruction, bind: Binder) -> Handler:
    """`bar` and `barrier`: `.sync`, `.arrive`, and `.red` with `.popc`, `.and`, `.or`."""
    words = [word for word in instruction.parts[1:] if word not in {"cta", "aligned"}]
    operands = list(instruction.operands)
    way, reduction, result, value = words[0], "", None, None
    match words:
        case ["sync"] | ["arrive"]:
            pass
        case ["red", "popc" | "and" | "or" as reduction, "u32" | "pred"]:
            result, value = operands.pop(0), operands.pop()
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    number = bind.uniform(operands[0], "u32")
    count = bind.uniform(operands[1], "u32") if len(operands) > 1 else None
    values = None if value is None else bind.reader(value, "pred")
    write = None if result is None else bind.writer(result, _kind_of(reduction))

    def bar(path: Path) -> Waitable | None:
        cta = path.warp.cta
        if path.pending is None:
            site = cta.simulation.findings.site(path, instruction)
            identity = number(path)
            if not 0 <= identity < BARRIERS:
                text = f"barrier {identity}: there are 0 to {BARRIERS - 1}"
                cta.simulation.findings.add("bad-operand", text, site)
                return None
            barrier = barrier_of(cta, identity)
            given = None if values is None else lane_values(values(path), path)
            phase = barrier.arrive(path, None if count is None else count(path), site, given)
            if way == "arrive":
                return None
            path.pending = (barrier, phase)
        barrier, phase = path.pending
        assert isinstance(barrier, NamedBarrier)
        if barrier.phase == phase:
            return barrier
        cta.simulation.order.acquire(path.warp, barrier.completed)
        if write is not None:
            write(path, barrier.result[reduction])
        return None

    return bar


def _kind_of(reduction: str) -> str:
    return "u32" if reduction == "popc" else "pred"


class _Meeting(Waitable):
    """Lanes that have come to a `bar.warp.sync`."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        super().__init__()
        self.lanes = 0

    def describe(self, path: Path) -> str:
        """Who has come."""
        return f"other lanes at bar.warp.sync; lanes {self.lanes:#x} have come"


def decode_warp_sync(instruction: Instruction, bind: Binder) -> Handler:
    """`bar.warp.sync membermask`: lanes of the mask wait for each other; what a warp knows is its own anyway."""
    mask = bind.uniform(instruction.operands[0], "u32")

    def sync(path: Path) -> Waitable | None:
        warp = path.warp
        wanted = mask(path) & ALL_LANES & warp.alive
        if path.mask & wanted == wanted:
            return None
        if path.pending is None:
            meeting = warp.units.setdefault(_MEETING, _Meeting())
            meeting.lanes |= path.mask
            path.pending = meeting
        meeting = path.pending
        assert isinstance(meeting, _Meeting)
        if meeting.lanes & wanted != wanted:
            return meeting
        if warp.units.get(_MEETING) == meeting:
            del warp.units[_MEETING]
            meeting.wake()
        return None

    return sync


DECODERS: dict[str, Decoder] = {
    "bar": decode_bar,
    "barrier": decode_bar,
    "bar.warp.sync": decode_warp_sync,
}
ALIGNED = frozenset(
    {"bar.sync", "bar.arrive", "bar.red", "bar.cta"}
    | {
        f"barrier.{scope}{way}.aligned"
        for scope in ("", "cta.")
        for way in ("sync", "arrive", "red.popc", "red.and", "red.or")
    }
)
