"""`atom` and `red` on global and shared memory (PTX ISA 9.7.13.8, 9.7.13.9)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import (
    access_form,
    element_readers,
    element_writers,
    lane_values,
    split_by_space,
)
from mlagen.sim.ptx import Sink
from mlagen.sim.shared_memory import POISON
from mlagen.sim.strong import Release, note_read, places_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.access import AccessForm
    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

    # New elements from those in memory and one or two operands.
    Operation = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]

_OPERATIONS: dict[str, Operation] = {
    "add": lambda old, b, _: old + b,
    "min": lambda old, b, _: np.minimum(old, b),
    "max": lambda old, b, _: np.maximum(old, b),
    "and": lambda old, b, _: old & b,
    "or": lambda old, b, _: old | b,
    "xor": lambda old, b, _: old ^ b,
    "exch": lambda old, b, _: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, _: np.where(old >= b, 0, old + 1).astype(old.dtype),
    "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype),
}
# Types of each operation; `noftz` belongs to the packed ones and changes nothing here.
_TYPES = {
    "add": {"u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"},
    "min": {"u32", "s32", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2"},
    "max": {"u32", "s32", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2"},
    "and": {"b32", "b64"},
    "or": {"b32", "b64"},
    "xor": {"b32", "b64"},
    "exch": {"b32", "b64"},
    "cas": {"b16", "b32", "b64", "u32", "s32", "u64", "s64"},
    "inc": {"u32"},
    "dec": {"u32"},
}
_DTYPES: dict[str, Any] = {
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "b16": np.uint16,
    "b32": np.uint32,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "f16x2": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "bf16x2": ml_dtypes.bfloat16,
}
_OWN = frozenset(_OPERATIONS) | {"noftz"}


def decode_atomic(instruction: Instruction, bind: Binder) -> Handler:
    """`atom`: what was there goes to a register; `red`: nobody wants it."""
    form = access_form(instruction, own=_OWN)
    type_name = instruction.parts[-1]
    names = [part for part in form.rest if part != "noftz"]
    if len(names) != 1 or type_name not in _TYPES[names[0]]:
        raise UnsupportedPtxError(instruction.opcode)
    if form.semantics == "weak":
        form = dataclasses.replace(form, semantics="relaxed")
    returns = instruction.parts[0] == "atom"
    target, address, *sources = instruction.operands if returns else (Sink(), *instruction.operands)
    count = 2 if names[0] == "cas" else 1
    if len(sources) < count:
        raise UnsupportedPtxError(f"{instruction.opcode}: operands")
    sources = sources[:count]  # a cache policy may follow
    read_address = bind.address(address)
    readers = [element_readers(instruction, bind, source, form) for source in sources]
    writers = [] if isinstance(target, Sink) else element_writers(instruction, bind, target, form)
    dtype = np.dtype(_DTYPES[type_name])
    plain = _OPERATIONS[names[0]]
    operations = {"global": _flushing(plain) if type_name == "f32" else plain, "shared": plain}

    def atomic(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        where = lane_values(read_address(path), path).view(np.int64)
        operands = [read(path).view(dtype) for read in readers]
        places = places_of(path, form.space, where, site)
        note_read(path, places, form)
        release = Release.begin(path, form)
        old, changed = _update(path, form, where, operands, operations, site)
        release.end(places, is_atomic=True, changed=changed)
        if places and not changed:
            path.polled = places[0], places[0].version
        columns = old.view(f"u{form.element_bytes}")
        for number, write in enumerate(writers):
            write(path, columns[:, number])

    return atomic


@dataclass(slots=True)
class _Change:
    """Applies an operation lane by lane; an `Update` of memory.

    Attributes:
        operation: For the space that is updated.
        lanes: Of the access that fall into that space.
        operands: One or two, `[n, elements]`.
        old: `[n, size]` bytes: what was there, written here.
        changed: Whether memory holds other bytes than before.
    """

    operation: Operation
    lanes: NDArray[np.intp]
    operands: list[NDArray[Any]]
    old: NDArray[np.uint8]
    changed: bool = False

    def __call__(
        self, memory: NDArray[np.uint8], offsets: NDArray[np.int64], numbers: NDArray[np.intp]
    ) -> None:
        """Update memory at offsets for the numbered lanes of the space."""
        first, last = self.operands[0], self.operands[-1]
        size = self.old.shape[1]
        for offset, lane in zip(offsets.tolist(), self.lanes[numbers].tolist(), strict=True):
            there = memory[offset : offset + size]
            self.old[lane] = there
            new = self.operation(self.old[lane].view(first.dtype), first[lane], last[lane])
            there[:] = np.ascontiguousarray(new).view(np.uint8)
            self.changed |= bool((there != self.old[lane]).any())


def _update(
    path: Path,
    form: AccessForm,
    addresses: NDArray[np.int64],
    operands: list[NDArray[Any]],
    operations: dict[str, Operation],
    site: Site,
) -> tuple[NDArray[np.uint8], bool]:
    """Apply an operation for every lane.

    Args:
        path: Whose lanes.
        form: The instruction's modifiers.
        addresses: `[n]`.
        operands: One or two, `[n, elements]`.
        operations: For `global` and `shared` memory.
        site: For findings.

    Returns:
        `[n, size]` bytes that were there, and whether memory has changed.
    """
    warp = path.warp
    simulation = warp.cta.simulation
    old = np.full((len(addresses), form.size), POISON, dtype=np.uint8)
    changed = False
    for part in split_by_space(path, form.space, addresses, site):
        if part.space not in operations:
            text = f"an atomic operation on {part.space} memory"
            simulation.findings.add("bad-operand", text, site)
            continue
        lanes = np.arange(len(addresses))[part.lanes]
        change = _Change(operations[part.space], lanes, operands, old)
        memory = simulation.memory if part.space == "global" else part.owner.shared
        memory.update(part.addresses, form.size, warp, site, change)
        changed |= change.changed
    return old, changed


def _flushing(operation: Operation) -> Operation:
    """`atom.add.f32` on global memory takes and gives zeros for subnormal numbers (PTX ISA 9.7.13.8)."""
    smallest = np.finfo(np.float32).smallest_normal

    def flush(values: NDArray[Any]) -> NDArray[Any]:
        return np.where(np.abs(values) < smallest, np.copysign(np.float32(0), values), values)

    return lambda old, b, c: flush(operation(flush(old), flush(b), c))


DECODERS: dict[str, Decoder] = {"atom": decode_atomic, "red": decode_atomic}
