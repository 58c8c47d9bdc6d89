"""How two results differ: bit for bit, NaN as one value, or in units in the last place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.values import FLOATS, UNSIGNED, width

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _bits(data: bytes | NDArray[np.generic], kind: str) -> NDArray[np.unsignedinteger]:
    dtype = UNSIGNED[width(kind.removesuffix("x2"))]
    return np.frombuffer(data, dtype) if isinstance(data, bytes) else data.view(dtype)


def _is_nan(bits: NDArray[np.unsignedinteger], kind: str) -> NDArray[np.bool_]:
    fraction, exponent = FLOATS[kind.removesuffix("x2")]
    infinity = ((1 << exponent) - 1) << fraction
    size = bits & bits.dtype.type((1 << (fraction + exponent)) - 1)
    return np.asarray(size > infinity)


def canonical(data: bytes, kind: str) -> bytes:
    """The bytes with every NaN the same; `kind` is that of `case.Buffer`, empty for bits that all count."""
    if not kind:
        return data
    bits = _bits(data, kind)
    fraction, exponent = FLOATS[kind.removesuffix("x2")]
    quiet = ((1 << (exponent + 1)) - 1) << (fraction - 1)
    return np.where(_is_nan(bits, kind), bits.dtype.type(quiet), bits).tobytes()


def ulp_distances(
    one: bytes | NDArray[np.generic], other: bytes | NDArray[np.generic], kind: str
) -> NDArray[np.int64]:
    """How many floats of the format lie between two; 0 and -0 are 0 apart, NaN and a number the most."""
    a, b = _bits(one, kind), _bits(other, kind)
    sign = np.int64(1) << np.int64(width(kind.removesuffix("x2")) - 1)
    places = []
    for bits in (a, b):
        value = bits.astype(np.int64)
        places.append(np.where(value & sign, sign - value, value))
    distance = np.abs(places[0] - places[1])
    nan = _is_nan(a, kind).astype(int) + _is_nan(b, kind)
    return np.asarray(np.select([nan == 2, nan == 1], [0, np.iinfo(np.int64).max], distance))
