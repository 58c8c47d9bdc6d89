"""Outputs that know whether a kernel wrote all of them and nothing else.

An output is a view into a larger buffer. Before a launch every element of the buffer holds one bit
pattern, a NaN that no arithmetic gives; after it, the pattern must be gone from the view and whole
around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.workloads import Device

# Quiet NaNs whose payload no instruction makes, as signed integers of the element's width.
_PATTERNS = {
    torch.bfloat16: (torch.int16, 0x7FD5),
    torch.float16: (torch.int16, 0x7ED5),
    torch.float32: (torch.int32, 0x7FD5A5A5),
}


@dataclass(frozen=True, slots=True)
class Guarded:
    """One output inside its guards.

    Attributes:
        buffer: The whole allocation.
        view: What a kernel is given.
        written_rows: Leading rows of the view that it must write; the rest counts as guard.
    """

    buffer: torch.Tensor
    view: torch.Tensor
    written_rows: int

    def poison(self) -> None:
        """Fill view and guards with the pattern."""
        dtype, pattern = _PATTERNS[self.buffer.dtype]
        self.buffer.view(dtype).fill_(pattern)

    def bits(self) -> torch.Tensor:
        """A copy of the written rows, as integers."""
        return self.view[: self.written_rows].contiguous().view(_PATTERNS[self.buffer.dtype][0])

    def unwritten(self) -> int:
        """Elements of the written rows that still hold the pattern."""
        return int((self.bits() == _PATTERNS[self.buffer.dtype][1]).sum())

    def damaged(self) -> int:
        """Elements outside the written rows that do not hold the pattern any more."""
        dtype, pattern = _PATTERNS[self.buffer.dtype]
        outside = self.buffer.view(dtype) != pattern
        inside = self.view[: self.written_rows].view(dtype) != pattern
        return int(outside.sum()) - int(inside.sum())


def guarded(
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    device: Device,
    strided: bool = False,
    written_rows: int | None = None,
) -> Guarded:
    """A poisoned output with guard rows before and behind it; `strided` adds guard columns.

    A guard column group is 8 elements: 16 bytes of a 16-bit type, as tensor maps want it.
    """
    guard_rows = 64 if len(shape) == 3 else 1  # tokens, or whole sequences of a dense batch
    inner = [n + (8 if strided else 0) for n in shape[1:]]
    buffer = torch.empty((shape[0] + 2 * guard_rows, *inner), dtype=dtype, device=device)
    view = buffer[guard_rows : guard_rows + shape[0]]
    view = view[(slice(None), *(slice(n) for n in shape[1:]))]
    output = Guarded(buffer, view, shape[0] if written_rows is None else written_rows)
    output.poison()
    return output
