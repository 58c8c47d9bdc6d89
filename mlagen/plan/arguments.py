"""The scalar and pointer arguments of a prefill kernel: only what its options need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.dtypes import DTYPES
from mlagen.plan.key_maps import page_size_of
from mlagen.plan.mask import takes_valid_lengths
from mlagen.plan.plan import Argument
from mlagen.plan.split_kv import fixed_splits, splits_keys

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec


def takes_cache_seqlens(spec: KernelSpec) -> bool:
    """Whether `cache_seqlens` says how many keys a sequence has, instead of the extent of its rows."""
    return spec.kv.layout == "paged" or spec.kv.seqlens or spec.kv_length_counts == "prefix"


def draws_tickets(spec: KernelSpec) -> bool:
    """Whether blocks take their tiles from a counter in memory."""
    return spec.scheduler.kind == "queued"


def prefill_arguments(spec: KernelSpec) -> tuple[Argument, ...]:
    """Arguments in the order of the kernel's `Arguments` struct."""
    is_scaled = DTYPES[spec.dtype].is_scaled
    rows_have_thresholds = spec.arch == "sm_90a" and not is_scaled
    scale = "softmax_scale * log2(e)" + (" * q_scale * k_scale" if is_scaled else "")
    found = [
        Argument("softmax_scale_log2", "float", scale),
        *(
            [Argument("inverse_scale_log2", "float", "1 / softmax_scale_log2")]
            if rows_have_thresholds
            else []
        ),
        Argument("num_heads", "int", "query heads"),
        Argument("batch", "int", "sequences"),
    ]
    if is_scaled:
        found.append(Argument("v_scale", "float", "of the values"))
    if spec.q_layout == "dense":
        found.append(Argument("seqlen_q", "int", "queries of every sequence"))
    else:
        found.append(Argument("total_q", "int", "query rows of the tensor"))
        found.append(
            Argument(
                "cu_seqlens_q", "const int*", "[batch + 1] first query row of each, and the end"
            )
        )
        if spec.max_seqlen == "dynamic":
            found.append(
                Argument("max_seqlen_q", "int", "queries of a sequence beyond this are left out")
            )
    if spec.kv.layout == "dense":
        found.append(Argument("seqlen_k", "int", "key rows of every sequence"))
    elif spec.kv.layout == "paged":
        found.append(Argument("seqlen_k", "int", "keys for which the block table has room"))
    else:
        found.append(Argument("total_k", "int", "key rows of the tensor"))
        if spec.kv.row_offsets:
            found.append(
                Argument(
                    "cu_seqlens_k", "const int*", "[batch + 1] first key row of each, and the end"
                )
            )
    if takes_cache_seqlens(spec):
        counted = "keys before this call" if spec.kv_length_counts == "prefix" else "keys"
        found.append(Argument("cache_seqlens", "const int*", f"[batch] {counted} of each sequence"))
    if takes_valid_lengths(spec.mask):
        found.append(
            Argument(
                "valid_lengths", "const int*", "[batch] keys of each sequence before its padding"
            )
        )
    if page_size_of(spec) is not None:
        found += [
            Argument(
                "block_table",
                "const int*",
                "[batch, max_pages] page of each page_size keys",
            ),
            Argument("block_table_stride", "int64", "elements from row to row"),
        ]
        if spec.kv.layout != "paged":
            found.append(Argument("block_table_width", "int", "max_pages"))
        found.append(Argument("num_pages", "int", "pages of the cache"))
    if spec.lse:
        found.append(
            Argument("lse", "float*", "log-sum-exp of each row and head, natural logarithm")
        )
        if spec.q_layout == "dense":
            found.append(Argument("lse_batch_stride", "int64", "elements"))
        found.append(Argument("lse_row_stride", "int64", "elements"))
        found.append(Argument("lse_head_stride", "int64", "elements"))
    if spec.sink:
        found.append(
            Argument(
                "sinks", "const float*", "[num_heads] logit of each head's sink, natural units"
            )
        )
    found += _score_mod_arguments(spec)
    if splits_keys(spec):
        if fixed_splits(spec) is None:
            found.append(Argument("num_splits", "int", "most parts of a tile's keys"))
        found.append(Argument("states", "float*", "[tiles, parts, ...] what each part has found"))
        found.append(
            Argument("arrivals", "int*", "[tiles, parts, 2] parts that have come; 0 before")
        )
    if draws_tickets(spec):
        found.append(Argument("tickets", "int*", "0 before and after every launch"))
    return tuple(found)


def _score_mod_arguments(spec: KernelSpec) -> list[Argument]:
    """The tensor of a score mod, and how it lies in memory."""
    score_mod = spec.score_mod
    if score_mod.kind == "alibi" and score_mod.slopes == "tensor":
        return [Argument("alibi_slopes", "const float*", "[num_heads]")]
    if score_mod.kind == "bias":
        strides = ("batch", "head")[: score_mod.rank - 2]
        shape = ("batch", "num_heads")[: score_mod.rank - 2]
        return [
            Argument("bias", "const float*", f"[{', '.join((*shape, 'queries', 'keys'))}]"),
            *(Argument(f"bias_{one}_stride", "int64", "elements; 0: shared") for one in strides),
            Argument("bias_row_stride", "int64", "elements; 0: shared"),
            Argument("bias_queries", "int", "queries of a sequence that have a row"),
            Argument("bias_keys", "int", "elements of a row"),
        ]
    if score_mod.kind == "relative_bias":
        strides = ("batch", "row", "head") if spec.q_layout == "dense" else ("row", "head")
        rows = "batch, seqlen_q" if spec.q_layout == "dense" else "total_q"
        return [
            Argument("relative_bias", "const float*", f"[{rows}, num_heads, distances]"),
            *(Argument(f"relative_bias_{one}_stride", "int64", "elements") for one in strides),
        ]
    return []
