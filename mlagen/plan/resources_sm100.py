"""Where a Blackwell prefill keeps what it works on: tensor memory, shared memory, and the barriers that guard them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.plan.fa4_config import ADDRESS_BYTES, HALF_M, HALVES, ROW_BYTES, TILE_SLOTS
from mlagen.plan.memory import RegionRequest, barrier_region, lay_out
from mlagen.plan.plan import Barrier, NamedBarrier, TensorRegion
from mlagen.plan.split_kv import STORES_BYTES

if TYPE_CHECKING:
    from mlagen.plan.fa4_config import FA4Layout
    from mlagen.plan.plan import Region
    from mlagen.spec.model import KernelSpec

PANEL_COLUMNS = 64  # a row of them is the span over which TMA and tcgen05 swizzle: 128 bytes, 64 of an 8-bit type

# Who takes each announced tile: all warps of softmax and correction, the MMA and the store warp; in a pair's second
# CTA, whose products the leader issues and whose tiles it announces, the load warp in place of the MMA warp.
CONSUMER_WARPS = 4 * 3 + 2


def tensor_memory_map(layout: FA4Layout) -> tuple[TensorRegion, ...]:
    """Columns of tensor memory; probabilities lie over scores that have been read."""
    probability_width = layout.tile_n * layout.element_bytes // 4
    found = []
    for half in range(HALVES):
        found += [
            TensorRegion(f"S{half}", layout.score_columns[half], layout.tile_n, "scores, fp32"),
            TensorRegion(
                f"P{half}",
                layout.probability_columns[half],
                probability_width,
                f"probabilities, over the end of S{half}",
            ),
        ]
    found += [
        TensorRegion(f"O{i}", layout.output_columns[i], layout.padded_v_head_dim, "output, fp32")
        for i in range(layout.outputs)
    ]
    return tuple(found)


def shared_memory_map(spec: KernelSpec, layout: FA4Layout) -> tuple[Region, ...]:
    """Regions of shared memory: operands first, each panel 1024-byte aligned by its size, then the small ones."""
    element, element_bytes = spec.dtype, layout.element_bytes
    keys = layout.tile_n // layout.cta_group
    panel_row_bytes = PANEL_COLUMNS * element_bytes
    q_panels = layout.q_bytes // (layout.tile_m * panel_row_bytes)
    slot_panels = layout.slot_bytes // (keys * panel_row_bytes)
    rope_panels = layout.padded_rope_head_dim // PANEL_COLUMNS
    requests: list[RegionRequest] = [
        (
            "q",
            element,
            element_bytes,
            (layout.query_tiles, q_panels, HALF_M, PANEL_COLUMNS),
            "of each half; then its output" if layout.query_tiles == HALVES else "then the output",
        ),
        (
            "kv",
            element,
            element_bytes,
            (layout.kv_slots, slot_panels, keys, PANEL_COLUMNS),
            "nope columns of keys, and values, in turn",
        ),
    ]
    if rope_panels:
        requests.append(
            (
                "k_rope",
                element,
                element_bytes,
                (layout.rope_buffers, rope_panels, keys, PANEL_COLUMNS),
                "rope columns of keys",
            )
        )
    requests += [barrier_region(barrier) for barrier in barriers(layout)]
    requests += [
        ("tile", "tile", layout.tile_bytes, (TILE_SLOTS,), "announced tiles"),
        (
            "factor",
            "float",
            ROW_BYTES,
            (HALVES, HALF_M),
            "of each row: what its output lacks, in the end its maximum",
        ),
        ("sum", "float", ROW_BYTES, (HALVES, HALF_M), "of each row, in the end: of exponentials"),
    ]
    if layout.single_output:
        values = "of each row: to which its output refers"
        requests.append(("maximum", "float", ROW_BYTES, (HALVES, HALF_M), values))
    requests += [
        ("tensor_memory", "uint32", ADDRESS_BYTES, (1,), "address of the first column"),
    ]
    if layout.splits_keys:
        requests.append(
            (
                "stores",
                "uint32",
                STORES_BYTES,
                (HALVES,),
                "whether a half's output is complete here",
            )
        )
    return lay_out(requests)


def barriers(layout: FA4Layout) -> tuple[Barrier, ...]:
    """The mbarriers, with what each phase expects.

    Those that count both CTAs of a pair are in use in the leader, whose MMA warp waits for them; `products` arrive in
    both. The leader's load warp announces the bytes that both bring.
    """
    n, ctas = layout.tile_n, layout.cta_group
    q_bytes = layout.element_bytes * HALF_M * ctas * layout.padded_qk_head_dim
    k_bytes = layout.element_bytes * n * layout.padded_qk_head_dim
    v_bytes = layout.element_bytes * n * layout.padded_v_head_dim
    warps = 4  # of a warpgroup; one lane arrives for each
    tiles, outputs = layout.query_tiles, layout.outputs
    both, leader = (" of both CTAs", "leader's ") if ctas == 2 else ("", "")
    q_waits = (
        "leader's MMA warp, correction warps"
        if ctas == 2
        else "MMA warp (correction, if there is no key)"
    )
    maximum = (
        (Barrier("maximum_full", HALVES, warps, 0, "softmax warps", "the other half's"),)
        if layout.single_output
        else ()
    )
    return (
        Barrier("q_full", tiles, 1, q_bytes, f"load warp{both}", q_waits),
        Barrier("q_empty", tiles, 1, 0, "store warp", "load warp"),
        Barrier(
            "kv_full",
            layout.kv_slots,
            1,
            k_bytes,
            f"load warp{both} (V: {v_bytes} bytes)",
            f"{leader}MMA warp",
        ),
        Barrier("kv_empty", layout.kv_slots, 1, 0, "products", "load warp"),
        Barrier("s_full", HALVES, 1, 0, "products", "softmax warps"),
        Barrier(
            "p_ready",
            HALVES,
            2 * warps * ctas,
            0,
            f"softmax and correction warps{both}",
            f"{leader}MMA warp",
        ),
        Barrier("p_last", HALVES, warps * ctas, 0, f"softmax warps{both}", f"{leader}MMA warp"),
        Barrier("factor_full", HALVES, warps, 0, "softmax warps", "correction warps"),
        Barrier("factor_empty", HALVES, warps, 0, "correction warps", "softmax warps"),
        *maximum,
        Barrier("o_full", outputs, 1, 0, "products", "correction warps"),
        Barrier("o_staged", tiles, warps, 0, "correction warps", "store warp"),
        Barrier(
            "tile_full",
            TILE_SLOTS,
            1,
            layout.tile_bytes if ctas == 2 else 0,
            f"{leader}load warp",
            "all other warps",
        ),
        Barrier(
            "tile_empty",
            TILE_SLOTS,
            CONSUMER_WARPS * ctas,
            0,
            f"all other warps{both}",
            f"{leader}load warp",
        ),
    )


def named_barriers(layout: FA4Layout, *, softmax_order: bool) -> tuple[NamedBarrier, ...]:
    """The hardware barriers: softmax warpgroups between them, the correction warps among themselves."""
    choices = (
        (softmax_order, NamedBarrier("turn", 1, HALVES)),
        (layout.splits_keys, NamedBarrier("correction", 1 + HALVES, 1)),
    )
    return tuple(barrier for is_used, barrier in choices if is_used)
