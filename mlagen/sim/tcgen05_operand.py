"""Operands of `tcgen05.mma`, in shared and in tensor memory: their bytes as numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mlagen.sim.tcgen05_descriptor import BYTES_OF_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta
    from mlagen.sim.tensor_memory import Index, TensorMemory

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_EIGHT_BIT_FLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_INTEGERS = {"u8": np.uint8, "s8": np.int8}
# tf32 keeps 10 bits of mantissa: the tensor core ignores the low 13 of a float32.
_TF32_MASK = np.uint32(0xFFFFE000)


@functools.cache
def _value_table(element_type: str) -> NDArray[np.float32]:
    """The value of every 8-bit float."""
    every = np.arange(256, dtype=np.uint8).view(_EIGHT_BIT_FLOATS[element_type])
    return np.asarray(every.astype(np.float32))


def decode_elements(raw: NDArray[Any], element_type: str) -> NDArray[Any]:
    """Values of elements given as unsigned integers of their width: float32, or integers as they are."""
    if element_type == "bf16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if element_type == "f16":
        return raw.view(np.float16).astype(np.float32)
    if element_type == "tf32":
        return (raw & _TF32_MASK).view(np.float32)
    if element_type in _INTEGERS:
        return raw.view(_INTEGERS[element_type])
    return _value_table(element_type)[raw]


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
        raw = words.view(_UNSIGNED[BYTES_OF_TYPE[self.element_type]])
        return decode_elements(raw, self.element_type)


@dataclass(frozen=True, slots=True, eq=False)
class SharedTile:
    """A or B in shared memory.

    Attributes:
        cta: Whose shared memory.
        addresses: `[rows, k]`, of each element.
        element_type: `bf16`, `e4m3`, ...
    """

    cta: Cta
    addresses: NDArray[np.intp]
    element_type: str

    def read(self) -> NDArray[Any]:
        """`[rows, k]` values as they are now."""
        size = BYTES_OF_TYPE[self.element_type]
        raw = self.cta.shared.bytes.view(_UNSIGNED[size])[self.addresses // size]
        return decode_elements(raw, self.element_type)
