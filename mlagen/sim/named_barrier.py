"""Named barriers, `bar` and `barrier` (PTX ISA 9.7.13.1), and `bar.warp.sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import lane_values
from mlagen.sim.hardware import ALL_LANES, LANES, Waitable
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    import numpy as np

    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

UNIT = "named barriers"
BARRIERS = 16
_NOTHING = Knowledge(0, 0, 0)


class NamedBarrier(Waitable):
    """One of the 16 barriers of a CTA.

    Attributes:
        number: Its id.
        expected: Threads of the current phase; 0 while nobody has arrived.
        arrived: Threads that have.
        phase: Number of the current phase.
        completed: What the arrivals of the phase before handed over.
        result: What a reduction of the phase before gave.
    """

    __slots__ = (
        "_arrivers",
        "_conjunction",
        "_disjunction",
        "_population",
        "_published",
        "arrived",
        "completed",
        "cta",
        "expected",
        "number",
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
        self._begin()

    def _begin(self) -> None:
        self.expected = self.arrived = 0
        self._published = _NOTHING
        self._population, self._conjunction, self._disjunction = 0, True, False
        self._arrivers: list[int] = []

    @property
    def name(self) -> str:
        """Its name in the plan, or its id."""
        names = self.cta.simulation.findings.names.named_barriers
        return names.get(self.number, f"barrier {self.number}")

    def arrive(
        self, path: Path, threads: int, expected: int, site: Site, values: np.ndarray | None
    ) -> int:
        """Threads of a path arrive.

        Returns:
            The phase in which they did.
        """
        findings = self.cta.simulation.findings
        phase = self.phase
        if self.expected and expected != self.expected:
            findings.add(
                "barrier-count",
                f"{self.name}: {expected} threads here, {self.expected} elsewhere in the same phase",
                site,
                barrier=self.name,
            )
        if expected % LANES or not LANES <= expected <= len(self.cta.warps) * LANES:
            findings.add(
                "barrier-count",
                f"{self.name}: {expected} threads: a multiple of {LANES}, at most those of the CTA",
                site,
                barrier=self.name,
            )
        self.expected = expected
        self.arrived += threads
        if self.arrived > expected:
            findings.add(
                "barrier-over-arrival",
                f"{self.name}: {self.arrived} threads have arrived, {expected} are expected",
                site,
                barrier=self.name,
            )
        self._arrivers.append(path.warp.index)
        self._published |= self.cta.simulation.order.publish(path.warp)
        if values is not None:
            self._population += int(values.sum())
            self._conjunction &= bool(values.all())
            self._disjunction |= bool(values.any())
        if self.arrived >= expected:
            self.phase += 1
            self.completed = self._published
            self.result = {
                "popc": self._population,
                "and": int(self._conjunction),
                "or": int(self._disjunction),
            }
            self._begin()
            self.wake()
        return phase

    def describe(self, path: Path) -> str:
        """How many are missing, and who has come."""
        came = ", ".join(f"warp {index}" for index in self._arrivers)
        return f"{self.name}: {self.arrived} of {self.expected} threads ({came})"


def barrier_of(cta: Cta, number: int) -> NamedBarrier:
    """A barrier by its id."""
    barriers = cta.units.setdefault(UNIT, {})
    found = barriers.get(number)
    if found is None:
        found = barriers[number] = NamedBarrier(cta, number)
    assert isinstance(found, NamedBarrier)
    return found


def decode_bar(instruction: Instruction, bind: Binder) -> Handler:
    """`bar` and `barrier`: `.sync`, `.arrive`, and `.red` with `.popc`, `.and`, `.or`.

    An aligned form counts whole warps, another one the threads that execute it.
    """
    words = [word for word in instruction.parts[1:] if word != "cta"]
    is_aligned = instruction.parts[0] == "bar" or "aligned" in words
    words = [word for word in words if word != "aligned"]
    operands = list(instruction.operands)
    way, reduction, result, value = words[0], None, None, None
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
            expected = len(cta.warps) * LANES if count is None else count(path)
            threads = LANES if is_aligned else len(path.lanes)
            given = None if values is None else lane_values(values(path), path)
            phase = barrier.arrive(path, threads, expected, site, given)
            if way == "arrive":
                return None
            path.pending = (barrier, phase)
        barrier, phase = path.pending
        if barrier.phase == phase:
            return barrier  # type: ignore[no-any-return]  # `pending` is the instruction's own affair
        cta.simulation.order.acquire(path.warp, barrier.completed)
        if write is not None:
            write(path, barrier.result[reduction])
        return None

    return bar


def _kind_of(reduction: str | None) -> str:
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
            meeting = warp.units.setdefault("warp sync", _Meeting())
            meeting.lanes |= path.mask
            path.pending = meeting
            if meeting.lanes & wanted == wanted:
                del warp.units["warp sync"]
                meeting.wake()
        meeting = path.pending
        assert isinstance(meeting, _Meeting)
        return None if meeting.lanes & wanted == wanted else meeting

    return sync


DECODERS: dict[str, Decoder] = {
    "bar": decode_bar,
    "barrier": decode_bar,
    "bar.warp.sync": decode_warp_sync,
}
ALIGNED = frozenset(
    {
        "bar.sync",
        "bar.arrive",
        "bar.red",
        "bar.cta",
        "barrier.sync.aligned",
        "barrier.arrive.aligned",
        "barrier.cta.sync.aligned",
        "barrier.cta.arrive.aligned",
    }
)
