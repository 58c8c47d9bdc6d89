"""What a launch hands to the hardware, as plain values: written by `runtime`, read by the driver layer."""

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
