"""Bulk copies of contiguous bytes: `cp.async.bulk` and `cp.reduce.async.bulk` (PTX ISA 9.7.9.25.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.bulk import BulkLoad, BulkStore, global_box, shared_box
from mlagen.sim.bulk_decode import (
    BULK_GROUP,
    CACHE_HINT,
    COMPLETES_BYTES,
    MULTICAST,
    check_address,
    destinations,
    lane_rows,
    split_modifiers,
    take_operands,
)
from mlagen.sim.layout import CHUNK_BYTES, SWIZZLES
from mlagen.sim.reductions import NAMES, find_reduction
from mlagen.sim.tensor_map import Region
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.sim.bulk import GlobalBox, Reduction, SharedBox
    from mlagen.sim.hardware import Binder, Cta, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

_LINEAR = SWIZZLES[0]
_SHARED = ("shared::cluster", "shared::cta")


def decode_copy(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.bulk` in its three directions."""
    return _decode(instruction, bind, instruction.parts[3:], None)


def decode_reduce(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.reduce.async.bulk`: to global memory, or to that of a CTA of the cluster."""
    words = [word for word in instruction.parts[4:] if word != "noftz"]
    *words, name, type_name = words
    found = find_reduction(name, type_name) if name in NAMES else None
    if found is None:
        raise UnsupportedPtxError(instruction.opcode)
    return _decode(instruction, bind, words, found)


def _decode(
    instruction: Instruction, bind: Binder, words: Sequence[str], reduction: Reduction | None
) -> Handler:
    """Choose by destination and source."""
    match tuple(words[:2]):
        case ("global", "shared::cta"):
            return _store(instruction, bind, words[2:], reduction)
        case ("shared::cluster" | "shared::cta", "global") if reduction is None:
            return _load(instruction, bind, words[2:], None)
        case ("shared::cluster", "shared::cta"):
            return _load(instruction, bind, words[2:], reduction)
        case _:
            raise UnsupportedPtxError(instruction.opcode)


def _load(
    instruction: Instruction, bind: Binder, words: Sequence[str], reduction: Reduction | None
) -> Handler:
    """`[target], [source], size, [mbarrier] {, mask} {, policy}`."""
    is_global = "global" in instruction.parts
    optional = (CACHE_HINT, MULTICAST) if is_global else ()
    modifiers = split_modifiers(instruction, words, required=COMPLETES_BYTES, optional=optional)
    target, source, size, barrier, *rest = instruction.operands
    readers = [
        bind.address(target),
        bind.address(source),
        bind.reader(size, "u32"),
        bind.address(barrier),
    ]
    mask = take_operands(instruction, rest, modifiers)
    if mask is not None:
        readers.append(bind.reader(mask, "u16"))
    name = "bulk load" if is_global else "bulk copy" if reduction is None else "bulk reduction"

    def load(path: Path) -> None:
        cta = path.warp.cta
        site = cta.simulation.findings.site(path, instruction)
        for _, (to, origin, count, place, *ranks) in lane_rows(readers, path):
            if not _check_size(cta, count, site):
                continue
            places: GlobalBox | SharedBox | None
            if is_global:
                check_address(cta, "global", origin, CHUNK_BYTES, site)
                places = _global_range(cta, origin, count, site, writes=False)
            else:
                places = _shared_range(cta, origin, count, site)
            for destination in destinations(path, to, place, ranks[0] if ranks else None, site):
                box = _shared_range(destination.cta, destination.address, count, site)
                if box is not None:
                    copy = BulkLoad(name, cta, places, box, destination.barrier, reduction)
                    copy.issue(path.warp, site)

    return load


def _store(
    instruction: Instruction, bind: Binder, words: Sequence[str], reduction: Reduction | None
) -> Handler:
    """`[target], [source], size {, policy}`."""
    modifiers = split_modifiers(instruction, words, required=BULK_GROUP, optional=(CACHE_HINT,))
    target, source, size, *rest = instruction.operands
    take_operands(instruction, rest, modifiers)
    readers = [bind.address(target), bind.address(source), bind.reader(size, "u32")]
    name = "bulk store" if reduction is None else "bulk reduction"

    def store(path: Path) -> None:
        cta = path.warp.cta
        site = cta.simulation.findings.site(path, instruction)
        for lane, (to, origin, count) in lane_rows(readers, path):
            box = _shared_range(cta, origin, count, site) if _check_size(cta, count, site) else None
            if box is None:
                continue
            check_address(cta, "global", to, CHUNK_BYTES, site)
            places = _global_range(cta, to, count, site, writes=True)
            BulkStore(name, path.warp, box, places, reduction).issue(path.warp, lane, site)

    return store


def _check_size(cta: Cta, size: int, site: Site) -> bool:
    """Whether there is anything to copy; reports sizes that are not multiples of 16."""
    if size % CHUNK_BYTES:
        cta.simulation.findings.add(
            "bad-operand", f"{size} bytes: a bulk copy moves multiples of 16", site
        )
        return False
    return size > 0


def _shared_range(cta: Cta, address: int, size: int, site: Site) -> SharedBox | None:
    """Bytes of shared memory; None after reporting that they are not all there."""
    owner, offset = locate_shared(cta, address)
    if offset % CHUNK_BYTES:
        check_address(cta, "shared", offset, CHUNK_BYTES, site)
        return None
    box = shared_box(owner.shared, offset, 1, size, _LINEAR)
    return box if box.check(site) else None


def _global_range(
    cta: Cta, address: int, size: int, site: Site, *, writes: bool
) -> GlobalBox | None:
    """Bytes of global memory; None after reporting that a copy may not touch them."""
    region = Region(address, (size,), (1,), (slice(0, size),))
    return global_box(cta.simulation, (size,), (region,), site, writes=writes)
