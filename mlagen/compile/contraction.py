"""What PTX leaves to ptxas: whether a product and the sum it goes into are rounded once or twice.

PTX ISA 9.7.3 ("Floating-Point Instructions: mul"): sequences of `mul` and `add` without rounding modifiers may become
fused multiply-adds. A kernel that has none computes the same wherever its PTX runs: on a GPU, whatever the version of
ptxas, and in the simulator.
"""

from __future__ import annotations

import re

from mlagen.compile.finding import Finding

_PRODUCT = re.compile(r"^\s*mul(?:\.ftz)?\.f32\s+(%\w+),.*;", re.MULTILINE)
_SUM = re.compile(r"^\s*(?:add|sub)(?:\.ftz)?\.f32\s+%\w+, (%\w+), (%\w+);", re.MULTILINE)
_SHOWN = 3


def check_contraction(ptx: str) -> list[Finding]:
    """Return the products that ptxas may fuse with a sum; each register of PTX is looked at as if written once."""
    products = {found[1]: found[0].strip() for found in _PRODUCT.finditer(ptx)}
    pairs = [
        f"{products[factor]} {found[0].strip()}"
        for found in _SUM.finditer(ptx)
        for factor in found.groups()
        if factor in products
    ]
    if not pairs:
        return []
    message = f"{len(pairs)} products may be fused with a sum: write fmaf or __fmul_rn"
    return [Finding("contraction", message, tuple(pairs[:_SHOWN]))]
