"""`cvt`: between integers, floats, and the packed small floats of matrix products. PTX ISA 9.7.9.21.

A conversion is found by its opcode; the functions take sources, then the result. Of two f32 sources for a packed
result, the *first* goes to the high half.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import numerics

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[Any]  # Any: of whatever type the caller's view has

INTEGER_TYPES = {
    f"{sign}{bits}": np.dtype(f"{code}{bits // 8}")
    for sign, code in (("u", "u"), ("s", "i"))
    for bits in (8, 16, 32, 64)
}
FLOAT_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_ROUNDINGS = frozenset({"rn", "rz", "rm", "rp", "rna"})


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A float of eight bits or fewer.

    Attributes:
        dtype: As `ml_dtypes` has it.
        largest: Its largest finite value, which `.satfinite` gives for all that is larger.
        nan: Bits of its NaN; None if it has none: then NaN becomes the largest value.
        bits: Of one, in a pair.
    """

    dtype: np.dtype[Any]
    largest: float
    nan: int | None
    bits: int = 8


SMALL: dict[str, SmallFloat] = {
    "e4m3": SmallFloat(np.dtype(ml_dtypes.float8_e4m3fn), 448.0, 0x7F),
    "e5m2": SmallFloat(np.dtype(ml_dtypes.float8_e5m2), 57344.0, 0x7F),
    "e2m3": SmallFloat(np.dtype(ml_dtypes.float6_e2m3fn), 7.5, None),
    "e3m2": SmallFloat(np.dtype(ml_dtypes.float6_e3m2fn), 28.0, None),
    "e2m1": SmallFloat(np.dtype(ml_dtypes.float4_e2m1fn), 6.0, None, 4),
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A `cvt`: kinds of its sources and its result, and what computes it."""

    call: Callable[..., None]
    sources: tuple[str, ...]
    result: str


@functools.cache
def find_conversion(opcode: str, sources: int) -> Conversion:
    """The conversion of an opcode.

    Raises:
        UnsupportedPtxError: No such conversion is known.
    """
    _, *flags, result, source = opcode.split(".")
    if result.endswith("x2") or source.endswith("x2"):
        return _packed(opcode, result, source, frozenset(flags), sources)
    if sources == 1:
        if result in INTEGER_TYPES and source in INTEGER_TYPES and not set(flags) - {"sat"}:
            return Conversion(
                _integer_to_integer(result, source, "sat" in flags), (source,), result
            )
        if (
            result in INTEGER_TYPES
            and source in FLOAT_TYPES
            and not set(flags) - {*_INTEGRAL, "ftz", "sat"}
        ):
            mode = next((flag for flag in flags if flag in _INTEGRAL), "rzi")
            return Conversion(
                _float_to_integer(result, source, mode, "ftz" in flags), (source,), result
            )
        if (
            result in FLOAT_TYPES
            and source in INTEGER_TYPES
            and not set(flags) - {*_ROUNDINGS, "sat"}
        ):
            mode = next((flag for flag in flags if flag in _ROUNDINGS), "rn")
            return Conversion(_integer_to_float(source, mode, "sat" in flags), (source,), result)
        if result == "tf32" and source == "f32":
            return Conversion(_to_tf32(frozenset(flags)), ("f32",), "b32")
        if result in FLOAT_TYPES and source in FLOAT_TYPES:
            return Conversion(_float_to_float(result, frozenset(flags)), (source,), result)
    raise UnsupportedPtxError(f"conversion {opcode}")


def _integer_to_integer(result: str, source: str, saturate: bool) -> Callable[..., None]:
    wanted, given = INTEGER_TYPES[result], INTEGER_TYPES[source]
    limits = np.iinfo(wanted)
    low, high = max(limits.min, np.iinfo(given).min), min(limits.max, np.iinfo(given).max)

    def call(a: Array, out: Array) -> None:
        values = a.astype(given)
        if saturate:
            values = np.clip(values, given.type(low), given.type(high))
        np.copyto(out, values.astype(wanted), casting="unsafe")

    return call


def _float_to_integer(result: str, source: str, mode: str, flush: bool) -> Callable[..., None]:
    """Out-of-range values are clamped; NaN gives 0, or the top bit alone if 64 bits are involved."""
    wanted, integral = INTEGER_TYPES[result], _INTEGRAL[mode]
    limits = np.iinfo(wanted)
    of_nan = 1 << (limits.bits - 1) if source == "f64" or limits.bits == 64 else 0

    def call(a: Array, out: Array) -> None:
        values = integral(
            (numerics.flushed(a) if flush and a.dtype == np.float32 else a).astype(np.float64)
        )
        above, below = values > float(limits.max), values < float(limits.min)
        too_large = above | (values == 2.0**64 if limits.max > 2**63 else values == 2.0**63)
        safe = np.where(too_large | below | np.isnan(values), 0.0, values)
        numbers = safe.astype(wanted)
        numbers = np.where(too_large, wanted.type(limits.max), numbers)
        numbers = np.where(below, wanted.type(limits.min), numbers)
        nan = np.array(of_nan, f"u{wanted.itemsize}").view(wanted)
        numbers = np.where(np.isnan(values), nan, numbers)
        np.copyto(out, numbers, casting="unsafe")

    return call


def _integer_to_float(source: str, mode: str, saturate: bool) -> Callable[..., None]:
    given = INTEGER_TYPES[source]

    def call(a: Array, out: Array) -> None:
        values = a.astype(given)
        if out.dtype == np.float64 or (mode == "rn" and out.dtype == np.float32):
            near = values.astype(out.dtype)
            out[...] = (
                near
                if mode == "rn" or given.itemsize < 8
                else _directed_from_integer(values, near, mode)
            )
        else:
            numerics.rounded(_odd_f64(values), mode, out)
        if saturate:
            out[...] = np.clip(out, out.dtype.type(0), out.dtype.type(1))

    return call


def _odd_f64(values: Array) -> Array:
    """Integers as float64, rounded to odd."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    low = values.dtype.type(0xFFFF_FFFF)
    return numerics.exact_sum((values & ~low).astype(np.float64), (values & low).astype(np.float64))


def _directed_from_integer(values: Array, near: Array, mode: str) -> Array:
    low = values.dtype.type(0xFFFF_FFFF)
    error = numerics.sum_error(
        (values & ~low).astype(np.float64), (values & low).astype(np.float64), near
    )
    if mode == "rz":
        error = np.where(near < 0, -error, error)
    step = error < 0 if mode in ("rz", "rm") else error > 0
    towards = (
        np.where(near < 0, np.inf, -np.inf) if mode == "rz" else np.inf if mode == "rp" else -np.inf
    )
    return np.where(step, np.nextafter(near, towards), near)


def _to_tf32(flags: frozenset[str]) -> Callable[..., None]:
    """`tf32`: ten bits of fraction; `.rna` rounds ties away from zero. `.relu` and `.satfinite` as elsewhere."""
    if flags - {"rna", "rn", "rz", "relu", "satfinite"}:
        raise UnsupportedPtxError(f"tf32 conversion with {'.'.join(sorted(flags))}")

    def call(a: Array, out: Array) -> None:
        bits = a.view(np.uint32)
        added: Any  # of one value or of as many as there are
        if "rna" in flags:
            added = np.uint32(0x1000)
        elif "rz" in flags:
            added = np.uint32(0)
        else:
            added = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
        finite = np.isfinite(a)
        rounded = np.where(finite | ("rna" in flags), bits + added, bits) & np.uint32(0xFFFF_E000)
        if "satfinite" in flags:
            largest = (bits & np.uint32(0x8000_0000)) | np.uint32(0x7F7F_E000)
            rounded = np.where((rounded & np.uint32(0x7FFF_FFFF)) == 0x7F80_0000, largest, rounded)
            # What an H200 makes of a NaN, which may be a number then.
            lost = bits - np.uint32(0x2000) & np.uint32(0xFFFF_E000)
            rounded = np.where(np.isnan(a), lost, rounded)
        if "relu" in flags:
            rounded = np.where(
                (rounded >> np.uint32(31) != 0) & ~np.isnan(a), np.uint32(0), rounded
            )
        # `.rna` rounds the fraction of a NaN like any other (seen on an H200).
        out[...] = (
            rounded if "rna" in flags else np.where(np.isnan(a), np.uint32(0x7FFF_E000), rounded)
        )

    return call


def _float_to_float(result: str, flags: frozenset[str]) -> Callable[..., None]:
    if flags - {*_INTEGRAL, *_ROUNDINGS, "ftz", "sat", "relu", "satfinite"}:
        raise UnsupportedPtxError(f"conversion with {'.'.join(sorted(flags))}")
    integral = next((_INTEGRAL[flag] for flag in flags if flag in _INTEGRAL), None)
    mode = next((flag for flag in flags if flag in _ROUNDINGS), "rn")

    def call(a: Array, out: Array) -> None:
        # An H200 flushes no source of a conversion to f16.
        if "ftz" in flags and a.dtype == np.float32 and result != "f16":
            a = numerics.flushed(a)
        values = a.astype(np.float64)
        numerics.rounded(values if integral is None else integral(values), mode, out)
        _finish(values, out, flags)

    return call


def _finish(values: Array, out: Array, flags: frozenset[str]) -> None:
    """Apply `.relu`, `.sat`, `.satfinite` and `.ftz` to a result, and make its NaNs canonical."""
    if "satfinite" in flags:
        largest = ml_dtypes.finfo(out.dtype).max  # type: ignore[no-untyped-call] # ml_dtypes has no stubs
        out[...] = np.where(np.isinf(out), np.copysign(largest, out), out)
    if "sat" in flags:
        out[...] = np.where(
            out > out.dtype.type(1), out.dtype.type(1), np.where(out > 0, out, out.dtype.type(0))
        )
    elif np.isnan(values).any():
        out[...] = np.where(np.isnan(values), numerics.canonical_nan(out.dtype), out)
    if "relu" in flags:
        out[...] = np.where(np.signbit(out) & ~np.isnan(out), out.dtype.type(0), out)
    if "ftz" in flags and out.dtype == np.float32:
        out[...] = numerics.flushed(out)


# --- Pairs


def _packed(
    opcode: str, result: str, source: str, flags: frozenset[str], sources: int
) -> Conversion:
    name, given = result.removesuffix("x2"), source.removesuffix("x2")
    if flags - {*_ROUNDINGS, "relu", "satfinite"}:
        raise UnsupportedPtxError(f"conversion {opcode}")
    mode = next((flag for flag in flags if flag in _ROUNDINGS), "rn")
    if name in ("bf16", "f16") and source == "f32" and sources == 2:
        return Conversion(_pair_of_halves(name, mode, flags), ("f32", "f32"), "b32")
    if name in SMALL and source == "f32" and sources == 2 and "satfinite" in flags:
        return Conversion(_pair_of_small(name, flags), ("f32", "f32"), "b16")
    if name == "ue8m0" and source == "f32" and sources == 2:
        return Conversion(
            _pair_of_scales(mode, saturate="satfinite" in flags), ("f32", "f32"), "b16"
        )
    if name in SMALL and source in ("f16x2", "bf16x2") and sources == 1 and "satfinite" in flags:
        return Conversion(_small_from_halves(name, flags), (source,), "b16")
    if name in ("f16", "bf16") and given in SMALL and sources == 1:
        return Conversion(_halves_from_small(name, given, flags), ("b16",), "b32")
    if name == "bf16" and given == "ue8m0" and sources == 1:
        return Conversion(_halves_from_scales, ("b16",), "b32")
    raise UnsupportedPtxError(f"conversion {opcode}")


def _pair_of_halves(name: str, mode: str, flags: frozenset[str]) -> Callable[..., None]:
    if mode == "rn" and not flags & {"relu", "satfinite"}:
        to_bits = numerics.to_bf16_bits if name == "bf16" else numerics.to_f16_bits

        def nearest(high: Array, low: Array, out: Array) -> None:
            pairs = out.view(np.uint16)
            pairs[..., 1::2] = to_bits(high)
            pairs[..., ::2] = to_bits(low)

        return nearest
    convert = _float_to_float(name, flags)

    def call(high: Array, low: Array, out: Array) -> None:
        pairs = out.view(FLOAT_TYPES[name])
        convert(high, pairs[..., 1::2])
        convert(low, pairs[..., ::2])

    return call


def _small_bits(values: Array, kind: SmallFloat, flags: frozenset[str]) -> Array:
    """The bits of finite small floats, rounded to nearest even and clamped."""
    if "relu" in flags:
        values = np.where(np.signbit(values) & ~np.isnan(values), np.float32(0), values)
    clamped = np.clip(values, -kind.largest, kind.largest)
    bits = clamped.astype(kind.dtype).view(np.uint8)
    if kind.nan is None:
        largest = np.array(kind.largest, np.float32).astype(kind.dtype).view(np.uint8)
        return np.where(np.isnan(values), largest, bits)
    return np.where(np.isnan(values), np.uint8(kind.nan), bits)


def _pair_of_small(name: str, flags: frozenset[str]) -> Callable[..., None]:
    kind = SMALL[name]

    def call(high: Array, low: Array, out: Array) -> None:
        upper = _small_bits(high, kind, flags).astype(np.uint16)
        out[...] = upper << np.uint16(kind.bits) | _small_bits(low, kind, flags)

    return call


def _small_from_halves(name: str, flags: frozenset[str]) -> Callable[..., None]:
    pair = _pair_of_small(name, flags)

    def call(a: Array, out: Array) -> None:
        pair(a[..., 1::2].astype(np.float32), a[..., ::2].astype(np.float32), out)

    return call


def _halves_from_small(name: str, given: str, flags: frozenset[str]) -> Callable[..., None]:
    kind, wanted = SMALL[given], FLOAT_TYPES[name]
    mask = np.uint16((1 << kind.bits) - 1)

    def call(a: Array, out: Array) -> None:
        pairs = out.view(wanted)
        for half in range(2):
            bits = (a >> np.uint16(kind.bits * half) & mask).astype(np.uint8)
            values = bits.view(kind.dtype).astype(np.float32)
            if "relu" in flags:
                values = np.where(np.signbit(values) & ~np.isnan(values), np.float32(0), values)
            results = values.astype(wanted)
            if np.isnan(values).any():
                results = np.where(np.isnan(values), numerics.canonical_nan(wanted), results)
            pairs[..., half::2] = results

    return call


def _pair_of_scales(mode: str, *, saturate: bool) -> Callable[..., None]:
    """`ue8m0`: a power of two, rounded up (`rp`) or down (`rz`); the sign is dropped."""

    def exponents(values: Array) -> Array:
        bits = values.view(np.uint32) & np.uint32(0x7FFF_FFFF)
        exponent = bits >> np.uint32(23)
        if mode == "rp":
            # A subnormal above 2^-127 goes to 2^-126; 0 and anything up to 2^-127 to the smallest power.
            fraction = bits & np.uint32(0x7F_FFFF)
            up = np.where(exponent == 0, fraction > 0x40_0000, fraction != 0)
            exponent = exponent + up
        if saturate:
            exponent = np.minimum(exponent, np.uint32(254))
        return np.where(
            np.isnan(values), np.uint32(255), np.minimum(exponent, np.uint32(255))
        ).astype(np.uint16)

    def call(high: Array, low: Array, out: Array) -> None:
        out[...] = exponents(high) << np.uint16(8) | exponents(low)

    return call


def _halves_from_scales(a: Array, out: Array) -> None:
    pairs = out.view(np.uint16)
    for half in range(2):
        exponent = a >> np.uint16(8 * half) & np.uint16(255)
        bits = np.where(exponent == 0, np.uint16(0x40), exponent << np.uint16(7))
        pairs[..., half::2] = np.where(exponent == 255, np.uint16(0x7FFF), bits)
