"""The forms of `wgmma.mma_async`: opcode and operands, decoded before anything runs (PTX ISA 9.7.15.5.2)."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.elements import ELEMENT_BYTES, INTEGERS
from mlagen.sim.layout import TileShape
from mlagen.sim.ptx import Immediate, Vector
from mlagen.sim.wgmma_fragment import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Path
    from mlagen.sim.ptx import Instruction, Operand

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_K_BYTES = 32
_FLOATS_OF_EIGHT_BITS = frozenset({"e4m3", "e5m2"})
# Accumulators of each pair of input types that may be multiplied.
_ACCUMULATORS = {
    "bf16": ("f32",),
    "f16": ("f32", "f16"),
    "tf32": ("f32",),
    "e4m3": ("f32", "f16"),
    "e5m2": ("f32", "f16"),
    "u8": ("s32",),
    "s8": ("s32",),
}
_A_REGISTERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Registers:
    """32-bit registers of an operand.

    Attributes:
        rows: Their rows, as fast an index as they allow.
        mask: The same as a bitset.
        count: How many.
    """

    rows: slice | NDArray[np.intp]
    mask: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One `wgmma.mma_async` of a kernel.

    Attributes:
        instruction: What was written.
        n: Columns of D.
        d_type: `f32`, `f16` or `s32`.
        a_type: Element type of A.
        b_type: Element type of B.
        a_shape: Of A in shared memory.
        b_shape: Of B.
        negates: Whether the product enters with the opposite sign.
        saturates: Whether s32 sums saturate.
        d: Registers of D.
        a: Registers of A, None if it is in shared memory.
        a_descriptor: Reads its descriptor, None if it is in registers.
        b_descriptor: Reads the descriptor of B.
        scale_d: Reads whether the old D is added.
        chain: What products on the same registers must share to follow each other without a fence (9.7.15.7.1).
    """

    instruction: Instruction
    n: int
    d_type: str
    a_type: str
    b_type: str
    a_shape: TileShape
    b_shape: TileShape
    negates: bool
    saturates: bool
    d: Registers
    a: Registers | None
    a_descriptor: Callable[[Path], int] | None
    b_descriptor: Callable[[Path], int]
    scale_d: Callable[[Path], int]
    chain: str


def decode_form(instruction: Instruction, bind: Binder) -> Form:
    """Everything about a product that is known before the run.

    Raises:
        UnsupportedPtxError: There is no such form.
    """
    parts = list(instruction.parts[2:])
    saturates = "satfinite" in parts
    if saturates:
        parts.remove("satfinite")
    match parts:
        case ("sync", "aligned", shape, d_type, a_type, b_type) if _SHAPE.fullmatch(shape):
            pass
        case _:
            raise UnsupportedPtxError(f"{instruction.opcode}: no such form")
    n, k = map(int, _SHAPE.findall(shape)[0])
    _check_types(instruction, d_type, a_type, b_type, n, k, saturates=saturates)
    d, a, b, scale_d, *rest = instruction.operands
    in_registers = isinstance(a, Vector)
    negates, transposes = _immediates(instruction, rest, a_type, in_registers=in_registers)
    size = ELEMENT_BYTES[a_type]
    d_registers = _registers(instruction, bind, d, n // 4 if d_type == "f16" else n // 2)
    if d_registers.mask.bit_count() != d_registers.count:
        raise UnsupportedPtxError(f"{instruction.opcode}: a register twice in the result")
    return Form(
        instruction=instruction,
        n=n,
        d_type=d_type,
        a_type=a_type,
        b_type=b_type,
        a_shape=TileShape(ROWS, k, size, transposes[0]),
        b_shape=TileShape(n, k, size, transposes[1]),
        negates=negates,
        saturates=saturates,
        d=d_registers,
        a=_registers(instruction, bind, a, _A_REGISTERS) if in_registers else None,
        a_descriptor=None if in_registers else bind.uniform(a, "u64"),
        b_descriptor=bind.uniform(b, "u64"),
        scale_d=bind.uniform(scale_d, "u32" if isinstance(scale_d, Immediate) else "pred"),
        chain=f"{shape} {d_type} {d_registers.mask:x}",
    )


def _check_types(
    instruction: Instruction,
    d_type: str,
    a_type: str,
    b_type: str,
    n: int,
    k: int,
    *,
    saturates: bool,
) -> None:
    """Raise if there is no instruction of these types and this shape (PTX ISA 9.7.15.2, Matrix Shape)."""
    same_class = (
        a_type == b_type
        or {a_type, b_type} <= _FLOATS_OF_EIGHT_BITS
        or {a_type, b_type} <= set(INTEGERS)
    )
    right = (
        d_type in _ACCUMULATORS.get(a_type, ())
        and same_class
        and k * ELEMENT_BYTES[a_type] == _K_BYTES
        and 8 <= n <= 256
        and n % (16 if d_type == "s32" and n > 32 else 8) == 0
        and (not saturates or d_type == "s32")
    )
    if not right:
        raise UnsupportedPtxError(f"{instruction.opcode}: no such types or shape")


def _immediates(
    instruction: Instruction, operands: list[Operand], a_type: str, *, in_registers: bool
) -> tuple[bool, tuple[bool, bool]]:
    """Whether the product is negated, and whether A and B are MN-major."""
    values = []
    for operand in operands:
        if not isinstance(operand, Immediate):
            raise UnsupportedPtxError(f"{instruction.opcode}: an operand that is no immediate")
        values.append(operand.value)
    scales = 0 if a_type in INTEGERS else 2
    transposes = 0 if ELEMENT_BYTES[a_type] != 2 else 1 if in_registers else 2
    if len(values) != scales + transposes:
        raise UnsupportedPtxError(f"{instruction.opcode}: {len(values)} immediates")
    signs, majors = values[:scales], values[scales:]
    if not set(signs) <= {1, -1} or not set(majors) <= {0, 1}:
        raise UnsupportedPtxError(f"{instruction.opcode}: immediates {values}")
    a_major = bool(majors[0]) if len(majors) == 2 else False
    b_major = bool(majors[-1]) if majors else False
    return len(set(signs)) == 2, (a_major, b_major)


def _registers(instruction: Instruction, bind: Binder, operand: Operand, count: int) -> Registers:
    """The registers of a vector, which must be so many."""
    rows = bind.rows(operand)
    mask = 0
    for row in rows:
        mask |= 1 << row
    if len(rows) != count:
        raise UnsupportedPtxError(f"{instruction.opcode}: {len(rows)} registers for {count}")
    step = rows[1] - rows[0]
    if abs(step) >= 1 and all(b - a == step for a, b in itertools.pairwise(rows)):
        end = rows[-1] + (1 if step > 0 else -1)
        return Registers(slice(rows[0], end if end >= 0 else None, step), mask, count)
    return Registers(np.array(rows, dtype=np.intp), mask, count)
