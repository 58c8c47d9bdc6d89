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
        is_scaled: Whether tensors of it come with a scale, by which their values are multiplied.
    """

    name: str
    short: str
    ptx: str
    size_bytes: int
    is_scaled: bool = False


BFLOAT16 = DType("bfloat16", "bf16", "bf16", 2)
FLOAT16 = DType("float16", "fp16", "f16", 2)
FLOAT8_E4M3 = DType("float8_e4m3fn", "e4m3", "e4m3", 1, is_scaled=True)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (BFLOAT16, FLOAT16, FLOAT8_E4M3)}


def default_output_dtype(dtype: str) -> str:
    """The element type of an output that a spec does not name: that of the operands, unless they need a scale."""
    return BFLOAT16.name if DTYPES[dtype].is_scaled else dtype
