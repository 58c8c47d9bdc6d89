"""Tensor copies (PTX ISA 9.7.9.25.5), and the decoders of all bulk copies.

    tensor_map    legal maps, regions of boxes        bulk_groups   commit_group, wait_group
    bulk          operations and their places         bulk_copy     copies of contiguous bytes
    bulk_decode   what their instructions share       reductions    what `cp.reduce` computes

An instruction that several lanes execute is executed once by each, as on hardware: too many bytes or arrivals show it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import bulk_copy, bulk_groups, tensor_map_object
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
from mlagen.sim.ptx import Address
from mlagen.sim.reductions import NAMES, OF_ELEMENT_TYPE, find_reduction
from mlagen.sim.tensor_map import (
    CHUNK_BYTES,
    ELEMENT_BYTES,
    box_shape,
    problems_of,
    region_of,
    row_regions,
    swizzle_of,
)
from mlagen.sim.tensor_map_object import MAP_BYTES, decode_map
from mlagen.sim.windows import OFFSET_MASK, locate_shared, space_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.launch_record import TensorMapSpec
    from mlagen.sim.bulk import GlobalBox, Reduction, SharedBox
    from mlagen.sim.global_memory import GlobalMemory
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Reader
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Findings, Site

_BOX_ALIGNMENT = 128
_ROWS_OF_GATHER = 4
_PAIR = "cta_group::2"


@dataclass(frozen=True, slots=True)
class Form:
    """What the opcode of a tensor copy says of its box.

    Attributes:
        rank: Dimensions of the map.
        is_rows: Whether it is four single rows (`tile::gather4`, `tile::scatter4`) instead of a box.
    """

    rank: int
    is_rows: bool

    @property
    def coordinates(self) -> int:
        """How many there are."""
        return self.rank + _ROWS_OF_GATHER - 1 if self.is_rows else self.rank


def _form(instruction: Instruction, dimensions: str, modes: Sequence[str]) -> Form:
    """Decode the rank and the mode; im2col is refused."""
    is_rows = any(mode in {"tile::gather4", "tile::scatter4"} for mode in modes)
    if dimensions not in {"1d", "2d", "3d", "4d", "5d"} or (is_rows and dimensions != "2d"):
        raise UnsupportedPtxError(f"{instruction.opcode}: no such dimensions")
    return Form(int(dimensions[0]), is_rows)


def _map_readers(
    instruction: Instruction, bind: Binder, operand: Operand, form: Form
) -> list[Reader]:
    """Readers of the map's address and of the coordinates: `[map, {x, y, ...}]`."""
    if not isinstance(operand, Address) or len(operand.coordinates) != form.coordinates:
        raise UnsupportedPtxError(f"{instruction.opcode}: coordinates")
    return [bind.address(operand), *(bind.reader(one, "s32") for one in operand.coordinates)]


def decode_tensor_copy(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.async.bulk.tensor`, either direction."""
    match instruction.parts[4:]:
        case (dimensions, "shared::cluster" | "shared::cta", "global", *words):
            return _load(instruction, bind, dimensions, words)
        case (dimensions, "global", "shared::cta", *words):
            return _store(instruction, bind, dimensions, words, None)
        case _:
            raise UnsupportedPtxError(instruction.opcode)


def decode_tensor_reduce(instruction: Instruction, bind: Binder) -> Handler:
    """`cp.reduce.async.bulk.tensor`; the element type is the map's."""
    match instruction.parts[5:]:
        case (dimensions, "global", "shared::cta", name, *words) if name in NAMES:
            return _store(instruction, bind, dimensions, words, name)
        case _:
            raise UnsupportedPtxError(instruction.opcode)


def _load(instruction: Instruction, bind: Binder, dimensions: str, words: Sequence[str]) -> Handler:
    """`[target], [map, {coordinates}], [mbarrier] {, mask} {, policy}`."""
    optional = (CACHE_HINT, MULTICAST, "tile", "tile::gather4", "cta_group::1", _PAIR)
    modifiers = split_modifiers(instruction, words, required=COMPLETES_BYTES, optional=optional)
    form = _form(instruction, dimensions, words)
    target, box, barrier, *rest = instruction.operands
    mask = take_operands(instruction, rest, modifiers)
    readers = [bind.address(target), bind.address(barrier)]
    if mask is not None:
        readers.append(bind.reader(mask, "u16"))
    fixed = len(readers)
    readers += _map_readers(instruction, bind, box, form)
    is_pair = _PAIR in modifiers

    def load(path: Path) -> None:
        cta = path.warp.cta
        site = cta.simulation.findings.site(path, instruction)
        for _, values in lane_rows(readers, path):
            to, place, *ranks = values[:fixed]
            address, *coordinates = values[fixed:]
            spec = tensor_map_at(cta, address, form, site)
            if spec is None:
                continue
            source = _box_in_global(cta, spec, form, coordinates, site, writes=False)
            for destination in destinations(
                path, to, place, ranks[0] if ranks else None, site, is_pair=is_pair
            ):
                written = _box_in_shared(destination.cta, destination.address, spec, form, site)
                if written is not None:
                    copy = BulkLoad("tma load", cta, source, written, destination.barrier)
                    copy.issue(path.warp, site)

    return load


def _store(
    instruction: Instruction, bind: Binder, dimensions: str, words: Sequence[str], name: str | None
) -> Handler:
    """`[map, {coordinates}], [source] {, policy}`, reducing with an operation of that name."""
    optional = (CACHE_HINT, "tile") if name else (CACHE_HINT, "tile", "tile::scatter4")
    modifiers = split_modifiers(instruction, words, required=BULK_GROUP, optional=optional)
    form = _form(instruction, dimensions, words)
    box, source, *rest = instruction.operands
    take_operands(instruction, rest, modifiers)
    readers = [bind.address(source), *_map_readers(instruction, bind, box, form)]

    def store(path: Path) -> None:
        cta = path.warp.cta
        site = cta.simulation.findings.site(path, instruction)
        for lane, (origin, address, *coordinates) in lane_rows(readers, path):
            spec = tensor_map_at(cta, address, form, site)
            if spec is None:
                continue
            _check_signs(cta, coordinates, site)
            owner, offset = locate_shared(cta, origin)
            read = _box_in_shared(owner, offset, spec, form, site)
            if read is None:
                continue
            written = _box_in_global(cta, spec, form, coordinates, site, writes=True)
            reduction = _reduction(cta, name, spec, site)
            label = "tma store" if name is None else "tma reduction"
            BulkStore(label, path.warp, read, written, reduction).issue(path.warp, lane, site)

    return store


def _reduction(cta: Cta, name: str | None, spec: TensorMapSpec, site: Site) -> Reduction | None:
    """The operation for the map's element type; None for a store, or after reporting that there is none."""
    if name is None:
        return None
    found = find_reduction(name, OF_ELEMENT_TYPE.get(spec.element_type, ""))
    if found is None:
        cta.simulation.findings.add(
            "tensor-map", f"no reduction .{name} for elements of type {spec.element_type}", site
        )
    return found


def tensor_map_at(cta: Cta, address: int, form: Form, site: Site) -> TensorMapSpec | None:
    """The map at a generic address; None after reporting that there is none, or one that the copy cannot use."""
    simulation = cta.simulation
    space = space_of(address)
    if space == "global":
        spec = _made_map(simulation.memory, address)
    else:
        spec = simulation.tensor_maps.get(address & OFFSET_MASK) if space == "param" else None
    if spec is None:
        cause = (
            ": the kernel's copy of a parameter, which __grid_constant__ avoids"
            if space == "local"
            else ""
        )
        text = f"no tensor map at {space} address {address & OFFSET_MASK:#x}{cause}"
        simulation.findings.add("tensor-map", text, site)
        return None
    problems = problems_of(spec)
    if not problems and len(spec.dims) != form.rank:
        problems = (f"the map has {len(spec.dims)} dimensions, the instruction {form.rank}",)
    if not problems and form.is_rows and spec.box[1] != 1:
        problems = (f"four rows need a map with a box of one row, it has {spec.box[1]}",)
    for problem in problems:
        simulation.findings.add("tensor-map", problem, site)
    return None if problems else spec


def _made_map(memory: GlobalMemory, address: int) -> TensorMapSpec | None:
    """A map that a kernel has put into global memory."""
    found = memory.locate(address, MAP_BYTES)
    if found is None:
        return None
    buffer, offset = found
    return decode_map(buffer.bytes[offset : offset + MAP_BYTES].tobytes())


def _shape(spec: TensorMapSpec, form: Form) -> tuple[int, ...]:
    """Extents of what is copied, outermost first, bytes of a row last."""
    return box_shape(spec, _ROWS_OF_GATHER if form.is_rows else None)


def _box_in_global(
    cta: Cta,
    spec: TensorMapSpec,
    form: Form,
    coordinates: Sequence[int],
    site: Site,
    *,
    writes: bool,
) -> GlobalBox | None:
    """The copy's place in global memory; None after reporting that it may not touch it.

    Boxes must begin at multiples of 16 bytes of a row: the manual does not say so, but on an H200 any other ended the
    kernel as an illegal instruction, loads and stores alike.
    """
    if coordinates[0] * ELEMENT_BYTES[spec.element_type] % CHUNK_BYTES:
        cta.simulation.findings.add(
            "tensor-chunk",
            f"a box begins at element {coordinates[0]} of its rows, not at a multiple of 16 bytes",
            site,
        )
        return None
    if form.is_rows:
        regions = row_regions(spec, coordinates[0], coordinates[1:])
    else:
        region = region_of(spec, coordinates)
        regions = [] if region is None else [region]
    return global_box(cta.simulation, _shape(spec, form), regions, site, writes=writes)


def _box_in_shared(
    cta: Cta, address: int, spec: TensorMapSpec, form: Form, site: Site
) -> SharedBox | None:
    """The copy's place in shared memory; None after reporting that it does not fit there.

    The manual demands 128 bytes of alignment; a box that begins inside its swizzle pattern works, but few expect it.
    """
    *outer, row_bytes = _shape(spec, form)
    swizzle = swizzle_of(spec)
    if address % _BOX_ALIGNMENT:
        check_address(cta, "shared", address, _BOX_ALIGNMENT, site)
        return None
    check_address(cta, "shared", address, swizzle.repeat_bytes, site, is_note=True)
    box = shared_box(cta.shared, address, math.prod(outer), row_bytes, swizzle)
    return box if box.check(site) else None


def _check_signs(cta: Cta, coordinates: Sequence[int], site: Site) -> None:
    """Report negative coordinates of a store, which the manual forbids (PTX ISA 9.7.9.25.5.2)."""
    if min(coordinates) < 0:
        simulation = cta.simulation
        simulation.findings.add(
            "tensor-coordinates",
            f"a store at {tuple(coordinates)}: its coordinates must not be negative",
            site,
            severity="error" if simulation.strict else "note",
        )


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report copies that still read or write the shared memory of a CTA that has ended."""
    bulk_groups.report_open(cta, findings)
    for operation in cta.simulation.operations:
        if isinstance(operation, BulkLoad) and operation.target.shared is cta.shared:
            findings.add(
                "exit-in-flight",
                f"the CTA has ended, and a {operation.name} still writes its shared memory",
                operation.site,
            )


DECODERS: dict[str, Decoder] = {
    "cp.async.bulk": bulk_copy.decode_copy,
    "cp.async.bulk.tensor": decode_tensor_copy,
    "cp.async.bulk.commit_group": bulk_groups.decode_commit,
    "cp.async.bulk.wait_group": bulk_groups.decode_wait,
    "cp.reduce.async.bulk": bulk_copy.decode_reduce,
    "cp.reduce.async.bulk.tensor": decode_tensor_reduce,
    **tensor_map_object.DECODERS,
}
ALIGNED = tensor_map_object.ALIGNED
