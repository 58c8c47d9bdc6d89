"""`tcgen05.mma`: one thread starts a product of matrices in shared and tensor memory (PTX ISA 9.7.16.10.9).

Everything is checked, and its order recorded, when it is issued; the data moves when it completes, in the order of
issue within a CTA or pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.elements import ELEMENT_BYTES
from mlagen.sim.ptx import Address, Immediate, Vector
from mlagen.sim.tcgen05_descriptor import (
    K_OF_KIND,
    InstructionDescriptor,
    MmaForm,
    decode_instruction_descriptor,
    stricter_shape_problem,
)
from mlagen.sim.tcgen05_form import GROUPS, check_one_lane, cta_group_of, lane_value, site_of
from mlagen.sim.tcgen05_layout import accumulator_blocks
from mlagen.sim.tcgen05_operand import SharedTile, TensorTile, TileShape, shared_tiles
from mlagen.sim.tcgen05_product import Accumulator, MatrixProduct
from mlagen.sim.tcgen05_state import event_bit, own_accesses, pair_of, queue_of, record
from mlagen.sim.tensor_memory import as_index, memory_of, split_address

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site
    from mlagen.sim.tcgen05_form import LaneValue
    from mlagen.sim.tcgen05_product import Tile

_KINDS = frozenset(f"kind::{kind}" for kind in K_OF_KIND)
# The collector buffers only save reads of an operand that does not change (9.7.16.10): no effect on values or order.
_COLLECTORS = frozenset(
    f"collector::{buffer}::{use}"
    for buffer in ("a", "b0", "b1", "b2", "b3")
    for use in ("fill", "use", "lastuse", "discard")
)
_MOST_SCALE = 15


@dataclass(frozen=True, slots=True)
class _Operands:
    """How to read the operands in the lane that issues.

    Attributes:
        d: Address of D.
        a: Descriptor of A, or its address.
        b: Descriptor of B.
        descriptor: The instruction descriptor.
        kept_lanes: The words of `disable-output-lane`; none without.
        is_added: `enable-input-d`.
        scale: `scale-input-d`, 0 without.
    """

    d: LaneValue
    a: LaneValue
    b: LaneValue
    descriptor: LaneValue
    kept_lanes: tuple[LaneValue, ...]
    is_added: LaneValue
    scale: int


def _decode_form(instruction: Instruction) -> MmaForm:
    """Kind, group and `.ws`; everything else is refused or has no effect."""
    parts = instruction.parts
    kinds = [part for part in parts if part.startswith("kind::")]
    for part in parts[2:]:
        if part not in GROUPS | _KINDS | _COLLECTORS | {"ws"}:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{part}")
    group = cta_group_of(instruction)
    stationary = "ws" in parts
    buffer = "b" if stationary else "a"
    wrong_buffer = any(part.startswith("collector::") and part[11] != buffer for part in parts)
    if len(kinds) != 1 or wrong_buffer or (stationary and group == 2):
        raise UnsupportedPtxError(f"{instruction.opcode}: no such form")
    in_tensor_memory = isinstance(instruction.operands[1], Address)
    return MmaForm(kinds[0][6:], group, stationary, in_tensor_memory)


def _decode_operands(instruction: Instruction, binder: Binder, form: MmaForm) -> _Operands:
    """`[d], a-desc | [a], b-desc, idesc, {disable-output-lane,} enable-input-d {, scale | zero-column-mask}`."""
    d, a, b, descriptor, *rest = instruction.operands
    words: tuple[Operand, ...] = ()
    if rest and isinstance(rest[0], Vector):
        words = rest[0].elements
        del rest[0]
    expected = 0 if form.weight_stationary else 4 * form.cta_group
    if words and len(words) != expected:
        raise UnsupportedPtxError(
            f"{instruction.opcode}: {len(words)} words of disable-output-lane"
        )
    if not rest:
        raise UnsupportedPtxError(f"{instruction.opcode}: too few operands")
    enable, *tail = rest
    scale = _tail_immediate(instruction, tail, form)
    return _Operands(
        d=lane_value(binder.address(d)),
        a=lane_value(binder.address(a) if form.a_in_tensor_memory else binder.reader(a, "u64")),
        b=lane_value(binder.reader(b, "u64")),
        descriptor=lane_value(binder.reader(descriptor, "u32")),
        kept_lanes=tuple(lane_value(binder.reader(word, "u32")) for word in words),
        is_added=lane_value(
            binder.reader(enable, "u32" if isinstance(enable, Immediate) else "pred")
        ),
        scale=scale,
    )


def _tail_immediate(instruction: Instruction, tail: list[Operand], form: MmaForm) -> int:
    """`scale-input-d`, or a zero-column mask that must be 0: the manual's text and its example disagree about it."""
    if not tail:
        return 0
    if len(tail) > 1 or not isinstance(tail[0], Immediate):
        raise UnsupportedPtxError(
            f"{instruction.opcode}: {'a zero-column mask' if form.weight_stationary else tail}"
        )
    value = tail[0].value
    if form.weight_stationary and value:
        raise UnsupportedPtxError(f"{instruction.opcode}: a zero-column mask of {value:#x}")
    if not form.weight_stationary and (
        form.kind not in {"f16", "tf32"} or not 0 <= value <= _MOST_SCALE
    ):
        raise UnsupportedPtxError(f"{instruction.opcode}: scale-input-d {value}")
    return value


def _decode_mma(instruction: Instruction, binder: Binder) -> Handler:
    """`tcgen05.mma{.ws}.cta_group.kind{.collector}`."""
    form = _decode_form(instruction)
    operands = _decode_operands(instruction, binder, form)

    def handler(path: Path) -> None:
        site = site_of(path, instruction)
        check_one_lane(path, site)
        found = _product(path, form, operands, site)
        if found is not None:
            product, shared = found
            _record_order(path, form, product, shared, site)
            product.claim()
            queue_of(path.warp.cta).append(product)

    return handler


def _product(
    path: Path, form: MmaForm, operands: _Operands, site: Site
) -> tuple[MatrixProduct, tuple[SharedTile, ...]] | None:
    """The operation, checked but for its order, and its operands in shared memory.

    None after reporting what makes it impossible.
    """
    cta = path.warp.cta
    ctas = pair_of(cta, form.cta_group, site)
    if ctas is None:
        return None
    descriptor = _descriptor(path, form, operands, site)
    if descriptor is None:
        return None
    accumulator = _accumulator(path, form, operands, descriptor)
    if not _check_accumulator(ctas, accumulator, descriptor, site):
        return None
    a: tuple[Tile, ...] | None
    shared = shared_tiles(ctas, operands.b(path), _shape_of_b(descriptor, ctas), "B", site)
    if form.a_in_tensor_memory:
        a = _tensor_tiles(ctas, accumulator, descriptor, operands.a(path), site)
    else:
        whole = shared_tiles(ctas, operands.a(path), _shape_of_a(descriptor, ctas), "A", site)
        a = whole and _parts_of_a(whole, accumulator)
        shared = shared and whole and shared + whole
    if a is None or shared is None:
        return None
    return MatrixProduct(ctas, descriptor, accumulator, a, shared[: len(ctas)]), shared


def _descriptor(
    path: Path, form: MmaForm, operands: _Operands, site: Site
) -> InstructionDescriptor | None:
    """The instruction descriptor; None after reporting that it means nothing."""
    simulation = path.warp.cta.simulation
    descriptor, problems = decode_instruction_descriptor(operands.descriptor(path), form)
    if descriptor is not None and simulation.strict:
        stricter = stricter_shape_problem(descriptor, form)
        problems += (stricter,) if stricter else ()
    for problem in problems:
        simulation.findings.add("tcgen05-descriptor", f"instruction descriptor: {problem}", site)
    return descriptor


def _shape_of_a(descriptor: InstructionDescriptor, ctas: tuple[Cta, ...]) -> TileShape:
    """What each CTA holds of A: half of the rows of a pair's."""
    rows = descriptor.m // len(ctas)
    return TileShape(rows, descriptor.k, descriptor.a_type, descriptor.transpose_a)


def _shape_of_b(descriptor: InstructionDescriptor, ctas: tuple[Cta, ...]) -> TileShape:
    """What each CTA holds of B: half of the columns of a pair's."""
    rows = descriptor.n // len(ctas)
    return TileShape(rows, descriptor.k, descriptor.b_type, descriptor.transpose_b)


def _accumulator(
    path: Path, form: MmaForm, operands: _Operands, descriptor: InstructionDescriptor
) -> Accumulator:
    """D as the operands describe it."""
    blocks = accumulator_blocks(
        descriptor.m, cta_group=form.cta_group, weight_stationary=form.weight_stationary
    )
    assert blocks is not None  # the descriptor has been checked for its M
    lane, column = split_address(operands.d(path))
    kept_lanes = 0
    for number, word in enumerate(operands.kept_lanes):
        kept_lanes |= word(path) << (32 * number)
    is_added = bool(operands.is_added(path))
    return Accumulator(blocks, lane, column, is_added, operands.scale, kept_lanes)


def _check_accumulator(
    ctas: tuple[Cta, ...], accumulator: Accumulator, descriptor: InstructionDescriptor, site: Site
) -> bool:
    """Whether D lies in lanes that its layout allows and in allocated columns; reports initial values that are not.

    PTX ISA 9.7.16.10.5, column "Tensor Memory Datapath Lane Alignment".
    """
    is_half = len(accumulator.blocks[0].lanes) == 64 and accumulator.blocks[0].parts == 1
    findings = ctas[0].simulation.findings
    if accumulator.lane not in ((0, 16) if is_half else (0,)):
        findings.add(
            "tcgen05-address",
            f"D of M = {descriptor.m} at lane {accumulator.lane}: only {'0 or 16' if is_half else '0'}",
            site,
        )
        return False
    for block in accumulator.blocks:
        memory = memory_of(ctas[block.cta])
        columns = accumulator.columns(block, descriptor.n)
        if not memory.check_columns(columns.start, columns.stop - columns.start, "D", site):
            return False
        if accumulator.is_added:
            _, lanes = accumulator.written(block)
            memory.check_initialised(lanes, columns, "D", site)
    return True


def _tensor_tiles(
    ctas: tuple[Cta, ...],
    accumulator: Accumulator,
    descriptor: InstructionDescriptor,
    address: int,
    site: Site,
) -> tuple[TensorTile, ...] | None:
    """A in tensor memory, one tile for each block of D, in the block's lanes (PTX ISA 9.7.16.10.5)."""
    lane, first = split_address(address)
    findings = ctas[0].simulation.findings
    if lane != accumulator.lane:
        findings.add(
            "tcgen05-address",
            f"A at lane {lane}, D at lane {accumulator.lane}: both need the same alignment",
            site,
        )
        return None
    width = descriptor.k * ELEMENT_BYTES[descriptor.a_type] // 4
    columns = slice(first, first + width)
    tiles = []
    for block in accumulator.blocks:
        memory = memory_of(ctas[block.cta])
        if not memory.check_columns(first, width, "A", site):
            return None
        lanes = as_index(block.lanes + lane)
        memory.check_initialised(lanes, columns, "A", site)
        tiles.append(TensorTile(memory, lanes, columns, descriptor.a_type))
    return tuple(tiles)


def _parts_of_a(whole: tuple[SharedTile, ...], accumulator: Accumulator) -> tuple[SharedTile, ...]:
    """The rows of A that each block of D needs."""
    parts = []
    for block in accumulator.blocks:
        tile = whole[block.cta]
        first = block.first_row - block.cta * len(tile.addresses)
        parts.append(tile.part(first, len(block.lanes)))
    return tuple(parts)


def _record_order(
    path: Path,
    form: MmaForm,
    product: MatrixProduct,
    shared: tuple[SharedTile, ...],
    site: Site,
) -> None:
    """Check and record what the product reads and writes.

    Products of one thread on the same accumulator, with the same shape, kind and group, run in the order of their
    issue, as do copies and shifts before products (PTX ISA 9.7.16.6.2). A later product may also overwrite what an
    earlier one of the same thread reads as A (9.4). Practice relies on more: that they all run in order.
    """
    warp = path.warp
    simulation = warp.cta.simulation
    order = simulation.order
    order.register(product, warp, site)
    if not order.enabled:
        return
    thread = queue_of(warp.cta).thread(path)
    accumulator, descriptor = product.accumulator, product.descriptor
    chain = (accumulator.lane, accumulator.column, descriptor.m, descriptor.n, form)
    before = own_accesses(warp) | (
        thread.copies | thread.shifts if simulation.strict else thread.everything
    )
    for tile in shared:
        order.async_read(tile.cta.shared.shadow, tile.cells, product)
    reading = None
    if form.a_in_tensor_memory:
        reading = record(path, product.name, site)
        for part in product.a:
            assert isinstance(part, TensorTile)
            order.tensor_read(part.memory.shadow, part.cells, reading, site, own=before)
    after = before | thread.chains.get(chain, 0) | thread.reads
    for block in accumulator.blocks:
        cells = accumulator.cells(block, descriptor.n)
        memory = memory_of(product.tensor_ctas[block.cta])
        order.tensor_write(memory.shadow, cells, product, site, own=after)
    thread.track(product)
    thread.products |= event_bit(product)
    thread.chains[chain] = thread.chains.get(chain, 0) | event_bit(product)
    if reading is not None:
        thread.track(reading)
        thread.reads |= event_bit(reading)


DECODERS: dict[str, Decoder] = {"tcgen05.mma": _decode_mma}
