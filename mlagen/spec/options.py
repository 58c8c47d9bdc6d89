"""The options of a kernel: type and description of each, once, for `KernelSpec` and for the groups of a spec file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mlagen.spec.base import problem_error
from mlagen.spec.config import FA4Config
from mlagen.spec.kv_layout import KRopeOperand, KVOperand
from mlagen.spec.mask import Mask
from mlagen.spec.partition import Partition, count_or_word
from mlagen.spec.scheduler import SchedulerOption
from mlagen.spec.score_mod import ScoreMod

ArchName = Literal["sm_90a", "sm_100a"]


def _decode_is_not_available(value: object) -> object:
    if value == "decode":
        raise problem_error("decode is not available yet", "available: prefill")
    return value


OpOption = Annotated[
    Literal["prefill"],
    BeforeValidator(_decode_is_not_available),
    Field(description="What is computed: prefill, attention with keys and values per head."),
]
DTypeOption = Annotated[
    Literal["bfloat16", "float16", "float8_e4m3fn"],
    Field(description="Element type of q, k and v (the origin's qkv_type)."),
]
OutputDTypeOption = Annotated[
    Literal["bfloat16", "float16"] | None,
    Field(
        description="Element type of the output (output_type); by default that of q, bfloat16 if q is float8_e4m3fn."
    ),
]
QFormOption = Annotated[
    Literal["fused", "split"],
    Field(
        description="fused: q [.., num_heads, qk_head_dim]; split: q_nope and q_pe are tensors of their own."
    ),
]
QLayoutOption = Annotated[
    Literal["ragged", "dense"],
    Field(
        description="ragged: [total_q, num_heads, dim] with cu_seqlens_q; dense: [batch, seqlen_q, num_heads, dim] "
        "(the origin's ValidLengthType)."
    ),
]
MaskOption = Annotated[Mask, Field(description="Which keys a query sees (the origin's MaskType).")]
ScoreModOption = Annotated[
    ScoreMod,
    Field(
        description="What happens to a scaled logit before the mask (the origin's ScoreModType)."
    ),
]
KVOption = Annotated[
    KVOperand, Field(description="How k and v lie in memory (the origin's KVLUTType).")
]
KRopeOption = Annotated[
    KRopeOperand,
    Field(description="How the rope part of k lies in memory (the origin's KRopeType)."),
]
KVLengthCountsOption = Annotated[
    Literal["total", "prefix"],
    Field(
        description="What lengths of keys count: total, all keys; prefix, only those before this call, so that a "
        "sequence has cache_seqlens[b] + seqlen_q keys (the origin's _ndbuffer_mha_operand)."
    ),
]
SinkOption = Annotated[
    bool,
    Field(
        description="One more logit a head in the denominator, fp32, natural-log units, not scaled (SinkType)."
    ),
]
LSEOption = Annotated[
    bool,
    Field(
        description="Also write the log-sum-exp of each row: fp32, natural log, without the sink, -inf if empty."
    ),
]
_MAX_SEQLEN = (
    "Longest query sequence in tokens, 1 or more: a number is compiled in; dynamic, `run` takes max_seqlen_q "
    "(the origin's MaxSeqLenType). Ragged batches only."
)
MaxSeqlenOption = Annotated[
    int | Literal["dynamic"],
    *count_or_word("dynamic", _MAX_SEQLEN),
    Field(description=_MAX_SEQLEN),
]
PartitionChoice = Annotated[
    Partition,
    Field(
        description="Whether several CTAs share the keys of a tile (the origin's PartitionType)."
    ),
]
SchedulerChoice = Annotated[
    SchedulerOption, Field(description="Which CTA computes which tile, in which order.")
]
ConfigOption = Annotated[
    FA4Config,
    Field(description="Overrides of what is derived for the architecture (the origin's config)."),
]
