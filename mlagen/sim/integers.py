"""Integer and bit instructions on arrays, where NumPy has no function of that meaning; results go to the last argument.

Sections are those of the PTX ISA, 9.7.1 (integer), 9.7.7 (extended precision) and 9.7.8 (logic and shift).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # Any: of whatever type the caller's view has
Call = Callable[..., None]


def minimum(a: Array, b: Array, out: Array) -> None:
    """`min`."""
    np.minimum(a, b, out=out)


def maximum(a: Array, b: Array, out: Array) -> None:
    """`max`."""
    np.maximum(a, b, out=out)


def multiply_wide(a: Array, b: Array, out: Array) -> None:
    """`mul.wide`: a product of twice the width."""
    np.multiply(a, b, out=out, dtype=out.dtype)


def multiply_add(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad.lo`."""
    np.add(a * b, c, out)


def multiply_add_wide(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad.wide`."""
    np.add(np.multiply(a, b, dtype=out.dtype), c, out)


def high_product(a: Array, b: Array) -> Array:
    """The upper half of a product of twice the width."""
    kind, bits = a.dtype.kind, 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.multiply(a, b, dtype=np.int64 if kind == "i" else np.uint64)
        high: Array = (wide >> wide.dtype.type(bits)).astype(a.dtype)
        return high
    half, low_bits = np.uint64(32), np.uint64(0xFFFF_FFFF)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x_low, x_high, y_low, y_high = x & low_bits, x >> half, y & low_bits, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & low_bits)
    result = x_high * y_high + (middle >> half) + (other >> half)
    if (
        kind == "i"
    ):  # as two's complement: the product of the patterns, less the other factor for a negative one
        result = result - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    product: Array = result.view(a.dtype)
    return product


def multiply_high(a: Array, b: Array, out: Array) -> None:
    """`mul.hi`."""
    out[...] = high_product(a, b)


def multiply_add_high(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad.hi`."""
    np.add(high_product(a, b), c, out)


def multiply_24(a: Array, b: Array, out: Array) -> None:
    """`mul24.lo`: the lower 32 bits of the product of the lower 24."""
    np.multiply(_low_24(a), _low_24(b), out)


def multiply_24_high(a: Array, b: Array, out: Array) -> None:
    """`mul24.hi`: bits 16 to 47 of the product of the lower 24."""
    out[...] = _product_24_high(a, b)


def multiply_add_24_high(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad24.hi`."""
    np.add(_product_24_high(a, b), c, out)


def multiply_add_high_saturating(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad.hi.sat.s32`."""
    saturating(np.add)(high_product(a, b), c, out)


def _product_24_high(a: Array, b: Array) -> Array:
    wide = np.multiply(_low_24(a), _low_24(b), dtype=np.int64 if a.dtype.kind == "i" else np.uint64)
    high: Array = (wide >> wide.dtype.type(16)).astype(a.dtype)
    return high


def multiply_add_24(a: Array, b: Array, c: Array, out: Array) -> None:
    """`mad24.lo`."""
    np.add(_low_24(a) * _low_24(b), c, out)


def _low_24(a: Array) -> Array:
    eight = a.dtype.type(8)
    low: Array = (a << eight) >> eight
    return low


def sum_of_absolute_differences(a: Array, b: Array, c: Array, out: Array) -> None:
    """`sad`."""
    np.add(np.maximum(a, b) - np.minimum(a, b), c, out)


def _magnitude(a: Array) -> Array:
    """Absolute values, unsigned: that of the smallest integer too."""
    if a.dtype.kind == "u":
        return a
    unsigned = a.view(f"u{a.dtype.itemsize}")
    return np.where(a < 0, -unsigned, unsigned)


def divide(a: Array, b: Array, out: Array) -> None:
    """`div`, towards zero; a division by zero gives all bits set."""
    x, y = _magnitude(a), _magnitude(b)
    zero = y == 0
    quotient = x // np.where(zero, y.dtype.type(1), y)
    if a.dtype.kind == "i":
        quotient = np.where((a < 0) ^ (b < 0), -quotient, quotient)
    out[...] = np.where(zero, ~y.dtype.type(0), quotient).view(a.dtype)


def remainder(a: Array, b: Array, out: Array) -> None:
    """`rem`, with the sign of the dividend; of a division by zero, the dividend."""
    x, y = _magnitude(a), _magnitude(b)
    rest = np.where(y == 0, x, x % np.where(y == 0, y.dtype.type(1), y))
    if a.dtype.kind == "i":
        rest = np.where(a < 0, -rest, rest)
    out[...] = rest.view(a.dtype)


def saturating(ufunc: np.ufunc) -> Call:
    """`add.sat.s32` and `sub.sat.s32`."""

    def call(a: Array, b: Array, out: Array) -> None:
        out[...] = np.clip(ufunc(a, b, dtype=np.int64), -(1 << 31), (1 << 31) - 1)

    return call


def cnot(a: Array, out: Array) -> None:
    """`cnot`: 1 for zero, else 0."""
    np.copyto(out, a == 0)


# --- Shifts: amounts beyond the width act like the width


def shift_left(a: Array, amount: Array, out: Array) -> None:
    """`shl`."""
    np.left_shift(a, amount, out=out, casting="unsafe")


def shift_right(a: Array, amount: Array, out: Array) -> None:
    """`shr`, arithmetic for signed types."""
    if a.dtype.kind == "i":
        amount = np.minimum(amount, np.uint32(63)).astype(np.int8)
    np.right_shift(a, amount, out=out, casting="unsafe")


@functools.cache
def funnel_shift(side: str, mode: str) -> Call:
    """`shf.l` and `shf.r`, `.wrap` or `.clamp`: a 64-bit value `{b, a}` shifted, its upper or lower half taken."""

    def call(a: Array, b: Array, c: Array, out: Array) -> None:
        amount = c & np.uint32(31) if mode == "wrap" else np.minimum(c, np.uint32(32))
        both = b.astype(np.uint64) << np.uint64(32) | a
        if side == "l":
            out[...] = (both >> (np.uint64(32) - amount)).astype(np.uint32)
        else:
            out[...] = (both >> amount.astype(np.uint64)).astype(np.uint32)

    return call


# --- Bits


def bit_length(a: Array) -> Array:
    """Number of the highest set bit plus one, as int64; 0 for 0."""
    if a.dtype.itemsize < 8:
        return np.frexp(a.astype(np.float64))[1].astype(np.int64)
    high = (a >> np.uint64(32)).astype(np.uint32)
    low = (a & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    length: Array = np.where(high != 0, bit_length(high) + 32, bit_length(low))
    return length


def count_leading_zeros(a: Array, out: Array) -> None:
    """`clz`."""
    out[...] = 8 * a.dtype.itemsize - bit_length(a)


def population_count(a: Array, out: Array) -> None:
    """`popc`."""
    out[...] = np.unpackbits(np.ascontiguousarray(a)[..., None].view(np.uint8), axis=-1).sum(
        axis=-1
    )


@functools.cache
def find_highest(*, shift_amount: bool) -> Call:
    """`bfind`: position of the highest bit that is not the sign; `.shiftamt`: what shifts it to the top."""

    def call(a: Array, out: Array) -> None:
        unsigned = a.view(f"u{a.dtype.itemsize}")
        if a.dtype.kind == "i":
            unsigned = np.where(a < 0, ~unsigned, unsigned)
        position = bit_length(unsigned) - 1
        if shift_amount:
            position = np.where(position < 0, -1, 8 * a.dtype.itemsize - 1 - position)
        out[...] = position.astype(np.uint32)

    return call


def reverse_bits(a: Array, out: Array) -> None:
    """`brev`."""
    octets = np.ascontiguousarray(a)[..., None].view(np.uint8)
    reversed_octets = np.packbits(np.unpackbits(octets, axis=-1), axis=-1, bitorder="little")
    out[...] = np.ascontiguousarray(reversed_octets[..., ::-1]).view(a.dtype)[..., 0]


def extract_field(a: Array, position: Array, length: Array, out: Array) -> None:
    """`bfe`: a field, zero- or sign-extended; beyond the top it is filled with the sign (9.7.1.20)."""
    bits = 8 * a.dtype.itemsize
    start, count = _byte_or_less(position, bits), _byte_or_less(length, bits)
    unsigned = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    field = np.right_shift(unsigned, start.astype(np.uint64)) & _low_mask(count)
    if a.dtype.kind == "i":
        sign_at = np.minimum(start + count - 1, bits - 1)
        negative = (unsigned >> np.maximum(sign_at, 0).astype(np.uint64) & np.uint64(1)) != 0
        inside = np.clip(bits - start, 0, count)
        field = np.where(negative & (count > 0), field | ~_low_mask(inside), field)
    np.copyto(out, field, casting="unsafe")


def _byte_or_less(amount: Array, bits: int) -> Array:
    """A place or a length of 0 to 255: the low byte; of 64-bit fields all of it counts (seen on an H200)."""
    kept = amount & np.uint32(255) if bits < 64 else np.minimum(amount, np.uint32(255))
    return np.asarray(kept).astype(np.int64)


def insert_field(a: Array, b: Array, position: Array, length: Array, out: Array) -> None:
    """`bfi`: the low bits of `a` placed into `b`."""
    bits = 8 * a.dtype.itemsize
    start = _byte_or_less(position, bits).astype(np.uint64)
    mask = _low_mask(_byte_or_less(length, bits)) << start
    np.copyto(out, (b & ~mask) | (a.astype(np.uint64) << start & mask), casting="unsafe")


def bit_mask_wrapping(position: Array, length: Array, out: Array) -> None:
    """`bmsk.wrap`: the same modulo 32."""
    bit_mask(position & np.uint32(31), length & np.uint32(31), out)


def extend_sign_wrapping(a: Array, position: Array, out: Array) -> None:
    """`szext.wrap`: the same modulo 32."""
    extend_sign(a, position & np.uint32(31), out)


def positive_extreme(ufunc: np.ufunc) -> Call:
    """`min.relu` and `max.relu`: no less than 0."""

    def call(a: Array, b: Array, out: Array) -> None:
        np.maximum(ufunc(a, b), out.dtype.type(0), out=out)

    return call


def bit_mask(position: Array, length: Array, out: Array) -> None:
    """`bmsk.clamp`: `length` ones from `position` on."""
    start = np.minimum(position, np.uint32(32)).astype(np.uint64)
    count = np.minimum(length, np.uint32(32)).astype(np.int64)
    np.copyto(out, _low_mask(count) << start, casting="unsafe")


def _low_mask(count: Array) -> Array:
    """Masks of the lowest `count` bits of 64."""
    return np.where(
        count >= 64,
        ~np.uint64(0),
        np.left_shift(np.uint64(1), count.astype(np.uint64)) - np.uint64(1),
    )


def extend_sign(a: Array, position: Array, out: Array) -> None:
    """`szext.clamp`: bits from `position` on become copies of the bit below (signed) or zeros (unsigned)."""
    count = np.minimum(position, np.uint32(32)).astype(np.int64)
    field = a.view(np.uint32) & _low_mask(count)
    if a.dtype.kind == "i":
        negative = (field >> np.maximum(count - 1, 0).astype(np.uint64) & np.uint64(1)) != 0
        field = np.where(negative & (count > 0), field | ~_low_mask(count), field)
    np.copyto(out, field, casting="unsafe")


def logic_of_3(a: Array, b: Array, c: Array, table: Array, out: Array) -> None:
    """`lop3`: bit `4 a + 2 b + c` of the table, for every bit."""
    result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for row in range(8):
        chosen = -(table >> np.uint32(row) & np.uint32(1))
        result |= chosen & (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    out[...] = result


_PERMUTE_MODES = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}


@functools.cache
def permute_bytes(mode: str) -> Call:
    """`prmt`: four of the eight bytes of `{b, a}` (9.7.8.7); bit 3 of a selector copies the byte's sign instead."""
    table = np.array(_PERMUTE_MODES[mode], np.uint32)[:, ::-1] if mode else None

    def call(a: Array, b: Array, c: Array, out: Array) -> None:
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros(out.shape, np.uint32)
        for place in range(4):
            selector = (
                c >> np.uint32(4 * place) & np.uint32(15)
                if table is None
                else table[c & np.uint32(3), place]
            )
            byte = (both >> (np.uint64(8) * (selector & np.uint32(7))) & np.uint64(255)).astype(
                np.uint32
            )
            if table is None:
                sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
                byte = np.where(selector & np.uint32(8), sign, byte)
            result |= byte << np.uint32(8 * place)
        out[...] = result

    return call


@functools.cache
def dot_product(a_kind: str, b_kind: str, half: str = "") -> Call:
    """`dp4a`, and `dp2a.lo` / `.hi`: products of bytes (or of halves with bytes), summed to `c`."""

    def call(a: Array, b: Array, c: Array, out: Array) -> None:
        total = c.astype(np.int64)
        for index in range(2 if half else 4):
            width = 16 if half else 8
            x = _part(a, index, width, a_kind)
            y = _part(b, index + 2 * (half == "hi"), 8, b_kind)
            total = total + x * y
        np.copyto(out, total, casting="unsafe")

    return call


def _part(a: Array, index: int, width: int, kind: str) -> Array:
    unsigned = (a.view(np.uint32) >> np.uint32(width * index)) & np.uint32((1 << width) - 1)
    value: Array = unsigned.astype(np.int64)
    return (
        np.where(value >> (width - 1) != 0, value - (1 << width), value)
        if kind[0] == "s"
        else value
    )
