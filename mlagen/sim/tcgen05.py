"""The tcgen05 unit of sm_100a: decoders of all its instructions; `commit`, `cp`, `shift` and the fences are here.

    tcgen05_allocation  alloc, dealloc             tcgen05_layout      where elements lie
    tcgen05_access      ld, st, wait               tcgen05_descriptor  the instruction descriptor
    tcgen05_mma         mma: checks at issue       tensor_memory       cells and columns
    tcgen05_product     mma: arithmetic            tcgen05_operand     operands as numbers

An instruction of one thread joins the queue of its CTA (of the pair, with `cta_group::2`); the schedule picks when the
front of the queue completes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import tcgen05_access, tcgen05_allocation, tcgen05_mma
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.tcgen05_allocation import at_exit
from mlagen.sim.tcgen05_form import (
    GROUPS,
    check_modifiers,
    check_one_lane,
    cta_group_of,
    lane_value,
    site_of,
)
from mlagen.sim.tcgen05_layout import LANES_OF_WARP, TENSOR_LANES, copy_shape
from mlagen.sim.tcgen05_operand import TileShape, shared_tiles
from mlagen.sim.tcgen05_state import (
    accesses_of,
    event_bit,
    own_accesses,
    pair_of,
    queue_of,
)
from mlagen.sim.tensor_memory import (
    TensorMemory,
    as_index,
    lane_groups,
    memory_of,
    shadow_cells,
    split_address,
)
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.order import Knowledge
    from mlagen.sim.ptx import Function, Instruction
    from mlagen.sim.report import Site
    from mlagen.sim.tcgen05_layout import CopyShape
    from mlagen.sim.tcgen05_operand import SharedTile

__all__ = ["ALIGNED", "DECODERS", "TensorMemory", "at_exit", "check_function"]

_COPY_SHAPES = frozenset({"128x256b", "128x128b", "64x128b", "32x128b", "4x256b"})
_MULTICASTS = frozenset({"warpx2::02_13", "warpx2::01_23", "warpx4"})
_SHIFTED_COLUMNS = 8


class Commit(AsyncOperation):
    """An arrival that follows everything its thread has issued.

    Attributes:
        targets: `(CTA, shared address)` of the mbarriers.
        knowledge: What the operations it covers, and all that they came after, make known.
    """

    __slots__ = ("knowledge", "targets")

    def __init__(
        self, cta: Cta, targets: tuple[tuple[Cta, int], ...], knowledge: Knowledge
    ) -> None:
        super().__init__("tcgen05.commit", cta)
        self.targets = targets
        self.knowledge = knowledge

    def complete(self) -> None:
        """Arrive."""
        for cta, address in self.targets:
            barrier = cta.barriers.at(address, None, self.site)
            if barrier is not None:
                barrier.arrive(1, self.knowledge, self.site)
                barrier.commit = self


def _decode_commit(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.commit.cta_group.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64 [mbar] {, mask}`.

    PTX ISA 9.7.16.12.1, tcgen05.commit. It tracks what this thread has issued, and implies
    `fence::before_thread_sync`.
    """
    known = {"mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"}
    check_modifiers(instruction, GROUPS | known)
    cta_group_of(instruction)
    address_of = lane_value(binder.address(instruction.operands[0]))
    mask_of = None
    if "multicast::cluster" in instruction.parts:
        mask_of = lane_value(binder.reader(instruction.operands[1], "u16"))

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_one_lane(path, site)
        cta = path.warp.cta
        owner, offset = locate_shared(cta, address_of(path))
        targets: tuple[tuple[Cta, int], ...] = ((owner, offset),)
        if mask_of is not None:
            ranks = _ranks_of(cta, mask_of(path), site)
            targets = tuple((cta.cluster[rank], offset) for rank in ranks)
        queue = queue_of(cta)
        commit = Commit(cta, targets, queue.thread(path).knowledge)
        cta.simulation.order.register(commit, path.warp, site)
        queue.append(commit)

    return handler


def _ranks_of(cta: Cta, mask: int, site: Site) -> list[int]:
    """The CTAs of a multicast; those that the cluster does not have are reported."""
    if mask >> len(cta.cluster):
        cta.simulation.findings.add(
            "tcgen05-issue",
            f"multicast to CTAs {mask:#x} of a cluster of {len(cta.cluster)}",
            site,
        )
    return [rank for rank in range(len(cta.cluster)) if mask >> rank & 1]


class TensorCopy(AsyncOperation):
    """A `tcgen05.cp`.

    Attributes:
        tensor_ctas: The CTA, or the pair.
        tiles: Rows of bytes, one tile per CTA.
        shape: Which lanes get them.
        column: The first.
    """

    __slots__ = ("column", "shape", "tensor_ctas", "tiles")

    def __init__(
        self, ctas: tuple[Cta, ...], tiles: tuple[SharedTile, ...], shape: CopyShape, column: int
    ) -> None:
        super().__init__("tcgen05.cp", ctas[0])
        self.tensor_ctas = ctas
        self.tiles = tiles
        self.shape = shape
        self.column = column

    @property
    def columns(self) -> slice:
        """Those that it writes."""
        return slice(self.column, self.column + self.shape.columns)

    def claim(self) -> None:
        """Count its cells as written from the issue on: who reads them too early is told by the order."""
        for cta in self.tensor_ctas:
            memory_of(cta).initialised[self.shape.lanes.ravel(), self.columns] = True

    def complete(self) -> None:
        """Copy."""
        for cta, tile in zip(self.tensor_ctas, self.tiles, strict=True):
            words = np.ascontiguousarray(tile.read()).view(np.uint32)
            for lanes in self.shape.lanes:
                memory_of(cta).words[as_index(lanes), self.columns] = words


def _decode_copy(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.cp.cta_group.shape{.multicast} [taddr], s-desc` (PTX ISA 9.7.16.9.2), without decompression."""
    check_modifiers(instruction, GROUPS | _COPY_SHAPES | _MULTICASTS)
    group = cta_group_of(instruction)
    names = [part for part in instruction.parts[2:] if part not in GROUPS]
    shape = copy_shape(names[0], names[1] if len(names) > 1 else None) if names else None
    if shape is None:
        raise UnsupportedPtxError(f"{instruction.opcode}: no such shape")
    address_of = lane_value(binder.address(instruction.operands[0]))
    source_of = lane_value(binder.reader(instruction.operands[1], "u64"))

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_one_lane(path, site)
        ctas = pair_of(path.warp.cta, group, site)
        lane, column = split_address(address_of(path))
        if ctas is None or not _check_lane(path, lane, TENSOR_LANES, site):
            return
        if shape.rows == 4:
            _note_assumption(path, "which lanes .4x256b writes is not documented", site)
        rows = TileShape(shape.rows, shape.row_bytes, "u8", is_transposed=False)
        tiles = shared_tiles(ctas, source_of(path), rows, "the source", site)
        if tiles is None:
            return
        if not all(
            memory_of(cta).check_columns(column, shape.columns, "tcgen05.cp", site) for cta in ctas
        ):
            return
        copy = TensorCopy(ctas, tiles, shape, column)
        _record_copy(path, copy, site)
        copy.claim()
        queue_of(path.warp.cta).append(copy)

    return handler


def _record_copy(path: Path, copy: TensorCopy, site: Site) -> None:
    """Check and record what a copy reads and writes: only shifts come before it by themselves (9.7.16.6.2)."""
    warp = path.warp
    simulation = warp.cta.simulation
    order = simulation.order
    order.register(copy, warp, site)
    if not order.enabled:
        return
    thread = queue_of(warp.cta).thread(path)
    own = own_accesses(warp) | thread.reads | (thread.shifts if copy.shape.rows == 4 else 0)
    if not simulation.strict:
        own |= thread.everything
    cells = shadow_cells(lane_groups(copy.shape.lanes), copy.column, copy.shape.columns)
    for cta, tile in zip(copy.tensor_ctas, copy.tiles, strict=True):
        order.async_read(tile.cta.shared.shadow, tile.cells, copy)
        order.tensor_write(memory_of(cta).shadow, cells, copy, site, own=own)
    thread.track(copy)
    thread.copies |= event_bit(copy)


class RowShift(AsyncOperation):
    """A `tcgen05.shift.down`.

    Attributes:
        tensor_ctas: The CTA, or the pair.
        lane: The first of the 32 lanes.
        column: The first of the 8 columns.
    """

    __slots__ = ("column", "lane", "tensor_ctas")

    def __init__(self, ctas: tuple[Cta, ...], lane: int, column: int) -> None:
        super().__init__("tcgen05.shift", ctas[0])
        self.tensor_ctas = ctas
        self.lane = lane
        self.column = column

    def complete(self) -> None:
        """Move 31 rows one lane up in number; the first keeps its values."""
        columns = slice(self.column, self.column + _SHIFTED_COLUMNS)
        for cta in self.tensor_ctas:
            memory = memory_of(cta)
            rows = memory.words[self.lane : self.lane + LANES_OF_WARP - 1, columns].copy()
            memory.words[self.lane + 1 : self.lane + LANES_OF_WARP, columns] = rows


def _decode_shift(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.shift.cta_group.down [taddr]` (PTX ISA 9.7.16.9.3): shape 31x256b, of one warp's lanes."""
    check_modifiers(instruction, GROUPS | {"down"})
    group = cta_group_of(instruction)
    address_of = lane_value(binder.address(instruction.operands[0]))

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_one_lane(path, site)
        ctas = pair_of(path.warp.cta, group, site)
        lane, column = split_address(address_of(path))
        if ctas is None or not _check_lane(path, lane, LANES_OF_WARP, site):
            return
        _note_assumption(path, "that rows move to higher lanes is a reading of `down`", site)
        for cta in ctas:
            if not memory_of(cta).check_columns(column, _SHIFTED_COLUMNS, "tcgen05.shift", site):
                return
            memory_of(cta).check_initialised(
                slice(lane, lane + LANES_OF_WARP),
                slice(column, column + _SHIFTED_COLUMNS),
                "tcgen05.shift",
                site,
            )
        shift = RowShift(ctas, lane, column)
        _record_shift(path, shift, site)
        queue_of(path.warp.cta).append(shift)

    return handler


def _record_shift(path: Path, shift: RowShift, site: Site) -> None:
    """Check and record what a shift moves: products come before it by themselves (9.7.16.6.2)."""
    warp = path.warp
    simulation = warp.cta.simulation
    order = simulation.order
    order.register(shift, warp, site)
    if not order.enabled:
        return
    thread = queue_of(warp.cta).thread(path)
    own = own_accesses(warp) | thread.reads | thread.products
    if not simulation.strict:
        own |= thread.everything
    first = shift.lane // 16
    cells = shadow_cells((first, first + 1), shift.column, _SHIFTED_COLUMNS)
    for cta in shift.tensor_ctas:
        order.tensor_write(memory_of(cta).shadow, cells, shift, site, own=own)
    thread.track(shift)
    thread.shifts |= event_bit(shift)


def _check_lane(path: Path, lane: int, multiple: int, site: Site) -> bool:
    """Whether an address starts at a lane that it may; False after reporting."""
    if lane < TENSOR_LANES and lane % multiple == 0:
        return True
    path.warp.cta.simulation.findings.add(
        "tcgen05-address", f"address at lane {lane}: not a multiple of {multiple}", site
    )
    return False


def _note_assumption(path: Path, what: str, site: Site) -> None:
    """Note that the result of an instruction rests on something nobody has seen on hardware."""
    path.warp.cta.simulation.findings.add(
        "assumption", f"{what}: a result to be checked on hardware", site, severity="note"
    )


def _decode_fence(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.fence::before_thread_sync` and `fence::after_thread_sync` (PTX ISA 9.7.16.11.1).

    Before a release: loads and stores that the thread has waited for become ordered for those who acquire. After an
    acquire: what was acquired is ordered before the thread's later tcgen05 operations.
    """
    check_modifiers(instruction, frozenset())
    is_before = instruction.parts[1] == "fence::before_thread_sync"

    def handler(path: Path) -> None:
        warp = path.warp
        order = warp.cta.simulation.order
        if is_before:
            order.fence_tensor_before(warp, accesses_of(warp).completed)
        else:
            order.fence_tensor_after(warp)

    return handler


def check_function(function: Function) -> None:
    """Refuse a kernel that mixes instructions of one CTA and of pairs.

    PTX ISA 9.7.16.5: all tcgen05 instructions of a kernel name the same `.cta_group`. The assembler refuses it too.

    Raises:
        UnsupportedPtxError: It does.
    """
    found: dict[str, Instruction] = {}
    for instruction in function.instructions:
        if instruction.opcode.startswith("tcgen05."):
            for group in GROUPS.intersection(instruction.parts):
                found.setdefault(group, instruction)
    if len(found) > 1:
        lines = " and ".join(f"{group} in line {one.line}" for group, one in sorted(found.items()))
        raise UnsupportedPtxError(
            f"tcgen05 instructions with {lines}: a kernel has only one of them"
        )


DECODERS: dict[str, Decoder] = {
    **tcgen05_allocation.DECODERS,
    **tcgen05_access.DECODERS,
    **tcgen05_mma.DECODERS,
    "tcgen05.commit": _decode_commit,
    "tcgen05.cp": _decode_copy,
    "tcgen05.shift": _decode_shift,
    "tcgen05.fence::before_thread_sync": _decode_fence,
    "tcgen05.fence::after_thread_sync": _decode_fence,
}
ALIGNED = tcgen05_allocation.ALIGNED | tcgen05_access.ALIGNED
