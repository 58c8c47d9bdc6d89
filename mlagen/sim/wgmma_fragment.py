"""Fragments of `wgmma`: what lies in which register of which thread (PTX ISA 9.7.15.5.1.1, figures 148 to 153).

With warp w, lane l and register j of a thread:

    D   row 16 w + l / 4 + 8 (j / 2 % 2), column 8 (j / 4) + 2 (l % 4) + j % 2; two of f16 in a register
    A   row 16 w + l / 4 + 8 (j % 2), k = (j / 2) (16 bytes) + (l % 4) (4 bytes) + place in the register
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.elements import RAW_TYPES
from mlagen.sim.hardware import LANES, WARPS_OF_WARPGROUP

if TYPE_CHECKING:
    from numpy.typing import NDArray

THREADS = LANES * WARPS_OF_WARPGROUP
ROWS = 64
_D_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def registers_of_d(values: NDArray[Any], d_type: str) -> NDArray[np.uint32]:
    """`[registers, 128]` words of a warpgroup from `[64, n]` values."""
    n = values.shape[1]
    # row = (warp, half, lane / 4), column = (group, lane % 4, place)
    parts = values.astype(_D_TYPES[d_type], copy=False).reshape(4, 2, 8, n // 8, 4, 2)
    if d_type == "f16":
        packed = np.ascontiguousarray(parts.transpose(3, 1, 0, 2, 4, 5)).view(np.uint32)
        return packed.reshape(n // 4, THREADS)
    ordered = np.ascontiguousarray(parts.transpose(3, 1, 5, 0, 2, 4))
    return ordered.view(np.uint32).reshape(n // 2, THREADS)


def d_of_registers(registers: NDArray[np.uint32], d_type: str) -> NDArray[Any]:
    """The inverse of `registers_of_d`; f16 as float32."""
    typed: NDArray[Any] = registers.view(_D_TYPES[d_type])
    if d_type == "f16":
        parts = typed.reshape(-1, 2, 4, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5)
        return parts.reshape(ROWS, -1).astype(np.float32)
    return typed.reshape(-1, 2, 2, 4, 8, 4).transpose(3, 1, 4, 0, 5, 2).reshape(ROWS, -1)


def a_of_registers(registers: NDArray[np.uint32], element_bytes: int) -> NDArray[Any]:
    """`[64, k]` elements as unsigned integers from `[4, 128]` words of a warpgroup."""
    places = 4 // element_bytes
    typed: NDArray[Any] = registers.view(RAW_TYPES[element_bytes])
    parts = typed.reshape(2, 2, 4, 8, 4, places)
    return parts.transpose(2, 1, 3, 0, 4, 5).reshape(ROWS, 8 * places)
