"""`tcgen05.alloc`, `dealloc` and `relinquish_alloc_permit`: columns of tensor memory (PTX ISA 9.7.16.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import Waitable
from mlagen.sim.ptx import Immediate
from mlagen.sim.tcgen05_form import (
    COLLECTIVE,
    GROUPS,
    check_modifiers,
    check_whole_warp,
    cta_group_of,
    site_of,
)
from mlagen.sim.tcgen05_state import own_accesses, pair_of, pending_operations, record
from mlagen.sim.tensor_memory import memory_of, place, shadow_cells, split_address

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Findings, Site

_ALLOCATION = "tcgen05-alloc"
_ALL_GROUPS = tuple(range(8))


class _PairAllocation(Waitable):
    """Both CTAs of a pair allocate together; each waits for the other's warp."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[int, int] = {}
        self.answers: dict[int, int] = {}

    def describe(self, path: Path) -> str:
        """Who is missing."""
        return "the peer CTA's tcgen05.alloc"


def _decode_alloc(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.alloc{.exclusive}.cta_group.sync.aligned{.shared::cta}.b32 [dst], columns`."""
    check_modifiers(instruction, GROUPS | COLLECTIVE | {"exclusive", "shared::cta"})
    group = cta_group_of(instruction)
    exclusive = "exclusive" in instruction.parts
    destination, size = instruction.operands
    if isinstance(size, Immediate) and not _size_is_legal(size.value, exclusive=exclusive):
        raise UnsupportedPtxError(f"{instruction.opcode}: {size.value} columns")
    address_of = binder.uniform_address(destination)
    columns_of = binder.uniform(size, "u32")

    def handler(path: Path) -> Waitable | None:
        site = site_of(path, instruction)
        columns = columns_of(path)
        if path.pending is None:
            check_whole_warp(path, site)
            if not _may_allocate(path, columns, site, exclusive=exclusive):
                return None
            path.pending = True
        first = _try_allocate(path, columns, group, site)
        if isinstance(first, Waitable):
            return first
        cta = path.warp.cta
        target = np.array([address_of(path) & 0xFFFFFF], np.int64)
        cta.shared.write(
            target, np.array([first], np.uint32).view(np.uint8)[None, :], path.warp, site
        )
        return None

    return handler


def _size_is_legal(columns: int, *, exclusive: bool) -> bool:
    """Columns that can be allocated: a power of two from 32 to 512; `.exclusive`: any multiple of 32."""
    if not 32 <= columns <= 512 or columns % 32:
        return False
    return exclusive or columns & (columns - 1) == 0


def _may_allocate(path: Path, columns: int, site: Site, *, exclusive: bool) -> bool:
    """The rules of an allocation; False if it makes no sense at all."""
    findings = path.warp.cta.simulation.findings
    pool = memory_of(path.warp.cta).pool
    if pool.relinquished:
        findings.add("tcgen05-alloc", "allocation after relinquish_alloc_permit", site)
    if not _size_is_legal(columns, exclusive=exclusive):
        findings.add("tcgen05-alloc", f"{columns} columns: not a power of two from 32 to 512", site)
        return False
    if columns > pool.last_size:
        findings.add(
            "tcgen05-alloc",
            f"{columns} columns after an allocation of {pool.last_size}: sizes should not increase",
            site,
            severity="note",
        )
    return True


def _try_allocate(path: Path, columns: int, group: int, site: Site) -> int | Waitable:
    """The first column, or what to wait for."""
    cta = path.warp.cta
    ctas = pair_of(cta, group, site) or (cta,)
    if len(ctas) == 1:
        memory = memory_of(path.warp.cta)
        first = place([memory.pool], columns)
        if first is None:
            return memory.pool
        memory.allocate(first, columns)
        return first
    meeting: _PairAllocation = ctas[0].units.setdefault(_ALLOCATION, _PairAllocation())
    if cta.rank in meeting.answers:
        return meeting.answers.pop(cta.rank)
    meeting.requests[cta.rank] = columns
    if len(meeting.requests) < len(ctas):
        return meeting
    if len(set(meeting.requests.values())) > 1:
        cta.simulation.findings.add(
            "tcgen05-alloc",
            f"the CTAs of a pair allocate different sizes: {meeting.requests}",
            site,
        )
    memories = [memory_of(each) for each in ctas]
    first = place([memory.pool for memory in memories], columns)
    if first is None:
        return next(m.pool for m in memories if place([m.pool], columns) is None)
    for each, memory in zip(ctas, memories, strict=True):
        memory.allocate(first, columns)
        meeting.answers[each.rank] = first
    meeting.requests.clear()
    meeting.wake()
    return meeting.answers.pop(cta.rank)


def _decode_dealloc(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.dealloc{.exclusive}.cta_group.sync.aligned.b32 taddr, columns`."""
    check_modifiers(instruction, GROUPS | COLLECTIVE | {"exclusive"})
    cta_group_of(instruction)
    address_of = binder.uniform(instruction.operands[0], "u32")
    columns_of = binder.uniform(instruction.operands[1], "u32")

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_whole_warp(path, site)
        _free(path, address_of(path), columns_of(path), site)

    return handler


def _free(path: Path, address: int, columns: int, site: Site) -> None:
    """Give columns back, after everybody who used them."""
    memory = memory_of(path.warp.cta)
    simulation = path.warp.cta.simulation
    lane, first = split_address(address)
    held = memory.pool.held.get(first)
    if lane or held != columns:
        simulation.findings.add(
            "tcgen05-alloc",
            f"dealloc of {columns} columns at address {address:#x}; allocated (first column: columns):"
            f" {memory.pool.held or 'none'}",
            site,
        )
    if held is None:
        return
    for operation in pending_operations(path.warp.cta):
        simulation.findings.add(
            "tcgen05-alloc",
            f"dealloc while a {operation.name} is in flight",
            site,
            earlier=operation.site,
        )
        break
    if simulation.order.enabled:
        # An order by barriers alone is enough: dealloc is not asynchronous, so no fence has to stand before it.
        access = record(path, "tcgen05.dealloc", site)
        known = access.ordered | own_accesses(path.warp)
        cells = shadow_cells(_ALL_GROUPS, first, held)
        simulation.order.tensor_write(memory.shadow, cells, access, site, own=known)
    memory.free(first)


def _decode_relinquish(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.relinquish_alloc_permit.cta_group.sync.aligned`."""
    check_modifiers(instruction, GROUPS | COLLECTIVE)
    cta_group_of(instruction)

    def handler(path: Path) -> None:
        memory_of(path.warp.cta).pool.relinquished = True

    return handler


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report what a CTA leaves behind: columns, for which later kernels would wait for ever, and operations."""
    if cta.tensor_memory is None:
        return
    held = cta.tensor_memory.pool.held
    if held:
        ranges = ", ".join(f"{first} to {first + size - 1}" for first, size in held.items())
        findings.add(
            "tcgen05-alloc",
            f"CTA {cta.number} ends and still holds columns {ranges} of tensor memory",
        )
    for operation in pending_operations(cta):
        findings.add(
            "tcgen05-in-flight",
            f"CTA {cta.number} ends while a {operation.name} on its tensor memory is in flight",
            earlier=operation.site,
        )


DECODERS: dict[str, Decoder] = {
    "tcgen05.alloc": _decode_alloc,
    "tcgen05.dealloc": _decode_dealloc,
    "tcgen05.relinquish_alloc_permit": _decode_relinquish,
}
ALIGNED = frozenset(DECODERS)
