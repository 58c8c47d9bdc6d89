"""The constants block of a rendered kernel: every number once, with its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.dtypes import DTYPES
from mlagen.plan import prefill_sm100
from mlagen.plan.fa4_config import HALF_M
from mlagen.plan.key_maps import page_box_rows, page_size_of
from mlagen.plan.prefill_sm90 import (
    MATH_WARPGROUPS,
    PANEL_COLUMNS,
    ROWS_PER_WARPGROUP,
    TILE_SLOTS,
    TRANSPOSE_WARPS,
)
from mlagen.plan.split_kv import fixed_splits
from mlagen.render.mask import mask_texts

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan


@dataclass(frozen=True, slots=True)
class Constant:
    """One `constexpr` of the rendered file."""

    ctype: str
    name: str
    value: str
    comment: str = ""


def prefill_constants(plan: KernelPlan) -> list[Constant]:
    """The constants of a prefill kernel, only those that its options use."""
    own = _sm100_constants(plan) if plan.family == "prefill_sm100" else _sm90_constants(plan)
    return [
        *own,
        *_mask_constants(plan),
        *_score_mod_constants(plan),
        *_layout_constants(plan),
        *_partition_constants(plan),
    ]


def _sm90_constants(plan: KernelPlan) -> list[Constant]:
    """Tile, rings and registers on Hopper."""
    geometry = plan.spec.geometry
    roles = {role.name: role for role in plan.roles}
    return [
        Constant("int", "kTileM", str(plan.tile_m), "query rows of a block"),
        Constant("int", "kTileN", str(plan.tile_n), "keys of a step"),
        Constant("int", "kMathWarpgroups", str(MATH_WARPGROUPS)),
        Constant(
            "int",
            "kRowsPerWarpgroup",
            str(ROWS_PER_WARPGROUP),
            "query rows of a warpgroup, the M of wgmma",
        ),
        Constant("int", "kKStages", str(plan.k_stages)),
        Constant("int", "kVStages", str(plan.v_stages)),
        Constant("int", "kTileSlots", str(TILE_SLOTS), "announced tiles"),
        Constant("int", "kQkNopeHeadDim", str(geometry.qk_nope_head_dim)),
        Constant(
            "int", "kQkHeadDim", str(geometry.qk_head_dim), "nope and rope columns of Q and K"
        ),
        Constant("int", "kVHeadDim", str(geometry.v_head_dim)),
        Constant("int", "kElementBytes", str(DTYPES[plan.spec.dtype].size_bytes)),
        Constant(
            "int", "kProducerRegisters", str(roles["load"].registers), "a thread, after setmaxnreg"
        ),
        Constant("int", "kMathRegisters", str(roles["math"].registers)),
        *(_transposed_values(plan) if plan.product_columns else _rescale_thresholds(plan)),
        *_probability_shift(plan),
    ]


def _transposed_values(plan: KernelPlan) -> list[Constant]:
    """What 8-bit operands need on Hopper."""
    return [
        Constant("int", "kTransposeWarps", str(TRANSPOSE_WARPS), "each has as many columns of V"),
        Constant(
            "int",
            "kProductColumns",
            str(plan.product_columns),
            "of the output, multiplied at a time and then added to it",
        ),
    ]


def _sm100_constants(plan: KernelPlan) -> list[Constant]:
    """Tile, ring, tensor memory and registers on Blackwell."""
    geometry = plan.spec.geometry
    roles = {role.name: role for role in plan.roles}
    scores, probabilities, output = (plan.tensor_region(name) for name in ("S0", "P0", "O0"))
    found = _pair_tile(plan) if plan.cta_group == 2 else _single_tile(plan)
    found += [
        *_output_count(plan),
        Constant(
            "int",
            "kFirstPartKeys",
            str(plan.tile_n - prefill_sm100.PROBABILITY_GROUP),
            "whose probabilities are handed over first",
        ),
        Constant("int", "kKvSlots", str(plan.kv_slots), "in which K and V take turns"),
    ]
    if geometry.qk_rope_head_dim:
        found.append(Constant("int", "kRopeBuffers", str(plan.k_stages)))
    found += [
        Constant("int", "kTileSlots", str(TILE_SLOTS), "announced tiles"),
        Constant("int", "kQkNopeHeadDim", str(geometry.qk_nope_head_dim)),
        Constant(
            "int", "kQkHeadDim", str(geometry.qk_head_dim), "nope and rope columns of Q and K"
        ),
        Constant("int", "kVHeadDim", str(geometry.v_head_dim)),
        Constant("int", "kNopePanels", str(geometry.qk_nope_head_dim // PANEL_COLUMNS)),
        Constant("int", "kElementBytes", str(DTYPES[plan.spec.dtype].size_bytes)),
        Constant(
            "int", "kTensorMemoryColumns", str(plan.arch.tensor_memory_columns), "all there are"
        ),
        Constant("int", "kScoreColumn", str(scores.first_column), "first of both halves' scores"),
        Constant(
            "int",
            "kProbabilityOffset",
            str(probabilities.first_column - scores.first_column),
            "columns from scores to their probabilities",
        ),
        Constant(
            "int",
            "kOutputColumn",
            str(output.first_column),
            "first of the output" if plan.single_output else "first of both outputs",
        ),
        Constant("int", "kLoadWarp", str(prefill_sm100.LOAD_WARP)),
        Constant("int", "kMmaWarp", str(prefill_sm100.MMA_WARP)),
        Constant("int", "kStoreWarp", str(prefill_sm100.STORE_WARP)),
        Constant(
            "int",
            "kSoftmaxRegisters",
            str(roles["softmax"].registers),
            "a thread, after setmaxnreg",
        ),
        Constant("int", "kCorrectionRegisters", str(roles["correction"].registers)),
        Constant("int", "kIssueRegisters", str(roles["issue"].registers)),
        *_rescale_thresholds(plan),
    ]
    found += _probability_shift(plan)
    if plan.exp2_emulation_share:
        pairs = prefill_sm100.PAIRS_OF_A_GROUP
        found.append(
            Constant(
                "int",
                "kEmulatedPairs",
                str(round(plan.exp2_emulation_share * pairs)),
                f"of each {pairs} pairs of exponentials",
            )
        )
    return found


def _single_tile(plan: KernelPlan) -> list[Constant]:
    """The tile of one block on Blackwell."""
    return [
        Constant("int", "kTileM", str(plan.tile_m), "query rows of a block"),
        Constant("int", "kHalfM", str(HALF_M), "of a half: the M of tcgen05, a softmax warpgroup"),
        Constant("int", "kTileN", str(plan.tile_n), "keys of a step"),
    ]


def _pair_tile(plan: KernelPlan) -> list[Constant]:
    """The tile of a pair of blocks, and what each has of it."""
    ctas, geometry = plan.cta_group, plan.spec.geometry
    return [
        Constant("int", "kTileM", str(plan.tile_rows), "query rows of a pair of blocks"),
        Constant("int", "kHalfM", str(HALF_M * ctas), "of a half: the M of tcgen05"),
        Constant("int", "kHalfRows", str(HALF_M), "of a half in one block: a softmax warpgroup"),
        Constant("int", "kTileN", str(plan.tile_n), "keys of a step"),
        Constant("int", "kKRows", str(plan.tile_n // ctas), "keys of K in one block"),
        Constant("int", "kVColumns", str(geometry.v_head_dim // ctas), "of V in one block"),
    ]


def _output_count(plan: KernelPlan) -> list[Constant]:
    """How many outputs a row has, where the halves share the rows."""
    if not (plan.alternates_keys or plan.turns_in_tails):
        return []
    meaning = (
        "both halves' of the key tiles" if plan.single_output else "one a half of the key tiles"
    )
    return [Constant("int", "kOutputs", str(1 if plan.single_output else 2), meaning)]


def _rescale_thresholds(plan: KernelPlan) -> list[Constant]:
    comment = "base-2 growth of a maximum that is let pass"
    found = [Constant("float", "kRescaleThreshold", _float(plan.rescale_threshold), comment)]
    if plan.largest_rescale_threshold > plan.rescale_threshold:
        largest = _float(plan.largest_rescale_threshold)
        found.append(
            Constant("float", "kLargestRescaleThreshold", largest, "where a row has seen much")
        )
    return found


def _probability_shift(plan: KernelPlan) -> list[Constant]:
    if not plan.probability_shift:
        return []
    comment = "probabilities are scaled by 2^it, and so is their sum"
    return [Constant("float", "kProbabilityShift", _float(plan.probability_shift), comment)]


def _mask_constants(plan: KernelPlan) -> list[Constant]:
    _, constants = mask_texts(plan.key_ranges)
    found = [
        Constant("int", constant.name, str(constant.value), constant.comment)
        for constant in constants
    ]
    if any(one.right is None and not one.chunks for one in plan.key_ranges):
        found.insert(0, Constant("int", "kNoLimit", "1 << 30", "beyond every key"))
    return found


def _score_mod_constants(plan: KernelPlan) -> list[Constant]:
    score_mod = plan.spec.score_mod
    if score_mod.kind == "softcap":
        return [
            Constant(
                "float", "kSoftcap", _float(score_mod.cap), "natural-log units, after softmax_scale"
            )
        ]
    if score_mod.kind == "relative_bias":
        return [Constant("int", "kRelativeExtent", str(score_mod.extent), "distances with a bias")]
    return []


def _layout_constants(plan: KernelPlan) -> list[Constant]:
    spec = plan.spec
    found = []
    page_size = page_size_of(spec)
    if page_size is not None:
        keys = plan.tile_n // plan.cta_group
        rows = page_box_rows(page_size, keys)
        found += [
            Constant("int", "kPageSize", str(page_size), "keys of a page of the cache"),
            Constant("int", "kRowsPerPageBox", str(rows)),
            Constant("int", "kPagesPerBlock", str(keys // rows)),
        ]
        if plan.cta_group == 2 and spec.kv.layout == "paged":
            rows = page_box_rows(page_size, plan.tile_n)
            found += [
                Constant("int", "kRowsPerVPageBox", str(rows), "a block has V of all keys"),
                Constant("int", "kVPagesPerBlock", str(plan.tile_n // rows)),
            ]
    if spec.k_rope.num_heads > 1:
        found.append(
            Constant(
                "int", "kRopeHeads", str(spec.k_rope.num_heads), "each shared by a group of heads"
            )
        )
    if spec.q_layout == "ragged" and spec.max_seqlen != "dynamic":
        found.append(
            Constant(
                "int",
                "kMaxSeqlenQ",
                str(spec.max_seqlen),
                "further queries of a sequence are left out",
            )
        )
    return found


def _partition_constants(plan: KernelPlan) -> list[Constant]:
    if not plan.state_elements:
        return []
    splits = fixed_splits(plan.spec)
    found = []
    if splits is not None:
        found.append(Constant("int", "kSplits", str(splits), "most parts of a tile's keys"))
    elements = str(plan.state_elements)
    found.append(Constant("int", "kStateElements", elements, "a thread's share of a part's state"))
    return found


def _float(value: float) -> str:
    return f"{float(value)!r}f"
