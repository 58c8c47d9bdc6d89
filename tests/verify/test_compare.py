"""Measures of a wrong result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from mlagen.sim.tensor_core_sum import aligned_sum
from mlagen.verify.compare import (
    UNIT_ROUNDOFF,
    compare,
    lse_bound,
    rounding_bound,
    score_error,
)
from mlagen.verify.reference import reference
from tests.runtime.calls import make_spec, make_tensors


def both(values: list[list[float]]) -> list[Any]:
    return [np.array(values), torch.tensor(values, dtype=torch.float64)]


@pytest.mark.parametrize("library", [0, 1], ids=["numpy", "torch"])
def test_measures_by_hand(library: int) -> None:
    actual = both([[3.0, 4.0], [-math.inf, 0.0]])[library]
    expected = both([[3.0, 4.5], [-math.inf, 0.0]])[library]
    found = compare(actual, expected)
    assert found.misplaced == 0
    assert found.max_abs == 0.5
    assert found.worst == (0, 1)
    assert (found.actual, found.expected) == (4.0, 4.5)
    assert found.relative_l2 == pytest.approx(0.5 / math.hypot(3.0, 4.5))


@pytest.mark.parametrize("library", [0, 1], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("got", "wanted"),
    [(math.nan, 0.0), (0.0, math.nan), (math.inf, -math.inf), (0.0, -math.inf), (math.inf, 1.0)],
)
def test_misplaced_values_come_first(library: int, got: float, wanted: float) -> None:
    found = compare(both([[9.0, got]])[library], both([[0.0, wanted]])[library])
    assert found.misplaced == 1
    assert found.worst == (0, 1)
    assert str(found).startswith("1 misplaced inf or nan")


def test_the_bound_of_each_element_decides() -> None:
    actual, expected = torch.tensor([1.1, 100.5]), torch.tensor([1.0, 100.0]).double()
    found = compare(actual, expected, bound=torch.tensor([0.01, 1.0]))
    assert found.beyond == 1
    assert found.worst == (0,)
    assert compare(actual, expected).worst == (1,)


def test_nothing_differs_from_nothing() -> None:
    assert compare(torch.zeros(0, 3), torch.zeros(0, 3).double()).relative_l2 == 0
    assert compare(torch.zeros(2), torch.zeros(2).double()).relative_l2 == 0
    assert compare(torch.ones(2), torch.zeros(2).double()).relative_l2 == math.inf


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
def test_a_rounded_result_is_within_its_bound(dtype: str) -> None:
    spec = make_spec(dtype=dtype, mask="causal")
    tensors = make_tensors(spec, q_lens=(40,), k_lens=(60,))
    exact, _ = reference(spec, tensors)
    rounded = exact.to(getattr(torch, dtype)).double()
    bound = rounding_bound(spec, tensors, exact)
    assert compare(rounded, exact, bound=bound).beyond == 0
    assert compare(rounded * 1.1, exact, bound=bound).beyond > 0


@pytest.mark.parametrize(("dtype", "arch"), [("bfloat16", "sm_90a"), ("float8_e4m3fn", "sm_100a")])
def test_scores_are_exact_where_sums_are_not_cut(dtype: str, arch: str) -> None:
    spec = make_spec(dtype=dtype, arch=arch)
    assert score_error(spec, make_tensors(spec)) == 0.0


def test_cut_sums_move_an_lse_within_its_bound() -> None:
    spec = make_spec(dtype="float8_e4m3fn", mask="none", lse=True)
    tensors = make_tensors(spec, q_lens=(64,), k_lens=(256,))
    q, k = (tensors[name][:, 0].float().numpy() for name in ("q", "k"))
    scores = np.zeros((64, 256), np.float32)
    for column in range(0, 192, 32):
        part = slice(column, column + 32)
        scores = aligned_sum(q[:, part], k[:, part], scores, "e4m3", "e4m3", "f32")
    cut = torch.logsumexp(torch.from_numpy(scores).double() / math.sqrt(192), dim=1)
    _, exact = reference(spec, tensors, softmax_scale=192**-0.5)
    moved = score_error(spec, tensors, softmax_scale=192**-0.5)
    usual, wider = lse_bound(exact)[:, 0], lse_bound(exact, score_error=moved)[:, 0]
    assert compare(cut, exact[:, 0], bound=usual).beyond > 0
    assert compare(cut, exact[:, 0], bound=wider).beyond == 0
    assert compare(cut + 0.02, exact[:, 0], bound=wider).beyond > 0
