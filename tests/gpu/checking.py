"""Bounds for what a kernel returns, and a failure that says where and how to see it again.

Bounds (issue 2, "Figures to reach"): relative L2 error 2.5e-3 for bf16 and 3.5e-4 for fp16; LSE
within 2e-4, or 2e-6 of its size above 100. A relative L2 error hides one bad element among
millions, so each element also has a bound: output and P are rounded once each, hence
`|out - ref| <= u |ref| + u sum(p |v|) / l` with u twice the unit roundoff.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

REL_L2 = {torch.bfloat16: 2.5e-3, torch.float16: 3.5e-4}
_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LSE_ABSOLUTE, LSE_RELATIVE = 2e-4, 2e-6


@dataclass(frozen=True, slots=True)
class Expected:
    """A float64 result.

    Attributes:
        out: Shaped like the kernel's output.
        lse: Shaped like the kernel's LSE; -inf marks an empty row.
        magnitude: The same attention over |v|: how large the terms of each sum are.
    """

    out: torch.Tensor
    lse: torch.Tensor
    magnitude: torch.Tensor


def check_out(out: torch.Tensor, expected: Expected, *, context: str) -> None:
    """Assert that `out` is within the bounds of its dtype; empty rows must be exactly 0."""
    reference, unit = expected.out, _UNIT[out.dtype]
    actual = out.double()
    error = (actual - reference).abs()
    # The smallest normal number of fp16 stands for results that fall below its range.
    bound = unit * (reference.abs() + expected.magnitude) + 2.0**-14 * unit
    _assert_all(error <= bound, error - bound, actual, reference, context=f"out, {context}")
    if reference.numel() and float(reference.norm()):
        relative = float(error.norm() / reference.norm())
        assert relative <= REL_L2[out.dtype], (
            f"out, {context}: relative L2 error {relative:.3e}, at most {REL_L2[out.dtype]:.1e}\n"
            f"  {_worst(error, actual, reference)}"
        )


def check_lse(lse: torch.Tensor, expected: Expected, *, context: str) -> None:
    """Assert that `lse` is -inf exactly where the reference is, and close elsewhere."""
    reference, actual = expected.lse, lse.double()
    empty = torch.isneginf(reference)
    _assert_all(
        torch.isneginf(actual) == empty,
        empty.double(),
        actual,
        reference,
        context=f"lse, {context}",
    )
    error = torch.where(empty, 0.0, (actual - reference).abs())
    bound = torch.where(
        reference.abs() <= 100, LSE_ABSOLUTE, LSE_RELATIVE * reference.abs().clamp(max=1e30)
    )
    _assert_all(error <= bound, error - bound, actual, reference, context=f"lse, {context}")


def check_equal_bits(actual: torch.Tensor, wanted: torch.Tensor, *, context: str) -> None:
    """Assert that two tensors hold the same bits, NaNs included."""
    integer = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    left, right = actual.contiguous().view(integer), wanted.contiguous().view(integer)
    _assert_all(
        left == right, (left != right).double(), actual.double(), wanted.double(), context=context
    )


def _assert_all(
    good: torch.Tensor,
    badness: torch.Tensor,
    actual: torch.Tensor,
    reference: torch.Tensor,
    *,
    context: str,
) -> None:
    """Assert that `good` holds everywhere; `badness` picks the element to show (NaN is worst)."""
    if bool(good.all()):
        return
    bad = int(good.numel() - int(good.sum()))
    worst = torch.where(good, -torch.inf, badness.nan_to_num(torch.inf, torch.inf))
    raise AssertionError(
        f"{context}: {bad} of {good.numel()} elements wrong\n  {_worst(worst, actual, reference)}"
    )


def _worst(badness: torch.Tensor, actual: torch.Tensor, reference: torch.Tensor) -> str:
    flat = int(badness.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), badness.shape))
    return f"worst at {index}: got {float(actual[index])!r}, reference {float(reference[index])!r}"
