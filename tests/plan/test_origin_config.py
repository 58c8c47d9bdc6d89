"""Fields, derivations and members of the origin's configuration beside ours: equal, or different for a stated reason.

`test_fa4_config.py` holds our numbers against the origin's worked examples. Here are its compile-time members one by
one, and its formulas, written out anew, over all head dimensions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any  # Any: numbers, names and pairs of them

import pytest

from mlagen.arch import SM_100A
from mlagen.plan.fa4_config import (
    BARRIER_BYTES,
    HALF_M,
    LEAST_TILE_N,
    PV_STAGES,
    QK_STAGES,
    TILE_N_CHOICES,
    fa4_layout,
)
from mlagen.spec.geometry import HeadGeometry
from tests.plan.kernels import plan

CARVE_OUT = 228 * 1024 - 1024
COLUMNS = 512
KERNEL = plan("192x128", arch="sm_100a", mask="none", k_rope={"layout": "paged", "page_size": 64})
GEOMETRY = KERNEL.spec.geometry
LAYOUT = fa4_layout(GEOMETRY, SM_100A)


@dataclass(frozen=True, slots=True)
class Row:
    """A field or member.

    Attributes:
        name: The origin's.
        origin: Its value for DeepSeek's heads in bf16, two query tiles.
        ours: The plan's.
        reason: Why they differ; empty where they must not.
    """

    name: str
    origin: Any
    ours: Any
    reason: str = ""


WIDER = "outputs are spaced by v_head_dim, not by 192, which leaves columns for 128 keys"
RUN_TIME = "any number of heads: an argument of the kernel, not of its text"

ROWS = (
    # Fields.
    Row("MMA_M", 128, HALF_M),
    Row("BM", 256, LAYOUT.tile_m),
    Row("BN", 64, LAYOUT.tile_n, WIDER),
    Row("BK0", 192, LAYOUT.padded_qk_head_dim // QK_STAGES),
    Row("BK1", 64, LAYOUT.tile_n, WIDER),
    Row("depth", 192, LAYOUT.qk_head_dim),
    Row("padded_depth", 192, LAYOUT.padded_qk_head_dim),
    Row("num_q_heads", 128, None, RUN_TIME),
    Row("num_kv_heads", 1, KERNEL.spec.k_rope.num_heads),
    Row("TMEM_S0", 0, KERNEL.tensor_region("S0").first_column),
    Row("TMEM_S1", 64, KERNEL.tensor_region("S1").first_column, WIDER),
    Row("TMEM_O0", 128, KERNEL.tensor_region("O0").first_column, WIDER),
    Row("TMEM_O1", 320, KERNEL.tensor_region("O1").first_column, WIDER),
    Row("TMEM_P0", 0, KERNEL.tensor_region("P0").first_column, "over the end of S0, not its start"),
    Row(
        "TMEM_P1", 64, KERNEL.tensor_region("P1").first_column, "over the end of S1, not its start"
    ),
    Row("tmem_used", 512, LAYOUT.tensor_memory_columns),
    Row("num_kv_stages", 2, LAYOUT.kv_slots, "slots of K or V, not pairs of both"),
    Row("num_qk_stages", 1, QK_STAGES),
    Row("num_pv_stages", 1, PV_STAGES, "probabilities are handed over in two parts"),
    Row(
        "smem_used",
        197_804,
        KERNEL.shared_memory_bytes,
        "all of it is used: the origin uses 148636",
    ),
    Row("dtype_size", 2, LAYOUT.element_bytes),
    Row("num_threads", 512, KERNEL.threads),
    Row("swizzle_mode", 128, LAYOUT.swizzle_bytes),
    Row("MMA_K", 16, LAYOUT.mma_k),
    Row("carve-out", CARVE_OUT, SM_100A.shared_memory_bytes),
    Row("columns of tensor memory", COLUMNS, SM_100A.tensor_memory_columns),
    Row("bytes of an mbarrier", 8, BARRIER_BYTES),
    Row("num_qo()", 2, LAYOUT.query_tiles),
    Row(
        "correction_smem_elements()",
        256,
        next(region.size_bytes // 4 for region in KERNEL.regions if region.name == "factor"),
    ),
    # Compile-time members.
    Row("qkv_type", "bfloat16", KERNEL.spec.dtype),
    Row("output_type", "bfloat16", KERNEL.spec.output_dtype),
    Row("accum_type", "output, fp32", KERNEL.tensor_region("O0").comment),
    Row("simd_size", 8, 16 // LAYOUT.element_bytes),
    Row("cta_group", 1, KERNEL.spec.config.cta_group or 1),
    Row("group", 128, None, RUN_TIME),
    Row("page_size", 0, KERNEL.spec.kv.page_size, "no pages is None"),
    Row("k_rope_depth", 64, GEOMETRY.qk_rope_head_dim),
    Row("cache_depth", 576, KERNEL.spec.k_rope.row_width),
    Row("kv_depth", (128, 128), (GEOMETRY.qk_nope_head_dim, GEOMETRY.v_head_dim)),
    Row("num_m_mmas", 2, LAYOUT.tile_m // HALF_M),
    Row("qo_elements", 24_576, LAYOUT.padded_qk_head_dim * HALF_M),
    Row("qo_bytes", 49_152, LAYOUT.q_bytes // LAYOUT.query_tiles),
    Row("swizzle_granularity", 64, LAYOUT.swizzle_bytes // LAYOUT.element_bytes),
    Row("k_elements", 4_096, 64 * LAYOUT.tile_n, WIDER),
    Row("k_bytes", 8_192, LAYOUT.swizzle_bytes * LAYOUT.tile_n, WIDER),
    Row(
        "v_bytes_per_mma",
        6_144,
        LAYOUT.element_bytes * LAYOUT.mma_k * LAYOUT.padded_v_head_dim,
        "of V's own columns; the origin takes those of Q, and does not use the number",
    ),
    Row("UMMA0Type, steps", 12, LAYOUT.padded_qk_head_dim // LAYOUT.mma_k),
    Row("UMMA1Type, steps", 4, LAYOUT.tile_n // LAYOUT.mma_k, WIDER),
    Row("KVPipelineType", (2, 1), (LAYOUT.kv_slots, QK_STAGES), "slots of K or V, not pairs"),
    Row("PositionType", (256, 192), (LAYOUT.tile_m, LAYOUT.padded_qk_head_dim)),
    Row(
        "MiscMBarsType",
        19,
        sum(barrier.copies for barrier in KERNEL.barriers),
        "persistent: tiles are announced, outputs handed to a warp of their own",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_members_equal_the_origins_or_say_why_not(row: Row) -> None:
    assert (row.ours == row.origin) == (not row.reason), row


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin's newest configuration, from its formulas."""

    nope: int
    rope: int
    v: int
    element_bytes: int
    query_tiles: int
    single_output: bool
    cap: int = 256

    @property
    def tile_n(self) -> int:
        columns = max(padded(self.nope), padded(self.v))
        most = (COLUMNS - columns) // 2 if self.single_output else COLUMNS // 2 - columns
        step = 32 // self.element_bytes
        return min(256, self.cap, max(most, 0) // step * step)

    @property
    def columns(self) -> tuple[int, int, int, int]:
        first = 2 * self.tile_n
        return 0, self.tile_n, first, first if self.single_output else first + padded(self.v)

    @property
    def tmem_used(self) -> int:
        return self.columns[-1] + padded(self.v)

    @property
    def base_bytes(self) -> int:
        barriers = 8 + 2 * PV_STAGES + (QK_STAGES if self.query_tiles == 2 else 0)
        q = 128 * self.query_tiles * padded(self.nope + self.rope) * self.element_bytes
        return 4 + 8 * barriers + q + 1024

    def bytes_with(self, slots: int) -> int:
        slot = self.tile_n * max(padded(self.nope), padded(self.v)) * self.element_bytes + 16
        rope = padded(self.nope + self.rope) - padded(self.nope)
        k_extra = self.tile_n * rope * self.element_bytes
        return self.base_bytes + slots * slot + -(-slots // 2) * k_extra

    @property
    def slots(self) -> int:
        slots = 0
        while self.tile_n and self.bytes_with(slots + 1) <= CARVE_OUT:
            slots += 1
        return slots

    @property
    def stages(self) -> int:
        return self.slots if self.slots % 2 and not self.single_output else self.slots // 2

    @property
    def supported(self) -> bool:
        fits = self.tmem_used <= COLUMNS and self.bytes_with(self.slots) <= CARVE_OUT
        return (
            self.tile_n >= LEAST_TILE_N
            and self.stages >= 2
            and fits
            and self.nope + self.rope >= 64
        )


def padded(columns: int) -> int:
    return -(-columns // 64) * 64


@pytest.mark.parametrize(
    ("origin", "slots", "stages", "smem"),
    [
        (Origin(128, 64, 128, 2, 2, False), 3, 3, 230_556),
        (Origin(128, 64, 128, 2, 1, False), 4, 2, 214_180),
        (Origin(128, 64, 128, 1, 2, False), 8, 4, 214_252),
        (Origin(128, 64, 128, 1, 1, False), 10, 5, 230_660),
        (Origin(128, 64, 192, 2, 2, False), 4, 2, 214_188),
        (Origin(192, 64, 256, 2, 1, True, cap=64), 4, 2, 214_180),
    ],
    ids=["bf16 2Q", "bf16 1Q", "fp8 2Q", "fp8 1Q", "v 192", "GLM"],
)
def test_formulas_give_the_worked_numbers_of_the_origin(
    origin: Origin, slots: int, stages: int, smem: int
) -> None:
    assert (origin.slots, origin.stages, origin.bytes_with(origin.slots)) == (slots, stages, smem)
    assert origin.supported


SWEEP = list(
    itertools.product(
        (64, 128, 192, 256), (0, 64), (64, 128, 192, 256), (1, 2), (1, 2), (False, True)
    )
)


def test_every_derivation_equals_the_origins_where_both_take_the_same_tile() -> None:
    compared = 0
    for nope, rope, v, element_bytes, query_tiles, single_output in SWEEP:
        origin = Origin(nope, rope, v, element_bytes, query_tiles, single_output)
        if origin.tile_n < LEAST_TILE_N:
            continue
        # A row of scores is one load of tensor memory, a power of two of columns; the origin takes any 16.
        tile_n = next(n for n in TILE_N_CHOICES if n <= origin.tile_n)
        origin = Origin(nope, rope, v, element_bytes, query_tiles, single_output, cap=tile_n)
        ours = fa4_layout(
            HeadGeometry(
                qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, kv_lora_rank=512
            ),
            SM_100A,
            element_bytes=element_bytes,
            query_tiles=query_tiles,
            single_output=single_output,
            tile_n=tile_n,
        )
        case = (nope, rope, v, element_bytes, query_tiles, single_output)
        assert (*ours.score_columns, *ours.output_columns) == origin.columns, case
        assert ours.tensor_memory_columns == origin.tmem_used, case
        assert ours.mma_k == 32 // element_bytes, case
        # Barriers and tiles differ by less than 2 KiB: that decides about a slot only at the very edge. Here maxima and
        # sums, too, are handed over in shared memory, and an output wider than its queries is staged whole; in two
        # column halves by the origin.
        difference = 2048 + ours.output_overhang_bytes + ours.row_values_bytes - 1024
        spare = CARVE_OUT - origin.bytes_with(origin.slots)
        lacking = origin.bytes_with(origin.slots + 1) - CARVE_OUT
        assert ours.kv_slots == origin.slots or min(spare, lacking) < difference, case
        assert abs(ours.bytes_with(origin.slots) - origin.bytes_with(origin.slots)) < difference, (
            case
        )
        # The origin wants two stages of each ring, so four slots where rings are separate; here two or three do, since
        # K and V take turns.
        if origin.supported:
            assert ours.supported(), (case, ours.problems())
        elif ours.supported():
            assert ours.least_slots <= origin.slots < 4, case
        compared += 1
    assert compared > 60
