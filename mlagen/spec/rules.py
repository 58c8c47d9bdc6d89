"""Rules between the options of one kernel that no architecture and no kernel family can lift."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.spec.base import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.spec.model import KernelSpec


def kernel_problems(spec: KernelSpec) -> list[Problem]:
    """Everything that makes the combination of options meaningless, each at the field to change."""
    return [*_rope_problems(spec), *_row_problems(spec), *_length_problems(spec)]


def _rope_problems(spec: KernelSpec) -> Iterator[Problem]:
    rope = spec.geometry.qk_rope_head_dim
    if rope == 0:
        if spec.q_form == "split":
            yield Problem(
                ("q_form",),
                "split has no meaning where qk_rope_head_dim is 0: there is no q_pe",
                "write q_form: fused",
            )
        if spec.k_rope.layout != "fused":
            yield Problem(
                ("k_rope",),
                f"layout {spec.k_rope.layout} has no meaning where qk_rope_head_dim is 0: there are no rope columns",
                "remove k_rope, or write k_rope: fused",
            )
        return
    width = spec.k_rope.row_width
    if width is not None and width < rope:
        yield Problem(
            ("k_rope", "row_width"),
            f"{width} is less than qk_rope_head_dim {rope}",
            f"write {rope}, or {spec.geometry.kv_lora_rank + rope} for rows of a latent cache",
        )
    if spec.k_rope.layout == "ragged" and spec.kv.layout != "ragged":
        yield Problem(
            ("k_rope",),
            f"layout ragged needs the offsets of ragged keys, and kv has layout {spec.kv.layout}",
            f"write k_rope: {{layout: {spec.kv.layout}, ...}} or kv: ragged",
        )
    sizes = (spec.kv.page_size, spec.k_rope.page_size)
    if None not in sizes and sizes[0] != sizes[1]:
        yield Problem(
            ("k_rope", "page_size"),
            f"{sizes[1]}, and kv has page_size {sizes[0]}: one block_table finds the pages of both",
            f"write page_size: {sizes[0]}",
        )


def _row_problems(spec: KernelSpec) -> Iterator[Problem]:
    rank = spec.geometry.kv_lora_rank
    if spec.kv.row == "fp8_grouped" and rank % 128:
        yield Problem(
            ("kv", "row"),
            f"fp8_grouped has a scale for 128 columns each, and kv_lora_rank is {rank}",
            "write row: fp8",
        )


def _length_problems(spec: KernelSpec) -> Iterator[Problem]:
    if spec.q_layout == "dense":
        if spec.max_seqlen != "dynamic":
            yield Problem(
                ("max_seqlen",),
                f"{spec.max_seqlen} with q_layout dense: dense batches take their length from the tensor",
                "remove max_seqlen, or write q_layout: ragged",
            )
        if not spec.kv.row_offsets:
            yield Problem(
                ("kv", "row_offsets"),
                "false shares the queries' offsets, and a dense batch has none",
                "write row_offsets: true, or q_layout: ragged",
            )
    if spec.kv_length_counts == "prefix":
        if spec.kv.layout == "ragged" and not spec.kv.row_offsets:
            yield Problem(
                ("kv_length_counts",),
                "prefix needs keys with offsets of their own, and kv.row_offsets is false",
                "write row_offsets: true, or kv_length_counts: total",
            )
        if spec.kv.layout == "dense" and not spec.kv.seqlens:
            yield Problem(
                ("kv_length_counts",),
                "prefix needs cache_seqlens, and kv.seqlens is false",
                "write kv: {layout: dense, seqlens: true}, or kv_length_counts: total",
            )
