"""One launch of a micro-kernel, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.launch_record import TensorMapSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRELUDE = """
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern __shared__ __align__(1024) u8 shared[];

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init_barrier(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Gives up after a while: a wrong expectation must not hang a GPU.
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  for (u32 tries = 0; tries < 10000; ++tries) {
    u32 done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
  }
}

// All threads: 16-byte vectors from global into dynamic shared memory, for the async proxy to see.
__device__ __forceinline__ void fill(const uint4* from, u32 vectors) {
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) ((uint4*)shared)[i] = from[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void dump(uint4* to, u32 vectors) {
  for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) to[i] = ((uint4*)shared)[i];
}
"""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Global memory of a launch.

    Attributes:
        data: Contents before it.
        is_output: Whether the contents afterwards are the result.
        kind: Float type of the elements, if the bits of a NaN among them mean nothing; else empty.
    """

    data: NDArray[Any]  # Any: buffers of all types
    is_output: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A parameter: an address in a buffer."""

    buffer: int
    offset: int = 0


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

    def spec(self, address: int) -> TensorMapSpec:
        """The map, with the buffer at `address`."""
        return TensorMapSpec(
            address=address + self.offset,
            element_type=self.element_type,
            dims=self.dims,
            strides_bytes=self.strides_bytes,
            box=self.box,
            swizzle_bytes=self.swizzle_bytes,
        )


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
        is_approximate: Whether PTX leaves the last bits of the result open.
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
    is_approximate: bool = False


def scalar(value: int, size: int = 4) -> bytes:
    """An integer parameter; negative ones in two's complement."""
    return (value % (1 << 8 * size)).to_bytes(size, "little")


def output(
    count: int, dtype: type[np.generic] = np.uint32, *, fill: int = 0xA5, kind: str = ""
) -> Buffer:
    """A result buffer, filled with a pattern so that what is not written shows."""
    pattern = bytes([fill]) * (count * np.dtype(dtype).itemsize)
    return Buffer(np.frombuffer(pattern, dtype).copy(), True, kind)
