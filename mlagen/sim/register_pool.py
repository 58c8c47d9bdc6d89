"""`setmaxnreg`: warpgroups give registers to the CTA's pool, and others take them (PTX ISA 9.7.19.5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import LANES, WARPS_OF_WARPGROUP, Waitable
from mlagen.sim.ptx import Immediate

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

UNIT = "register_pool"
REGISTERS_OF_SM = 65536
# A thread has at most 255, which take the room of 256.
MOST_REGISTERS = 256
_THREADS_OF_WARPGROUP = LANES * WARPS_OF_WARPGROUP


def launch_registers(threads: int, *, ctas: int = 1, most: int | None = None) -> int:
    """Registers a thread that a CTA starts with.

    A warp's registers come in units of 8 a thread, warps are counted in fours.

    Args:
        threads: Of the CTA, as the kernel was compiled.
        ctas: That must fit on an SM together (`.minnctapersm`).
        most: `.maxnreg`; None if it is not given.
    """
    rounded = -(-threads // _THREADS_OF_WARPGROUP) * _THREADS_OF_WARPGROUP
    fitting = min(REGISTERS_OF_SM // (rounded * ctas) // 8 * 8, MOST_REGISTERS)
    return fitting if most is None else min(fitting, -(-most // 8) * 8)


class _Rendezvous(Waitable):
    """The warps of a warpgroup that have come to the same `setmaxnreg`."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__()
        self.instruction = instruction
        self.warps: set[int] = set()
        self.is_granted = False

    def describe(self, path: Path) -> str:
        """Which warps are missing."""
        first = path.warp.index // WARPS_OF_WARPGROUP * WARPS_OF_WARPGROUP
        missing = sorted(set(range(first, first + WARPS_OF_WARPGROUP)) - self.warps)
        return f"warps {missing} of its warpgroup, which must execute the same setmaxnreg"


class RegisterPool(Waitable):
    """The registers of a CTA that no warpgroup has.

    Attributes:
        free: Registers in the pool.
        held: Registers a thread of each warpgroup has.
    """

    def __init__(self, threads: int, launch: int) -> None:
        """At launch every warpgroup has the same.

        Args:
            threads: Of the CTA.
            launch: Registers a thread that the kernel was compiled with.
        """
        super().__init__()
        self.free = 0
        self.held = [launch] * -(-threads // _THREADS_OF_WARPGROUP)
        self.meetings: dict[int, _Rendezvous] = {}

    def change(self, warpgroup: int, registers: int) -> bool:
        """Give a warpgroup another number of registers a thread; False if the pool has not enough."""
        needed = (registers - self.held[warpgroup]) * _THREADS_OF_WARPGROUP
        if needed > self.free:
            return False
        self.free -= needed
        self.held[warpgroup] = registers
        if needed < 0:
            self.wake()
        return True

    def describe(self, path: Path) -> str:
        """How many registers are missing."""
        held = self.held[path.warp.index // WARPS_OF_WARPGROUP]
        return (
            f"registers: its warpgroup has {held} a thread, the pool has {self.free},"
            f" all warpgroups together {sum(self.held)} a thread"
        )


def pool_of(cta: Cta) -> RegisterPool:
    """A CTA's pool."""
    pool = cta.units.get(UNIT)
    if pool is None:
        threads = math.prod(cta.simulation.block)
        function = cta.simulation.function
        launch = launch_registers(
            function.max_threads or threads,
            ctas=function.min_ctas or 1,
            most=function.max_registers,
        )
        pool = cta.units[UNIT] = RegisterPool(threads, launch)
    assert isinstance(pool, RegisterPool)
    return pool


def decode_setmaxnreg(instruction: Instruction, bind: Binder) -> Handler:
    """`setmaxnreg.inc` and `.dec`: all warps of a warpgroup execute the same; `.inc` waits for the pool."""
    match instruction.parts[1:], instruction.operands:
        case ("inc" | "dec" as way, "sync", "aligned", "u32"), (Immediate(value=count),):
            if not 24 <= count <= 256 or count % 8:
                raise UnsupportedPtxError(f"{instruction.text}: 24 to 256, a multiple of 8")
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    is_increase = way == "inc"

    def setmaxnreg(path: Path) -> Waitable | None:
        cta = path.warp.cta
        pool = pool_of(cta)
        warpgroup = path.warp.index // WARPS_OF_WARPGROUP
        if path.pending is None:
            path.pending = pool.meetings.setdefault(warpgroup, _Rendezvous(instruction))
        meeting = path.pending
        assert isinstance(meeting, _Rendezvous)
        if meeting.is_granted:
            return None
        if not _is_same(meeting.instruction, instruction, path):
            return meeting
        meeting.warps.add(path.warp.index)
        if len(meeting.warps) < WARPS_OF_WARPGROUP:
            return meeting
        site = cta.simulation.findings.site(path, instruction)
        _check_direction(cta, pool.held[warpgroup], count, site, is_increase=is_increase)
        if not pool.change(warpgroup, count):
            return pool
        meeting.is_granted = True
        del pool.meetings[warpgroup]
        meeting.wake()
        return None

    return setmaxnreg


def _is_same(first: Instruction, other: Instruction, path: Path) -> bool:
    """Whether warps of a warpgroup may meet at two instructions: by the letter, only if they are one.

    Triton's warp-specialised kernels have warps of one warpgroup in different roles, each with a `setmaxnreg` of the
    same count in its own code, so practice takes equal ones for one.
    """
    if first is other:
        return True
    simulation = path.warp.cta.simulation
    if simulation.strict or (first.opcode, first.operands) != (other.opcode, other.operands):
        return False
    simulation.findings.add(
        "setmaxnreg",
        f"the warps of a warpgroup execute different instructions, in lines {first.line} and {other.line}",
        simulation.findings.site(path, other),
        severity="note",
    )
    return True


def _check_direction(cta: Cta, held: int, count: int, site: Site, *, is_increase: bool) -> None:
    """`.dec` to more, or `.inc` to less, than the warpgroup has is undefined."""
    if (count < held) if is_increase else (count > held):
        way = "inc" if is_increase else "dec"
        cta.simulation.findings.add(
            "register-pool",
            f"setmaxnreg.{way} to {count} registers a thread, the warpgroup has {held}",
            site,
        )


DECODERS: dict[str, Decoder] = {"setmaxnreg": decode_setmaxnreg}
ALIGNED = frozenset({"setmaxnreg"})
