"""The state that machine and units share: simulation, CTA, warp, path, actor, operation. No behaviour but bookkeeping.

A unit (`memory`, `barrier`, `tma`, `wgmma`, `tcgen05`) decodes an instruction once, before anything runs, into a
`Handler`; the machine calls it for one path of one warp at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.launch_record import TensorMapSpec
    from mlagen.sim.barrier import BarrierFile
    from mlagen.sim.memory import GlobalMemory, SharedMemory
    from mlagen.sim.order import Order
    from mlagen.sim.products import Accumulation
    from mlagen.sim.ptx import Function, Instruction, Operand
    from mlagen.sim.report import Findings, Site
    from mlagen.sim.tcgen05 import TensorMemory

LANES = 32
WARPS_OF_WARPGROUP = 4
ALL_LANES = (1 << LANES) - 1
MOST_WARPS = 32


@functools.cache
def lane_numbers(mask: int) -> NDArray[np.intp]:
    """The lanes of a mask, ascending, as an index array; not to be written to."""
    return np.array([lane for lane in range(LANES) if mask >> lane & 1], dtype=np.intp)


class Waitable:
    """Something that a path can wait for: a barrier, a group counter, a pool. Whoever changes it calls `wake`."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        """Nobody waits."""
        self.waiters: list[Path] = []

    def wake(self) -> None:
        """Let everybody who waits look again: their instructions are executed once more."""
        for path in self.waiters:
            path.waiting_on = None
            path.warp.cta.simulation.woken.append(path.warp)
        self.waiters.clear()

    def describe(self, path: Path) -> str:
        """What a path waits for here, for a deadlock's report: `k_full[1] parity 0, phase 2, 1 arrival missing`."""
        raise NotImplementedError


class Watched(Waitable):
    """Something whose changes are counted: a place in memory that loops poll."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        """Unchanged so far."""
        super().__init__()
        self.version = 0

    def change(self) -> None:
        """It has another value now."""
        self.version += 1
        self.wake()


class Actor:
    """Who accesses memory: a warp between two releases, or one asynchronous operation.

    Attributes:
        event: Number of this epoch or operation; a bit of the sets below. Assigned by `Order`.
        ordered: Events that happened before what this actor does now, a bitset. Its own event is among them.
        async_visible: Those whose generic writes the async proxy may rely on; a subset of `ordered`.
        tensor_ordered: Those ordered for accesses of tensor memory; a subset of `ordered`.
        site: Where it acts, for reports.
        number: Tells it from others in a recorded schedule; operations count down from -1.
    """

    __slots__ = ("async_visible", "event", "number", "ordered", "site", "tensor_ordered")

    def __init__(self) -> None:
        """An actor that knows nothing; `Order` registers it."""
        self.event = -1
        self.ordered = 0
        self.async_visible = 0
        self.tensor_ordered = 0
        self.site: Site | None = None
        self.number = 0


class AsyncOperation(Actor):
    """A copy or product between its issue and its completion. The schedule picks when `complete` is called, once.

    Attributes:
        name: For reports and traces: `tma load`, `wgmma`, ...
        cta: Where it was issued.
        after: An operation that completes first, as the hardware guarantees; None if there is no such order.
        done: Set by the machine when it has completed.
    """

    __slots__ = ("after", "cta", "done", "name")

    def __init__(self, name: str, cta: Cta, after: AsyncOperation | None = None) -> None:
        """Make it; `Simulation.submit` hands it to the schedule."""
        super().__init__()
        self.name = name
        self.cta = cta
        self.after = after
        self.done = False

    def complete(self) -> None:
        """Move the data, then signal."""
        raise NotImplementedError


class Path:
    """Lanes of a warp that are at the same instruction.

    Attributes:
        warp: Whose lanes.
        pc: Index of the next instruction in the function.
        mask: A bit for every lane.
        waiting_on: What it waits for; None if it can run.
        pending: Whatever the instruction at `pc` keeps between two attempts; None before the first. The machine clears
            it when the instruction has been executed.
        polled: What a strong load has just looked at, and its version then. None if the path's last visible instruction
            was another.
        polled_before: The same when the path last jumped back: a loop that has seen the same twice waits for a write.
    """

    __slots__ = (
        "_lanes",
        "_lanes_of",
        "mask",
        "pc",
        "pending",
        "polled",
        "polled_before",
        "waiting_on",
        "warp",
    )

    def __init__(self, warp: Warp, pc: int, mask: int) -> None:
        """Start at `pc`."""
        self.warp = warp
        self.pc = pc
        self.mask = mask
        self.waiting_on: Waitable | None = None
        self.pending: Any = None  # Any: its type is the instruction's own affair
        self.polled: tuple[Watched, int] | None = None
        self.polled_before: tuple[Watched, int] | None = None
        self._lanes: tuple[int, ...] = ()
        self._lanes_of = 0

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes of the mask, ascending."""
        if self._lanes_of != self.mask:
            self._lanes = tuple(lane for lane in range(LANES) if self.mask >> lane & 1)
            self._lanes_of = self.mask
        return self._lanes

    @property
    def first_lane(self) -> int:
        """The lowest lane of the mask."""
        return (self.mask & -self.mask).bit_length() - 1


class Warp(Actor):
    """32 threads of a CTA.

    Attributes:
        cta: Where it runs.
        index: In the CTA; its threads are `32 * index` to `32 * index + 31`.
        paths: Its live paths, ascending in `pc`; one while the warp is converged, none when all lanes have returned.
        alive: Lanes that have not returned.
        ready: Whether a path can run; kept by the machine.
        rows_dirty: 32-bit rows that ordinary code has accessed (a bitset); `wgmma.fence` clears them.
        rows_pending: Rows that a product in flight will write: the machine reports whoever reads or writes them.
        rows_lent: Rows that a product in flight still reads: the machine reports whoever writes them.
        unshared: `(lanes, events)`: what only these lanes know of the sets above; see `lane_knowledge`.
        units: What a unit keeps for this warp (open copy groups, products in flight), under the unit's name.
    """

    __slots__ = (
        "alive",
        "cta",
        "first_thread",
        "index",
        "paths",
        "ready",
        "rows_dirty",
        "rows_lent",
        "rows_pending",
        "units",
        "unshared",
    )

    def __init__(self, cta: Cta, index: int, alive: int) -> None:
        """A warp at the first instruction."""
        super().__init__()
        self.cta = cta
        self.index = index
        self.number = MOST_WARPS * cta.number + index
        self.first_thread = LANES * index
        self.alive = alive
        self.ready = True
        self.rows_dirty = 0
        self.rows_pending = 0
        self.rows_lent = 0
        self.unshared: list[tuple[int, int]] = []
        self.paths = [Path(self, 0, alive)]
        self.units: dict[str, Any] = {}  # Any: each unit's own type


class Cta:
    """One CTA.

    Attributes:
        simulation: The run it belongs to.
        cluster: All CTAs of its cluster, by rank; itself alone without clusters.
        rank: `%cluster_ctarank`.
        index: `%ctaid`, x first.
        number: A running number in the grid, for reports.
        registers: Per kind (`pred`, `b16`, `b32`, `b64`) an array `[register, thread]` of bool, uint16, uint32, uint64.
        warps: In order.
        shared: Its shared memory.
        barriers: Its mbarriers and named barriers.
        tensor_memory: On architectures that have it.
        has_ended: Whether all its threads have returned.
        local: Local memory, `[thread, byte]`.
        units: What a unit keeps for this CTA, under the unit's name.
    """

    def __init__(self, simulation: Simulation, index: tuple[int, int, int], number: int) -> None:
        """An empty CTA, which the machine fills."""
        self.simulation = simulation
        self.index = index
        self.number = number
        self.cluster: list[Cta] = [self]
        self.rank = 0
        self.registers: dict[str, NDArray[Any]] = {}
        self.warps: list[Warp] = []
        self.shared: SharedMemory
        self.barriers: BarrierFile
        self.tensor_memory: TensorMemory | None = None
        self.has_ended = False
        self.local: NDArray[np.uint8] = np.zeros((0, 0), np.uint8)
        self.units: dict[str, Any] = {}  # Any: each unit's own type


@dataclass
class Simulation:
    """What every unit can reach from a warp (`warp.cta.simulation`).

    Attributes:
        function: The kernel.
        memory: Global memory.
        order: Happens-before.
        findings: Where to report.
        strict: Whether rules are applied by the letter (`Checks.strict`); else those that practice breaks are notes.
        target: `sm_90a`, `sm_100a`.
        grid: CTAs in x, y, z.
        block: Threads in x, y, z.
        cluster_shape: CTAs of a cluster in x, y, z.
        ctas: Those that are running.
        dynamic_shared_base: Shared address of the first byte of dynamic shared memory.
        parameters: The parameter space, which all threads share.
        constants: The constant bank.
        tensor_maps: Parameter address of a tensor map -> the tensor map.
        accumulation: How `wgmma` adds up; see `products`.
        operations: Submitted and not complete, in order of submission.
        submitted: Operations so far.
        woken: Warps that can run again since the machine last looked.
        step: Instructions and completions so far; a stamp for reports.
        units: What a unit keeps for the run, under the unit's name.
    """

    function: Function
    memory: GlobalMemory
    order: Order
    findings: Findings
    strict: bool
    target: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster_shape: tuple[int, int, int]
    dynamic_shared_base: int = 1024
    parameters: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    constants: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    tensor_maps: dict[int, TensorMapSpec] = field(default_factory=dict)
    ctas: list[Cta] = field(default_factory=list)
    accumulation: Accumulation = "fast"
    operations: list[AsyncOperation] = field(default_factory=list)
    submitted: int = 0
    woken: list[Warp] = field(default_factory=list)
    step: int = 0
    units: dict[str, Any] = field(default_factory=dict)  # Any: each unit's own type

    def submit(self, operation: AsyncOperation) -> None:
        """Hand an operation to the schedule."""
        self.submitted += 1
        operation.number = -self.submitted
        self.operations.append(operation)


# Executes an instruction for the lanes of a path. Returns None when it is executed, or what the path waits for: then
# it is called again, with `path.pending` as it left it, after that has been woken.
Handler = Callable[["Path"], "Waitable | None"]

# Decodes an instruction before the run; raises UnsupportedPtxError for a form that it does not know.
Decoder = Callable[["Instruction", "Binder"], Handler]

# Values of an operand in the 32 lanes of a path's warp: an array of 32 (a view of registers where possible; only the
# lanes of the path mean something), or a NumPy scalar if all lanes share it.
Reader = Callable[["Path"], "NDArray[Any]"]

# Writes values (32 of them, or one for all) into the lanes of a path.
Writer = Callable[["Path", "NDArray[Any] | np.generic | int"], None]


class Binder(Protocol):
    """Turns operands into readers and writers; written by `lower`, used by every decoder.

    Kinds name the type by which an operand is viewed: `u16 u32 u64 s32 s64 f32 f64 pred b128`.
    """

    def reader(self, operand: Operand, kind: str) -> Reader:
        """Values of a register, immediate, special register or symbol's address."""

    def writer(self, operand: Operand, kind: str) -> Writer:
        """For a register; a sink's writer does nothing."""

    def uniform(self, operand: Operand, kind: str) -> Callable[[Path], int]:
        """The one value of an operand in the lanes of a path; reports `operand-not-uniform` if they differ."""

    def address(self, operand: Operand) -> Reader:
        """`[register+offset]`, `[symbol+offset]` or `[immediate]` as uint64 addresses in the operand's state space."""

    def uniform_address(self, operand: Operand) -> Callable[[Path], int]:
        """The one address of the lanes of a path."""

    def rows(self, operand: Operand) -> tuple[int, ...]:
        """Row numbers of a vector of 32-bit registers, for units that gather whole fragments."""
