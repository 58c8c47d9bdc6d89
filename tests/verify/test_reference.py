"""The float64 definition: against torch's own attention, and against results worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mlagen.verify.reference
from mlagen.errors import UnsupportedError
from mlagen.plan.key_maps import page_size_of
from mlagen.verify.reference import alibi_slopes, reference, visibility
from tests.runtime.calls import DEEPSEEK, GLM_FLASH, PAGED_64, make_spec, make_tensors

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "split": {"q_form": "split"},
    "ragged rope": {"k_rope": "ragged"},
    "dense rope": {"k_rope": "dense"},
    "two rope heads": {"k_rope": {"layout": "paged", "page_size": 16, "num_heads": 2}},
    "paged": {"k_rope": PAGED_64, "q_form": "split"},
    "k and v in pages": {"kv": PAGED_64},
    "all in pages": {"kv": PAGED_64, "k_rope": PAGED_64, "q_form": "split"},
    "dense": {"q_layout": "dense", "kv": "dense"},
    "dense with lengths": {"q_layout": "dense", "kv": {"layout": "dense", "seqlens": True}},
    "shared offsets": {"kv": {"layout": "ragged", "row_offsets": False}},
    "prefix": {"kv_length_counts": "prefix"},
    "no rope": {"geometry": GLM_FLASH},
}


def one_sequence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    more: dict[str, torch.Tensor] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of a single sequence with one head; q, k and v are `[rows, dim]`, scores q . k."""
    spec = make_spec(**options)
    tensors = {
        "q": torch.zeros(len(q), 1, 192, dtype=torch.float64),
        "k": torch.zeros(len(k), 1, 192, dtype=torch.float64),
        "v": torch.zeros(len(v), 1, 128, dtype=torch.float64),
        "cu_seqlens_q": torch.tensor([0, len(q)]),
        "cu_seqlens_k": torch.tensor([0, len(k)]),
    }
    for name, rows in (("q", q), ("k", k), ("v", v)):
        tensors[name][:, 0, : rows.shape[1]] = rows
    if spec.sink:
        tensors["sinks"] = torch.tensor([0.0])
    out, lse = reference(spec, tensors | (more or {}), softmax_scale=1.0)
    return out[:, 0], lse[:, 0]


def visible_keys(num_queries: int, num_keys: int, **options: Any) -> list[list[int]]:
    """Which keys each query sees: values are the keys' own unit vectors, scores are equal."""
    out, _ = one_sequence(
        torch.zeros(num_queries, 1), torch.zeros(num_keys, 1), torch.eye(num_keys), **options
    )
    return [[key for key in range(num_keys) if row[key] > 0] for row in out]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_equals_torch_attention(layout: str, mask: str) -> None:
    spec = make_spec(mask=mask, lse=True, **LAYOUTS[layout])
    q_lens, k_lens = (6, 1, 5), (6, 30, 17)
    if spec.q_layout == "dense":
        q_lens = (5, 5, 5)
    if not spec.kv.row_offsets:
        k_lens = q_lens
    tensors = make_tensors(spec, q_lens=q_lens, k_lens=k_lens)
    out, lse = reference(spec, tensors)
    flat_out, flat_lse = out.flatten(0, -3), lse.flatten(0, -2)
    dense_k = spec.kv.layout == "dense"
    row = 0
    counts = [max(k_lens)] * 3 if dense_k and not spec.kv.seqlens else k_lens
    for index, (rows, keys) in enumerate(zip(q_lens, counts, strict=True)):
        first = index * max(k_lens) if dense_k else sum(k_lens[:index])
        wanted = torch_attention(spec, tensors, index, (row, rows), (first, keys))
        torch.testing.assert_close(flat_out[row : row + rows], wanted, rtol=1e-10, atol=1e-12)
        row += rows
    assert bool(torch.isfinite(flat_lse).all())


def torch_attention(
    spec: Any,
    tensors: dict[str, torch.Tensor],
    index: int,
    queries: tuple[int, int],
    keys: tuple[int, int],
) -> torch.Tensor:
    """One sequence by `scaled_dot_product_attention`."""
    (q0, rows), (k0, count) = queries, keys
    q = torch.cat([tensors[name] for name in ("q", "q_nope", "q_pe") if name in tensors], dim=-1)
    q = q.flatten(0, -3)[q0 : q0 + rows].double().transpose(0, 1)
    size, slots = page_size_of(spec), []
    if size is not None:
        table = tensors["block_table"][index]
        slots = [(int(table[key // size]), key % size) for key in range(count)]

    def rows_of(name: str) -> torch.Tensor:
        if spec.kv.layout == "paged":
            return torch.stack([tensors[name][page, slot] for page, slot in slots])
        return tensors[name].flatten(0, -3)[k0 : k0 + count]

    k, v = (rows_of(name).double().transpose(0, 1) for name in ("k", "v"))
    if "k_rope" in tensors:
        rope = tensors["k_rope"].double()
        if spec.k_rope.layout == "ragged":
            rope = rope[k0 : k0 + count]
        elif spec.k_rope.layout == "dense":
            rope = rope[index, :count]
        else:
            rope = torch.stack([rope[page, slot] for page, slot in slots])
        rope = rope.reshape(count, -1, rope.shape[-1])[..., -64:]
        rope = rope.repeat_interleave(q.shape[0] // rope.shape[1], dim=1).transpose(0, 1)
        k = torch.cat([k, rope], dim=-1)
    visible = torch.ones(rows, count, dtype=torch.bool)
    if spec.mask.kind == "causal":
        visible = visible.tril(count - rows)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=spec.geometry.softmax_scale
    )
    return out.transpose(0, 1)


@pytest.mark.parametrize("layout", ["plain", "paged", "dense with lengths", "two rope heads"])
def test_numpy_and_torch_agree(layout: str) -> None:
    alibi = {"kind": "alibi", "slopes": "tensor"}
    spec = make_spec(mask="causal", sink=True, score_mod=alibi, **LAYOUTS[layout])
    tensors = make_tensors(spec, q_lens=(6, 3), k_lens=(20, 3))
    arrays = {
        name: tensor.float().numpy().astype(ml_dtypes.bfloat16)
        if tensor.dtype == torch.bfloat16
        else tensor.numpy()
        for name, tensor in tensors.items()
    }
    for of_torch, of_numpy in zip(reference(spec, tensors), reference(spec, arrays), strict=True):
        assert of_numpy.dtype == np.float64
        torch.testing.assert_close(of_torch, torch.from_numpy(of_numpy), rtol=1e-12, atol=1e-12)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(mask="causal", score_mod="alibi", sink=True)
    tensors = make_tensors(spec, q_lens=(40, 0, 33), k_lens=(70, 3, 20))
    whole = reference(spec, tensors)
    for size in (1, 150, 1000):
        monkeypatch.setattr(mlagen.verify.reference, "BLOCK_SCORES", size)
        for one, other in zip(reference(spec, tensors), whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_more_queries_than_keys_leaves_rows_empty() -> None:
    """Case 1: q 40, kv 7, causal: rows 0 to 32 see nothing."""
    torch.manual_seed(1)
    out, lse = one_sequence(
        torch.randn(40, 4), torch.randn(7, 4), torch.randn(7, 8), mask="causal", lse=True
    )
    assert bool((out[:33] == 0).all())
    assert bool(torch.isneginf(lse[:33]).all())
    assert bool(torch.isfinite(lse[33:]).all())
    assert bool((out[33:, :8] != 0).all())


def test_logits_below_any_finite_mask_constant() -> None:
    """Case 2: -60 000 for all keys but key 0 at -55 000."""
    k = torch.full((7, 1), -60_000.0)
    k[0] = -55_000.0
    out, lse = one_sequence(torch.ones(1, 1), k, torch.eye(7))
    assert out[0, 0] == 1
    assert lse[0] == -55_000


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "seen"),
    [(2, 5, [4, 5]), (5, 2, [0, 0, 0, 1, 2]), (1, 9, [9])],
)
def test_causal_diagonal_starts_bottom_right(
    num_queries: int, num_keys: int, seen: list[int]
) -> None:
    """Case 9."""
    found = visible_keys(num_queries, num_keys, mask="causal")
    assert found == [list(range(count)) for count in seen]


def test_window_counts_keys_besides_the_query() -> None:
    """Case 10: left 3 shows four keys."""
    window = {"kind": "sliding_window", "left": 3, "right": 0}
    found = visible_keys(16, 16, mask=window)
    assert found[10] == [7, 8, 9, 10]
    assert found[1] == [0, 1]
    both = visible_keys(4, 16, mask={"kind": "sliding_window", "left": 1, "right": 2})
    assert both == [[11, 12, 13, 14], [12, 13, 14, 15], [13, 14, 15], [14, 15]]


def test_chunks_start_at_multiples_of_their_size() -> None:
    found = visible_keys(3, 10, mask={"kind": "chunked", "size": 4})
    assert found == [[4, 5, 6, 7], [8], [8, 9]]
    assert visible_keys(3, 10, mask={"kind": "chunked", "size": 4, "causal": False}) == [
        [4, 5, 6, 7],
        [8, 9],
        [8, 9],
    ]


def test_padding_and_combinations_by_hand() -> None:
    def seen(mask: object) -> list[int]:
        query, keys = torch.tensor([[7]]), torch.arange(10)[None, :]
        row = visibility(make_spec(mask=mask).mask, query, keys, 3)[0]
        return [key for key in range(10) if row[key]]

    window = {"kind": "sliding_window", "left": 1, "right": 0}
    assert seen("padding") == [0, 1, 2]
    assert seen({"any": [window, "padding"]}) == [0, 1, 2, 6, 7]
    assert seen({"all": [window, "padding"]}) == []
    assert seen({"all": ["causal", {"any": [window, "padding"]}]}) == [0, 1, 2, 6, 7]


def test_score_mods_come_before_the_mask() -> None:
    """Case 11: softcap 1, logits up to 20; a future value changes no bit."""
    torch.manual_seed(2)
    q, k, v = torch.ones(32, 1), torch.linspace(-20, 20, 32)[:, None], torch.randn(32, 8)
    options: dict[str, Any] = {"mask": "causal", "score_mod": {"kind": "softcap", "cap": 1.0}}
    out, lse = one_sequence(q, k, v, **options)
    v[20:] = 1e6
    changed, _ = one_sequence(q, k, v, **options)
    assert torch.equal(out[:20], changed[:20])
    assert float(lse[0]) == pytest.approx(math.tanh(-20.0))


def test_alibi_by_hand() -> None:
    """Two keys, one head: slope 2^-8, distances 1 and 0, scores 0."""
    out, lse = one_sequence(
        torch.zeros(1, 1), torch.zeros(2, 1), torch.eye(2), mask="causal", score_mod="alibi"
    )
    weight = math.exp(-(2.0**-8))
    assert out[0, :2].tolist() == pytest.approx([weight / (1 + weight), 1 / (1 + weight)])
    assert float(lse[0]) == pytest.approx(math.log(1 + weight))


def test_bias_by_hand() -> None:
    """Scores of 0: weights are exponentials of the bias; -inf and what lies behind the tensor weigh nothing."""
    mod: dict[str, Any] = {"kind": "bias", "rank": 2}
    bias = torch.tensor([[0.0, math.log(3.0), -math.inf], [-math.inf] * 3])
    q, k, v = torch.zeros(3, 1), torch.zeros(4, 1), torch.eye(4)
    out, lse = one_sequence(q, k, v, more={"bias": bias}, score_mod=mod)
    assert out[0, :4].tolist() == pytest.approx([0.25, 0.75, 0.0, 0.0])
    assert lse.tolist() == pytest.approx([math.log(4.0), -math.inf, -math.inf])
    assert out[1:].tolist() == [[0.0] * out.shape[1]] * 2
    out, _ = one_sequence(q, k, v, more={"bias": bias[:1]}, score_mod=mod)
    assert out[2, :2].tolist() == pytest.approx([0.25, 0.75])


def test_relative_bias_by_hand() -> None:
    """Three keys, two queries, a table of two distances: the last query stands at the last key."""
    table = torch.log(torch.tensor([[[2.0, 3.0]], [[4.0, 5.0]]]))
    out, lse = one_sequence(
        torch.zeros(2, 1),
        torch.zeros(3, 1),
        torch.eye(3),
        more={"relative_bias": table},
        score_mod={"kind": "relative_bias", "extent": 2},
    )
    assert out[0, :3].tolist() == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert out[1, :3].tolist() == pytest.approx([1 / 10, 5 / 10, 4 / 10])
    assert lse.tolist() == pytest.approx([math.log(6.0), math.log(10.0)])


def test_slopes_of_any_number_of_heads() -> None:
    """The sequences that the ALiBi paper and its code give."""
    assert alibi_slopes(8) == [2.0**-exponent for exponent in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    assert alibi_slopes(12)[8:] == [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    assert len(alibi_slopes(20)) == 20


def test_a_list_of_mods_applies_in_order() -> None:
    """Cap first: tanh(2), then the slope; the LSE of one key is its score."""
    mods = [{"kind": "softcap", "cap": 1.0}, "alibi"]
    _, lse = one_sequence(torch.full((1, 1), 2.0), torch.ones(2, 1), torch.eye(2), score_mod=mods)
    scores = [math.tanh(2.0) - 2.0**-8, math.tanh(2.0)]
    assert float(lse[0]) == pytest.approx(math.log(sum(map(math.exp, scores))))


def test_sink_is_in_the_denominator_and_not_in_the_lse() -> None:
    out, lse = one_sequence(
        torch.zeros(2, 1), torch.zeros(1, 1), torch.eye(1), mask="causal", sink=True
    )
    assert out[:, 0].tolist() == [0.0, 0.5]
    assert lse.tolist() == [-math.inf, 0.0]


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        ({"factor": 40.0, "mscale_all_dim": 1.0}, 1.874),
        ({"factor": 40.0, "mscale_all_dim": 0.707}, 1.590),
        ({"factor": 32.0, "mscale_all_dim": 1.0}, 1.813),
        ({"factor": 64.0, "mscale_all_dim": 1.0}, 2.005),
        (None, 1.0),
    ],
    ids=["DeepSeek-V3", "V2-Lite", "Kimi K2", "Kimi K2-0905", "none"],
)
def test_scale_of_the_models(scaling: dict[str, float] | None, factor: float) -> None:
    """Case 25: with several keys the output shows the scale."""
    geometry: dict[str, Any] = dict(DEEPSEEK)
    if scaling:
        geometry["rope_scaling"] = {"type": "yarn", **scaling}
    spec = make_spec(geometry=geometry)
    tensors = {
        "q": torch.zeros(1, 1, 192),
        "k": torch.zeros(2, 1, 192),
        "v": torch.zeros(2, 1, 128),
        "cu_seqlens_q": torch.tensor([0, 1]),
        "cu_seqlens_k": torch.tensor([0, 2]),
    }
    tensors["q"][0, 0, 0] = tensors["k"][1, 0, 0] = tensors["v"][1, 0, 0] = 1.0
    out, _ = reference(spec, tensors)
    logit = math.log(float(out[0, 0, 0]) / (1 - float(out[0, 0, 0])))
    assert logit == pytest.approx(192**-0.5 * factor, rel=5e-4)


def test_slots_of_no_key_are_not_touched() -> None:
    """Case 3: NaN behind the last key of a page, in spare pages and in latent columns."""
    spec = make_spec(k_rope=PAGED_64)
    tensors = make_tensors(spec, q_lens=(3,), k_lens=(13,))
    tensors["k_rope"] = torch.cat([tensors["k_rope"], torch.zeros(2, 64, 576).bfloat16()])
    wanted, _ = reference(spec, tensors)
    page = int(tensors["block_table"][0, 0])
    tensors["k_rope"][page, 13:] = math.nan
    tensors["k_rope"][page + 1 :] = math.nan
    tensors["k_rope"][..., :512] = math.nan
    assert torch.equal(reference(spec, tensors)[0], wanted)


def test_page_ids_beyond_16_bits() -> None:
    """Case 15: matches a gather."""
    spec = make_spec(
        k_rope={"layout": "paged", "page_size": 1, "row_width": 64},
        geometry=DEEPSEEK,
    )
    tensors = make_tensors(spec, q_lens=(2,), k_lens=(3,))
    cache = torch.randn(80_000, 1, 64).bfloat16()
    ids = torch.tensor([[65_535, 65_536, 70_000]], dtype=torch.int32)
    gathered = make_spec(k_rope="ragged")
    paged = tensors | {"k_rope": cache, "block_table": ids}
    flat = tensors | {"k_rope": cache[ids[0].long(), 0]}
    assert torch.equal(reference(spec, paged)[0], reference(gathered, flat)[0])


def test_what_it_does_not_know_is_refused() -> None:
    tensors = make_tensors(make_spec(), q_lens=(2,), k_lens=(3,))
    with pytest.raises(UnsupportedError, match="mask: the reference does not know 'document'"):
        reference(make_spec(mask="document"), tensors)
    with pytest.raises(UnsupportedError, match="score_mod: the reference does not know 'temp"):
        reference(make_spec(score_mod="temperature"), tensors)


@pytest.mark.parametrize("sink", [-60_000.0, 0.0, 60_000.0])
def test_sink_far_from_the_scores_leaves_lse_alone(sink: float) -> None:
    # Two keys of score 0 have weights 1 and 1: lse = log 2 whatever the sink, and the output is 2 / (2 + exp(sink)).
    spec = make_spec(sink=True, lse=True)
    tensors = make_tensors(spec, q_lens=(1,), k_lens=(2,))
    tensors["q"] = torch.zeros_like(tensors["q"])
    tensors["v"] = torch.ones_like(tensors["v"])
    tensors["sinks"] = torch.full_like(tensors["sinks"], sink)
    out, lse = reference(spec, tensors)
    share = {-60_000.0: 1.0, 0.0: 2 / 3, 60_000.0: 0.0}[sink]
    torch.testing.assert_close(out, torch.full_like(out, share), rtol=1e-12, atol=0)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(2)), rtol=1e-12, atol=0)


def test_scales_are_those_of_dequantised_values() -> None:
    spec = make_spec(dtype="float8_e4m3fn", mask="causal", sink=True, k_rope="ragged")
    tensors = make_tensors(spec)
    scales = {"q": 0.5, "k": 3.0, "k_rope": 3.0, "v": 0.25}
    dequantised = {
        name: tensor.double() * scales[name] if name in scales else tensor
        for name, tensor in tensors.items()
    }
    got = reference(spec, tensors, q_scale=0.5, k_scale=3.0, v_scale=0.25)
    for actual, expected in zip(got, reference(spec, dequantised), strict=True):
        torch.testing.assert_close(actual, expected)
