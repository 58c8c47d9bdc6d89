"""What one launch consists of, as plain values: written by `runtime`, read by the driver layer and by the simulator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """The arguments of `cuTensorMapEncodeTiled` for one tensor.

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
    """One kernel launch.

    Attributes:
        entry: Name of the kernel.
        grid: Blocks in x; y and z are 1.
        block: Threads in x.
        shared_memory_bytes: Dynamic shared memory.
        tensor_maps: In parameter order.
        arguments: `(name, ctype, value)` of the parameters after the maps; a pointer's value is its address.
    """

    entry: str
    grid: int
    block: int
    shared_memory_bytes: int
    tensor_maps: tuple[TensorMapSpec, ...]
    arguments: tuple[tuple[str, str, int | float], ...]
