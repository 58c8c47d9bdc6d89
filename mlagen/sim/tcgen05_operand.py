"""Operands of `tcgen05.mma`, in shared and in tensor memory: their bytes as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.elements import ELEMENT_BYTES, RAW_TYPES, decode_elements
from mlagen.sim.layout import decode_blackwell, matrix_addresses
from mlagen.sim.shared_memory import CELL_BYTES
from mlagen.sim.tcgen05_layout import TENSOR_LANES
from mlagen.sim.tensor_memory import lane_groups, shadow_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta
    from mlagen.sim.report import Site
    from mlagen.sim.tensor_memory import Index, TensorMemory


@dataclass(frozen=True, slots=True)
class TileShape:
    """What a descriptor of a matrix in shared memory is read for.

    Attributes:
        rows: Rows of A, or columns of B.
        k: Elements of each.
        element_type: `bf16`, `e4m3`, ...
        is_transposed: Whether rows, not k, are contiguous (M- or N-major).
    """

    rows: int
    k: int
    element_type: str
    is_transposed: bool


@dataclass(frozen=True, slots=True, eq=False)
class TensorTile:
    """A in tensor memory: consecutive k in consecutive bytes of a lane, the lowest first (PTX ISA 9.7.16.10.2).

    Attributes:
        memory: Where.
        lanes: Of its rows.
        columns: Of all its k.
        element_type: `bf16`, `e4m3`, ...
    """

    memory: TensorMemory
    lanes: Index
    columns: slice
    element_type: str

    def read(self) -> NDArray[Any]:
        """`[rows, k]` values as they are now."""
        words = np.ascontiguousarray(self.memory.words[self.lanes, self.columns])
        raw = words.view(RAW_TYPES[ELEMENT_BYTES[self.element_type]])
        return decode_elements(raw, self.element_type)

    @property
    def cells(self) -> NDArray[np.int64]:
        """Its cells in the shadow of tensor memory."""
        lanes = np.arange(TENSOR_LANES)[self.lanes]
        width = self.columns.stop - self.columns.start
        return shadow_cells(lane_groups(lanes), self.columns.start, width)


@dataclass(frozen=True, slots=True, eq=False)
class SharedTile:
    """A or B in shared memory.

    Attributes:
        cta: Whose shared memory.
        addresses: `[rows, k]`, of each element.
        cells: The 4-byte cells that hold it, each once.
        element_type: `bf16`, `e4m3`, ...
    """

    cta: Cta
    addresses: NDArray[np.intp]
    cells: NDArray[np.int64]
    element_type: str

    def part(self, first: int, rows: int) -> SharedTile:
        """Some of its rows."""
        if rows == len(self.addresses):
            return self
        addresses = self.addresses[first : first + rows]
        return SharedTile(self.cta, addresses, self.cells, self.element_type)

    def read(self) -> NDArray[Any]:
        """`[rows, k]` values as they are now."""
        size = ELEMENT_BYTES[self.element_type]
        raw = self.cta.shared.bytes.view(RAW_TYPES[size])[self.addresses // size]
        return decode_elements(raw, self.element_type)


def shared_tiles(
    ctas: tuple[Cta, ...], value: int, shape: TileShape, name: str, site: Site
) -> tuple[SharedTile, ...] | None:
    """The tile that a descriptor means in the shared memory of each CTA; None after reporting what is wrong.

    Both CTAs of a pair have their half at the same offset, so one descriptor serves both.
    """
    descriptor, problems = decode_blackwell(value)
    if shape.is_transposed and shape.element_type == "tf32":
        # 9.7.16.10.3: that needs the 128-byte swizzle with 32-byte atoms.
        problems = (*problems, "a transposed operand of tf32 is not simulated")
    for problem in problems:
        ctas[0].simulation.findings.add(
            "tcgen05-descriptor", f"descriptor of {name}: {problem}", site
        )
    if problems:
        return None
    addresses, cells = matrix_addresses(
        descriptor,
        shape.rows,
        shape.k,
        element_bytes=ELEMENT_BYTES[shape.element_type],
        mn_major=shape.is_transposed,
    )
    first, last = int(cells[0]) * CELL_BYTES, int(cells[-1] + 1) * CELL_BYTES
    tiles = []
    for cta in ctas:
        if not cta.shared.check_range(first, last - first, site):
            return None
        cta.shared.check_readable(cells, site)
        tiles.append(SharedTile(cta, addresses, cells, shape.element_type))
    return tuple(tiles)
