"""The constants block of a rendered kernel: every number once, with its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.plan.prefill_sm90 import MATH_WARPGROUPS, PANEL_COLUMNS, ROWS_PER_WARPGROUP, TILE_SLOTS

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
    geometry = plan.spec.geometry
    roles = {role.name: role for role in plan.roles}
    found = [
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
        Constant("int", "kElementBytes", "2"),
        Constant(
            "int", "kProducerRegisters", str(roles["load"].registers), "a thread, after setmaxnreg"
        ),
        Constant("int", "kMathRegisters", str(roles["math"].registers)),
        Constant(
            "float",
            "kRescaleThreshold",
            _float(plan.rescale_threshold),
            "base-2 growth of a maximum that is let pass",
        ),
    ]
    return found + _mask_constants(plan) + _score_mod_constants(plan) + _layout_constants(plan)


def _mask_constants(plan: KernelPlan) -> list[Constant]:
    mask = plan.spec.mask
    found = []
    if not plan.mask_bounds[1]:
        found.append(Constant("int", "kNoLimit", "1 << 30", "beyond every key"))
    if mask.kind == "sliding_window":
        if mask.left is not None:
            found.append(
                Constant("int", "kWindowLeft", str(mask.left), "keys before the query's own")
            )
        if mask.right is not None:
            found.append(
                Constant("int", "kWindowRight", str(mask.right), "keys after the query's own")
            )
    if mask.kind == "chunked":
        found.append(Constant("int", "kChunkSize", str(mask.size), "positions"))
    return found


def _score_mod_constants(plan: KernelPlan) -> list[Constant]:
    score_mod = plan.spec.score_mod
    if score_mod.kind == "softcap":
        return [
            Constant(
                "float", "kSoftcap", _float(score_mod.cap), "natural-log units, after softmax_scale"
            )
        ]
    return []


def _layout_constants(plan: KernelPlan) -> list[Constant]:
    spec = plan.spec
    found = []
    if spec.k_rope.layout == "paged":
        page_size = spec.k_rope.page_size
        assert page_size is not None
        rows = plan.map("k_rope").box_rows
        found += [
            Constant("int", "kNopePanels", str(spec.geometry.qk_nope_head_dim // PANEL_COLUMNS)),
            Constant("int", "kPageSize", str(page_size), "keys of a page of the cache"),
            Constant("int", "kRowsPerPageBox", str(rows)),
            Constant("int", "kPagesPerBlock", str(plan.tile_n // rows)),
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


def _float(value: float) -> str:
    return f"{float(value)!r}f"
