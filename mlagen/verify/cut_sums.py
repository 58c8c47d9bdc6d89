"""Which kernels' tensor cores keep fewer digits of a sum than float32 has.

Hopper cuts each product of 8-bit floats, and the sum before, to 2^-13 of the largest of the 33, and the new sum to 13
bits behind the leading one (docs/validation.md). What Blackwell does is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.dtypes import FLOAT8_E4M3

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

SUM_BITS = 13


def cuts_sums(spec: KernelSpec) -> bool:
    """Whether a kernel's products are added so."""
    return spec.arch == "sm_90a" and spec.dtype == FLOAT8_E4M3.name
