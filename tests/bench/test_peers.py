"""Peers are asked for what the row is; fakes stand for libraries that are not installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlagen.bench.installed import PEER_NAMES, installed_peers
from mlagen.bench.peers import PEERS, RefusedShapeError, by_head
from mlagen.bench.rows import Shape


def test_every_peer_has_a_name() -> None:
    assert list(PEERS) == list(PEER_NAMES)
    assert {"torch_cudnn", "flex"} <= set(installed_peers())


def test_peers_see_dense_batches_by_head() -> None:
    dense = torch.arange(4 * 3 * 2 * 5).reshape(4, 3, 2, 5)
    seen = by_head(Shape((3,) * 4, (3,) * 4, 2), dense.flatten(0, 1))
    assert (seen == dense.transpose(1, 2)).all()


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool
) -> torch.Tensor:
    """One sequence `[length, heads, dim]`, the last query on the last key."""
    scores = scale * torch.einsum("qhd,khd->hqk", q.double(), k.double())
    if causal:
        hidden = torch.ones(len(q), len(k)).triu(len(k) - len(q) + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double())


def attend_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    ends: tuple[torch.Tensor, torch.Tensor],
    **options: Any,
) -> torch.Tensor:
    """Sequences one behind the other, which begin and end at these offsets."""
    assert all(each.dtype == torch.int32 for each in ends)
    lengths = [each.diff().tolist() for each in ends]
    parts = zip(q.split(lengths[0]), k.split(lengths[1]), v.split(lengths[1]), strict=True)
    return torch.cat([attend(*part, **options) for part in parts])


def fake_flash_attn() -> SimpleNamespace:
    def dense(*operands: torch.Tensor, softmax_scale: float, causal: bool) -> torch.Tensor:
        parts = zip(*operands, strict=True)
        return torch.stack([attend(*part, scale=softmax_scale, causal=causal) for part in parts])

    def ragged(
        *operands: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
    ) -> tuple[torch.Tensor, None]:
        assert max_seqlen_q == cu_seqlens_q.diff().max()
        assert max_seqlen_k == cu_seqlens_k.diff().max()
        ends = (cu_seqlens_q, cu_seqlens_k)
        return attend_packed(*operands, ends=ends, scale=softmax_scale, causal=causal), None

    return SimpleNamespace(flash_attn_func=dense, flash_attn_varlen_func=ragged)


class FakeRaggedWrapper:
    """FlashInfer's, as far as it is called."""

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        *,
        head_dim_vo: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        self.widths = (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo)
        self.dtypes = (q_data_type, kv_data_type)
        self.options: dict[str, Any] = {
            "ends": (qo_indptr, kv_indptr),
            "scale": sm_scale,
            "causal": causal,
        }

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert self.widths == (q.shape[1], k.shape[1], q.shape[2], v.shape[2])
        assert self.dtypes == (q.dtype, k.dtype)
        return attend_packed(q, k, v, **self.options)


FAKES = {
    "fa4": ("flash_attn.cute", fake_flash_attn()),
    "flashinfer": (
        "flashinfer",
        SimpleNamespace(BatchPrefillWithRaggedKVCacheWrapper=FakeRaggedWrapper),
    ),
}


@pytest.mark.parametrize("lengths", [((5, 5), (5, 5)), ((2, 2), (7, 7)), ((3, 1), (4, 9))], ids=str)
@pytest.mark.parametrize("mask", ["causal", "none"])
@pytest.mark.parametrize("name", FAKES)
def test_peers_of_other_libraries_are_asked_for_the_shape(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mask: str,
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    module, fake = FAKES[name]
    monkeypatch.setitem(sys.modules, module.partition(".")[0], SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setattr("mlagen.bench.peers.FLASHINFER_WORKSPACE_BYTES", 16)
    q_lens, kv_lens = lengths
    shape = Shape(q_lens, kv_lens, 2)
    torch.manual_seed(0)
    sets = [
        tuple(torch.randn(sum(n), 2, d) for n, d in ((q_lens, 6), (kv_lens, 6), (kv_lens, 4)))
        for _ in range(2)
    ]
    peer = PEERS[name]
    call = peer.prepare(shape, sets, causal=mask == "causal", scale=0.3)
    for index, (q, k, v) in enumerate(sets):
        parts = zip(q.split(q_lens), k.split(kv_lens), v.split(kv_lens), strict=True)
        wanted = torch.cat([attend(*part, scale=0.3, causal=mask == "causal") for part in parts])
        torch.testing.assert_close(peer.packed(shape, call(index)), wanted)


@pytest.mark.parametrize("name", FAKES)
def test_a_peer_that_is_not_installed_refuses_everything(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, FAKES[name][0], None)
    shape = Shape((64,), (64,), 2)
    with pytest.raises(RefusedShapeError, match=r"^(flash-attn-4|flashinfer-python): "):
        PEERS[name].prepare(shape, [], causal=True, scale=0.3)
    assert name not in installed_peers()
