"""Geometry of an attention layer, in the words of the model's own `config.json`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from mlagen.spec.base import OneOrMore, SpecModel


class RopeScaling(SpecModel):
    """Scaling of rotary positions as far as it changes the softmax scale."""

    type: Literal["yarn"] = Field(
        description="The method: yarn. Others leave the scale alone: omit the field."
    )
    factor: float = Field(ge=1, description="Extension of the context length, 1 or more.")
    mscale_all_dim: float = Field(
        0.0,
        ge=0,
        description="Coefficient of the logarithm of the factor, 0 or more; 0: no effect.",
    )

    @property
    def softmax_scale_multiplier(self) -> float:
        """`m^2` with `m = 0.1 * mscale_all_dim * ln(factor) + 1` (YaRN, arXiv 2309.00071, as DeepSeek applies it)."""
        return (0.1 * self.mscale_all_dim * math.log(self.factor) + 1.0) ** 2


class HeadGeometry(SpecModel):
    """Dimensions of one attention head."""

    qk_nope_head_dim: int = Field(
        ge=16,
        le=1024,
        multiple_of=16,
        description="Columns of q and k without rotation, multiple of 16 (kv_depth).",
    )
    qk_rope_head_dim: int = Field(
        ge=0,
        le=1024,
        multiple_of=16,
        description="Columns of q and k with rotation, multiple of 16 or 0 (k_rope_depth).",
    )
    v_head_dim: int = Field(
        ge=16,
        le=1024,
        multiple_of=16,
        description="Columns of v and of the output, multiple of 16 (kv_depth).",
    )
    kv_lora_rank: int = Field(
        ge=16,
        le=8192,
        multiple_of=16,
        description="Latent columns of a cache row, multiple of 16 (cache_depth - k_rope_depth).",
    )
    rope_scaling: RopeScaling | None = Field(
        None, description="Scaling of rotary positions; it only sets the default softmax_scale."
    )

    @property
    def qk_head_dim(self) -> int:
        """Columns of q and k (the origin's depth)."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """The factor of the scores by default, from the columns before absorption and from the rope scaling."""
        multiplier = self.rope_scaling.softmax_scale_multiplier if self.rope_scaling else 1.0
        return float(self.qk_head_dim**-0.5 * multiplier)


class Geometry(HeadGeometry):
    """Dimensions of one attention layer on one GPU."""

    num_heads: OneOrMore[Annotated[int, Field(ge=1, le=65_535)]] = Field(
        description="Query heads of one GPU, 1 to 65535, one entry a tensor-parallel degree (num_q_heads). They change "
        "no instruction: any count runs, these are tested and tuned."
    )

    @property
    def head(self) -> HeadGeometry:
        """The part that decides about a kernel."""
        return HeadGeometry(
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            kv_lora_rank=self.kv_lora_rank,
            rope_scaling=self.rope_scaling,
        )
