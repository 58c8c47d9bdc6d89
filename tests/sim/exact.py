"""Floats as exact fractions, and their rounding by definition: a reference for conversions and arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

# A float's value: a number, an infinity, or NaN; zeros keep their sign as -0.0.
Value = Fraction | float


@dataclass(frozen=True)
class Format:
    """An IEEE-like binary float.

    Attributes:
        exponent: Bits.
        mantissa: Bits.
        finite_only: Whether the largest exponent holds numbers, and only all ones are NaN (e4m3), or not even these.
    """

    exponent: int
    mantissa: int
    finite_only: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    def decode(self, pattern: int) -> Value:
        sign = -1 if pattern >> (self.bits - 1) else 1
        exponent = pattern >> self.mantissa & (1 << self.exponent) - 1
        fraction = pattern & (1 << self.mantissa) - 1
        if not self.finite_only and exponent == (1 << self.exponent) - 1:
            return math.nan if fraction else sign * math.inf
        if exponent == 0 and fraction == 0:
            return math.copysign(0.0, sign)
        scale = max(exponent, 1) - self.bias - self.mantissa
        number = fraction + (1 << self.mantissa if exponent else 0)
        return sign * number * Fraction(2) ** scale

    def encode(self, value: Value, mode: str = "rn") -> int:
        """The bits of a value rounded by `rn`, `rz`, `rm`, `rp` or `rna`; overflow as IEEE 754 says."""
        top = (1 << self.exponent) - 1 << self.mantissa
        if isinstance(value, float):
            if math.isnan(value):
                return (1 << (self.bits - 1)) - 1
            sign = 1 << (self.bits - 1) if math.copysign(1, value) < 0 else 0
            if math.isinf(value):
                return sign | top
            if value == 0:
                return sign
            value = Fraction(value)
        if value == 0:
            return 0
        sign = 1 << (self.bits - 1) if value < 0 else 0
        magnitude = abs(value)
        exponent = max(_log2(magnitude), 1 - self.bias)
        scaled = magnitude / Fraction(2) ** (exponent - self.mantissa)
        whole = scaled.numerator // scaled.denominator
        rest = scaled - whole
        up = {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rm": bool(sign) and rest > 0,
            "rp": not sign and rest > 0,
        }[mode]
        pattern = (exponent - 1 + self.bias << self.mantissa) + whole + up
        if not self.finite_only and pattern >= top:
            to_infinity = mode in ("rn", "rna") or mode == ("rm" if sign else "rp")
            pattern = top if to_infinity else top - 1
        return sign | pattern


def _log2(value: Fraction) -> int:
    """The exponent of the largest power of two that is not larger."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if value >= Fraction(2) ** guess else guess - 1


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
E4M3, E5M2 = Format(4, 3, finite_only=True), Format(5, 2)
E2M1, E2M3, E3M2 = (Format(*bits, finite_only=True) for bits in ((2, 1), (2, 3), (3, 2)))
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def add(a: Value, b: Value) -> Value:
    if isinstance(a, float) or isinstance(b, float):
        if a == 0 and b == 0:
            return float(a) + float(b)  # zeros have signs
        if a == 0:
            return b
        if b == 0:
            return a
        return (a if isinstance(a, float) else 0.0) + (b if isinstance(b, float) else 0.0)
    total = a + b
    return total or 0.0


def multiply(a: Value, b: Value) -> Value:
    if isinstance(a, float) or isinstance(b, float):
        return _one_like(a) * _one_like(b)
    return a * b


def _one_like(value: Value) -> float:
    """A float with the sign of a value, and its kind: zero, infinite, NaN, or else one."""
    if isinstance(value, float):
        return value
    return 1.0 if value > 0 else -1.0


def interesting(form: Format, count: int, seed: int) -> list[int]:
    """Bit patterns: zeros, ones, extremes, subnormals, infinities, NaN, ties, and random ones."""
    import random

    source = random.Random(seed)  # noqa: S311  # test data
    one = form.bias << form.mantissa
    top = (1 << form.exponent) - 1 << form.mantissa
    sign = 1 << (form.bits - 1)
    special = [
        0,
        sign,
        one,
        sign | one,
        1,
        sign | 1,
        top - 1,
        sign | top - 1,
        top,
        sign | top,
        top | 1 << form.mantissa - 1,
    ]
    special += [
        one + 1,
        one - 1,
        (1 << form.mantissa) - 1,
        1 << form.mantissa,
        one + (1 << form.mantissa),
    ]
    near_one = [
        sign * source.getrandbits(1)
        | one + source.randrange(-6 << form.mantissa, 6 << form.mantissa)
        for _ in range(count)
    ]
    wild = [source.getrandbits(form.bits) for _ in range(count)]
    patterns = special + [pattern for pair in zip(near_one, wild, strict=True) for pattern in pair]
    source.shuffle(patterns)
    return patterns[:count] if count < len(special) else (special + patterns)[:count]
