"""Masks: which keys a query sees. One class a kind; combined by `all` and `any` on visibility.

Positions are absolute inside a sequence: the query in row `i` of `seqlen_q` rows stands at `seqlen_k - seqlen_q + i`
(bottom-right alignment). A hidden key has logit -inf; a query that sees no key gives output 0 and LSE -inf.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mlagen.spec.base import SAME_AS, Problem, ShortForm, SpecModel, raise_problems
from mlagen.spec.expression_text import ExpressionText, Parameters


class NoMask(SpecModel):
    """Every query sees every key of its sequence (the origin's `null`)."""

    kind: Literal["none"] = "none"


class Causal(SpecModel):
    """A query sees the keys up to its own position (the origin's `causal`)."""

    kind: Literal["causal"] = "causal"


class SlidingWindow(SpecModel):
    """A query sees its own key, `left` keys before and `right` keys after it (`sliding_window_causal` if right is 0).

    The bounds count keys besides the query's own: a model's `sliding_window: N` is `left: N - 1, right: 0`.
    """

    kind: Literal["sliding_window"] = "sliding_window"
    left: int | None = Field(
        ge=0, description="Keys seen before the query's own, 0 or more; null is no bound."
    )
    right: int | None = Field(
        ge=0, description="Keys seen after the query's own, 0 or more; null is no bound."
    )


class Chunked(SpecModel):
    """A query sees the keys of its own chunk (the origin's `chunked`, with `causal` its `chunked_causal`)."""

    kind: Literal["chunked"] = "chunked"
    size: int = Field(
        ge=1, description="Keys of a chunk, 1 or more; chunks start at multiples of it."
    )
    causal: bool = Field(True, description="Also hide the keys after the query's own.")


class Padding(SpecModel):
    """A query sees the keys before its sequence's valid length, which `run` takes as `valid_lengths`.

    With `all: [causal, padding]` the origin's `causal_padding`.
    """

    kind: Literal["padding"] = "padding"


class PrefixLM(SpecModel):
    """Causal, but the first `prefix_lengths[b]` keys of a sequence are seen by all its queries."""

    kind: Literal["prefix_lm"] = "prefix_lm"


class Document(SpecModel):
    """A query sees the keys whose document id equals its own; `run` takes the ids as `document_ids`."""

    kind: Literal["document"] = "document"


class Tree(SpecModel):
    """The last keys are a tree of draft tokens: a query sees those whose bit is set in its row of `tree_mask`."""

    kind: Literal["tree"] = "tree"


class BlockSparse(SpecModel):
    """A table of blocks says which keys a block of queries sees; `run` takes it as `block_mask`."""

    kind: Literal["block_sparse"] = "block_sparse"
    q_block_size: int = Field(128, ge=1, description="Query rows of a block, 1 or more.")
    k_block_size: int = Field(128, ge=1, description="Keys of a block, 1 or more.")


class AllOf(SpecModel):
    """A query sees the keys that every part shows (the origin's `OrMask`, which combines what is hidden)."""

    kind: Literal["all"] = "all"
    of: tuple[Mask, ...] = Field(strict=False, min_length=1, description="Masks, one or more.")


class AnyOf(SpecModel):
    """A query sees the keys that at least one part shows (the origin's `AndMask`, which combines what is hidden)."""

    kind: Literal["any"] = "any"
    of: tuple[Mask, ...] = Field(strict=False, min_length=1, description="Masks, one or more.")


class MaskExpression(SpecModel):
    """A query sees the keys for which an expression of `b h q k q_len kv_len` and the parameters is true."""

    kind: Literal["expr"] = "expr"
    expr: ExpressionText
    params: Parameters = Field({}, description="Run-time values that the expression names.")

    @model_validator(mode="after")
    def _score_is_not_visible(self) -> Self:
        if "score" in self.params:
            raise_problems(
                "expr",
                [Problem(("params", "score"), "'score' is a word of score mods", "rename it")],
            )
        return self


MASK_NAMES = (
    "none",
    "causal",
    "sliding_window",
    "chunked",
    "padding",
    "prefix_lm",
    "document",
    "tree",
    "block_sparse",
)


def _expand(value: object) -> object:
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict) and "kind" not in value:
        for kind in ("all", "any"):
            if set(value) == {kind}:
                return {"kind": kind, "of": value[kind]}
        if "expr" in value:
            return {"kind": "expr", **value}
    return value


def _combination_schema(kind: str, model: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {kind: {SAME_AS: f"{model}/properties/of"}},
        "required": [kind],
        "additionalProperties": False,
    }


Mask = Annotated[
    NoMask
    | Causal
    | SlidingWindow
    | Chunked
    | Padding
    | PrefixLM
    | Document
    | Tree
    | BlockSparse
    | AllOf
    | AnyOf
    | MaskExpression,
    Field(discriminator="kind"),
    ShortForm(
        _expand,
        (
            {
                "enum": [
                    "none",
                    "causal",
                    "padding",
                    "prefix_lm",
                    "document",
                    "tree",
                    "block_sparse",
                ]
            },
            _combination_schema("all", "AllOf"),
            _combination_schema("any", "AnyOf"),
        ),
    ),
]

AllOf.model_rebuild()
AnyOf.model_rebuild()


def simplified(mask: Mask) -> Mask:
    """The plainest mask with the same meaning, so that equal meaning gives an equal hash.

    A window without a bound on either side is `none`, one of all earlier keys and none later is `causal`; nested
    combinations of one kind are one, a combination of one part is that part.
    """
    match mask:
        case SlidingWindow(left=None, right=None):
            return NoMask()
        case SlidingWindow(left=None, right=0):
            return Causal()
        case AllOf() | AnyOf():
            return _simplified_combination(mask)
        case _:
            return mask


def _simplified_combination(mask: AllOf | AnyOf) -> Mask:
    parts: list[Mask] = []
    for part in map(simplified, mask.of):
        for flat in part.of if type(part) is type(mask) else (part,):
            if flat not in parts:
                parts.append(flat)
    return parts[0] if len(parts) == 1 else type(mask)(of=tuple(parts))
