"""One launch of a micro-kernel, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRELUDE = """
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern __shared__ __align__(1024) u8 shared[];

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
"""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Global memory of a launch.

    Attributes:
        data: Contents before it.
        is_output: Whether the contents afterwards are the result.
    """

    data: NDArray[Any]  # Any: buffers of all types
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Pointer:
    """A parameter: the address of a buffer."""

    buffer: int


@dataclass(frozen=True, slots=True)
class Map:
    """A parameter: a tensor map over a buffer; the fields are those of `TensorMapSpec`.

    Attributes:
        offset: Bytes from the start of the buffer to the map's base; may lie outside of it.
    """

    buffer: int
    element_type: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A launch.

    Attributes:
        name: `family/what`, unique.
        module: Whose text holds the kernel.
        entry: The kernel.
        buffers: Global memory.
        parameters: In the kernel's order; bytes are scalars and structs as they lie in memory.
        grid: CTAs.
        block: Threads.
        cluster: CTAs of a cluster; the kernel says the same with `__cluster_dims__`.
        shared_bytes: Dynamic shared memory.
    """

    name: str
    module: str
    entry: str
    buffers: tuple[Buffer, ...]
    parameters: tuple[Pointer | Map | bytes, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    cluster: int = 1
    shared_bytes: int = 0


def scalar(value: int, size: int = 4) -> bytes:
    """An integer parameter; negative ones in two's complement."""
    return (value % (1 << 8 * size)).to_bytes(size, "little")


def output(count: int, dtype: type[np.generic] = np.uint32, fill: int = 0xA5) -> Buffer:
    """A result buffer, filled with a pattern so that what is not written shows."""
    return Buffer(np.frombuffer(bytes([fill]) * (count * np.dtype(dtype).itemsize), dtype).copy(), True)
