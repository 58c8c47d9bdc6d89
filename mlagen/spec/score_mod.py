"""Score modifications: what happens to a scaled logit before the mask. One class a kind; a list applies in order.

The order of operations is scale, score mods, mask, softmax, so that no modification can show a hidden key.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlagen.spec.base import SAME_AS, ShortForm, SpecModel
from mlagen.spec.expression_text import ExpressionText, Parameters


class Identity(SpecModel):
    """The score as it is; renders no code (the origin's `no_pos`)."""

    kind: Literal["identity"] = "identity"


class Softcap(SpecModel):
    """`cap * tanh(score / cap)`."""

    kind: Literal["softcap"] = "softcap"
    cap: float = Field(
        gt=0, description="Bound of the scaled logit, natural-log units, above 0 and finite."
    )


class Alibi(SpecModel):
    """`score - slope[h] * abs(q - k)`, positions bottom-right aligned (the origin's `alibi`)."""

    kind: Literal["alibi"] = "alibi"
    slopes: Literal["geometric", "tensor"] = Field(
        "geometric",
        description="Where the slopes come from: `geometric`, the published powers of two of the number of heads; "
        "`tensor`, the argument `alibi_slopes` of `run`, fp32 [num_heads].",
    )


class Bias(SpecModel):
    """`score + bias[...]`, natural-log units, -inf hides (the origin's Materialized mask)."""

    kind: Literal["bias"] = "bias"
    rank: Literal[2, 3, 4] = Field(
        description="Dimensions of the fp32 tensor `bias`: 2 [q, k], 3 [batch, q, k], 4 [batch, num_heads, q, k], with "
        "q and k counted in each sequence; any but k may be 1, which all share. What lies outside is hidden."
    )


class RelativeBias(SpecModel):
    """`score + relative_bias[row, h, q - k]` where the distance is inside the table (the origin's RelativeLogits)."""

    kind: Literal["relative_bias"] = "relative_bias"
    extent: int = Field(
        ge=1,
        description="Distances q - k, of positions bottom-right aligned, in the fp32 tensor `relative_bias` "
        "[total_q, num_heads, extent], or [batch, seqlen_q, num_heads, extent] in a dense batch: 0 to extent - 1; "
        "1 or more.",
    )


class Temperature(SpecModel):
    """`score * temperature[...]`, a run-time factor besides `softmax_scale`."""

    kind: Literal["temperature"] = "temperature"
    per: Literal["head", "query"] = Field(
        "head", description="Whether the fp32 tensor has an entry a head or an entry a query token."
    )


class ScoreExpression(SpecModel):
    """The value of an expression of `score`, `b h q k q_len kv_len` and the parameters."""

    kind: Literal["expr"] = "expr"
    expr: ExpressionText
    params: Parameters = Field({}, description="Run-time values that the expression names.")


class Chain(SpecModel):
    """Several modifications, each applied to the result of the one before; written as a list."""

    kind: Literal["chain"] = "chain"
    of: tuple[ScoreMod, ...] = Field(
        strict=False, min_length=1, description="Modifications in order, one or more."
    )


SCORE_MOD_NAMES = (
    "identity",
    "softcap",
    "alibi",
    "bias",
    "relative_bias",
    "temperature",
)


def _expand(value: object) -> object:
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, list | tuple):
        return {"kind": "chain", "of": value}
    if isinstance(value, dict) and "kind" not in value and "expr" in value:
        return {"kind": "expr", **value}
    return value


ScoreMod = Annotated[
    Identity | Softcap | Alibi | Bias | RelativeBias | Temperature | ScoreExpression | Chain,
    Field(discriminator="kind"),
    ShortForm(
        _expand,
        (
            {"enum": ["identity", "alibi", "temperature"]},
            {SAME_AS: "Chain/properties/of"},
        ),
    ),
]

Chain.model_rebuild()


def simplified(score_mod: ScoreMod) -> ScoreMod:
    """The plainest modification with the same meaning: nested lists are one, `identity` in a list is nothing."""
    if not isinstance(score_mod, Chain):
        return score_mod
    parts = tuple(in_order(score_mod))
    match parts:
        case ():
            return Identity()
        case (only,):
            return only
        case _:
            return Chain(of=parts)


def adds_bias(score_mod: ScoreMod) -> bool:
    """Whether it adds a number of a tensor to each score."""
    return isinstance(score_mod, Bias | RelativeBias)


def in_order(score_mod: ScoreMod) -> tuple[ScoreMod, ...]:
    """The modifications that do something, first applied first, without lists and identities."""
    if isinstance(score_mod, Identity):
        return ()
    if isinstance(score_mod, Chain):
        return tuple(part for item in score_mod.of for part in in_order(item))
    return (score_mod,)
