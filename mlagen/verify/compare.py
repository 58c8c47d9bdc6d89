"""How far a result lies from the exact one: misplaced infinities and NaNs first, then error measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.spec.score_mod import Identity
from mlagen.verify.arrays import Array, Backend, backend_of
from mlagen.verify.cut_sums import SUM_BITS, cuts_sums
from mlagen.verify.reference import reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.spec.model import KernelSpec

# Unit roundoff: half the distance from 1 to the next larger number.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float8_e4m3fn": 2.0**-4}
# Half the distance of the smallest numbers: what rounding may lose where it is not relative.
LEAST_ROUNDING = {"bfloat16": 2.0**-134, "float16": 2.0**-25}
# What rounding may lose of a small probability, where the largest is 1: that of e4m3 is scaled by 2^8 to use its range.
LEAST_PROBABILITY = {"float16": LEAST_ROUNDING["float16"], "float8_e4m3fn": 2.0**-18}
FLOAT32_ROUNDOFF = 2.0**-24
# What float32 adds to a bound.
_FLOAT32 = 1 + 1 / 64
# Of the sum of absolute products: what a sum may be off whose terms are cut, four and eight times the unit.
CUT_SCORES, CUT_OUTPUTS = 4 * 2.0**-SUM_BITS, 8 * 2.0**-SUM_BITS
# Of an LSE in float32: what accumulation and approximate exponentials and logarithms explain.
LSE_ABSOLUTE, LSE_RELATIVE = 1e-5, 2e-6


@dataclass(frozen=True, slots=True)
class Comparison:
    """The distance of `actual` from `expected`.

    Attributes:
        misplaced: Elements that are infinite or NaN where the other is not, or is so differently.
        beyond: Elements that differ by more than the bound; 0 if none was given.
        ratio: Largest difference in units of its bound; 0 if none was given.
        relative_l2: `|actual - expected| / |expected|` over the finite elements; 0 if both are 0.
        max_abs: Largest absolute difference of finite elements.
        worst: Index of the element to look at first: misplaced, else furthest beyond the bound, else
            with the largest difference; empty if there is no element.
        actual: Its value.
        expected: Its exact value.
    """

    misplaced: int
    beyond: int
    ratio: float
    relative_l2: float
    max_abs: float
    worst: tuple[int, ...]
    actual: float
    expected: float

    def __str__(self) -> str:
        """One line for a failing test."""
        return (
            f"{self.misplaced} misplaced inf or nan, {self.beyond} beyond the bound, relative L2 error "
            f"{self.relative_l2:.3e}, largest error {self.max_abs:.3e}; worst at {self.worst}: got "
            f"{self.actual!r}, expected {self.expected!r}"
        )


def compare(actual: Array, expected: Array, *, bound: Array | None = None) -> Comparison:
    """Measure a result against the exact one.

    Args:
        actual: NumPy array or torch tensor of any float dtype.
        expected: Float64 of the same kind and shape.
        bound: Largest difference allowed, for each element.
    """
    ops = backend_of(expected)
    actual = ops.float64(actual)
    if math.prod(expected.shape) == 0:
        return Comparison(0, 0, 0.0, 0.0, 0.0, (), 0.0, 0.0)
    infinite = ops.absolute(expected) == math.inf
    odd = (
        infinite | (expected != expected) | (ops.absolute(actual) == math.inf) | (actual != actual)
    )
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    nothing = ops.zeros((1,) * len(expected.shape))
    # Both first made finite: inf - inf would only bring NaN into the measures.
    finite = ops.where(odd, nothing, expected)
    error = ops.absolute(ops.where(odd, nothing, actual) - finite)
    excess = error if bound is None else error - bound
    misplaced = odd & ~same
    badness = ops.where(misplaced, nothing + math.inf, excess).reshape(-1)
    worst = _unravel(int(badness.argmax()), tuple(int(size) for size in expected.shape))
    size = float((finite**2).sum()) ** 0.5
    distance = float((error**2).sum()) ** 0.5
    return Comparison(
        misplaced=int(misplaced.sum()),
        beyond=0 if bound is None else int((excess > 0).sum()),
        ratio=0.0 if bound is None else _largest_ratio(ops, error, bound),
        relative_l2=distance / size if size else (math.inf if distance else 0.0),
        max_abs=float(error.max()),
        worst=worst,
        actual=float(actual[worst]),
        expected=float(expected[worst]),
    )


def rounding_bound(
    spec: KernelSpec,
    tensors: Mapping[str, Array],
    expected: Array,
    *,
    softmax_scale: float | None = None,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    exact_probabilities: bool = False,
) -> Array:
    """The largest error of each output element that rounding explains; 0 in rows that see no key.

    A kernel rounds each probability once before it multiplies it with V, and each output once:
    `|out - exact| <= u_o |exact| + u_p sum(p |v|) / l`, with the unit roundoffs of the output's and the
    inputs' dtype, and a 64th more for what float32 adds and for rounding what was rounded. In float16
    and e4m3 small probabilities lose a fixed amount instead, of at most that times the sum of all visible |v|.

    Args:
        spec: The kernel.
        tensors: The call.
        expected: Its exact output.
        softmax_scale: As in the call, like the scales of operands.
        q_scale: Of q.
        k_scale: Of k.
        v_scale: Of v.
        exact_probabilities: Every probability is a power of two (or 0), which rounding leaves as it is: a 256th of
            its share stands for float32, or what cut sums lose.
    """
    ops = backend_of(expected)
    positive = {**tensors, "v": ops.absolute(ops.float64(tensors["v"]))}
    magnitude, lse = reference(
        spec,
        positive,
        softmax_scale=softmax_scale,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    output_unit, input_unit = UNIT_ROUNDOFF[str(spec.output_dtype)], UNIT_ROUNDOFF[spec.dtype]
    if exact_probabilities:
        input_unit = CUT_OUTPUTS if cuts_sums(spec) else input_unit / 256
    bound = output_unit * ops.absolute(expected) + input_unit * magnitude
    nothing = magnitude * 0
    if any(mod.kind in ("alibi", "bias", "relative_bias") for mod in spec.score_mods):
        # Adding a bias to a large score rounds in float32 at the size of the score, which is that of the LSE.
        size = _finite_size(lse)
        bound = bound + 2 * FLOAT32_ROUNDOFF * size[..., None] * magnitude
    if spec.dtype in LEAST_PROBABILITY and not exact_probabilities:
        least = LEAST_PROBABILITY[spec.dtype] * v_scale
        bound = bound + least * _visible_sum(spec, positive)
    least = ops.where(magnitude > 0, nothing + LEAST_ROUNDING[str(spec.output_dtype)], nothing)
    return _FLOAT32 * bound + least


def _visible_sum(spec: KernelSpec, tensors: Mapping[str, Array]) -> Array:
    """The sum of V over the keys that each row sees: their mean, which equal scores give, times their number."""
    plain = spec.model_copy(update={"score_mod": Identity(), "sink": False})
    ops = backend_of(tensors["v"])
    queries = {
        name: ops.float64(tensors[name]) * 0 for name in ("q", "q_nope", "q_pe") if name in tensors
    }
    mean, lse = reference(plain, {**tensors, **queries})
    return mean * ops.exp(lse)[..., None]


def lse_bound(expected: Array, *, score_error: Array | float = 0.0) -> Array:
    """The largest error of each LSE: 1e-5, or 2e-6 of its size, and that of the row's scores."""
    ops = backend_of(expected)
    size = LSE_RELATIVE * _finite_size(expected)
    return ops.where(size > LSE_ABSOLUTE, size, 0 * size + LSE_ABSOLUTE) + score_error


def score_error(
    spec: KernelSpec,
    tensors: Mapping[str, Array],
    *,
    softmax_scale: float | None = None,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> Array | float:
    """How far off tensor cores leave the scores of each row, natural-log units; 0 where they add in float32.

    Where sums are cut, scores of normal draws move by up to 2^-12 of the sum of |q| |k|; twice that is allowed. Of the
    sums of a row's keys, the LSE is no less than the largest.

    Args:
        spec: The kernel.
        tensors: The call.
        softmax_scale: As in the call, like the scales of operands.
        q_scale: Of q.
        k_scale: Of k.
    """
    if not cuts_sums(spec):
        return 0.0
    ops = backend_of(tensors["v"])
    operands = ("q", "q_nope", "q_pe", "k", "k_rope")
    positive = {
        name: ops.absolute(ops.float64(tensor)) if name in operands else tensor
        for name, tensor in tensors.items()
    }
    plain = spec.model_copy(update={"score_mod": Identity(), "sink": False})
    _, lse = reference(
        plain, positive, softmax_scale=softmax_scale, q_scale=q_scale, k_scale=k_scale
    )
    return CUT_SCORES * _finite_size(lse)


def _finite_size(lse: Array) -> Array:
    """The absolute value of each LSE, 0 for that of an empty row."""
    ops = backend_of(lse)
    size = ops.absolute(lse)
    return ops.where(size == math.inf, ops.zeros((1,) * len(lse.shape)), size)


def _largest_ratio(ops: Backend, error: Array, bound: Array) -> float:
    """The largest error in units of its bound; of an error where none is allowed, infinity."""
    nothing = error * 0
    allowed = ops.where(bound > 0, bound, nothing + 1)
    ratio = ops.where(bound > 0, error / allowed, ops.where(error > 0, nothing + math.inf, nothing))
    return float(ratio.max())


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, here = divmod(flat, size)
        index.append(here)
    return tuple(reversed(index))
