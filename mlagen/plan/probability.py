"""How probabilities are scaled before they are rounded to the type of the operands, the same on every architecture."""

from __future__ import annotations

# Those of 8 bits by 2^8, which keeps those down to 2^-14 of the largest at full precision: they end at 448.
PROBABILITY_SHIFT = {"float8_e4m3fn": 8}
