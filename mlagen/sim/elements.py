"""Elements of matrix operands: bits to numbers, for both tensor units."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ELEMENT_BYTES = {
    "f16": 2,
    "bf16": 2,
    "tf32": 4,
    "e4m3": 1,
    "e5m2": 1,
    "u8": 1,
    "s8": 1,
}
# By bytes, the type of elements that have not been decoded.
RAW_TYPES: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # Any: NumPy types
INTEGERS = {"u8": np.uint8, "s8": np.int8}
_EIGHT_BIT_FLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
# tf32 keeps 10 bits of mantissa: the tensor core ignores the low 13 of a float32.
_TF32_MASK = np.uint32(0xFFFFE000)
_BF16_SHIFT = np.uint32(16)


@functools.cache
def _value_table(element_type: str) -> NDArray[np.float32]:
    """The value of every 8-bit float."""
    every = np.arange(256, dtype=np.uint8).view(_EIGHT_BIT_FLOATS[element_type])
    return np.asarray(every.astype(np.float32))


def decode_elements(raw: NDArray[Any], element_type: str) -> NDArray[Any]:
    """Values of elements given as unsigned integers of their width: float32, or integers as they are."""
    values: NDArray[Any]
    if element_type == "bf16":
        values = (raw.astype(np.uint32) << _BF16_SHIFT).view(np.float32)
    elif element_type == "f16":
        values = raw.view(np.float16).astype(np.float32)
    elif element_type == "tf32":
        values = (raw & _TF32_MASK).view(np.float32)
    elif element_type in INTEGERS:
        values = raw.view(INTEGERS[element_type])
    else:
        values = _value_table(element_type)[raw]
    return values
