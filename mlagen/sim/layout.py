"""Where bytes of matrices and boxes lie in shared memory, as index arrays of 16-byte chunks.

All layouts of tensor copies and tensor cores move whole chunks of 16 bytes, so one index stands for 16, 8 or 4
elements. A swizzle exchanges chunks by absolute shared address; its patterns repeat every 1024 bytes at most, so an
array is computed once for a layout and a start modulo 1024, and placed by its base.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.elements import RAW_TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Cells = slice | NDArray[np.int64]

CHUNK_BYTES = 16
PATTERN_BYTES = 1024
_CELLS_OF_CHUNK = 4
_CHUNK_SHIFT = 4
_LINE_SHIFT = 7
_GROUP_ROWS = 8


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Which chunks of a line change places.

    Attributes:
        span_bytes: Of a row of the pattern: 128, 64 or 32, or 0 for none.
    """

    span_bytes: int

    def apply(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """The addresses at which bytes lie instead: bits 7 and up are xored into those that number the chunks.

        PTX ISA 5.5.6, Swizzling modes, and 9.7.15.5.1.2.1.3, Canonical layouts: `Swizzle<B, 4, 3>`. Its own inverse.
        """
        if not self.span_bytes:
            return addresses
        places = self.span_bytes // CHUNK_BYTES - 1
        return addresses ^ ((addresses >> _LINE_SHIFT & places) << _CHUNK_SHIFT)

    @property
    def repeat_bytes(self) -> int:
        """After how many bytes the pattern begins again: the alignment of a tile that starts with it."""
        if not self.span_bytes:
            return CHUNK_BYTES
        return self.span_bytes // CHUNK_BYTES << _LINE_SHIFT


SWIZZLES = {0: Swizzle(0), 32: Swizzle(32), 64: Swizzle(64), 128: Swizzle(128)}


# The 64-bit matrix descriptors:
#
#     bits    wgmma (PTX ISA 9.7.15.5.1.2.2)         tcgen05 (9.7.16.4.1)
#     0-13    start address >> 4                     same
#     16-29   leading dimension byte offset >> 4     same
#     32-45   stride dimension byte offset >> 4      same
#     46-48   0                                      0b001
#     49-51   base offset                            same
#     52      0                                      leading dimension: 0 relative, 1 absolute (sm_103a)
#     53-60   0                                      0
#     61-63   62-63: 0 none, 1 128, 2 64, 3 32       0 none, 1 128 by 32, 2 128, 4 64, 6 32
#
# An address that carries more than 18 bits (that of a CTA with a rank in a cluster) runs over into other fields, here
# as on hardware.
_FIELD = (1 << 14) - 1
_ENCODE_SHIFT = 4
_HOPPER_SWIZZLES = {0: SWIZZLES[0], 1: SWIZZLES[128], 2: SWIZZLES[64], 3: SWIZZLES[32]}
_BLACKWELL_SWIZZLES = {0: SWIZZLES[0], 2: SWIZZLES[128], 4: SWIZZLES[64], 6: SWIZZLES[32]}
# For transposed operands of tf32 alone (9.7.16.10.3), which are refused as well.
_BLACKWELL_128_BY_32 = 1
_HOPPER_RESERVED = ((14, 15), (30, 31), (46, 48), (52, 61))
_BLACKWELL_RESERVED = ((14, 15), (30, 31), (47, 48), (53, 60))


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """Where a matrix lies in shared memory.

    Attributes:
        address: Of the first element, a multiple of 16 below 2^18.
        leading_bytes: Leading dimension byte offset (LBO).
        stride_bytes: Stride dimension byte offset (SBO).
        swizzle: Of its lines.
    """

    address: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle


@functools.lru_cache(maxsize=65536)
def decode_hopper(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The descriptor of a `wgmma` operand, and what is wrong with it."""
    problems = _common_problems(value, _HOPPER_RESERVED)
    return _descriptor(value, _HOPPER_SWIZZLES[value >> 62]), tuple(problems)


@functools.lru_cache(maxsize=65536)
def decode_blackwell(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The descriptor of a `tcgen05` operand, and what is wrong with it."""
    problems = _common_problems(value, _BLACKWELL_RESERVED)
    if not value >> 46 & 1:
        problems.append("bit 46 is 0; descriptors of tcgen05 have 0b001 in bits 46 to 48")
    if value >> 52 & 1:
        problems.append("bit 52 (absolute leading dimension) is set, which sm_100a does not have")
    swizzle = _BLACKWELL_SWIZZLES.get(value >> 61)
    if swizzle is None:
        code = value >> 61
        problems.append(
            "swizzle 1 (bits 61 to 63), with atoms of 32 bytes, is not simulated"
            if code == _BLACKWELL_128_BY_32
            else f"swizzle {code} (bits 61 to 63): there are 0, 1, 2, 4 and 6"
        )
        swizzle = SWIZZLES[0]
    return _descriptor(value, swizzle), tuple(problems)


def _common_problems(value: int, reserved: tuple[tuple[int, int], ...]) -> list[str]:
    """Reserved bits and the base offset."""
    problems = []
    for first, last in reserved:
        bits = value >> first & (1 << last - first + 1) - 1
        if bits:
            cause = "; was the address masked to 18 bits?" if first < 46 else ""
            problems.append(f"bits {first} to {last} are reserved and hold {bits:#x}{cause}")
    if value >> 49 & 7:
        problems.append(
            f"base offset {value >> 49 & 7}: tiles that do not start with their swizzle pattern are not simulated"
        )
    return problems


def _descriptor(value: int, swizzle: Swizzle) -> MatrixDescriptor:
    """The fields that both have."""
    return MatrixDescriptor(
        address=(value & _FIELD) << _ENCODE_SHIFT,
        leading_bytes=(value >> 16 & _FIELD) << _ENCODE_SHIFT,
        stride_bytes=(value >> 32 & _FIELD) << _ENCODE_SHIFT,
        swizzle=swizzle,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks of shared memory in some order, relative to a base.

    Attributes:
        index: Chunk numbers, in the order of the matrix or box.
        cells: The 4-byte cells that they cover, ascending.
        first: The lowest byte.
        end: The first byte behind them.
    """

    index: NDArray[np.intp]
    cells: Cells
    first: int
    end: int

    def cells_at(self, base: int) -> Cells:
        """The cells for a base, a multiple of 4."""
        first = base >> 2
        if isinstance(self.cells, slice):
            return slice(self.cells.start + first, self.cells.stop + first)
        return self.cells + first

    def gather(self, memory: NDArray[np.uint8], base: int) -> NDArray[np.uint8]:
        """`[..., 16 * chunks]` bytes of memory, in the order of `index`; base is a multiple of 16."""
        return _as_chunks(memory, base).take(self.index).view(np.uint8)

    def scatter(self, memory: NDArray[np.uint8], base: int, data: NDArray[np.uint8]) -> None:
        """Write what `gather` would read."""
        _as_chunks(memory, base)[self.index] = data.view(np.complex128).reshape(self.index.shape)


def _as_chunks(memory: NDArray[np.uint8], base: int) -> NDArray[np.complex128]:
    """Memory from a base on as items of 16 bytes, which NumPy copies fastest as complex numbers."""
    end = len(memory) - (len(memory) - base) % CHUNK_BYTES
    return memory[base:end].view(np.complex128)


def _chunks(offsets: NDArray[np.int64]) -> Chunks:
    """Chunks at byte offsets."""
    index = (offsets // CHUNK_BYTES).astype(np.intp)
    numbers = np.unique(index)
    first, last = int(numbers[0]), int(numbers[-1])
    cells: Cells
    if last - first + 1 == len(numbers):
        cells = slice(first * _CELLS_OF_CHUNK, (last + 1) * _CELLS_OF_CHUNK)
    else:
        cells = (numbers[:, None] * _CELLS_OF_CHUNK + np.arange(_CELLS_OF_CHUNK)).ravel()
    return Chunks(index, cells, first * CHUNK_BYTES, (last + 1) * CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class TileShape:
    """An operand of a matrix instruction.

    Attributes:
        rows: M of A, N of B.
        k: Elements of K.
        element_bytes: 1, 2 or 4.
        is_mn_major: Whether neighbours in memory differ in M or N (`trans` is 1), else in K.
    """

    rows: int
    k: int
    element_bytes: int
    is_mn_major: bool


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """An operand at its place in shared memory.

    Attributes:
        shape: Of the matrix.
        base: Address of chunk 0, a multiple of 1024.
        chunks: `[rows, chunks of k]`, or MN-major `[k, chunks of rows]`.
    """

    shape: TileShape
    base: int
    chunks: Chunks

    @property
    def first(self) -> int:
        """Its lowest address."""
        return self.base + self.chunks.first

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.base + self.chunks.end

    @property
    def cells(self) -> Cells:
        """The 4-byte cells that it covers, ascending."""
        return self.chunks.cells_at(self.base)

    def cells_of_rows(self, first: int, count: int) -> NDArray[np.int64]:
        """The 4-byte cells of some of its rows."""
        size = self.shape.element_bytes
        index = self.chunks.index
        if self.shape.is_mn_major:
            end = (first + count) * size
            mine = index[:, first * size // CHUNK_BYTES : -(-end // CHUNK_BYTES)]
        else:
            mine = index[first : first + count]
        cells: NDArray[np.int64] = mine.reshape(-1, 1) * _CELLS_OF_CHUNK + np.arange(
            _CELLS_OF_CHUNK
        )
        return cells.ravel() + (self.base >> 2)

    def gather(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """`[rows, k]` elements as unsigned integers of their width; a transposed view if MN-major."""
        shape = self.shape
        raw: NDArray[Any] = self.chunks.gather(memory, self.base).view(
            RAW_TYPES[shape.element_bytes]
        )
        return raw[:, : shape.rows].T if shape.is_mn_major else raw

    def addresses(self) -> NDArray[np.int64]:
        """`[rows, k]` addresses of the elements."""
        shape = self.shape
        inside = np.arange(0, CHUNK_BYTES, shape.element_bytes)
        chunks = self.base + self.chunks.index.astype(np.int64) * CHUNK_BYTES
        table = (chunks[..., None] + inside).reshape(len(chunks), -1)
        return table[:, : shape.rows].T if shape.is_mn_major else table


def place_tile(descriptor: MatrixDescriptor, shape: TileShape) -> Tile:
    """The operand that a matrix descriptor describes."""
    phase = descriptor.address % PATTERN_BYTES
    chunks = _tile_chunks(
        descriptor.leading_bytes, descriptor.stride_bytes, descriptor.swizzle, phase, shape
    )
    return Tile(shape, descriptor.address - phase, chunks)


def matrix_addresses(
    descriptor: MatrixDescriptor, rows: int, depth: int, *, element_bytes: int, mn_major: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`[rows, depth]` addresses of a matrix's elements, and the 4-byte cells that it covers, ascending."""
    tile = place_tile(descriptor, TileShape(rows, depth, element_bytes, mn_major))
    cells = tile.cells
    numbers = np.arange(cells.start, cells.stop) if isinstance(cells, slice) else cells
    return tile.addresses(), numbers


@functools.lru_cache(maxsize=4096)
def _tile_chunks(
    leading_bytes: int, stride_bytes: int, swizzle: Swizzle, phase: int, shape: TileShape
) -> Chunks:
    """Chunks of an operand relative to the 1024 bytes that hold its start.

    The canonical layouts of PTX ISA 9.7.15.5.1.2.1.3 (wgmma) and 9.7.16.3.3 (tcgen05), in units of T elements, that
    is chunks; `m` and `k` count repetitions:

        K-major, none          ((8, m), 2k)          : ((1, SBO), LBO)
        K-major, span of w     ((8, m), 2k)          : ((w, SBO), 1)
        MN-major, none         (m, (8, k))           : (SBO, (1, LBO))
        MN-major, span of w    ((w, m), (8, k))      : ((1, LBO), (w, SBO))
    """
    span = swizzle.span_bytes or CHUNK_BYTES
    if shape.is_mn_major:
        lines = np.arange(shape.k, dtype=np.int64)[:, None]
        across = np.arange(-(-shape.rows * shape.element_bytes // CHUNK_BYTES), dtype=np.int64)
        in_panel, between_panels, between_groups = span // CHUNK_BYTES, leading_bytes, stride_bytes
        if not swizzle.span_bytes:
            between_panels, between_groups = stride_bytes, leading_bytes
    else:
        lines = np.arange(shape.rows, dtype=np.int64)[:, None]
        across = np.arange(shape.k * shape.element_bytes // CHUNK_BYTES, dtype=np.int64)
        in_panel, between_panels, between_groups = len(across), 0, stride_bytes
        if not swizzle.span_bytes:
            in_panel, between_panels = 1, leading_bytes
    offsets = (
        lines % _GROUP_ROWS * span
        + lines // _GROUP_ROWS * between_groups
        + across % in_panel * CHUNK_BYTES
        + across // in_panel * between_panels
    )
    return _chunks(swizzle.apply(phase + offsets))


@functools.lru_cache(maxsize=1024)
def box_chunks(rows: int, row_bytes: int, swizzle: Swizzle, phase: int) -> Chunks:
    """`[rows, chunks of a row]`: where a tensor copy puts a box, relative to the 1024 bytes that hold its start.

    Rows of the innermost dimension follow each other; under a swizzle each takes a whole row of the pattern (PTX ISA
    5.5.6; CUDA programming guide, "TMA swizzle": "allocated to accommodate the full swizzle width").

    Args:
        rows: Product of the outer dimensions of the box.
        row_bytes: Of the innermost dimension, a multiple of 16.
        swizzle: The map's.
        phase: Start of the box modulo 1024.
    """
    pitch = swizzle.span_bytes or row_bytes
    lines = np.arange(rows, dtype=np.int64)[:, None] * pitch
    across = np.arange(0, row_bytes, CHUNK_BYTES, dtype=np.int64)
    return _chunks(swizzle.apply(phase + lines + across))
