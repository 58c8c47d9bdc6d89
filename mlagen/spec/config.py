"""`FA4Config`: overrides of what `plan` derives. A field left out is derived for the architecture."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mlagen.spec.base import SpecModel


class FA4Config(SpecModel):
    """Overrides of tile, pipeline and register choices; the names of the origin stand in the descriptions.

    What is written here is part of the spec and of its hash, also where it equals what `plan` would have derived.
    """

    tile_m: int | None = Field(
        None,
        ge=16,
        le=512,
        multiple_of=16,
        description="Query rows of a CTA, multiple of 16, 16 to 512; sm_100a has 256 and 128, whose key tiles the "
        "softmax warpgroups take in turn (BM).",
    )
    tile_n: int | None = Field(
        None,
        ge=16,
        le=256,
        multiple_of=16,
        description="Keys of a step, multiple of 16, 16 to 256 (BN).",
    )
    k_stages: int | None = Field(
        None, ge=1, le=16, description="Depth of the ring of K tiles, 1 to 16 (num_kv_stages)."
    )
    v_stages: int | None = Field(
        None, ge=1, le=16, description="Depth of the ring of V tiles, 1 to 16 (num_kv_stages)."
    )
    kv_ring: Literal["separate", "shared"] | None = Field(
        None,
        description="Whether K and V have rings of their own or alternate in one (separate_kv).",
    )
    qk_stages: int | None = Field(
        None,
        ge=1,
        le=16,
        description="Parts in which a K tile is loaded and multiplied, 1 to 16 (num_qk_stages).",
    )
    pv_stages: int | None = Field(
        None, ge=1, le=16, description="Parts in which P is handed to P V, 1 to 16 (num_pv_stages)."
    )
    swizzle_bytes: Literal[32, 64, 128] | None = Field(
        None,
        description="Swizzle span of shared-memory tiles in bytes: 32, 64 or 128 (swizzle_mode).",
    )
    cta_group: Literal[1, 2] | None = Field(
        None,
        description="CTAs that issue one tcgen05 MMA together: 1 or 2; sm_100a only (cta_group).",
    )
    cluster_size: Literal[1, 2, 4, 8, 16] | None = Field(
        None,
        description="CTAs of a cluster that share K and V loads by multicast, 1 or 2; sm_90a only; not in the origin.",
    )
    single_output: bool | None = Field(
        None,
        description="One output accumulator for the key tiles of both softmax warpgroups, with tile_m 128; sm_100a "
        "only (single-O).",
    )
    rescale_threshold: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Base-2 logits by which a row's maximum may grow before the output is rescaled, 0 to 100; 0: "
        "always. The origin's threshold is its negative, -8 for 16-bit types.",
    )
    exp2_emulation_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of exponentials computed by a polynomial instead of the exp2 unit, 0 to 1 in steps of 1/16; "
        "sm_100a (exp2 emulation).",
    )
    ping_pong: bool | None = Field(
        None,
        description="Barriers make the math warpgroups take turns at the tensor cores; sm_90a, not in the origin.",
    )
    softmax_order: bool | None = Field(
        None,
        description="Barriers make softmax warpgroups take turns at the exponentials; sm_100a (forced softmax "
        "ordering).",
    )
    half_diagonal: bool | None = Field(
        None,
        description="A warpgroup whose rows end in the lower half of a diagonal block multiplies that half only; "
        "causal masks; not in the origin.",
    )
    epilogue: Literal["tma", "registers"] | None = Field(
        None,
        description="How output leaves: tma, staged in shared memory; registers, direct stores (scale_write_output).",
    )
    producer_registers: int | None = Field(
        None,
        ge=24,
        le=256,
        multiple_of=8,
        description="Registers of a thread that loads, multiple of 8, 24 to 256 (setmaxnreg of the load warps).",
    )
    math_registers: int | None = Field(
        None,
        ge=24,
        le=256,
        multiple_of=8,
        description="Registers of a thread that multiplies or does softmax, multiple of 8, 24 to 256 (setmaxnreg of "
        "the softmax warpgroups).",
    )
    correction_registers: int | None = Field(
        None,
        ge=24,
        le=256,
        multiple_of=8,
        description="Registers of a thread that rescales the output, multiple of 8, 24 to 256; sm_100a (setmaxnreg of "
        "the correction warpgroup).",
    )
