"""`tcgen05.ld`, `st` and `wait`: a warp moves its lanes of tensor memory to and from registers (PTX ISA 9.7.16.8)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.ptx import Immediate
from mlagen.sim.tcgen05_form import (
    COLLECTIVE,
    check_modifiers,
    check_whole_warp,
    site_of,
)
from mlagen.sim.tcgen05_layout import (
    LANES_OF_WARP,
    Fragment,
    register_count,
    register_fragment,
)
from mlagen.sim.tcgen05_state import accesses_of, event_bit, own_accesses, record
from mlagen.sim.tensor_memory import memory_of, shadow_cells, split_address

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site


@dataclass(frozen=True, slots=True)
class _AccessForm:
    """The form of a `tcgen05.ld` or `st`.

    Attributes:
        name: `tcgen05.ld` or `tcgen05.st`.
        fragment: Which cells, relative to the address.
        packed: Whether a register holds two columns of 16 bits.
        rows: Of the `b32` register file.
    """

    name: str
    fragment: Fragment
    packed: bool
    rows: NDArray[np.intp]


def _access_form(instruction: Instruction, binder: Binder, *, is_load: bool) -> _AccessForm:
    """Decode `.shape.xN{.pack::16b}` and the vector of registers."""
    parts = instruction.parts
    packing = "pack::16b" if is_load else "unpack::16b"
    shape, count = (parts[4], parts[5]) if len(parts) > 6 else ("", "")
    check_modifiers(instruction, COLLECTIVE | {shape, count, packing})
    number = int(count[1:]) if count[1:].isdecimal() else 0
    registers = register_count(shape, number)
    vector, split = instruction.operands[0 if is_load else 1], 0
    if shape == "16x32bx2":
        operand = instruction.operands[2 if is_load else 1]
        vector = instruction.operands[0 if is_load else 2]
        if not isinstance(operand, Immediate):
            raise UnsupportedPtxError(f"{instruction.opcode}: the split must be an immediate")
        split = operand.value
    rows = np.array(binder.rows(vector), dtype=np.intp)
    if registers is None or len(rows) != registers:
        raise UnsupportedPtxError(f"{instruction.opcode}: {len(rows)} registers")
    packed = packing in parts
    fragment = register_fragment(shape, number, packed=packed, split=split)
    return _AccessForm(f"tcgen05.{parts[1]}", fragment, packed, rows)


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of one access.

    Attributes:
        lanes: `[register, thread]`.
        columns: `[register, thread]`.
        shadow: Cells of the shadow.
    """

    lanes: NDArray[np.intp]
    columns: NDArray[np.intp]
    shadow: NDArray[np.int64]


def _locate(path: Path, form: _AccessForm, address: int, site: Site) -> _Cells | None:
    """The cells of an access; None after reporting an address that this warp may not use.

    PTX ISA 9.7.16.2.2, Access restrictions: warp w of a warpgroup reaches lanes 32 w to 32 w + 31, and the address
    names the first lane.
    """
    lane, column = split_address(address)
    fragment = form.fragment
    quarter = LANES_OF_WARP * (path.warp.index % 4)
    legal = (quarter,) if fragment.height == LANES_OF_WARP else (quarter, quarter + 16)
    findings = path.warp.cta.simulation.findings
    if lane not in legal:
        findings.add(
            "tcgen05-address",
            f"{form.name} of warp {path.warp.index} at lane {lane}: it may only reach lane"
            f" {' or '.join(map(str, legal))}",
            site,
        )
        return None
    memory = memory_of(path.warp.cta)
    for first, width in _column_ranges(fragment, packed=form.packed):
        if not memory.check_columns(column + first, width, form.name, site):
            return None
    groups = tuple(range(lane // 16, (lane + fragment.height) // 16))
    ranges = _column_ranges(fragment, packed=form.packed)
    shadow = [shadow_cells(groups, column + first, width) for first, width in ranges]
    return _Cells(lane + fragment.lanes, column + fragment.columns, np.concatenate(shadow))


@functools.cache
def _column_ranges(fragment: Fragment, *, packed: bool) -> tuple[tuple[int, int], ...]:
    """The ranges `(first, width)` of columns that a fragment touches: one, or the two halves of `16x32bx2`."""
    columns = np.unique(fragment.columns)
    if packed:
        columns = np.unique(np.concatenate([columns, columns + 1]))
    breaks = np.flatnonzero(np.diff(columns) > 1) + 1
    return tuple((int(run[0]), len(run)) for run in np.split(columns, breaks))


def _decode_load(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.ld.sync.aligned.shape.xN{.pack::16b}.b32 {r...}, [taddr]{, split}`.

    The registers get their values at issue: a true dependency on them is honoured without a wait (9.7.16.6.4.5). What
    the wait is for is the cells, which may be overwritten only behind it, and other writes of the registers.
    """
    if "red" in instruction.parts:
        raise UnsupportedPtxError(f"{instruction.opcode}: needs sm_103a")
    form = _access_form(instruction, binder, is_load=True)
    address_of = binder.uniform_address(instruction.operands[1])
    loaded_rows = functools.reduce(lambda bits, row: bits | 1 << row, form.rows.tolist(), 0)

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_whole_warp(path, site)
        cells = _locate(path, form, address_of(path), site)
        if cells is None:
            return
        warp, memory = path.warp, memory_of(path.warp.cta)
        memory.check_initialised(cells.lanes, cells.columns, form.name, site)
        access = record(path, form.name, site)
        own = own_accesses(warp)
        if warp.cta.simulation.order.enabled:
            order = warp.cta.simulation.order
            order.tensor_read(memory.shadow, cells.shadow, access, site, own=own)
        values = memory.words[cells.lanes, cells.columns]
        if form.packed:
            high = memory.words[cells.lanes, cells.columns + 1]
            values = values & np.uint32(0xFFFF) | high << np.uint32(16)
        threads = slice(warp.first_thread, warp.first_thread + LANES_OF_WARP)
        warp.cta.registers["b32"][form.rows, threads] = values
        accesses = accesses_of(warp)
        accesses.loads |= event_bit(access)
        accesses.loaded_rows |= loaded_rows
        warp.rows_lent |= loaded_rows

    return handler


def _decode_store(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.st.sync.aligned.shape.xN{.unpack::16b}.b32 [taddr]{, split}, {r...}`."""
    form = _access_form(instruction, binder, is_load=False)
    address_of = binder.uniform_address(instruction.operands[0])

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_whole_warp(path, site)
        cells = _locate(path, form, address_of(path), site)
        if cells is None:
            return
        warp, memory = path.warp, memory_of(path.warp.cta)
        access = record(path, form.name, site)
        if warp.cta.simulation.order.enabled:
            order = warp.cta.simulation.order
            own = own_accesses(warp)
            order.tensor_write(memory.shadow, cells.shadow, access, site, own=own)
        threads = slice(warp.first_thread, warp.first_thread + LANES_OF_WARP)
        values = warp.cta.registers["b32"][form.rows, threads]
        if form.packed:
            memory.store(cells.lanes, cells.columns, values & np.uint32(0xFFFF))
            memory.store(cells.lanes, cells.columns + 1, values >> np.uint32(16))
        else:
            memory.store(cells.lanes, cells.columns, values)
        accesses_of(warp).stores |= event_bit(access)

    return handler


def _decode_wait(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.wait::ld.sync.aligned` and `tcgen05.wait::st.sync.aligned`."""
    check_modifiers(instruction, COLLECTIVE)
    of_loads = instruction.parts[1] == "wait::ld"

    def handler(path: Path) -> None:
        warp = path.warp
        accesses = accesses_of(warp)
        if of_loads:
            accesses.completed |= accesses.loads
            warp.rows_lent &= ~accesses.loaded_rows
            accesses.loads = accesses.loaded_rows = 0
        else:
            accesses.completed |= accesses.stores
            accesses.stores = 0
        order = warp.cta.simulation.order
        order.wait_tensor(accesses.completed)
        if not warp.cta.simulation.strict:
            # Compilers leave `fence::before_thread_sync` out, since it emits no instruction.
            order.fence_tensor_before(warp, accesses.completed)

    return handler


DECODERS: dict[str, Decoder] = {
    "tcgen05.ld": _decode_load,
    "tcgen05.st": _decode_store,
    "tcgen05.wait::ld": _decode_wait,
    "tcgen05.wait::st": _decode_wait,
}
ALIGNED = frozenset(DECODERS)
