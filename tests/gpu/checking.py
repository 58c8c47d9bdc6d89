"""Bounds for what a kernel returns, and a failure that says where and how to see it again.

Bounds (issue 2, "Figures to reach"): relative L2 error 2.5e-3 for bf16 and 3.5e-4 for fp16; LSE within 2e-4, or 2e-6 of
its size above 100. A relative L2 error hides one bad element among millions, so each element also has a bound, that of
`mlagen.verify.compare.rounding_bound`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mlagen.verify.compare import compare, rounding_bound
from mlagen.verify.reference import reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.spec.model import KernelSpec

REL_L2 = {torch.bfloat16: 2.5e-3, torch.float16: 3.5e-4}
LSE_ABSOLUTE, LSE_RELATIVE = 2e-4, 2e-6
# Half the distance of fp16's smallest numbers: what rounding may lose where it is not relative.
LEAST_STEP = 2.0**-25


@dataclass(frozen=True, slots=True)
class Expected:
    """A float64 result, shaped like the kernel's.

    Attributes:
        out: The output.
        lse: The LSE; -inf marks an empty row.
        bound: Largest error of each output element.
    """

    out: torch.Tensor
    lse: torch.Tensor
    bound: torch.Tensor


def expected_of(
    spec: KernelSpec, tensors: Mapping[str, torch.Tensor], *, softmax_scale: float | None = None
) -> Expected:
    """The exact result of a call."""
    out, lse = reference(spec, tensors, softmax_scale=softmax_scale)
    bound = rounding_bound(spec, tensors, out, softmax_scale=softmax_scale)
    return Expected(out, lse, bound + LEAST_STEP)


def check_out(
    out: torch.Tensor, expected: Expected, *, context: str, normal_inputs: bool = True
) -> None:
    """Assert that `out` is within the bounds of its dtype; empty rows must be exactly 0."""
    empty = torch.isneginf(expected.lse)[..., None]
    found = compare(out, expected.out, bound=torch.where(empty, 0.0, expected.bound))
    limit = REL_L2[out.dtype] if normal_inputs else math.inf
    wrong = found.misplaced + found.beyond
    assert wrong == 0, f"out, {context}: {found}"
    assert found.relative_l2 <= limit, f"out, {context}: {found}; relative L2 limit {limit}"


def check_lse(lse: torch.Tensor, expected: Expected, *, context: str) -> None:
    """Assert that `lse` is -inf exactly where the reference is, and close elsewhere."""
    size = expected.lse.abs()
    bound = torch.where(size <= 100, LSE_ABSOLUTE, LSE_RELATIVE * size.nan_to_num(posinf=0.0))
    found = compare(lse, expected.lse, bound=bound)
    assert found.misplaced + found.beyond == 0, f"lse, {context}: {found}"


def check_equal_bits(actual: torch.Tensor, wanted: torch.Tensor, *, context: str) -> None:
    """Assert that two tensors hold the same bits, NaNs included."""
    integer = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    different = actual.contiguous().view(integer) != wanted.contiguous().view(integer)
    if not bool(different.any()):
        return
    where = tuple(int(i) for i in different.nonzero()[0])
    raise AssertionError(
        f"{context}: {int(different.sum())} of {different.numel()} elements have other bits; "
        f"first at {where}: {float(actual[where])!r} and {float(wanted[where])!r}"
    )
