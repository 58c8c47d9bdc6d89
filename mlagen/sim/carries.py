"""Integer instructions with a carry: numbers in several registers (PTX ISA 9.7.2)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.integers import high_product

if TYPE_CHECKING:
    from mlagen.sim.integers import Array, Call


@functools.cache
def extended(name: str, half: str, *, takes: bool, gives: bool) -> Call:
    """`add`, `sub` and `mad` of numbers in several registers: a carry (or borrow) comes in, goes out, or both.

    Args:
        name: `add`, `sub` or `mad`.
        half: Of the product: `lo` or `hi`.
        takes: Whether the last source is a carry.
        gives: Whether the last result is a carry.
    """

    def call(*arguments: Array) -> None:
        sources, results = arguments[: -1 - gives], arguments[-1 - gives :]
        if name == "mad":
            product = sources[0] * sources[1] if half == "lo" else high_product(*sources[:2])
            sources = (product, *sources[2:])
        unsigned = f"u{results[0].dtype.itemsize}"
        a, b = sources[0].view(unsigned), sources[1].view(unsigned)
        carry = sources[2].astype(unsigned) if takes else np.zeros((), unsigned)
        if name == "sub":
            total = a - b - carry
            over = (a < b) | ((a == b) & (carry != 0))
        else:
            total = a + b + carry
            over = (total < a) | ((total == a) & (carry != 0))
        results[0].view(unsigned)[...] = total
        if gives:
            results[1][...] = over

    return call
