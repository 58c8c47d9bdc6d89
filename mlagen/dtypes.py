"""Element types: one table of what each layer calls them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: The name in specs; equals torch's, so that `getattr(torch, name)` is the torch dtype.
        short: The name inside kernel names.
        ptx: The type suffix in PTX.
        size_bytes: Bytes of an element.
    """

    name: str
    short: str
    ptx: str
    size_bytes: int


BFLOAT16 = DType("bfloat16", "bf16", "bf16", 2)
FLOAT16 = DType("float16", "fp16", "f16", 2)
FLOAT8_E4M3 = DType("float8_e4m3fn", "e4m3", "e4m3", 1)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (BFLOAT16, FLOAT16, FLOAT8_E4M3)}
