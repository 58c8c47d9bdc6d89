"""Operands of instructions that units execute: readers and writers of registers, for the lanes of a path."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import ALL_LANES, LANES, lane_numbers
from mlagen.sim.ptx import Address, Immediate, Negated, Register, Sink, Special, Symbol, Vector
from mlagen.sim.registers import VIEWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Path, Reader, Writer
    from mlagen.sim.ptx import Instruction, Operand

# Where a register, or a special register or variable seen as one of some kind, lies.
RowOf = Callable[[Register], int]


class OperandBinder:
    """The `Binder` of one instruction, with its registers' rows."""

    def __init__(
        self,
        instruction: Instruction,
        row_of: RowOf,
        resolve: Callable[[Special | Symbol, str], Register | Immediate],
    ) -> None:
        """Bind operands of an instruction.

        Args:
            instruction: For reports.
            row_of: Row of a register.
            resolve: A special register, or a variable's address, as a register or a number.
        """
        self._instruction = instruction
        self._row_of = row_of
        self._resolve = resolve

    def reader(self, operand: Operand, kind: str) -> Reader:
        """Values of a register, immediate, special register or symbol's address."""
        if isinstance(operand, Special | Symbol):
            operand = self._resolve(operand, kind)
        if isinstance(operand, Immediate):
            value = constant(operand, kind)[()]
            return lambda path: value
        if isinstance(operand, Negated):
            read = self.reader(operand.operand, "pred")
            return lambda path: ~read(path)
        if not isinstance(operand, Register):
            raise UnsupportedPtxError(f"operand {type(operand).__name__} where a value is wanted")
        row = self._row_of(operand)
        if kind == "b128":
            return lambda path: _part(path, "b64", slice(row, row + 2))
        if kind not in VIEWS:
            raise UnsupportedPtxError(f"operand of kind {kind}")
        if VIEWS[kind].file != operand.kind:
            return _wider_reader(operand, row, kind)
        return lambda path: _part(path, kind, row)

    def writer(self, operand: Operand, kind: str) -> Writer:
        """For a register; a sink's writer does nothing."""
        if isinstance(operand, Sink):
            return lambda path, values: None
        if not isinstance(operand, Register):
            raise UnsupportedPtxError(f"operand {type(operand).__name__} where a result is wanted")
        first = self._row_of(operand)
        row: int | slice = first
        if kind == "b128":
            kind, row = "b64", slice(first, first + 2)
        elif VIEWS[kind].file != operand.kind:
            kind = operand.kind

        def write(path: Path, values: NDArray[Any] | np.generic | int) -> None:
            registers = _part(path, kind, row)
            if path.mask == ALL_LANES:
                registers[...] = values
                return
            lanes = lane_numbers(path.mask)
            chosen = np.asarray(values)
            registers[..., lanes] = chosen[..., lanes] if chosen.ndim else chosen

        return write

    def uniform(self, operand: Operand, kind: str) -> Callable[[Path], int]:
        """The one value of an operand in the lanes of a path; reports `operand-not-uniform` if they differ."""
        if isinstance(operand, Immediate):
            value = int(constant(operand, kind))
            return lambda path: value
        return self._same(self.reader(operand, kind))

    def address(self, operand: Operand) -> Reader:
        """`[register+offset]`, `[symbol+offset]` or `[immediate]` as uint64 addresses in the operand's state space."""
        base, offset = (
            (operand.base, operand.offset) if isinstance(operand, Address) else (operand, 0)
        )
        kind = "u32" if isinstance(base, Register) and base.kind == "b32" else "u64"
        read = self.reader(base, kind)
        added = np.uint64(offset & (1 << 64) - 1)
        mask = np.uint64(0xFFFF_FFFF if kind == "u32" else (1 << 64) - 1)
        return lambda path: (read(path).astype(np.uint64) + added) & mask

    def uniform_address(self, operand: Operand) -> Callable[[Path], int]:
        """The one address of the lanes of a path."""
        return self._same(self.address(operand))

    def rows(self, operand: Operand) -> tuple[int, ...]:
        """Row numbers of a vector of 32-bit registers, for units that gather whole fragments."""
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        rows = []
        for element in elements:
            if not isinstance(element, Register) or element.kind != "b32":
                raise UnsupportedPtxError("a vector of other than 32-bit registers")
            rows.append(self._row_of(element))
        return tuple(rows)

    def _same(self, read: Reader) -> Callable[[Path], int]:
        instruction = self._instruction

        def value(path: Path) -> int:
            values = read(path)
            if not values.ndim:
                return int(values)
            if path.mask == ALL_LANES:  # the usual case, ten times as fast
                bits = values.tobytes()
                if bits == bits[: values.itemsize] * LANES:
                    return int(values.item(0))
            first = values[path.first_lane]
            if path.mask & (path.mask - 1) and (values[lane_numbers(path.mask)] != first).any():
                findings = path.warp.cta.simulation.findings
                findings.add(
                    "operand-not-uniform",
                    f"{instruction.opcode}: the lanes disagree about an operand that must be the same in all",
                    findings.site(path, instruction),
                )
            return int(first)

        return value


def _part(path: Path, kind: str, row: int | slice) -> NDArray[Any]:
    """A path's warp in some rows."""
    warp = path.warp
    first = warp.first_thread
    values: NDArray[Any] = warp.cta.registers[kind][row, first : first + LANES]
    return values


def _wider_reader(operand: Register, row: int, kind: str) -> Reader:
    """The low part of a register that is wider than the type by which it is read."""
    dtype, file = VIEWS[kind].dtype, operand.kind
    if file in ("pred", "b128"):
        raise UnsupportedPtxError(f"{operand.name} is read as {kind}")
    return lambda path: _part(path, file, row).astype(dtype)


def constant(operand: Immediate, kind: str) -> Any:
    """An immediate as a NumPy scalar (an array without dimensions) of a kind. Any: of that kind's type.

    Packed kinds get the scalar of all their bits.
    """
    view = VIEWS[kind]
    bits = 1 if kind == "pred" else int(view.file[1:])
    if view.dtype.kind in "fV" and view.count == 1:
        number = _number(operand)
        if view.dtype == np.float32 and operand.is_float and not operand.is_double:
            return np.array(operand.value, np.uint32).view(np.float32)
        return np.array(number).astype(view.dtype)
    value = operand.value
    if operand.is_float and bits == 32 and operand.is_double:
        value = struct.unpack("<I", struct.pack("<f", _number(operand)))[0]
    elif operand.is_float and bits == 64 and not operand.is_double:
        value = struct.unpack("<Q", struct.pack("<d", _number(operand)))[0]
    if kind == "pred":
        return np.array(bool(value))
    unsigned = np.array(value & (1 << bits) - 1, f"u{bits // 8}")
    return unsigned.view(view.dtype) if view.count == 1 else unsigned


def _number(operand: Immediate) -> float:
    if not operand.is_float:
        return float(operand.value)
    if operand.is_double:
        return float(struct.unpack("<d", operand.value.to_bytes(8, "little"))[0])
    return float(struct.unpack("<f", operand.value.to_bytes(4, "little"))[0])
