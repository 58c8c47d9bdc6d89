"""Where keys, values and the rope part of keys lie in memory."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mlagen.spec.base import Problem, SpecModel, name_form, raise_problems

PageSize = Annotated[
    int | None,
    Field(
        ge=1,
        le=65_536,
        description="Tokens of one page of a paged cache, 1 to 65536 (the origin's page_size of KVLUTType); only "
        "with layout paged, and required there.",
    ),
]


def _page_size_problems(layout: str, page_size: int | None) -> list[Problem]:
    if layout == "paged" and page_size is None:
        return [
            Problem(
                ("page_size",),
                "missing, and the layout is paged",
                "add page_size: 64, or another size",
            )
        ]
    if layout != "paged" and page_size is not None:
        return [
            Problem(
                ("page_size",),
                f"page_size {page_size} has no meaning with layout {layout}",
                "remove it, or write layout: paged",
            )
        ]
    return []


class KV(SpecModel):
    """Keys (without their rope part unless it is fused) and values; the origin's KVLUTType.

    Layouts: `ragged` [total_k, num_heads, dim], sequences one after the other; `dense` [batch, seqlen_k, num_heads,
    dim]; `paged` [pages, page_size, num_heads, dim] with a `block_table`.
    """

    layout: Literal["dense", "ragged", "paged"] = Field(
        "ragged", description="ragged: offsets; dense: a batch dimension; paged: a block table."
    )
    page_size: PageSize = None
    row_offsets: bool = Field(
        True,
        description="With layout ragged: whether keys have offsets of their own (cu_seqlens_k), or share the "
        "queries' cu_seqlens_q (the origin's KVRowOffsetsType).",
    )
    seqlens: bool = Field(
        False,
        description="With layout dense: whether cache_seqlens gives every sequence's number of keys, or all have "
        "seqlen_k of them.",
    )
    row: Literal["plain", "fp8", "fp8_grouped"] = Field(
        "plain",
        description="Form of a cache row: plain, 16-bit values; fp8, e4m3 with one scale; fp8_grouped, e4m3 latent "
        "columns with one fp32 scale for 128 of them and 16-bit rope columns (656 bytes at rank 512).",
    )

    @model_validator(mode="after")
    def _fields_fit_the_layout(self) -> Self:
        problems = _page_size_problems(self.layout, self.page_size)
        if not self.row_offsets and self.layout != "ragged":
            problems.append(
                Problem(
                    ("row_offsets",),
                    f"row_offsets: false has no meaning with layout {self.layout}",
                    "remove it, or write layout: ragged",
                )
            )
        if self.seqlens and self.layout != "dense":
            problems.append(
                Problem(
                    ("seqlens",),
                    f"seqlens: true has no meaning with layout {self.layout}",
                    "remove it: a paged cache always has cache_seqlens"
                    if self.layout == "paged"
                    else "remove it, or write layout: dense",
                )
            )
        if self.row != "plain" and self.layout == "ragged":
            problems.append(
                Problem(
                    ("row",),
                    f"row {self.row} is a form of cache rows, and ragged keys are no cache",
                    "write row: plain, or layout: paged or dense",
                )
            )
        raise_problems("kv", problems)
        return self


class KRope(SpecModel):
    """The rope part of the keys; the origin's KRopeType.

    Layouts: `fused`, the last columns of K itself; `ragged` [total_k, row_width], one row a key; `dense` [batch,
    seqlen_k, row_width] and `paged` [pages, page_size, row_width], rows of a latent cache. Always the last
    `qk_rope_head_dim` columns of a row are read. With several rope heads a dimension stands before the last.
    """

    layout: Literal["fused", "ragged", "dense", "paged"] = Field(
        "fused",
        description="fused: in K; ragged: offsets like K's; dense, paged: rows of a latent cache.",
    )
    page_size: PageSize = None
    row_width: int | None = Field(
        None,
        ge=8,
        multiple_of=8,
        description="Columns of a row, a multiple of 8 and at least qk_rope_head_dim; by default qk_rope_head_dim "
        "for ragged, kv_lora_rank + qk_rope_head_dim for dense and paged (the origin's cache_depth).",
    )
    num_heads: int = Field(
        1,
        ge=1,
        description="Rope heads, 1 or more, dividing num_heads: query head h reads rope head "
        "h // (num_heads // this) (the origin's group is the quotient).",
    )

    @model_validator(mode="after")
    def _fields_fit_the_layout(self) -> Self:
        problems = _page_size_problems(self.layout, self.page_size)
        if self.layout == "fused":
            if self.row_width is not None:
                problems.append(
                    Problem(
                        ("row_width",), "fused rope columns have no row of their own", "remove it"
                    )
                )
            if self.num_heads != 1:
                problems.append(
                    Problem(
                        ("num_heads",),
                        f"num_heads {self.num_heads} has no meaning with layout fused: every head of K has its own",
                        "remove it, or choose another layout",
                    )
                )
        raise_problems("k_rope", problems)
        return self


KVOperand = Annotated[KV, name_form("layout", ("dense", "ragged"))]
KRopeOperand = Annotated[KRope, name_form("layout", ("fused", "ragged", "dense"))]
