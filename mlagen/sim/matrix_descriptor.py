"""The 64-bit matrix descriptors of `wgmma` and `tcgen05`: decoded, with everything that is illegal about them.

    bits    Hopper (PTX ISA 9.7.15.5.1.2.2)        Blackwell (9.7.16.4.1)
    0-13    start address >> 4                     same
    16-29   leading dimension byte offset >> 4     same
    32-45   stride dimension byte offset >> 4      same
    46-48   0                                      0b001
    49-51   base offset                            same
    52      0                                      leading dimension: 0 relative, 1 absolute (sm_103a)
    53-60   0                                      0
    61-63   62-63: 0 none, 1 128, 2 64, 3 32       0 none, 1 128 by 32, 2 128, 4 64, 6 32

An address that carries more than 18 bits (that of a CTA with a rank in a cluster) runs over into other fields, here as
on hardware.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mlagen.sim.layout import SWIZZLE_128_BY_32, SWIZZLES, Swizzle

_FIELD = (1 << 14) - 1
_ENCODE_SHIFT = 4
_HOPPER_SWIZZLES = {0: SWIZZLES[0], 1: SWIZZLES[128], 2: SWIZZLES[64], 3: SWIZZLES[32]}
_BLACKWELL_SWIZZLES = {
    0: SWIZZLES[0],
    1: SWIZZLE_128_BY_32,
    2: SWIZZLES[128],
    4: SWIZZLES[64],
    6: SWIZZLES[32],
}
_HOPPER_RESERVED = ((14, 15), (30, 31), (46, 48), (52, 61))
_BLACKWELL_RESERVED = ((14, 15), (30, 31), (47, 48), (53, 60))


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """Where a matrix lies in shared memory.

    Attributes:
        start: Address, a multiple of 16 below 2^18.
        leading_bytes: Leading dimension byte offset (LBO).
        stride_bytes: Stride dimension byte offset (SBO).
        swizzle: Of its lines.
    """

    start: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle


@functools.lru_cache(maxsize=65536)
def decode_hopper_descriptor(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The descriptor of a `wgmma` operand, and what is wrong with it."""
    problems = _common_problems(value, _HOPPER_RESERVED)
    return _descriptor(value, _HOPPER_SWIZZLES[value >> 62]), tuple(problems)


@functools.lru_cache(maxsize=65536)
def decode_blackwell_descriptor(value: int) -> tuple[MatrixDescriptor, tuple[str, ...]]:
    """The descriptor of a `tcgen05` operand, and what is wrong with it."""
    problems = _common_problems(value, _BLACKWELL_RESERVED)
    if not value >> 46 & 1:
        problems.append("bit 46 is 0; descriptors of tcgen05 have 0b001 in bits 46 to 48")
    if value >> 52 & 1:
        problems.append("bit 52 (absolute leading dimension) is set, which sm_100a does not have")
    swizzle = _BLACKWELL_SWIZZLES.get(value >> 61)
    if swizzle is None:
        problems.append(f"swizzle {value >> 61} (bits 61 to 63): there are 0, 1, 2, 4 and 6")
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
        start=(value & _FIELD) << _ENCODE_SHIFT,
        leading_bytes=(value >> 16 & _FIELD) << _ENCODE_SHIFT,
        stride_bytes=(value >> 32 & _FIELD) << _ENCODE_SHIFT,
        swizzle=swizzle,
    )
