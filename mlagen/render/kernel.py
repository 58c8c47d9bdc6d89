"""Rendering: the names that a family's template may see, and the text that comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlagen.dtypes import DTYPES, FLOAT8_E4M3
from mlagen.plan import prefill_sm90, prefill_sm100
from mlagen.plan.arguments import draws_tickets, takes_cache_seqlens
from mlagen.plan.key_maps import PAGED_ADDRESSINGS, page_size_of
from mlagen.plan.mask import is_padded_throughout, mask_bounds, takes_valid_lengths
from mlagen.plan.memory import tile_bytes
from mlagen.plan.prefill_sm90 import PANEL_COLUMNS, PRODUCT_BYTES
from mlagen.plan.split_kv import fixed_splits, splits_keys
from mlagen.render import operands
from mlagen.render.constants import prefill_constants
from mlagen.render.environment import environment
from mlagen.render.header import header
from mlagen.render.mask import mask_texts
from mlagen.spec.score_mod import adds_bias

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan
    from mlagen.plan.plan import Region, TensorMapPlan
    from mlagen.spec.model import KernelSpec

ELEMENT_CTYPES = {
    "bfloat16": "uint16",
    "float16": "uint16",
    "float8_e4m3fn": "uint8",
    "barrier": "uint64",
    "tile": "Tile",
    "float": "float",
    "uint32": "uint32",
}


@dataclass(frozen=True, slots=True)
class OperandType:
    """A type of A and B of `tcgen05.mma`: its name, its kind, its bits in an instruction descriptor."""

    name: str
    kind: str
    code: str


OPERAND_TYPES = {
    "bfloat16": OperandType("Bf16", "f16", "1u << 7 | 1u << 10"),
    "float16": OperandType("Fp16", "f16", "0"),
    "float8_e4m3fn": OperandType("E4m3", "f8f6f4", "0"),
}


@dataclass(frozen=True, slots=True)
class Panel:
    """64 columns of an operand: the map that loads them, the first column there, the head, and where it goes.

    A page goes to row `page_row` of the destination.
    """

    map: TensorMapPlan
    column: int | str
    head: str
    destination: str = ""
    page_row: str = "first"

    @property
    def is_paged(self) -> bool:
        """Whether its rows lie in pages, each with a box of its own."""
        return self.map.addressing in PAGED_ADDRESSINGS


@dataclass(frozen=True, slots=True)
class PageBoxes:
    """What the text calls the boxes of pages of a panel: how many, and their rows."""

    count: str = "kPagesPerBlock"
    rows: str = "kRowsPerPageBox"


def render_kernel(plan: KernelPlan) -> str:
    """The CUDA source of a plan: complete, with no include, and the same bytes for the same plan."""
    template = environment().get_template(f"kernels/{plan.family}.cu.j2")
    return template.render(prefill_names(plan))


def prefill_names(plan: KernelPlan) -> dict[str, Any]:
    """Every name that the templates of a prefill family may use."""
    own = _sm100_names(plan) if plan.family == "prefill_sm100" else _sm90_names(plan)
    return _shared_names(plan) | own


def _shared_names(plan: KernelPlan) -> dict[str, Any]:
    """What the templates of all prefill families use."""
    spec = plan.spec
    out = plan.map("out")
    load_maps = [tensor_map for tensor_map in plan.tensor_maps if tensor_map.name != "out"]
    rope_head = (
        "0" if spec.k_rope.num_heads == 1 else "tile.head / (arguments.num_heads / kRopeHeads)"
    )
    k_panels, v_panels = _k_panels(plan, rope_head), _v_panels(plan)
    k_boxes = v_boxes = PageBoxes()
    pair = plan.cta_group == 2
    if pair and spec.kv.layout == "paged":
        v_boxes = PageBoxes("kVPagesPerBlock", "kRowsPerVPageBox")
    ranges = plan.key_ranges
    left_bound, right_bound = mask_bounds(ranges)
    mask_names_valid_keys = takes_valid_lengths(spec.mask) and not is_padded_throughout(ranges)
    return {
        "plan": plan,
        "spec": spec,
        "score_mod": spec.score_mod,
        "header": header(plan),
        "constants": prefill_constants(plan),
        "ptx_type": DTYPES[spec.dtype].ptx,
        "dtype_name": spec.dtype,
        "is_fp8": spec.dtype == FLOAT8_E4M3.name,
        "output_ptx_type": DTYPES[str(spec.output_dtype)].ptx,
        "pack_output": "pack" if spec.output_dtype == spec.dtype else "pack_output",
        "has_score_mod": spec.score_mod.kind != "identity",
        "adds_bias": adds_bias(spec.score_mod),
        "uses_log2": spec.lse or plan.largest_rescale_threshold > plan.rescale_threshold,
        "key_offsets": "cu_seqlens_k" if spec.kv.row_offsets else "cu_seqlens_q",
        "has_cache_seqlens": takes_cache_seqlens(spec),
        "draws_tickets": draws_tickets(spec),
        "mask_ranges": mask_texts(ranges)[0],
        "mask_is_union": len(ranges) > 1,
        "splits_keys": splits_keys(spec),
        "num_splits": num_splits(spec),
        "mask_has_left_bound": left_bound,
        "mask_has_right_bound": right_bound,
        "tile_bytes": tile_bytes(spec),
        "takes_valid_lengths": takes_valid_lengths(spec.mask),
        # Where every key seen is a valid one, a sequence ends with these; else some ranges of the mask do.
        "key_limit": "tile.valid_keys" if is_padded_throughout(ranges) else "tile.keys.length",
        "value_rows": "valid_rows(tile)" if is_padded_throughout(ranges) else "tile.keys",
        "mask_names_valid_keys": mask_names_valid_keys,
        "mask_valid_keys": ", valid_keys" if mask_names_valid_keys else "",
        "tile_valid_keys": ", tile.valid_keys" if mask_names_valid_keys else "",
        "load_maps": load_maps,
        "load_ranks": sorted({tensor_map.rank for tensor_map in load_maps}),
        "load_addressings": sorted(
            {tensor_map.addressing for tensor_map in load_maps} - PAGED_ADDRESSINGS
        ),
        "addressings": {tensor_map.addressing for tensor_map in plan.tensor_maps},
        "store_rank": out.rank,
        "store_addressing": out.addressing,
        "pair": pair,
        # Who takes tickets, and how many they are.
        "taker": "blockIdx.x / 2" if pair else "blockIdx.x",
        "takers": "gridDim.x / 2" if pair else "gridDim.x",
        "has_pages": page_size_of(spec) is not None,
        "kv_is_paged": spec.kv.layout == "paged",
        "q_panels": _panels(
            plan, plan.tensor_maps[0], plan.tensor_maps[1] if spec.q_form == "split" else None
        ),
        "k_panels": [panel for panel in k_panels if not panel.is_paged],
        "k_page_panels": [panel for panel in k_panels if panel.is_paged],
        "v_panels": [panel for panel in v_panels if not panel.is_paged],
        "v_page_panels": [panel for panel in v_panels if panel.is_paged],
        "k_boxes": k_boxes,
        "v_boxes": v_boxes,
        "region_declaration": _region_declaration,
        "register_rows": operands.register_rows,
        "operand_rows": operands.operand_rows,
        "output_rows": operands.output_rows,
        "input_rows": operands.input_rows,
        "coordinate_parameters": operands.coordinate_parameters,
        "coordinate_list": operands.coordinate_list,
        "coordinate_operands": operands.coordinate_operands,
    }


def num_splits(spec: KernelSpec) -> str:
    """What the text calls the most parts that a tile may have."""
    return "arguments.num_splits" if fixed_splits(spec) is None else "kSplits"


def _sm90_names(plan: KernelPlan) -> dict[str, Any]:
    """What only the templates for Hopper use."""
    width = plan.spec.geometry.v_head_dim
    element_bytes = DTYPES[plan.spec.dtype].size_bytes
    product_width = plan.product_columns or width
    return {
        "halves": False,
        "row_halves": False,
        "outputs_per_thread": width // 2,
        "product_width": product_width,
        "product_depth": PRODUCT_BYTES // element_bytes,
        "panel_row_bytes": PANEL_COLUMNS * element_bytes,
        "panel_row_chunks": PANEL_COLUMNS * element_bytes // 16,
        "products_of_a_panel": PANEL_COLUMNS * element_bytes // PRODUCT_BYTES,
        "transposes_v": bool(plan.product_columns),
        # Where TMA lays the values out.
        "v_ring": "v_rows" if plan.product_columns else "v",
        "output_takes_v_stage": plan.output_place == "v stage",
        "output_takes_q_slice": plan.output_place == "q slice",
        "score_widths": [plan.tile_n, plan.tile_n // 2] if plan.half_diagonal else [plan.tile_n],
        "l2_section_mib": prefill_sm90.L2_SECTION_MIB,
        "output_row": OUTPUT_ROWS[plan.output_place],
    }


def _output_row_in_v(panel: str, row: str | None) -> str:
    """Where the output of a math warpgroup lies in a stage of V; without a row, its first one."""
    own = "warpgroup * kRowsPerWarpgroup" + (f" + {row}" if row else "")
    return f"shared.v[v.stage][{panel}][{own}]"


def _output_row_in_q(panel: str, row: str | None) -> str:
    """The same in its slice of Q."""
    return f"shared.q[warpgroup][{panel}]" + (f"[{row}]" if row else "")


def _output_row_of_its_own(panel: str, row: str | None) -> str:
    """The same in the region that the output has for itself."""
    return f"shared.out[warpgroup][{panel}]" + (f"[{row}]" if row else "")


OUTPUT_ROWS = {
    "v stage": _output_row_in_v,
    "q slice": _output_row_in_q,
    "own": _output_row_of_its_own,
}


def _sm100_names(plan: KernelPlan) -> dict[str, Any]:
    """What only the templates for Blackwell use."""
    element_bytes = DTYPES[plan.spec.dtype].size_bytes
    product_columns = 32 // element_bytes
    pair, alternating = plan.cta_group == 2, plan.alternates_keys
    return {
        "halves": True,
        "row_halves": not alternating,
        "alternating": alternating,
        "turns_in_tails": plan.turns_in_tails,
        "in_turn": alternating or plan.turns_in_tails,
        "query_tiles": 1 if alternating else 2,
        "single_output": plan.single_output,
        "seen_by": "blocks" if alternating else "half",
        # Where a block's own rows of a half, and of a block of K, begin.
        "own_keys": " + rank_in_pair() * kKRows" if pair else "",
        "own_rows": " + rank_in_pair() * kHalfRows" if pair else "",
        "rows_of_softmax": _rows_of_softmax(plan),
        "half_rows": "kHalfRows" if pair else "kHalfM",
        "k_rows": "kKRows" if pair else "kTileN",
        "has_rope": plan.spec.geometry.qk_rope_head_dim > 0,
        "tensor_load_widths": (16, 32),
        "probability_groups": range(0, plan.tile_n, prefill_sm100.PROBABILITY_GROUP),
        "staged_output": _staged_output_of_fp8 if element_bytes == 1 else _staged_output,
        "operand_type": OPERAND_TYPES[plan.spec.dtype],
        "element_bytes": element_bytes,
        "product_columns": product_columns,
        "products_of_a_panel": PANEL_COLUMNS // product_columns,
        "panel_row_bytes": PANEL_COLUMNS * element_bytes,
        "probabilities_of_a_column": 4 // element_bytes,
        "l2_section_mib": prefill_sm100.L2_SECTION_MIB,
    }


def _rows_of_softmax(plan: KernelPlan) -> str:
    """Where the rows of a softmax warpgroup begin in a tile."""
    if plan.alternates_keys:
        return ""
    return " + half_of_rows * kHalfM" if plan.turns_in_tails else " + half * kHalfM"


def _staged_output(half: str, panel: str) -> str:
    """Where a panel of the output of a half's rows is laid out: over one of Q, which has the same size."""
    return f"shared.q[{half}][{panel}]"


def _staged_output_of_fp8(half: str, panel: str) -> str:
    """The same over a Q of narrower elements."""
    return f"staged_output(shared, {half}, {panel})"


def _k_panels(plan: KernelPlan, rope_head: str) -> list[Panel]:
    """Panels of K, and where each goes: on Blackwell, the rope columns into a buffer of their own."""
    rope = None if plan.spec.k_rope.layout == "fused" else plan.map("k_rope")
    nope_panels = plan.spec.geometry.qk_nope_head_dim // PANEL_COLUMNS

    def destination(index: int) -> str:
        if plan.family == "prefill_sm90":
            return f"k[k.stage][{index}]"
        if index < nope_panels:
            return f"kv[kv.stage][{index}]"
        return f"k_rope[rope.stage][{index - nope_panels}]"

    return [
        replace(panel, destination=destination(index))
        for index, panel in enumerate(_panels(plan, plan.map("k"), rope, rope_head))
    ]


def _v_panels(plan: KernelPlan) -> list[Panel]:
    """Panels of V, and where each goes."""
    if plan.cta_group == 2:
        return [_v_panel_of_pair(plan)]
    ring = "kv[kv.stage]"
    if plan.family == "prefill_sm90":
        ring = "v_rows[v.stage]" if plan.product_columns else "v[v.stage]"
    return [
        Panel(plan.map("v"), column, "tile.head", f"{ring}[{index}]")
        for index, column in enumerate(range(0, plan.spec.geometry.v_head_dim, PANEL_COLUMNS))
    ]


def _v_panel_of_pair(plan: KernelPlan) -> Panel:
    """The panel of V that a block of a pair has, over two panels of K, which have half its rows."""
    assert plan.spec.geometry.v_head_dim == plan.cta_group * PANEL_COLUMNS
    v = Panel(plan.map("v"), "rank_in_pair() * kVColumns", "tile.head", "kv[kv.stage][0]")
    if not v.is_paged:
        return v
    return replace(v, destination="kv[kv.stage][first / kKRows]", page_row="first % kKRows")


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
