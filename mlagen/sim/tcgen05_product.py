"""The arithmetic of `tcgen05.mma`: operands gathered, multiplied, added to D in tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.products import multiply_add, multiply_add_integers
from mlagen.sim.tcgen05_layout import TENSOR_LANES
from mlagen.sim.tensor_memory import as_index, lane_groups, memory_of, shadow_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta
    from mlagen.sim.tcgen05_descriptor import InstructionDescriptor
    from mlagen.sim.tcgen05_layout import Block
    from mlagen.sim.tensor_memory import Index


class Tile(Protocol):
    """An operand, wherever it lies."""

    def read(self) -> NDArray[Any]:
        """`[rows, k]` values as they are now: float32, or integers for kind i8."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """D: where it lies and what happens to its old values.

    Attributes:
        blocks: Its parts.
        lane: Lane of the address: 0, or 16 for M = 64.
        column: Column of the address.
        is_added: Whether the old D is added (`enable-input-d`).
        scale: Exponent s of the factor 2^-s of the old D (`scale-input-d`).
        kept_lanes: Lanes that are left alone (`disable-output-lane`), a bitset over both CTAs.
    """

    blocks: tuple[Block, ...]
    lane: int
    column: int
    is_added: bool
    scale: int
    kept_lanes: int

    def columns(self, block: Block, n: int) -> slice:
        """The columns of tensor memory that a block of a D of n columns takes."""
        return slice(self.column, self.column + n // block.parts)

    def written(self, block: Block) -> tuple[Index, Index]:
        """The rows of a block that are written, counted from its first, and their lanes."""
        lanes = block.lanes + self.lane
        kept = self.kept_lanes >> (TENSOR_LANES * block.cta)
        if not kept:
            return slice(None), as_index(lanes)
        rows = [row for row, lane in enumerate(lanes.tolist()) if not kept >> lane & 1]
        return np.array(rows, np.intp), lanes[rows]

    def cells(self, block: Block, n: int) -> NDArray[np.int64]:
        """Shadow cells that a block writes; 16 lanes share one, so a kept lane among them counts as written."""
        rows, _ = self.written(block)
        return shadow_cells(
            lane_groups(block.lanes[rows] + self.lane), self.column, n // block.parts
        )


class MatrixProduct(AsyncOperation):
    """One `tcgen05.mma` between its issue and its completion.

    Attributes:
        tensor_ctas: The CTA, or the pair.
        descriptor: Shape and types.
        a: One tile per block of D.
        b: One tile per CTA; a pair's are the halves of B.
        accumulator: D.
    """

    __slots__ = ("a", "accumulator", "b", "descriptor", "tensor_ctas")

    def __init__(
        self,
        ctas: tuple[Cta, ...],
        descriptor: InstructionDescriptor,
        accumulator: Accumulator,
        a: tuple[Tile, ...],
        b: tuple[Tile, ...],
    ) -> None:
        """An operation that nobody has issued yet."""
        super().__init__("tcgen05.mma", ctas[0])
        self.tensor_ctas = ctas
        self.descriptor = descriptor
        self.accumulator = accumulator
        self.a = a
        self.b = b

    def claim(self) -> None:
        """Count D as written from the issue on: who reads it too early is told by the order."""
        for block in self.accumulator.blocks:
            _, lanes = self.accumulator.written(block)
            columns = self.accumulator.columns(block, self.descriptor.n)
            memory_of(self.tensor_ctas[block.cta]).initialised[lanes, columns] = True

    def complete(self) -> None:
        """Multiply and write D."""
        descriptor = self.descriptor
        b = np.concatenate([tile.read() for tile in self.b])
        if descriptor.negate_a != descriptor.negate_b:
            b = -b
        blocks = self.accumulator.blocks
        # Every operand is read before D is written: D may lie over A.
        results = [
            self._multiply(block, tile.read(), b[block.columns_of(descriptor.n)])
            for tile, block in zip(self.a, blocks, strict=True)
        ]
        for block, result in zip(blocks, results, strict=True):
            rows, lanes = self.accumulator.written(block)
            columns = self.accumulator.columns(block, descriptor.n)
            words = encode_accumulator(result[rows], descriptor.d_type)
            memory_of(self.tensor_ctas[block.cta]).words[lanes, columns] = words

    def _multiply(self, block: Block, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """A block of the new D."""
        accumulator, descriptor = self.accumulator, self.descriptor
        old = None
        if accumulator.is_added:
            lanes = as_index(block.lanes + accumulator.lane)
            columns = accumulator.columns(block, descriptor.n)
            words = memory_of(self.tensor_ctas[block.cta]).words[lanes, columns]
            old = decode_accumulator(words, descriptor.d_type)
            if accumulator.scale:
                old = old * np.float32(2.0**-accumulator.scale)
        if descriptor.d_type == "s32":
            return multiply_add_integers(a, b, old, saturate=descriptor.saturate)
        mode = self.cta.simulation.accumulation
        # Nothing is known of shorter sums on sm_100a, whatever the inputs.
        return multiply_add(a, b, old, "f64" if mode == "f64" else "f32")


def decode_accumulator(words: NDArray[np.uint32], d_type: str) -> NDArray[Any]:
    """Values of cells of D; one of 16 bits lies in the low half (PTX ISA 9.7.16.10.4.1)."""
    if d_type == "f32":
        return np.ascontiguousarray(words).view(np.float32)
    if d_type == "f16":
        return words.astype(np.uint16).view(np.float16).astype(np.float32)
    return words.astype(np.int32).astype(np.int64)


def encode_accumulator(values: NDArray[Any], d_type: str) -> NDArray[np.uint32]:
    """Cells of D."""
    if d_type == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.ascontiguousarray(values).view(np.uint32)
