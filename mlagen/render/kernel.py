"""Rendering: the names that a family's template may see, and the text that comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.dtypes import DTYPES
from mlagen.plan.arguments import takes_cache_seqlens
from mlagen.plan.prefill_sm90 import L2_SECTION_MIB, PANEL_COLUMNS
from mlagen.render import operands
from mlagen.render.constants import prefill_constants
from mlagen.render.environment import environment
from mlagen.render.header import header

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan
    from mlagen.plan.plan import Region, TensorMapPlan

ELEMENT_CTYPES = {"bfloat16": "uint16", "float16": "uint16", "barrier": "uint64", "tile": "Tile"}


@dataclass(frozen=True, slots=True)
class Panel:
    """64 columns of an operand: the map that loads them, the first column there, and the head."""

    map: TensorMapPlan
    column: int
    head: str


def render_kernel(plan: KernelPlan) -> str:
    """The CUDA source of a plan: complete, with no include, and the same bytes for the same plan."""
    template = environment().get_template(f"kernels/{plan.family}.cu.j2")
    return template.render(prefill_names(plan))


def prefill_names(plan: KernelPlan) -> dict[str, Any]:
    """Every name that the templates of the prefill family may use."""
    spec = plan.spec
    geometry = spec.geometry
    out = plan.map("out")
    load_maps = [tensor_map for tensor_map in plan.tensor_maps if tensor_map.name != "out"]
    rope_head = (
        "0" if spec.k_rope.num_heads == 1 else "tile.head / (arguments.num_heads / kRopeHeads)"
    )
    rope_is_paged = spec.k_rope.layout == "paged"
    left_bound, right_bound = plan.mask_bounds
    return {
        "plan": plan,
        "spec": spec,
        "mask": spec.mask,
        "score_mod": spec.score_mod,
        "header": header(plan),
        "constants": prefill_constants(plan),
        "ptx_type": DTYPES[spec.dtype].ptx,
        "dtype_name": spec.dtype,
        "outputs_per_thread": geometry.v_head_dim // 2,
        "output_width": geometry.v_head_dim,
        "score_widths": [plan.tile_n, plan.tile_n // 2] if plan.half_diagonal else [plan.tile_n],
        "has_score_mod": spec.score_mod.kind != "identity",
        "key_offsets": "cu_seqlens_k" if spec.kv.row_offsets else "cu_seqlens_q",
        "has_cache_seqlens": takes_cache_seqlens(spec),
        "mask_has_left_bound": left_bound,
        "mask_has_right_bound": right_bound,
        "l2_section_mib": L2_SECTION_MIB,
        "load_maps": load_maps,
        "load_ranks": sorted({tensor_map.rank for tensor_map in load_maps}),
        "load_addressings": sorted({tensor_map.addressing for tensor_map in load_maps} - {"paged"}),
        "addressings": {tensor_map.addressing for tensor_map in plan.tensor_maps},
        "store_rank": out.rank,
        "store_addressing": out.addressing,
        "rope_is_paged": rope_is_paged,
        "rope_head": rope_head,
        "q_panels": _panels(
            plan, plan.tensor_maps[0], plan.tensor_maps[1] if spec.q_form == "split" else None
        ),
        "k_panels": _panels(
            plan,
            plan.map("k"),
            None if spec.k_rope.layout == "fused" else plan.map("k_rope"),
            rope_head,
        )[: geometry.qk_nope_head_dim // PANEL_COLUMNS if rope_is_paged else None],
        "v_panels": [
            Panel(plan.map("v"), column, "tile.head")
            for column in range(0, geometry.v_head_dim, PANEL_COLUMNS)
        ],
        "region_declaration": _region_declaration,
        "register_rows": operands.register_rows,
        "operand_rows": operands.operand_rows,
        "coordinate_parameters": operands.coordinate_parameters,
        "coordinate_list": operands.coordinate_list,
        "coordinate_operands": operands.coordinate_operands,
    }


def _panels(
    plan: KernelPlan, nope: TensorMapPlan, rope: TensorMapPlan | None, rope_head: str = "tile.head"
) -> list[Panel]:
    """Panels of Q or K, nope columns first; the rope columns lie behind them or in a tensor of their own."""
    geometry = plan.spec.geometry
    found = [
        Panel(nope, column, "tile.head")
        for column in range(0, geometry.qk_nope_head_dim, PANEL_COLUMNS)
    ]
    for column in range(0, geometry.qk_rope_head_dim, PANEL_COLUMNS):
        if rope is None:
            found.append(Panel(nope, geometry.qk_nope_head_dim + column, "tile.head"))
        else:
            found.append(Panel(rope, column, rope_head))
    return found


def _region_declaration(region: Region) -> str:
    """A region as a C++ member."""
    dimensions = "".join(f"[{size}]" for size in region.shape)
    return f"{ELEMENT_CTYPES[region.element]} {region.name}{dimensions}"
