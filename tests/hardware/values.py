"""Bit patterns for every operand type: special values, any bits, ordinary floats and small integers by turns.

Element `i` depends on the seed and on `i` alone, so that few elements are the beginning of many, on every machine and
with every version of NumPy.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Unsigned = dict[int, type[np.unsignedinteger]]
UNSIGNED: Unsigned = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

# Significand and exponent bits of every float format.
FLOATS = {
    "f64": (52, 11),
    "f32": (23, 8),
    "tf32": (10, 8),
    "f16": (10, 5),
    "bf16": (7, 8),
    "e5m2": (2, 5),
    "e4m3": (3, 4),
}
WIDTHS = {"pred": 8, "f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e5m2": 8, "e4m3": 8}


def width(kind: str) -> int:
    """Bits of a type: `u16`, `bf16x2`, `pred` (kept as a byte), ..."""
    if kind.endswith("x2"):
        return 2 * width(kind[:-2])
    return WIDTHS[kind] if kind in WIDTHS else int(kind[1:])


def raw(seed: str, count: int) -> NDArray[np.uint64]:
    """`count` hashes of (seed, index): splitmix64."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest()))
    x = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def specials(kind: str) -> list[int]:
    """Patterns at which an instruction of this type is likely to err."""
    bits = width(kind)
    ones = (1 << bits) - 1
    if kind not in FLOATS:
        edges = [1 << (bits - 1), (1 << (bits - 1)) - 1, 1 << (bits // 2), 7, 8, 15, 16, 31, 32, 33]
        return [0, 1, 2, ones, ones - 1, *(edge & ones for edge in edges)]
    if kind == "tf32":  # the low 13 bits of a b32 mean nothing to the tensor core
        return [pattern & 0xFFFFE000 for pattern in specials("f32")]
    fraction, exponent = FLOATS[kind]
    one = ((1 << (exponent - 1)) - 1) << fraction
    infinity = ((1 << exponent) - 1) << fraction
    half = one - (1 << fraction)
    positive = [0, 1, (1 << fraction) - 1, 1 << fraction, half, one, one + 1, one - 1]
    positive += [one + (1 << fraction), one + (3 << fraction - 1), infinity - 1, infinity]
    positive += [infinity | 1 << (fraction - 1), infinity | 1, one + (fraction << fraction)]
    positive += [half | 1 << (fraction - 1), one | 1 << (fraction - 1)]
    return [*positive, *(pattern | 1 << (bits - 1) for pattern in positive)]


def ordinary(kind: str, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Floats whose exponents lie within 6 of 1's, of both signs; integers below 64 in size."""
    if kind == "tf32":
        return ordinary("f32", hashes) & np.uint64(0xFFFFE000)
    bits = width(kind)
    if kind not in FLOATS:
        small = (hashes >> np.uint64(8)) % np.uint64(64)
        signed = np.where(hashes & np.uint64(1), small, np.uint64(0) - small)
        return np.asarray(signed & np.uint64((1 << bits) - 1))
    fraction, exponent = FLOATS[kind]
    bias = (1 << (exponent - 1)) - 1
    reach = min(6, bias - 1)
    scale = np.uint64(bias - reach) + (hashes >> np.uint64(3)) % np.uint64(2 * reach + 1)
    significand = (hashes >> np.uint64(11)) & np.uint64((1 << fraction) - 1)
    sign = (hashes & np.uint64(1)) << np.uint64(bits - 1)
    return np.asarray(sign | scale << np.uint64(fraction) | significand)


def integers(kind: str, hashes: NDArray[np.uint64], largest: int) -> NDArray[np.uint64]:
    """Whole numbers from -largest to largest in a float format, exact there."""
    whole = ((hashes >> np.uint64(7)) % np.uint64(2 * largest + 1)).astype(np.int64) - largest
    return encode_integers(kind, whole)


def encode_integers(kind: str, whole: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Bit patterns of integers that the format holds exactly."""
    if kind not in FLOATS:
        return whole.astype(np.uint64) & np.uint64((1 << width(kind)) - 1)
    fraction, exponent = FLOATS["f32" if kind == "tf32" else kind]
    bias = (1 << (exponent - 1)) - 1
    size = np.abs(whole).astype(np.uint64)
    top = np.zeros(size.shape, np.uint64)
    for bit in range(1, 16):
        top[size >> np.uint64(bit) != 0] = bit
    shift = (np.uint64(fraction) - top).astype(np.int64)
    significand = size << np.maximum(shift, 0).astype(np.uint64)
    pattern = ((top + np.uint64(bias)) << np.uint64(fraction)) + (
        significand - (np.uint64(1) << np.uint64(fraction))
    )
    sign = (whole < 0).astype(np.uint64) << np.uint64(width(kind) - 1)
    return np.where(size == 0, np.uint64(0), sign | pattern)


def patterns(kind: str, seed: str, count: int) -> NDArray[np.unsignedinteger]:
    """`count` operands of a type: special, any bits, ordinary, special again, by turns of four."""
    if kind.endswith("x2"):
        half = patterns(kind[:-2], seed, 2 * count)
        return half.view(UNSIGNED[width(kind)])
    hashes = raw(seed, count)
    if kind == "pred":
        return (hashes >> np.uint64(9) & np.uint64(1)).astype(np.uint8)
    bits = width(kind)
    table = np.array(specials(kind), np.uint64)
    special = table[(hashes >> np.uint64(16)) % np.uint64(len(table))]
    anything = hashes >> np.uint64(64 - bits)
    turn = np.arange(count) % 4
    chosen = np.select([turn == 1, turn == 2], [anything, ordinary(kind, hashes)], special)
    return chosen.astype(UNSIGNED[bits])
