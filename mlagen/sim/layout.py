"""Where elements lie: swizzles, matrix descriptors, and the register fragments of `wgmma`.

Everything here is arithmetic on indices; results are cached and must not be written to.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.intp]

# A swizzle pattern repeats after at most so many bytes; it acts on absolute shared addresses.
PATTERN_BYTES = 1024
CHUNK_BYTES = 16
_ADDRESS_BITS = (1 << 14) - 1
_SWIZZLE_CHUNKS = {0: 0, 32: 1, 64: 3, 128: 7}
_HOPPER_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_BLACKWELL_SWIZZLES = {0: 0, 2: 128, 4: 64, 6: 32}


def swizzled(addresses: Index | int, swizzle_bytes: int) -> Index:
    """Shared addresses as the hardware permutes them: bits 4 to 6 are XORed with bits 7 to 9, as far as the mode goes.

    PTX ISA 5.5.7, Swizzling modes. The map is its own inverse.

    Args:
        addresses: Byte addresses.
        swizzle_bytes: 128, 64, 32, or 0 for none.
    """
    whole = np.asarray(addresses, dtype=np.intp)
    return whole ^ (((whole >> 7) & _SWIZZLE_CHUNKS[swizzle_bytes]) << 4)


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A shared-memory matrix descriptor.

    Attributes:
        address: Of the first element; the field has 18 bits of it.
        leading_bytes: Leading-dimension byte offset.
        stride_bytes: Stride-dimension byte offset.
        swizzle_bytes: 128, 64, 32, or 0 for none.
    """

    address: int
    leading_bytes: int
    stride_bytes: int
    swizzle_bytes: int


@functools.lru_cache(maxsize=4096)
def decode_hopper(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The 64-bit descriptor of `wgmma` (PTX ISA 9.7.15.5.1.2.2), and what is wrong with it."""
    problems = [
        f"reserved bits {low}-{low + width - 1} are {found:#x}"
        for low, width in ((14, 2), (30, 2), (46, 3), (52, 10))
        if (found := value >> low & (1 << width) - 1)
    ]
    return _common_fields(value, _HOPPER_SWIZZLES[value >> 62], problems)


@functools.lru_cache(maxsize=4096)
def decode_blackwell(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The 64-bit descriptor of `tcgen05` (PTX ISA 9.7.16.4.1), and what is wrong with it."""
    problems = [
        f"reserved bits {low}-{low + width - 1} are {found:#x}"
        for low, width in ((14, 2), (30, 2), (53, 8))
        if (found := value >> low & (1 << width) - 1)
    ]
    if value >> 46 & 7 != 1:
        problems.append(f"bits 46-48 are {value >> 46 & 7}, they must be 1")
    if value >> 52 & 1:
        problems.append("bit 52 (absolute leading offset) is set")
    code = value >> 61
    if code not in _BLACKWELL_SWIZZLES:
        problems.append(f"swizzle mode {code} is not simulated")
    return _common_fields(value, _BLACKWELL_SWIZZLES.get(code, 0), problems)


def _common_fields(
    value: int, swizzle_bytes: int, problems: list[str]
) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    if base := value >> 49 & 7:
        problems.append(f"base offset {base}: a tile must start where its swizzle pattern does")
    descriptor = MatrixDescriptor(
        (value & _ADDRESS_BITS) << 4,
        (value >> 16 & _ADDRESS_BITS) << 4,
        (value >> 32 & _ADDRESS_BITS) << 4,
        swizzle_bytes,
    )
    return descriptor, tuple(problems)


def canonical_offsets(
    descriptor: MatrixDescriptor, rows: int, depth: int, *, element_bytes: int, mn_major: bool
) -> Index:
    """`[rows, depth]` byte offsets of elements (M or N, K) from the start address, before the swizzle.

    PTX ISA 9.7.15.5.1.2 and 9.7.16.5.1, Canonical layouts: in units of T = 16 bytes of elements, K-major
    `((8, m), (T, 2k))` and MN-major `((T, w, m), (8, k))`, w chunks being the swizzle's width.
    """
    row = np.arange(rows, dtype=np.intp)[:, None]
    k = np.arange(depth, dtype=np.intp)[None, :]
    leading, stride = descriptor.leading_bytes, descriptor.stride_bytes
    chunk = CHUNK_BYTES // element_bytes
    width = descriptor.swizzle_bytes or CHUNK_BYTES
    panel = width // element_bytes
    if mn_major:
        within = row % panel * element_bytes + k % 8 * width
        if descriptor.swizzle_bytes:
            return within + row // panel * leading + k // 8 * stride
        return within + row // panel * stride + k // 8 * leading
    within = row % 8 * width + row // 8 * stride
    if descriptor.swizzle_bytes:
        return within + k * element_bytes
    return within + k // chunk * leading + k % chunk * element_bytes


@functools.lru_cache(maxsize=1024)
def _relative_addresses(
    descriptor: MatrixDescriptor, rows: int, depth: int, element_bytes: int, mn_major: bool
) -> tuple[Index, Index]:
    """Addresses of elements and cells of 4 bytes, of a descriptor whose address is below `PATTERN_BYTES`."""
    offsets = canonical_offsets(
        descriptor, rows, depth, element_bytes=element_bytes, mn_major=mn_major
    )
    addresses = swizzled(descriptor.address + offsets, descriptor.swizzle_bytes)
    return addresses, np.unique(addresses >> 2)


def matrix_addresses(
    descriptor: MatrixDescriptor, rows: int, depth: int, *, element_bytes: int, mn_major: bool
) -> tuple[Index, Index]:
    """Shared addresses `[rows, depth]` of a matrix's elements, and the 4-byte cells that it touches, ascending."""
    start = descriptor.address // PATTERN_BYTES * PATTERN_BYTES
    relative = MatrixDescriptor(
        descriptor.address - start,
        descriptor.leading_bytes,
        descriptor.stride_bytes,
        descriptor.swizzle_bytes,
    )
    addresses, cells = _relative_addresses(relative, rows, depth, element_bytes, mn_major)
    return addresses + start, cells + (start >> 2)


# Fragments of one warp of `wgmma` (PTX ISA 9.7.15.5.1.1, register fragments): 16 rows of the warpgroup's 64. Lane
# l = 4 i + j holds rows i and i + 8.


def accumulator_to_registers(tile: NDArray[np.float32]) -> NDArray[np.float32]:
    """`[16, n]` of D to `[n / 2, 32]`: register 4 c + 2 h + e is row i + 8 h, column 8 c + 2 j + e."""
    n = tile.shape[1]
    return tile.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3).reshape(n // 2, 32)


def registers_to_accumulator(registers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse of `accumulator_to_registers`."""
    columns = registers.shape[0] // 4
    parts = registers.reshape(columns, 2, 2, 8, 4)
    return parts.transpose(1, 3, 0, 4, 2).reshape(16, 8 * columns)


def registers_to_a(
    registers: NDArray[np.uint32], element_bytes: int
) -> NDArray[np.unsignedinteger]:
    """`[4, 32]` registers of A to `[16, 32 / element_bytes]` raw elements.

    Register 2 c + h holds row i + 8 h, and in K a run of 4 bytes a lane at 16 c + 4 j.
    """
    types: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    per_word = 4 // element_bytes
    raw = np.ascontiguousarray(registers).view(types[element_bytes])
    parts = raw.reshape(2, 2, 8, 4, per_word)
    return parts.transpose(1, 2, 0, 3, 4).reshape(16, 8 * per_word)
