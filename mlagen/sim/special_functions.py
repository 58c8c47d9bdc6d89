"""`ex2.approx`, `rcp.approx` and `lg2.approx` of f32, to the last bit of an H200.

The special function unit cuts the range of a mantissa into equal segments and computes in each

    c0 + c1 x + c2 x^2

with integer coefficients, x being the lower bits of the mantissa; Oberman and Siu describe the design in "A
High-Performance Area-Efficient Multifunction Interpolator", 2005. Two details decide the last bit: the square leaves
out all partial products below one column, and a constant makes up for that on average. The coefficients, the column
and the constants were found by asking an H200 for all mantissas (`benchmarks/fit_special_functions.py`): no answer
differs. Other GPUs may.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlagen.sim import special_function_tables as tables
from mlagen.sim.numerics import canonical_nan

# Any: arrays of whatever type the caller's view has.
Array = NDArray[Any]
Integers = NDArray[np.int64]

_FRACTION = 23
_IMPLICIT = 1 << _FRACTION
_BELOW_ONE = _IMPLICIT - 1
_BIAS = 127
_INFINITY = 0x7F80_0000
_NAN = canonical_nan(np.dtype(np.float32))
_SMALLEST_NORMAL = np.float32(2.0**-126)
_X_BITS = 17  # of x in the square
_LOWEST_COLUMN = 19  # of the square's partial products that count
_BEHIND_LG2 = 38  # fraction bits of the sum for lg2 ...
_LOST_OF_LG2 = 2  # ... the last of which do not count
_LOW_OF_FLOAT64 = 29  # fraction bits that a float32 lacks


@functools.cache
def squares() -> Integers:
    """`[2^17]`: x^2 of all x, without the partial products below a column, in units of that column."""
    x = np.arange(1 << _X_BITS, dtype=np.int64)
    bits = [x >> place & 1 for place in range(_X_BITS)]
    total = np.zeros_like(x)
    for i, bit in enumerate(bits):
        if 2 * i >= _LOWEST_COLUMN:
            total += bit << 2 * i
        for j in range(i + 1, _X_BITS):
            if i + j + 1 >= _LOWEST_COLUMN:
                total += (bit & bits[j]) << i + j + 1
    return total >> _LOWEST_COLUMN


@dataclass(frozen=True, slots=True)
class _Interpolation:
    """One function of the fraction of a mantissa.

    Attributes:
        c0: Constants of the segments, shifted into place, with what makes up for lost bits.
        c1: Slopes.
        c2: Curvatures, in units of the square.
        x_bits: Lower bits of the fraction; the others are the segment.
    """

    c0: Integers
    c1: Integers
    c2: Integers
    x_bits: int

    @classmethod
    def of(
        cls, rows: tuple[tuple[int, int, int], ...], *, shift: int, makeup: int, curvature: int
    ) -> _Interpolation:
        """From a table."""
        c0, c1, c2 = np.array(rows, np.int64).T
        x_bits = _FRACTION - (len(rows).bit_length() - 1)
        return cls((c0 << shift) + makeup, c1.copy(), c2 * curvature, x_bits)

    def __call__(self, fraction: Integers) -> Integers:
        """The sums for fractions of 23 bits."""
        segment = fraction >> self.x_bits
        x = fraction & ((1 << self.x_bits) - 1)
        total = self.c1.take(segment)
        total *= x
        x <<= _X_BITS - self.x_bits
        square = squares().take(x)
        square *= self.c2.take(segment)
        total += square
        total += self.c0.take(segment)
        return total


# Sums have 15 bits behind the last one of a float32 mantissa, or `_BEHIND_LG2` behind the point.
_EX2 = _Interpolation.of(tables.EX2, shift=13, makeup=6114, curvature=1)
_RCP = _Interpolation.of(tables.RCP, shift=13, makeup=2023, curvature=1)
_LG2 = _Interpolation.of(tables.LG2, shift=12, makeup=837, curvature=2)
_BEHIND_MANTISSA = 15


def ex2_ftz(a: Array, out: Array) -> None:
    """`ex2.approx.ftz.f32`.

    The argument becomes fixed-point, cut after 23 bits of fraction; a negative one with a fraction is complemented bit
    by bit, which makes it 2^-23 smaller.
    """
    with np.errstate(invalid="ignore"):
        scaled = np.clip(a, np.float32(-_BIAS), np.float32(128)) * np.float32(_IMPLICIT)
        fixed = scaled.astype(np.int64)
    fixed -= (fixed < 0) & (fixed & _BELOW_ONE != 0)
    bits = _EX2(fixed & _BELOW_ONE)
    bits >>= _BEHIND_MANTISSA
    fixed >>= _FRACTION
    fixed += _BIAS - 1
    fixed <<= _FRACTION
    bits += fixed
    bits *= bits >= _IMPLICIT
    out[...] = bits.astype(np.int32).view(np.float32)
    np.copyto(out, _NAN, where=np.isnan(a))


def ex2(a: Array, out: Array) -> None:
    """`ex2.approx.f32`: results that may be subnormal are squares of the power of half the argument."""
    small = a < np.float32(-126)
    ex2_ftz(np.where(small, a * np.float32(0.5), a), out)
    np.multiply(out, out, out, where=small)


def rcp_ftz(a: Array, out: Array) -> None:
    """`rcp.approx.ftz.f32`."""
    bits = np.ascontiguousarray(a).view(np.int32).astype(np.int64)
    exponent = bits >> _FRACTION & 0xFF
    found = _RCP(bits & _BELOW_ONE) >> _BEHIND_MANTISSA
    found += (2 * _BIAS - 2 - exponent) << _FRACTION
    found *= found >= _IMPLICIT
    found[exponent == 0] = _INFINITY
    np.copysign(found.astype(np.int32).view(np.float32), a, out)
    np.copyto(out, _NAN, where=np.isnan(a))


def rcp(a: Array, out: Array) -> None:
    """`rcp.approx.f32`: arguments at both ends are scaled to the middle, and so are the results."""
    size = np.abs(a)
    scale = np.where(size < _SMALLEST_NORMAL, 2.0**24, np.where(size > 2.0**125, 0.25, 1.0))
    scale = scale.astype(np.float32)
    with np.errstate(over="ignore"):
        rcp_ftz(a * scale, out)
        np.multiply(out, scale, out)


def lg2_ftz(a: Array, out: Array) -> None:
    """`lg2.approx.ftz.f32`: exponent and sum are added, complemented if negative, and cut to the bits of a float32."""
    bits = np.ascontiguousarray(a).view(np.int32).astype(np.int64)
    total = _LG2(bits & _BELOW_ONE) >> _LOST_OF_LG2
    total += ((bits >> _FRACTION) - _BIAS) << _BEHIND_LG2 - _LOST_OF_LG2
    size = np.where(total < 0, ~total, total) * 2.0 ** (_LOST_OF_LG2 - _BEHIND_LG2)
    cut = (size.view(np.int64) >> _LOW_OF_FLOAT64 << _LOW_OF_FLOAT64).view(np.float64)
    out[...] = np.copysign(cut, total.astype(np.float64))
    np.copyto(out, np.float32(0), where=a == 1)
    np.copyto(out, np.float32(-np.inf), where=np.abs(a) < _SMALLEST_NORMAL)
    np.copyto(out, np.float32(np.inf), where=a == np.inf)
    np.copyto(out, _NAN, where=np.isnan(a) | (a <= -_SMALLEST_NORMAL))


def lg2(a: Array, out: Array) -> None:
    """`lg2.approx.f32`: subnormal arguments are scaled."""
    small = np.abs(a) < _SMALLEST_NORMAL
    lg2_ftz(a * np.where(small, np.float32(2.0**24), np.float32(1)), out)
    np.subtract(out, np.float32(24), out, where=small)
