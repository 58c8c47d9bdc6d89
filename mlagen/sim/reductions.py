"""What reducing copies compute: `cp.reduce.async.bulk` and its tensor form (PTX ISA 9.7.9.25.4.2, 9.7.9.25.5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mlagen.sim import choices
from mlagen.sim.numerics import canonical_nan

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    # New elements from those in memory and those that come.
    Operation = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

_DTYPES: dict[str, Any] = {  # Any: NumPy types
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "b32": np.uint32,
    "b64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_INTEGERS = frozenset({"u32", "s32", "u64", "s64"})
_BITS = frozenset({"b32", "b64"})

# Element types of tensor maps, as reductions see them; the bits of any integer may be combined.
OF_ELEMENT_TYPE = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def _increment(old: NDArray[Any], bound: NDArray[Any]) -> NDArray[Any]:
    return np.where(old >= bound, 0, old + 1).astype(old.dtype)


def _decrement(old: NDArray[Any], bound: NDArray[Any]) -> NDArray[Any]:
    return np.where((old == 0) | (old > bound), bound, old - 1).astype(old.dtype)


def _extreme(ufunc: np.ufunc) -> Operation:
    """`min` or `max`: of floats, NaN loses and +0 is larger than -0, as in registers."""
    of_floats = choices.extreme(ufunc)

    def call(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        result = np.empty_like(old)
        if old.dtype.kind in "iu":
            ufunc(old, new, result)
        else:
            of_floats(old, new, result)
        return result

    return call


def _add(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Sums; a NaN is the canonical one, unlike that of an addition in registers of f32 (seen on an H200)."""
    result: NDArray[Any] = old + new
    if result.dtype.kind not in "iu":
        result[np.isnan(result)] = canonical_nan(result.dtype)
    return result


_OPERATIONS: dict[str, tuple[Operation, frozenset[str]]] = {
    "add": (_add, _INTEGERS | _FLOATS),
    "min": (_extreme(np.fmin), _INTEGERS | {"f16", "bf16"}),
    "max": (_extreme(np.fmax), _INTEGERS | {"f16", "bf16"}),
    "inc": (_increment, frozenset({"u32"})),
    "dec": (_decrement, frozenset({"u32"})),
    "and": (np.bitwise_and, _BITS | _INTEGERS),
    "or": (np.bitwise_or, _BITS | _INTEGERS),
    "xor": (np.bitwise_xor, _BITS | _INTEGERS),
}
NAMES = frozenset(_OPERATIONS)


def find_reduction(name: str, type_name: str) -> tuple[Operation, np.dtype[Any]] | None:
    """The operation and the type it computes in; None if there is none."""
    operation, types = _OPERATIONS[name]
    if type_name not in types:
        return None
    return operation, np.dtype(_DTYPES[type_name])
