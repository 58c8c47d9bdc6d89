"""Specs and tensors for the runtime's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mlagen.plan.arguments import takes_cache_seqlens
from mlagen.plan.key_maps import page_size_of
from mlagen.plan.mask import takes_valid_lengths
from mlagen.spec.yaml import kernel_from_dict

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

DEEPSEEK = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
}
GLM_FLASH = DEEPSEEK | {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256}
PAGED_64 = {"layout": "paged", "page_size": 64}


def make_spec(**options: Any) -> KernelSpec:
    """A kernel with these options, as a spec file would write them."""
    return kernel_from_dict({"arch": "sm_90a", "geometry": DEEPSEEK} | options)


def offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    """Running totals of lengths, from 0."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def make_tensors(
    spec: KernelSpec,
    *,
    q_lens: tuple[int, ...] = (40, 0, 129),
    k_lens: tuple[int, ...] = (7, 65, 200),
    heads: int = 4,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Random inputs of a call; dense layouts take the longest of the lengths."""
    torch.manual_seed(seed)
    dtype, geometry = getattr(torch, spec.dtype), spec.geometry
    batch = len(q_lens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float32).to(dtype)

    q_rows = (sum(q_lens),) if spec.q_layout == "ragged" else (batch, max(q_lens))
    k_rows = (sum(k_lens),) if spec.kv.layout == "ragged" else (batch, max(k_lens))
    pages = sum(_pages(spec, k_lens))
    if spec.kv.page_size is not None:
        k_rows = (pages, spec.kv.page_size)
    tensors: dict[str, torch.Tensor] = {}
    if spec.q_form == "fused":
        tensors["q"] = draw(*q_rows, heads, geometry.qk_head_dim)
    else:
        tensors["q_nope"] = draw(*q_rows, heads, geometry.qk_nope_head_dim)
        tensors["q_pe"] = draw(*q_rows, heads, geometry.qk_rope_head_dim)
    fused = spec.k_rope.layout == "fused"
    width = geometry.qk_head_dim if fused else geometry.qk_nope_head_dim
    tensors["k"] = draw(*k_rows, heads, width)
    tensors["v"] = draw(*k_rows, heads, geometry.v_head_dim)
    if spec.q_layout == "ragged":
        tensors["cu_seqlens_q"] = offsets(q_lens)
    if spec.kv.layout == "ragged" and spec.kv.row_offsets:
        tensors["cu_seqlens_k"] = offsets(k_lens)
    if spec.kv_length_counts == "prefix":
        lens = [k - q for q, k in zip(q_lens, k_lens, strict=True)]
        tensors["cache_seqlens"] = torch.tensor(lens, dtype=torch.int32)
    elif takes_cache_seqlens(spec):
        tensors["cache_seqlens"] = torch.tensor(k_lens, dtype=torch.int32)
    if takes_valid_lengths(spec.mask):
        tensors["valid_lengths"] = torch.tensor([k // 2 for k in k_lens], dtype=torch.int32)
    tensors |= _rope(spec, k_lens, draw)
    if page_size_of(spec) is not None:
        tensors["block_table"] = _block_table(_pages(spec, k_lens))
    if spec.sink:
        tensors["sinks"] = torch.randn(heads)
    if any(mod.kind == "alibi" and mod.slopes == "tensor" for mod in spec.score_mods):
        tensors["alibi_slopes"] = torch.rand(heads)
    for mod in spec.score_mods:
        if mod.kind == "bias":
            shape = (batch, heads, max(q_lens), max(k_lens))
            tensors["bias"] = torch.randn(shape)
            if mod.rank < 4:
                tensors["bias"] = tensors["bias"][:, 0] if mod.rank == 3 else tensors["bias"][0, 0]
        if mod.kind == "relative_bias":
            tensors["relative_bias"] = torch.randn(*q_rows, heads, mod.extent)
    return tensors


def _rope(spec: KernelSpec, k_lens: tuple[int, ...], draw: Any) -> dict[str, torch.Tensor]:
    rope = spec.k_rope
    inner = (rope.row_width,) if rope.num_heads == 1 else (rope.num_heads, rope.row_width)
    if rope.layout == "ragged":
        return {"k_rope": draw(sum(k_lens), *inner)}
    if rope.layout == "dense":
        return {"k_rope": draw(len(k_lens), max(k_lens), *inner)}
    if rope.layout == "fused":
        return {}
    assert rope.page_size is not None
    return {"k_rope": draw(sum(_pages(spec, k_lens)), rope.page_size, *inner)}


def _pages(spec: KernelSpec, k_lens: tuple[int, ...]) -> list[int]:
    """Pages that each sequence needs; none where nothing is paged."""
    page_size = page_size_of(spec)
    return [0 if page_size is None else -(-length // page_size) for length in k_lens]


def _block_table(needed: list[int]) -> torch.Tensor:
    """Pages in random order, and behind a sequence's last one ids that no cache has."""
    order = torch.randperm(sum(needed), dtype=torch.int32)
    table = torch.full((len(needed), max([*needed, 0])), 2**30, dtype=torch.int32)
    first = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[first : first + count]
        first += count
    return table
