"""Inputs of a row: the tensors that a kernel takes, heads repeated, and the measure of an output."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mlagen.bench.rows import Shape
from mlagen.bench.workload import DRAWN_HEADS, Exact, Workload, has_peers, make_workload
from mlagen.runtime.kernel import load
from tests.bench.kernels import DENSE, kernels

SHAPE = Shape((20, 20), (33, 33), 8)


@pytest.fixture(autouse=True)
def _one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlagen.bench.workload.ROTATED_BYTES", 1.0)


def workload(group: dict[str, Any], shape: Shape = SHAPE, **options: Any) -> Workload:
    (spec,) = kernels(group)
    return make_workload(spec, shape, for_peers=True, device="cpu", **options)


def output(made: Workload) -> torch.Tensor:
    result = load(made.spec, backend="reference").run(made.sets[0], **made.options)
    out = result[0] if isinstance(result, tuple) else result
    assert isinstance(out, torch.Tensor)
    return out


KINDS: dict[str, dict[str, Any]] = {
    "dense": {**DENSE, "mask": "causal"},
    "ragged, lse": {"mask": "none", "lse": True},
    "prefix": {
        "mask": "causal",
        "k_rope": {"layout": "paged", "page_size": 16},
        "kv_length_counts": "prefix",
    },
    "pages": {"mask": "causal", "kv": {"layout": "paged", "page_size": 16}},
    "shared rope heads": {"mask": "causal", "k_rope": {"layout": "ragged", "num_heads": 2}},
    "alibi": {"mask": "causal", "score_mod": "alibi"},
    "alibi, slopes given": {"mask": "causal", "score_mod": {"kind": "alibi", "slopes": "tensor"}},
    "bias by head": {**DENSE, "mask": "none", "score_mod": {"kind": "bias", "rank": 4}},
    "bias": {**DENSE, "mask": "none", "score_mod": {"kind": "bias", "rank": 2}},
    "relative bias": {"mask": "causal", "score_mod": {"kind": "relative_bias", "extent": 16}},
    "sink, window": {"mask": {"kind": "sliding_window", "left": 7, "right": 0}, "sink": True},
    "padding": {**DENSE, "mask": {"all": ["causal", "padding"]}},
}


@pytest.mark.parametrize("group", KINDS.values(), ids=KINDS)
def test_kernels_of_every_kind_take_their_row_and_are_right(group: dict[str, Any]) -> None:
    made = workload(group)
    out = output(made)
    error = Exact(made).error_of(out)
    assert 0 < error.of_bound <= 1  # the reference rounds its output, and nothing else
    assert error.relative_l2 < 2.5e-3


def test_an_error_of_one_element_is_seen() -> None:
    made = workload(KINDS["dense"])
    out, exact = output(made), Exact(made)
    assert exact.error_of(out).of_bound <= 1
    out[1, 3, 7, 5] += 0.25  # of the last head, which is checked
    found = exact.error_of(out)
    assert found.of_bound > 1


def test_nothing_of_any_head_may_be_infinite() -> None:
    made = workload(KINDS["dense"])
    out = output(made)
    out[0, 0, 1, 0] = math.inf  # of a head that is not compared
    assert Exact(made).error_of(out).relative_l2 == math.inf


def test_packed_outputs_are_measured_alike() -> None:
    made = workload(KINDS["dense"])
    out, exact = output(made), Exact(made)
    assert exact.error_of(out.flatten(0, 1)) == exact.error_of(out)


def test_heads_are_repeated_beside_each_other_in_memory_of_their_own() -> None:
    made = workload(KINDS["dense"])
    q = made.sets[0]["q"]
    assert q.shape == (2, 20, 8, 192)
    assert q.is_contiguous()
    assert torch.equal(q[:, :, 0], q[:, :, 1])
    assert not torch.equal(q[:, :, 1], q[:, :, 2])
    assert len({tuple(q[0, 0, head].tolist()) for head in range(8)}) == DRAWN_HEADS


def test_peers_get_the_same_values_with_rope_columns_in_every_head() -> None:
    (spec,) = kernels({"mask": "causal", "k_rope": {"layout": "ragged", "num_heads": 2}})
    made = make_workload(spec, SHAPE, for_peers=True, device="cpu")
    ((q, k, v), *_), tensors = made.packed, made.sets[0]
    assert torch.equal(q, tensors["q"])
    assert torch.equal(v, tensors["v"])
    assert torch.equal(k[..., :128], tensors["k"])
    for head in range(8):
        assert torch.equal(k[:, head, 128:], tensors["k_rope"][:, head // 4, -64:])


def test_small_rows_have_several_sets_of_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = workload(KINDS["dense"]).sets
    size = sum(tensor.nbytes for tensor in only.values())
    monkeypatch.setattr("mlagen.bench.workload.ROTATED_BYTES", 2.5 * size)
    made = workload(KINDS["dense"])
    assert len(made.sets) == len(made.packed) == 3
    assert not torch.equal(made.sets[0]["q"], made.sets[1]["q"])


def test_options_are_in_the_words_of_users() -> None:
    assert workload(KINDS["dense"]).options == {
        "mask": "causal",
        "return_lse": False,
        "softmax_scale": pytest.approx(192**-0.5),
    }
    assert workload(KINDS["prefix"]).options["kv_length_counts"] == "prefix"
    window = workload(KINDS["sink, window"]).options["mask"]
    assert window == {"kind": "sliding_window", "left": 7, "right": 0}


@pytest.mark.parametrize(
    ("group", "arch", "have"),
    [
        ({**DENSE, "mask": "causal", "lse": True}, "sm_90a", True),
        (
            {"mask": "none", "dtype": "float16", "q_form": "split", "k_rope": "ragged"},
            "sm_90a",
            True,
        ),
        ({"mask": "causal", "dtype": "float8_e4m3fn"}, "sm_100a", False),
        ({"mask": "causal", "dtype": "float16", "output_dtype": "bfloat16"}, "sm_90a", False),
        ({"mask": "causal", "sink": True}, "sm_90a", False),
        ({"mask": "causal", "score_mod": "alibi"}, "sm_90a", False),
        ({"mask": {"kind": "chunked", "size": 64}}, "sm_90a", False),
    ],
)
def test_peers_are_asked_for_what_they_have(group: dict[str, Any], arch: str, have: bool) -> None:
    (spec,) = kernels(group, arch=arch)
    assert has_peers(spec) is have


def test_rows_of_8_bits_are_drawn_and_measured() -> None:
    (spec,) = kernels({"mask": "causal", "dtype": "float8_e4m3fn"}, arch="sm_100a")
    made = make_workload(spec, SHAPE, for_peers=False, device="cpu")
    assert made.sets[0]["q"].dtype == torch.float8_e4m3fn
    assert Exact(made).error_of(output(made)).of_bound <= 1
