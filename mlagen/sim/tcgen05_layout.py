"""Where the elements of tcgen05 instructions lie in tensor memory and registers, as index arrays.

Tensor memory is `[128 lanes, 512 columns]` of 32 bits (PTX ISA 9.7.16.1, Tensor Memory). Section numbers are those of
ISA 9.0 to 9.4. The manual shows most of this in figures; what it does not settle is said here and in
`docs/simulator.md`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TENSOR_LANES = 128
TENSOR_COLUMNS = 512
LANES_OF_WARP = 32

_MOST_REGISTERS = 128
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)

# Shape of `tcgen05.ld` and `st` -> 32-bit registers that one repetition takes of a thread.
_REGISTERS_OF_SHAPE = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Which cell of tensor memory each register of each thread means, relative to the address.

    Attributes:
        lanes: `[register, thread]`.
        columns: `[register, thread]`; of two packed 16-bit columns the first.
        height: Lanes that are touched: 16 or 32.
    """

    lanes: NDArray[np.intp]
    columns: NDArray[np.intp]
    height: int


def register_count(shape: str, count: int) -> int | None:
    """Registers of a thread for `.shape.x<count>`; None if there is no such form.

    PTX ISA 9.7.16.8.1, table of `.num` and vector sizes: at most 128 registers.
    """
    if shape not in _REGISTERS_OF_SHAPE or count not in _COUNTS:
        return None
    registers = _REGISTERS_OF_SHAPE[shape] * count
    return registers if registers <= _MOST_REGISTERS else None


@functools.cache
def register_fragment(shape: str, count: int, *, packed: bool = False, split: int = 0) -> Fragment:
    """The cells that `tcgen05.ld` and `tcgen05.st` move.

    Args:
        shape: `32x32b`, `16x64b`, `16x128b`, `16x256b` or `16x32bx2`.
        count: N of `.xN`.
        packed: `.pack::16b` or `.unpack::16b`: a register holds the low halves of two neighbouring columns, so the
            columns count double.
        split: `immHalfSplitoff` of `16x32bx2`: the columns between what threads 0 to 15 and 16 to 31 get.

    PTX ISA 9.7.16.2.3.1, matrix fragments for shapes .32x32b, .16x64b, .16x128b, .16x256b and .16x32bx2.
    """
    registers = register_count(shape, count)
    assert registers is not None
    register = np.arange(registers, dtype=np.intp)[:, None]
    thread = np.arange(LANES_OF_WARP, dtype=np.intp)[None, :]
    zero = register * 0 + thread * 0
    width = 2 if packed else 1
    if shape == "32x32b":
        return Fragment(thread + zero, register * width + zero, 32)
    if shape == "16x32bx2":
        return Fragment(thread % 16 + zero, register * width + split * (thread // 16), 16)
    if shape == "16x64b":
        lanes = thread // 4 + 8 * (thread & 1) + zero
        columns = 2 * register + ((thread >> 1) & 1)
    elif shape == "16x128b":
        lanes = thread // 4 + 8 * (register % 2)
        columns = 4 * (register // 2) + (thread & 3)
    else:
        lanes = thread // 4 + 8 * (register // 2 % 2)
        columns = 8 * (register // 4) + 2 * (thread & 3) + register % 2
    return Fragment(lanes, columns * width, 16)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Part of a D matrix that lies in consecutive columns of one CTA.

    Attributes:
        cta: 0, or 1 for the odd CTA of a pair.
        first_row: Of the rows of D that it holds; they are consecutive.
        lanes: The lane of each of its rows, before the address's lane is added.
        part: Which of `parts` equal ranges of N it holds, in columns 0 and up.
        parts: Into how many ranges N is cut.
    """

    cta: int
    first_row: int
    lanes: NDArray[np.intp]
    part: int
    parts: int

    @property
    def rows(self) -> slice:
        """Its rows of D."""
        return slice(self.first_row, self.first_row + len(self.lanes))

    def columns_of(self, n: int) -> slice:
        """Its columns of D, for a D of n columns."""
        width = n // self.parts
        return slice(self.part * width, (self.part + 1) * width)


@functools.cache
def accumulator_blocks(
    m: int, *, cta_group: int, weight_stationary: bool
) -> tuple[Block, ...] | None:
    """Where D lies; None if there is no such shape.

    A in tensor memory lies in the same lanes: a row that several blocks hold has to be there once for each
    (`cta_group::2` with M = 128, `.ws` with M = 64 or 32), since a data path reads its own lanes only.

    PTX ISA 9.7.16.10.5, Data Path Layout Organization: layouts A (M 256), B (M 128 of a pair, dense), D (M 128), E
    (M 64, .ws), F (M 64) and G (M 32).
    """
    every = np.arange(TENSOR_LANES, dtype=np.intp)
    if cta_group == 2:
        if m == 256:
            return tuple(Block(cta, 128 * cta, every, 0, 1) for cta in (0, 1))
        if m == 128:
            return tuple(
                Block(cta, 64 * cta, every[64 * half :][:64], half, 2)
                for cta in (0, 1)
                for half in (0, 1)
            )
        return None
    if m == 128:
        return (Block(0, 0, every, 0, 1),)
    if m == 64 and weight_stationary:
        return tuple(Block(0, 0, every[64 * half :][:64], half, 2) for half in (0, 1))
    if m == 64:
        row = np.arange(64, dtype=np.intp)
        return (Block(0, 0, row % 16 + 32 * (row // 16), 0, 1),)
    if m == 32 and weight_stationary:
        return tuple(Block(0, 0, every[32 * quarter :][:32], quarter, 4) for quarter in range(4))
    return None


@dataclass(frozen=True, slots=True, eq=False)
class CopyShape:
    """What `tcgen05.cp` moves.

    Attributes:
        rows: Of the matrix in shared memory.
        row_bytes: 16 or 32.
        lanes: `[copies, rows]`: the lanes that get each row.
    """

    rows: int
    row_bytes: int
    lanes: NDArray[np.intp]

    @property
    def columns(self) -> int:
        """Columns that are written."""
        return self.row_bytes // 4


@functools.cache
def copy_shape(shape: str, multicast: str | None) -> CopyShape | None:
    """Rows and lanes of a `tcgen05.cp`; None if there is no such form.

    PTX ISA 9.7.16.9.2, tcgen05.cp: which warps' lanes form the pairs of `.warpx2` and `.warpx4`. Where `.4x256b`
    goes is said nowhere; that it fills the row that a `.31x256b` shift leaves in each warp is an inference.
    """
    every = np.arange(TENSOR_LANES, dtype=np.intp)
    quarters = every.reshape(4, 32)
    if multicast is None and shape in {"128x256b", "128x128b"}:
        return CopyShape(128, 32 if shape == "128x256b" else 16, every[None, :])
    if multicast is None and shape == "4x256b":
        return CopyShape(4, 32, quarters[None, :, 0])
    if shape == "32x128b" and multicast == "warpx4":
        return CopyShape(32, 16, quarters)
    if shape == "64x128b" and multicast == "warpx2::02_13":
        return CopyShape(64, 16, every.reshape(2, 64))
    if shape == "64x128b" and multicast == "warpx2::01_23":
        return CopyShape(64, 16, quarters.reshape(2, 2, 32).swapaxes(0, 1).reshape(2, 64))
    return None
