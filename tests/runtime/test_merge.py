"""`merge_state` against attention over the union of the keys."""

from __future__ import annotations

import math

import pytest
import torch

from mlagen import merge_state
from mlagen.errors import DeviceError, DTypeError, InputError, ShapeError

ROWS, HEADS, DIM = 5, 16, 128
State = tuple[torch.Tensor, torch.Tensor]


def attention(
    scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None = None
) -> State:
    """Output and LSE from `[rows, heads, keys]` scores and `[keys, heads, dim]` values, in float64."""
    lse = torch.logsumexp(scores, dim=-1)
    largest = scores.amax(-1) if scores.shape[-1] else torch.zeros(scores.shape[:2])
    total = torch.exp(scores - largest[..., None]).sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks - largest)
    weights = torch.exp(scores - largest[..., None]) / total[..., None]
    return torch.einsum("rhk,khd->rhd", weights, values), lse


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and values of 3136 keys."""
    torch.manual_seed(0)
    return (
        torch.randn(ROWS, HEADS, 3136, dtype=torch.float64) * 3,
        torch.randn(3136, HEADS, DIM, dtype=torch.float64),
    )


def rounded(state: State, dtype: torch.dtype = torch.bfloat16) -> State:
    return state[0].to(dtype), state[1].float()


def test_prefix_and_suffix_give_the_whole(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Case 5: kv 3072 + 64; the natural-log LSE gives an error of one bf16 rounding, base 2 gave 12 percent."""
    scores, values = problem
    wanted, wanted_lse = attention(scores, values)
    first = rounded(attention(scores[..., :3072], values[:3072]))
    last = rounded(attention(scores[..., 3072:], values[3072:]))
    out, lse = merge_state(*first, *last)
    assert out.dtype == torch.bfloat16
    assert float((out.double() - wanted).norm() / wanted.norm()) < 2.5e-3
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=0, atol=2e-6)


def test_states_of_float32_merge_exactly(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    scores, values = problem
    wanted, _ = attention(scores, values)
    parts = [
        rounded(attention(scores[..., part], values[part]), torch.float32)
        for part in (slice(0, 100), slice(100, None))
    ]
    out, _ = merge_state(*parts[0], *parts[1])
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("garbage", [0.0, math.nan, math.inf])
def test_an_empty_state_changes_no_bit(
    problem: tuple[torch.Tensor, torch.Tensor], garbage: float
) -> None:
    """Case 6: what the empty state's output holds does not matter."""
    full = rounded(attention(*problem))
    empty = torch.full_like(full[0], garbage), torch.full_like(full[1], -math.inf)
    for out, lse in (merge_state(*empty, *full), merge_state(*full, *empty)):
        assert torch.equal(out.view(torch.int16), full[0].view(torch.int16))
        assert torch.equal(lse, full[1])
    out, lse = merge_state(*empty, *empty)
    assert bool((out == 0).all())
    assert bool(torch.isneginf(lse).all())


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["lse_a", "lse_b"])
def test_other_marks_of_an_empty_state_are_refused(name: str, wrong: float) -> None:
    lse = {"lse_a": torch.zeros(ROWS, HEADS), "lse_b": torch.zeros(ROWS, HEADS)}
    lse[name][2, 3] = wrong
    out = torch.zeros(ROWS, HEADS, DIM)
    with pytest.raises(InputError, match=rf"^{name}: holds \+inf or NaN\n  mark an empty state"):
        merge_state(out, lse["lse_a"], out, lse["lse_b"])


def test_strides_are_free(problem: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Case 7: head stride 128 here, 192 there, and an LSE with the heads outermost."""
    scores, values = problem
    first = rounded(attention(scores[..., :50], values[:50]))
    last = rounded(attention(scores[..., 50:], values[50:]))
    padded = torch.full((ROWS, HEADS, 192), math.nan, dtype=torch.bfloat16)
    padded[..., :DIM] = last[0]
    strided = padded[..., :DIM], last[1].T.contiguous().T
    for one, other in zip(merge_state(*first, *strided), merge_state(*first, *last), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("sink", [1.5, -200.0, 200.0, -math.inf])
def test_sinks_count_once(problem: tuple[torch.Tensor, torch.Tensor], sink: float) -> None:
    """Case 8: states without sinks, the merge with; also where one state is empty or both are."""
    scores, values = problem
    sinks = torch.full((HEADS,), sink)
    wanted, wanted_lse = attention(scores, values, sinks.double())
    nothing = attention(scores[..., :0], values[:0])
    whole = rounded(attention(scores, values), torch.float32)
    empty = rounded(nothing, torch.float32)
    halves = [
        rounded(attention(scores[..., part], values[part]), torch.float32)
        for part in (slice(0, 7), slice(7, None))
    ]
    for pair in ((whole, empty), (empty, whole), (halves[0], halves[1])):
        out, lse = merge_state(*pair[0], *pair[1], sinks)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse.double(), wanted_lse, rtol=0, atol=2e-6)
    out, lse = merge_state(*empty, *empty, sinks)
    assert bool((out == 0).all())
    assert bool(torch.isneginf(lse).all())


def test_dense_batches_merge_like_ragged_ones() -> None:
    out = torch.randn(2, 3, HEADS, DIM)
    lse = torch.randn(2, 3, HEADS)
    merged, _ = merge_state(out, lse, -out, lse)
    assert merged.shape == out.shape
    torch.testing.assert_close(merged, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"out_b": torch.zeros(4, HEADS, DIM)}, ShapeError, "out_b: expected"),
        (
            {"lse_b": torch.zeros(HEADS, ROWS)},
            ShapeError,
            r"lse_b: expected \[5, 16\], got \[16, 5\]",
        ),
        ({"lse_a": torch.zeros(ROWS, HEADS).double()}, DTypeError, "lse_a: expected torch.float32"),
        (
            {"out_b": torch.zeros(ROWS, HEADS, DIM).half()},
            DTypeError,
            "out_b: expected torch.float32",
        ),
        ({"sinks": torch.zeros(3)}, ShapeError, r"sinks: expected \[num_heads=16\], got \[3\]"),
        ({"lse_b": torch.zeros(ROWS, HEADS, device="meta")}, DeviceError, "lse_b: on meta"),
    ],
)
def test_states_that_do_not_belong_together(
    change: dict[str, torch.Tensor], kind: type[InputError], message: str
) -> None:
    given = {
        "out_a": torch.zeros(ROWS, HEADS, DIM),
        "lse_a": torch.zeros(ROWS, HEADS),
        "out_b": torch.zeros(ROWS, HEADS, DIM),
        "lse_b": torch.zeros(ROWS, HEADS),
    }
    with pytest.raises(kind, match=message):
        merge_state(**(given | change))
