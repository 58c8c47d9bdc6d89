"""What an FA4 configuration derives, held against the worked numbers of the origin's newest version.

Differences on purpose, and therefore not compared:

- Ring: the origin gives K and V rings of their own when the number of slots is even; here they always take turns in one
  ring, which never keeps a slot for the other. The number of slots is the same.
- Bytes: ours count our own barriers, two announced tiles and every fp32 value that threads of a row hand to each other
  (in the one-tile forms maxima and sums, too), and are a multiple of 1024; the origin's count 1024 for the values
  whatever the form. Both are below 227 KiB, less than 2 KiB and these values apart.
- Scores of a head whose V is narrower than its nope columns: the origin subtracts the wider of both from the columns,
  though only V lies in tensor memory. The tile is 128 either way, as we take no wider one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mlagen.arch import SM_100A
from mlagen.plan.fa4_config import fa4_layout
from mlagen.spec.geometry import HeadGeometry

if TYPE_CHECKING:
    from mlagen.plan.fa4_config import FA4Layout


def heads(nope: int, rope: int, v: int) -> HeadGeometry:
    return HeadGeometry(
        qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v, kv_lora_rank=512
    )


DEEPSEEK, GLM = heads(128, 64, 128), heads(192, 64, 256)


def token_scales(*, query_tiles: int = 2) -> FA4Layout:
    """Everything e4m3 but the rope columns, a fp32 scale a token."""
    return fa4_layout(
        DEEPSEEK,
        SM_100A,
        element_bytes=1,
        rope_bytes=2,
        scale_bytes=4,
        query_tiles=query_tiles,
    )


@pytest.mark.parametrize(
    ("layout", "tile_n", "columns", "slots", "origin_bytes"),
    [
        (fa4_layout(DEEPSEEK, SM_100A), 128, (0, 128, 256, 384), 3, 230_556),
        (fa4_layout(DEEPSEEK, SM_100A, query_tiles=1), 128, (0, 128, 256, 384), 4, 214_180),
        (fa4_layout(DEEPSEEK, SM_100A, element_bytes=1), 128, (0, 128, 256, 384), 8, 214_252),
        (token_scales(), 128, (0, 128, 256, 384), 6, 216_780),
        (
            token_scales(query_tiles=1),
            128,
            (0, 128, 256, 384),
            7,
            216_788,
        ),
        (fa4_layout(heads(128, 64, 64), SM_100A), 128, (0, 128, 256, 320), 3, 230_556),
        (fa4_layout(heads(128, 64, 192), SM_100A), 64, (0, 64, 128, 320), 4, 214_188),
        (
            fa4_layout(GLM, SM_100A, query_tiles=1, single_output=True, tile_n=64),
            64,
            (0, 64, 128, 128),
            4,
            214_180,
        ),
    ],
    ids=[
        "bf16 2Q",
        "bf16 1Q",
        "fp8 2Q",
        "token scales 2Q",
        "token scales 1Q",
        "v 64",
        "v 192",
        "GLM single-O 64",
    ],
)
def test_worked_numbers_of_the_origin(
    layout: FA4Layout,
    tile_n: int,
    columns: tuple[int, int, int, int],
    slots: int,
    origin_bytes: int,
) -> None:
    assert layout.tile_n == tile_n
    assert (*layout.score_columns, *layout.output_columns) == columns
    assert layout.kv_slots == slots
    assert layout.supported(), layout.problems()
    # The origin stages an output in two column halves, here one wider than its queries gets a place of its own size.
    own = layout.output_overhang_bytes + layout.row_values_bytes - 1024
    assert abs(layout.shared_memory_bytes - own - origin_bytes) < 2048


def test_the_output_of_fp8_costs_one_query_tile_a_slot() -> None:
    layout = fa4_layout(DEEPSEEK, SM_100A, element_bytes=1, query_tiles=1)
    assert layout.output_overhang_bytes == 128 * (128 * 2 - 192)
    assert layout.kv_slots == 10 - 1  # the origin's, 230 660 bytes


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (fa4_layout(GLM, SM_100A), "tensor memory: 2 x 64 columns of scores and 2 x 256 of output"),
        # Two slots of K and V are needed, and 256 rows of Q leave room for one. (The origin's single-O form has 128
        # rows; it takes two slots and still calls them too few, since it counts pairs.)
        (fa4_layout(GLM, SM_100A, single_output=True, tile_n=128), "shared memory: "),
        (fa4_layout(DEEPSEEK, SM_100A, tile_n=192), "tensor memory: 640 columns"),
        (fa4_layout(heads(32, 16, 64), SM_100A), "qk_head_dim 48: at least 64"),
        (fa4_layout(heads(128, 64, 64), SM_100A, cta_group=2), "v_head_dim 64: a CTA of a pair"),
    ],
    ids=["GLM two outputs", "GLM 128", "192 keys", "narrow", "pair, narrow V"],
)
def test_what_does_not_fit_says_why(layout: FA4Layout, reason: str) -> None:
    assert not layout.supported()
    assert reason in "; ".join(layout.problems())


def test_deepseek_members_by_hand() -> None:
    # The origin's members at the newest version's tile: MMA_M 128, MMA_K 16, swizzle granularity 64.
    layout = fa4_layout(DEEPSEEK, SM_100A)
    assert (layout.tile_m, layout.mma_k, layout.swizzle_bytes) == (256, 16, 128)
    assert (layout.padded_qk_head_dim, layout.padded_nope_head_dim) == (192, 128)
    assert (layout.padded_rope_head_dim, layout.padded_v_head_dim) == (64, 128)
    assert layout.q_bytes == 2 * 49_152  # two Q tiles of qo_bytes
    assert layout.slot_bytes == 128 * 128 * 2
    assert layout.rope_buffer_bytes == 128 * 64 * 2
    assert layout.rope_buffers == 2
    assert layout.probability_columns == (64, 192)  # two bf16 to a column, at the end of the scores
    assert layout.tensor_memory_columns == 512
    assert layout.num_threads == 512
    assert layout.kv_ring == "shared"


def test_each_cta_of_a_pair_holds_half_of_k_and_v() -> None:
    single, pair = (fa4_layout(DEEPSEEK, SM_100A, cta_group=ctas) for ctas in (1, 2))
    assert pair.q_bytes == single.q_bytes
    assert pair.slot_bytes == single.slot_bytes // 2 == 64 * 128 * 2
    assert pair.rope_buffer_bytes == single.rope_buffer_bytes // 2 == 64 * 64 * 2
    assert (pair.kv_slots, pair.rope_buffers) == (6, 3)
    assert pair.supported()


def test_the_newest_k_never_meets_the_rope_columns_of_an_older_one() -> None:
    # K of block n has position 2 n in the ring and rope buffer n mod buffers. When K of block n + buffers gets its
    # slot, the slot's former tenant is K or V of a block that was multiplied no earlier than K of block n.
    for element_bytes in (1, 2):
        for tile_n, ctas in itertools.product((64, 128), (1, 2)):
            layout = fa4_layout(
                DEEPSEEK, SM_100A, element_bytes=element_bytes, cta_group=ctas, tile_n=tile_n
            )
            former = (
                2 * layout.rope_buffers - layout.kv_slots
            )  # position, that of K of block 0 being 0
            assert former >= 0
