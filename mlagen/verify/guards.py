"""Outputs that know whether a kernel wrote all of them and nothing else.

An output is a view into a larger array. Before a launch every element of the array holds one bit pattern, a NaN that no
arithmetic gives; after it, the pattern must be gone from the rows to be written, and whole around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]  # Any: bfloat16, float16 and float32 alike

# Quiet NaNs whose payload no instruction makes, by bytes of an element.
_PATTERNS = {2: 0x7FD5, 4: 0x7FD5A5A5}
_GUARD_ROWS = 8
# 16 bytes of a 16-bit type, the least step of a tensor map's strides.
_GUARD_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Guarded:
    """One output inside its guards.

    Attributes:
        buffer: The whole array.
        view: What a kernel is given.
        written: Which of its rows the kernel must write, as an index; the rest counts as guard.
    """

    buffer: Array
    view: Array
    written: slice

    def unwritten(self) -> int:
        """Elements that the kernel should have written, and that still hold the pattern."""
        return int((_bits(self.view[self.written]) == self._pattern).sum())

    def damaged(self) -> int:
        """Elements around them that do not hold the pattern any more."""
        changed = int((_bits(self.buffer) != self._pattern).sum())
        return changed - int((_bits(self.view[self.written]) != self._pattern).sum())

    @property
    def _pattern(self) -> int:
        return _PATTERNS[self.buffer.itemsize]


def guarded(
    shape: Sequence[int], dtype: str, *, written: slice = slice(None), strided: bool = False
) -> Guarded:
    """A new output with guard rows before and behind it.

    Args:
        shape: Of the output.
        dtype: Of the output.
        written: Leading rows that a kernel must write.
        strided: Put guards between rows, too, so that the output has strides of its own.
    """
    inner = [size + (_GUARD_COLUMNS if strided else 0) for size in shape[1:]]
    rows = (shape[0] + 2 * _GUARD_ROWS, *inner)
    buffer = np.empty(rows, dtype=np.dtype(getattr(ml_dtypes, dtype, dtype)))
    _bits(buffer)[...] = _PATTERNS[buffer.itemsize]
    view = buffer[_GUARD_ROWS : _GUARD_ROWS + shape[0]]
    return Guarded(buffer, view[(slice(None), *map(slice, shape[1:]))], written)


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")
