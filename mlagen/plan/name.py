"""Names of kernels: what a person looks for first, the head of the spec's hash last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlagen.dtypes import DTYPES, default_output_dtype
from mlagen.plan.split_kv import fixed_splits, splits_keys
from mlagen.spec.scheduler import Scheduler

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

HASH_LETTERS = 8
MOST_PARTS = 4  # of a combination of masks that are named


def kernel_name(spec: KernelSpec) -> str:
    """Entry point and file stem, as in `mla_prefill_sm90a_192x128_bf16_causal_ragged_fused_lse_3fa9c1d2`."""
    geometry = spec.geometry
    parts = [
        "mla",
        spec.op,
        spec.arch.replace("_", ""),
        f"{geometry.qk_head_dim}x{geometry.v_head_dim}",
        DTYPES[spec.dtype].short,
        mask_word(spec.mask),
    ]
    if spec.output_dtype != default_output_dtype(spec.dtype):
        parts.insert(-1, f"to{DTYPES[str(spec.output_dtype)].short}")
    score_mod = getattr(spec.score_mod, "kind", "mods")
    if score_mod != "identity":
        parts.append(score_mod)
    keys = spec.kv.layout if spec.kv.page_size is None else f"paged{spec.kv.page_size}"
    parts.append(keys if keys == spec.q_layout else f"{spec.q_layout}q_{keys}k")
    if spec.q_form == "split":
        parts.append("splitq")
    if geometry.qk_rope_head_dim:
        parts.append(rope_word(spec.k_rope))
    parts += [word for word, given in (("sink", spec.sink), ("lse", spec.lse)) if given]
    if splits_keys(spec):
        parts.append(f"splitkv{fixed_splits(spec) or ''}")
    parts += scheduler_words(spec.scheduler)
    if spec.config.cta_group == 2:
        parts.append("pair")
    if spec.config.cluster_size == 2:
        parts.append("cluster2")
    parts.append(spec.hash[:HASH_LETTERS])
    return "_".join(parts)


def scheduler_words(scheduler: Scheduler) -> list[str]:
    """What is unusual about the order of tiles."""
    usual = Scheduler()
    found = [(scheduler.kind, usual.kind), (scheduler.order, usual.order)]
    return [word.replace("_", "") for word, default in found if word != default]


def mask_word(mask: Any) -> str:  # Any: the union of spec.mask, read by `kind`
    """A mask in one word."""
    if mask.kind == "none":
        return "full"
    if mask.kind == "sliding_window":
        left, right = ("inf" if bound is None else str(bound) for bound in (mask.left, mask.right))
        return f"window{left}_{right}"
    if mask.kind == "chunked":
        return f"chunk{mask.size}" + ("" if mask.causal else "full")
    if mask.kind in ("all", "any"):
        return "_".join([mask.kind, *map(_part_word, mask.of[:MOST_PARTS])])
    return str(mask.kind)


def _part_word(mask: Any) -> str:  # Any: as above
    """A part of a combination in one word, a combination as how many parts it has."""
    return f"{mask.kind}{len(mask.of)}" if mask.kind in ("all", "any") else mask_word(mask)


def rope_word(rope: Any) -> str:  # Any: avoids importing the model for an annotation only
    """Where K's rope columns come from, in one word."""
    if rope.layout == "fused":
        return "fused"
    word = f"paged{rope.page_size}" if rope.layout == "paged" else f"{rope.layout}rope"
    return word + (f"x{rope.num_heads}" if rope.num_heads > 1 else "")
