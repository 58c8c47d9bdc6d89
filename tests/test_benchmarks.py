"""The benchmarks as far as they run without a GPU: their rows, their FLOPs, and what they write into documents."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mlagen
from benchmarks.device_run import STAGES
from benchmarks.peers import PEERS, RefusedRowError, by_head
from benchmarks.prefill import OURS, SPEC, find_kernel
from benchmarks.prepare_kernels import SPECS
from benchmarks.publish import BEGIN, END, README, readme_block, with_block
from benchmarks.rows import ROWS, Row, causal_pairs
from benchmarks.timing import Timing
from tests.gpu.workloads import Batch, draw_operands, lay_out

ALL_ROWS = [row for rows in ROWS.values() for row in rows]
KERNELS = mlagen.load(SPEC)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.label)
def test_each_row_has_one_kernel(row: object) -> None:
    assert find_kernel(KERNELS, row) in KERNELS.specs  # type: ignore[arg-type]  # parametrized with rows


@pytest.mark.parametrize("lengths", [(1, 1), (5, 5), (2, 5), (5, 2), (1, 9), (64, 200)], ids=str)
def test_causal_pairs_are_those_that_a_loop_counts(lengths: tuple[int, int]) -> None:
    q, kv = lengths
    assert causal_pairs(q, kv) == sum(k <= i + kv - q for i in range(q) for k in range(kv))


def test_flops_of_the_rows_of_the_issue() -> None:
    causal, *_, dense = ROWS["figures"]
    assert causal.flops() == 2 * 320 * 128 * 2048 * 2049 / 2
    assert dense.flops() == 2 * 320 * 128 * 8192 * 8192


def test_window_and_chunk_rows_count_visible_pairs_only() -> None:
    by_label = {row.label: row for row in ROWS["masks"]}
    n = 16384
    assert by_label["16k window 1024"].pairs == sum(min(i + 1, 1024) for i in range(n))
    assert by_label["16k chunked 2048"].pairs == sum(i % 2048 + 1 for i in range(n))


def test_peers_see_the_rows_by_head() -> None:
    row = ROWS["speed"][5]
    small = KERNELS.specs[0]
    batch = Batch((3, 3, 3, 3), (3, 3, 3, 3), heads=2)
    tensors = lay_out(small, batch, draw_operands(small, batch, seed=0, device="cpu"))
    packed = tensors["q"].flatten(0, 1)
    assert (by_head(row, packed) == tensors["q"].transpose(1, 2)).all()


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
def test_peers_of_other_libraries_are_asked_for_the_row(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mask: str,
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    module, fake = FAKES[name]
    monkeypatch.setitem(sys.modules, module.partition(".")[0], SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setattr("benchmarks.peers.FLASHINFER_WORKSPACE_BYTES", 16)
    q_lens, kv_lens = lengths
    row = Row("row", q_lens, kv_lens, 2, {"mask.kind": mask}, pairs=1)
    torch.manual_seed(0)
    sets = [
        tuple(torch.randn(sum(n), 2, d) for n, d in ((q_lens, 6), (kv_lens, 6), (kv_lens, 4)))
        for _ in range(2)
    ]
    peer = PEERS[name]
    call = peer.prepare(row, sets, 0.3)
    for index, (q, k, v) in enumerate(sets):
        parts = zip(q.split(q_lens), k.split(kv_lens), v.split(kv_lens), strict=True)
        wanted = torch.cat([attend(*part, scale=0.3, causal=mask == "causal") for part in parts])
        torch.testing.assert_close(peer.packed(row, call(index)), wanted)


@pytest.mark.parametrize("name", FAKES)
def test_a_peer_that_is_not_installed_refuses_its_rows(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, FAKES[name][0], None)
    with pytest.raises(RefusedRowError, match=r"^(flash-attn-4|flashinfer-python): "):
        PEERS[name].prepare(ROWS["figures"][0], [], 0.3)


def test_every_spec_that_is_built_ahead_exists() -> None:
    assert all(path.exists() for path in SPECS)


def test_stages_write_into_files_of_their_own() -> None:
    files = [stage.result for stage in STAGES.values() if stage.result]
    assert len(set(files)) == len(files)


def test_figures_replace_only_what_stands_between_the_markers() -> None:
    text = README.read_text()
    changed = with_block(text, "figures")
    assert changed.partition(BEGIN)[0] == text.partition(BEGIN)[0]
    assert changed.partition(END)[2] == text.partition(END)[2]
    assert with_block(changed, "figures") == changed


def test_readme_figures_name_machine_and_command() -> None:
    timing = Timing(median_ms=1.0, least_ms=0.9, p90_ms=1.1, calls=20, regime="cool")
    common = {"row": "dense 8k", "regime": "cool", "timing": timing, "tflops": 800.0, "ratio": 1.2}
    machine = dict.fromkeys(
        ("date", "gpu", "driver", "cubins", "torch", "cudnn", "python"), "x"
    ) | {"gpu": "H200"}
    results = [{**common, "peer": peer} for peer in (OURS, "torch_cudnn")]
    block = readme_block({"machine": machine, "results": {"figures": {"results": results}}})
    assert "| dense 8k tokens | 800 TFLOP/s | 800 TFLOP/s | 1.20 × |" in block
    assert "H200" in block
    assert "python -m benchmarks.prefill" in block
