"""Instructions that choose: `mov`, `selp`, `slct`, comparisons, `testp`, minimum and maximum of floats.

Results go to the last argument.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.numerics import canonical_nan

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.numerics import Array, Call


def copy(a: Array, out: Array) -> None:
    """`mov`."""
    out[...] = a


def copy_sign(a: Array, b: Array, out: Array) -> None:
    """`copysign`: the sign of `a`, the magnitude of `b`."""
    np.copysign(b, a, out)


def select(a: Array, b: Array, chosen: Array, out: Array) -> None:
    """`selp`."""
    out[...] = np.where(chosen, a, b)


def select_by_sign(a: Array, b: Array, chosen: Array, out: Array) -> None:
    """`slct`: `a` where `chosen` is not negative (-0 is not, NaN is)."""
    out[...] = np.where(chosen >= 0, a, b)


def _compare_unordered(ordered: np.ufunc) -> Call:
    def call(a: Array, b: Array, out: Array) -> None:
        np.logical_not(ordered(a, b), out)

    return call


def _number(a: Array, b: Array, out: Array) -> None:
    np.logical_and(a == a, b == b, out)


def _not_a_number(a: Array, b: Array, out: Array) -> None:
    np.logical_or(a != a, b != b, out)


def _not_equal(a: Array, b: Array, out: Array) -> None:
    out[...] = (a != b) & (a == a) & (b == b)


def _equal_or_unordered(a: Array, b: Array, out: Array) -> None:
    out[...] = (a == b) | (a != a) | (b != b)


# Comparisons of floats whose NumPy namesake treats NaN differently, or that exist for floats alone.
COMPARISONS: dict[str, Call] = {
    "ne": _not_equal,
    "equ": _equal_or_unordered,
    "neu": np.not_equal,
    "ltu": _compare_unordered(np.greater_equal),
    "leu": _compare_unordered(np.greater),
    "gtu": _compare_unordered(np.less_equal),
    "geu": _compare_unordered(np.less),
    "num": _number,
    "nan": _not_a_number,
}


BOOLEANS: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@functools.cache
def comparison(compare: Call, boolean: str, both: bool) -> Call:
    """`setp` with a third source, or with the opposite as a second result."""

    def call(*arguments: Array) -> None:
        a, b = arguments[:2]
        holds = np.empty(np.broadcast(a, b).shape, np.bool_)
        compare(a, b, holds)
        results = [holds, ~holds] if both else [holds]
        if boolean:
            results = [BOOLEANS[boolean](result, arguments[2]) for result in results]
        for out, result in zip(arguments[-len(results) :], results, strict=True):
            out[...] = result

    return call


@functools.cache
def pair_comparison(compare: Call, boolean: str, both: bool) -> Call:
    """`setp` of pairs: the first result is that of the low halves, the second that of the high ones."""

    def call(*arguments: Array) -> None:
        a, b = arguments[:2]
        holds = np.empty(np.broadcast(a, b).shape, np.bool_)
        compare(a, b, holds)
        for half, out in enumerate(arguments[-1 - both :]):
            result = holds[..., half::2]
            out[...] = BOOLEANS[boolean](result, arguments[2]) if boolean else result

    return call


@functools.cache
def comparison_value(compare: Call, boolean: str) -> Call:
    """`set`: the outcome as all ones (integers) or 1.0 (floats)."""
    decide = comparison(compare, boolean, both=False)

    def call(*arguments: Array) -> None:
        *sources, out = arguments
        holds = np.empty(out.shape, np.bool_)
        decide(*sources, holds)
        ones = np.ones((), out.dtype) if out.dtype.kind == "f" else np.array(-1).astype(out.dtype)
        out[...] = np.where(holds, ones, out.dtype.type(0))

    return call


def _is_normal(a: Array) -> Array:
    return np.asarray(np.isfinite(a) & ~_is_subnormal(a))


def _is_subnormal(a: Array) -> Array:
    result: Array = (a != 0) & (np.abs(a) < np.finfo(a.dtype).smallest_normal)
    return result


def _test(function: Callable[[Array], Array]) -> Call:
    def call(a: Array, out: Array) -> None:
        out[...] = function(a)

    return call


# `testp`. Zero counts as normal (seen on an H200).
TESTS: dict[str, Call] = {
    "finite": _test(np.isfinite),
    "infinite": _test(np.isinf),
    "number": _test(lambda a: ~np.isnan(a)),
    "notanumber": _test(np.isnan),
    "normal": _test(_is_normal),
    "subnormal": _test(_is_subnormal),
}


# --- Minimum and maximum: NaN loses; +0 is larger than -0 (PTX ISA 9.7.3.11)


@functools.cache
def extreme(ufunc: np.ufunc, *, nan: bool = False, magnitude: bool = False) -> Call:
    """`min` or `max` of floats, of two or three sources.

    Args:
        ufunc: `np.fmin` or `np.fmax`.
        nan: `.NaN`: NaN wins, as the canonical NaN.
        magnitude: `.xorsign.abs`: of the magnitudes, with the product of the signs.
    """

    def call(*arguments: Array) -> None:
        *sources, out = arguments
        values = [np.abs(source) for source in sources] if magnitude else sources
        result = ufunc(values[0], values[1])
        for value in values[2:]:
            result = ufunc(result, value)
        if not result.all():
            result = _signed_zeros(ufunc, values, result)
        if nan:
            lost = functools.reduce(np.logical_or, [value != value for value in values])
            result = np.where(lost, canonical_nan(result.dtype), result)
        if magnitude:
            negative = np.signbit(sources[0]) ^ np.signbit(sources[1])
            result = np.where(negative, -result, result)
        out[...] = result

    return call


def _signed_zeros(ufunc: np.ufunc, values: list[Array], result: Array) -> Array:
    zero_of_a_kind = functools.reduce(
        np.logical_or,
        [(value == 0) & (np.signbit(value) == (ufunc is np.fmin)) for value in values],
    )
    kind = -result.dtype.type(0) if ufunc is np.fmin else result.dtype.type(0)
    fixed: Array = np.where((result == 0) & zero_of_a_kind, kind, result)
    return fixed


def extreme_of_rows(ufunc: np.ufunc, rows: Array, out: Array) -> None:
    """`extreme` of many rows at once; the order of a chain of `max` does not matter."""
    ufunc.reduce(rows, 0, None, out)
    if not out.all():
        wanted = ((rows == 0) & (np.signbit(rows) == (ufunc is np.fmin))).any(axis=0)
        kind = -out.dtype.type(0) if ufunc is np.fmin else out.dtype.type(0)
        out[...] = np.where((out == 0) & wanted, kind, out)
