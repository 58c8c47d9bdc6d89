"""`cp.async`: copies of 4 to 16 bytes a lane from global to shared memory, and their groups (PTX ISA 9.7.9.25.3).

They write through the generic proxy: who has waited for them may read the data, but the async proxy (`wgmma`, bulk
copies) needs `fence.proxy.async` besides. The copies of one instruction complete together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import lane_values
from mlagen.sim.hardware import LANES, AsyncOperation, Waitable
from mlagen.sim.ptx import Immediate, Negated, Register
from mlagen.sim.shared_memory import cells_of, scatter
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Reader, Warp
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Findings, Site
    from mlagen.sim.shared_memory import SharedMemory

UNIT = "cp_async"
_SIZES = (4, 8, 16)
_HINTS = frozenset({"L2::cache_hint", "L2::64B", "L2::128B", "L2::256B"})


class Copy(AsyncOperation):
    """The copies of one instruction, one a lane.

    Attributes:
        lanes: Who issued it.
        uncommitted: Those of them that have not put their part into a group.
        unawaited: Those of them that have neither waited for their part nor had an mbarrier track it.
    """

    __slots__ = ("_data", "_groups", "_shared", "_targets", "lanes", "unawaited", "uncommitted")

    def __init__(
        self,
        groups: CopyGroups,
        lanes: int,
        shared: SharedMemory,
        targets: NDArray[np.int64],
        data: NDArray[np.uint8],
    ) -> None:
        """Nothing moves yet.

        Args:
            groups: Of the issuing warp.
            lanes: Of the issuing path.
            shared: Where to.
            targets: `[n]` addresses there.
            data: `[n, size]` bytes that arrive.
        """
        super().__init__("cp.async", shared.cta)
        self.lanes = self.uncommitted = self.unawaited = lanes
        self._groups = groups
        self._shared = shared
        self._targets = targets
        self._data = data

    def complete(self) -> None:
        """The bytes arrive."""
        scatter(self._shared.bytes, self._targets, self._data)
        self._shared.end_async_write(cells_of(self._targets, self._data.shape[1]))
        self._groups.wake()


@dataclass(slots=True, eq=False)
class Group:
    """A committed group.

    Attributes:
        lanes: Whose group it is and who have not waited for it yet.
        copies: Those of all these lanes.
    """

    lanes: int
    copies: list[Copy]


class CopyGroups(Waitable):
    """The copies of one warp: every lane has its own groups.

    Attributes:
        open: Copies that not all of their lanes have committed.
        groups: Committed, oldest first.
    """

    def __init__(self) -> None:
        """No copy yet."""
        super().__init__()
        self.open: list[Copy] = []
        self.groups: list[Group] = []

    def commit(self, lanes: int) -> None:
        """`commit_group`: close the group of these lanes, which may be empty."""
        mine = [copy for copy in self.open if copy.uncommitted & lanes]
        for copy in mine:
            copy.uncommitted &= ~lanes
        self.open = [copy for copy in self.open if copy.uncommitted]
        self.groups.append(Group(lanes, mine))

    def older(self, lanes: int, newest: int) -> list[tuple[int, Group]]:
        """All groups of these lanes but the `newest` last ones of each, with the lanes for which they are older."""
        found = []
        seen = [lanes] + [0] * newest  # lanes that have seen at least i groups
        for group in reversed(self.groups):
            mine = group.lanes & lanes
            if mine & seen[newest]:
                found.append((mine & seen[newest], group))
            for place in range(newest, 0, -1):
                seen[place] |= seen[place - 1] & mine
        return found

    def retire(self, groups: list[tuple[int, Group]]) -> None:
        """Lanes have waited for groups."""
        for lanes, group in groups:
            group.lanes &= ~lanes
            for copy in group.copies:
                copy.unawaited &= ~lanes
        self.groups = [group for group in self.groups if group.lanes]

    def unretired(self) -> list[Copy]:
        """All copies that some lane has not waited for, each once."""
        every = [*(copy for group in self.groups for copy in group.copies), *self.open]
        return list(dict.fromkeys(every))

    def describe(self, path: Path) -> str:
        """How many copies are under way."""
        count = sum(not copy.done for group in self.groups for copy in group.copies)
        return f"{count} cp.async to complete"


def copy_groups(warp: Warp) -> CopyGroups:
    """The copies of a warp."""
    groups = warp.units.get(UNIT)
    if groups is None:
        groups = warp.units[UNIT] = CopyGroups()
    assert isinstance(groups, CopyGroups)
    return groups


def outstanding(path: Path) -> list[Copy]:
    """All copies of a path's lanes that they have not waited for: those that `cp.async.mbarrier.arrive` tracks."""
    return [copy for copy in copy_groups(path.warp).unretired() if copy.lanes & path.mask]


def decode_copy(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.ca` and `.cg`: what source bytes are missing to the copy's size arrives as zeros."""
    match instruction.parts[2:]:
        case ("ca" | "cg", "shared" | "shared::cta", "global", *hints) if set(hints) <= _HINTS:
            pass
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    operands = list(instruction.operands)
    if "L2::cache_hint" in hints:
        operands.pop()
    target, source, size, *rest = operands
    if not isinstance(size, Immediate) or size.value not in _SIZES or len(rest) > 1:
        raise UnsupportedPtxError(instruction.text)
    read_target, read_source = bind.address(target), bind.address(source)
    read_size = _source_sizes(bind, rest, size.value)

    def copy(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        targets = lane_values(read_target(path), path).view(np.int64)
        sources = lane_values(read_source(path), path).view(np.int64)
        sizes = lane_values(read_size(path), path).astype(np.int64)
        _issue(path, targets, sources, sizes, size.value, site)

    return copy


def _source_sizes(bind: Binder, operands: list[Operand], size: int) -> Reader:
    """Bytes that each lane reads: `src-size`, or none where the `ignore-src` predicate is true."""
    if not operands:
        every = np.full(LANES, size)
        return lambda path: every
    (operand,) = operands
    is_predicate = isinstance(operand, Register) and operand.kind == "pred"
    if is_predicate or isinstance(operand, Negated):
        ignored = bind.reader(operand, "pred")
        return lambda path: np.where(ignored(path), 0, size)
    return bind.reader(operand, "u32")


def _issue(
    path: Path,
    targets: NDArray[np.int64],
    sources: NDArray[np.int64],
    sizes: NDArray[np.int64],
    size: int,
    site: Site,
) -> None:
    """Check a copy's operands and order, read its source, and put its bytes in flight."""
    warp = path.warp
    cta = warp.cta
    simulation = cta.simulation
    owner, first = locate_shared(cta, int(targets[0]))
    targets = targets - (int(targets[0]) - first)
    if owner is not cta:
        simulation.findings.add(
            "bad-operand", f"cp.async to CTA {owner.number}: it writes the own CTA's memory", site
        )
        return
    if not cta.shared.check_lanes(targets, size, site):
        return
    data = np.zeros((len(targets), size), dtype=np.uint8)
    operation = Copy(copy_groups(warp), path.mask, cta.shared, targets, data)
    simulation.order.register(operation, warp, site)
    for count in np.unique(sizes[sizes > 0]).tolist():
        if count > size:
            simulation.findings.add(
                "bad-operand", f"cp.async: {count} source bytes for {size}", site
            )
            return
        lanes = sizes == count
        data[lanes, :count] = simulation.memory.read(
            sources[lanes], count, operation, site, alignment=size
        )
    cells = cells_of(targets, size)
    cta.shared.report_in_flight(cells, site)
    if simulation.order.enabled:
        simulation.order.write(cta.shared.shadow, cells, operation, site)
    cta.shared.begin_async_write(cells)
    copy_groups(warp).open.append(operation)
    simulation.submit(operation)


def decode_commit(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.commit_group`."""
    return lambda path: copy_groups(path.warp).commit(path.mask)


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.wait_group N` and `wait_all`: then the lanes' older copies are visible to them."""
    if instruction.parts[2] == "wait_all":
        newest, takes_open = 0, True
    else:
        (operand,) = instruction.operands
        if not isinstance(operand, Immediate):
            raise UnsupportedPtxError(instruction.text)
        newest, takes_open = operand.value, False

    def wait(path: Path) -> Waitable | None:
        groups = copy_groups(path.warp)
        if takes_open and path.pending is None:
            groups.commit(path.mask)
            path.pending = True
        older = groups.older(path.mask, newest)
        copies = [copy for _, group in older for copy in group.copies]
        if not all(copy.done for copy in copies):
            return groups
        path.warp.cta.simulation.order.acquire_operations(
            path.warp, copies, asynchronous=False, tensor=False
        )
        groups.retire(older)
        return None

    return wait


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report copies that lanes have issued and not waited for: another lane's wait covers that one's own alone."""
    for warp in cta.warps:
        groups = warp.units.get(UNIT)
        for copy in groups.unretired() if groups is not None else ():
            if copy.unawaited:
                who = (
                    "nobody has"
                    if copy.unawaited == copy.lanes
                    else f"lanes {copy.unawaited:#x} have not"
                )
                findings.add(
                    "exit-in-flight",
                    f"the CTA has ended, and {who} waited for this cp.async",
                    copy.site,
                )


DECODERS: dict[str, Decoder] = {
    "cp.async.ca": decode_copy,
    "cp.async.cg": decode_copy,
    "cp.async.commit_group": decode_commit,
    "cp.async.wait_group": decode_wait,
    "cp.async.wait_all": decode_wait,
}
