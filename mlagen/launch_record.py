"""What a launch hands to the hardware, as plain values: written by `runtime`, read by the driver layer and by `sim`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """The arguments of `cuTensorMapEncodeTiled` for one tensor: no interleaving, and zeros outside of it.

    Attributes:
        address: Base address in bytes, 16-byte aligned.
        element_type: `bfloat16`, `float16` or `uint8`.
        dims: Elements per dimension, innermost first, 1 to 5 of them.
        strides_bytes: One fewer than `dims`; dimension 0 is contiguous.
        box: Elements of a box per dimension.
        swizzle_bytes: 128, 64, 32, or 0 for none.
    """

    address: int
    element_type: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 128


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch, complete: what a GPU or the simulator needs besides code and memory.

    Attributes:
        kernel: Name of the entry point.
        grid: CTAs in x, y, z.
        block: Threads of a CTA in x, y, z.
        shared_memory_bytes: Dynamic shared memory of a CTA.
        parameters: In the order of the kernel's parameters: tensor maps as descriptions, everything else packed as
            the device sees it (little endian, C alignment), addresses included.
        cluster: CTAs of a cluster in x, y, z.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_bytes: int
    parameters: tuple[TensorMapSpec | bytes, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
