"""Plan of the Blackwell prefill family: scores and outputs of two halves in tensor memory.

The halves are 128 query rows each, or every other key tile of 128 query rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.arch import ARCHS
from mlagen.dtypes import DTYPES
from mlagen.errors import PlanError
from mlagen.plan.arguments import prefill_arguments
from mlagen.plan.fa4_config import HALF_M, HALVES, TILE_N_CHOICES, fa4_layout
from mlagen.plan.key_maps import key_tensor_maps, page_problems
from mlagen.plan.mask import key_ranges
from mlagen.plan.memory import tile_bytes
from mlagen.plan.name import kernel_name
from mlagen.plan.plan import Addressing, Cost, KernelPlan, Role, TensorMapPlan
from mlagen.plan.probability import PROBABILITY_SHIFT
from mlagen.plan.resources_sm100 import (
    PANEL_COLUMNS,
    barriers,
    named_barriers,
    shared_memory_map,
    tensor_memory_map,
)
from mlagen.plan.split_kv import splits_keys, state_elements
from mlagen.plan.support import SM100, refuse_unsupported
from mlagen.sass_facts import SassFacts, SassLoop
from mlagen.spec.config import FA4Config
from mlagen.spec.score_mod import adds_bias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.plan.fa4_config import FA4Layout
    from mlagen.spec.model import KernelSpec

# 512 threads enter with 128 registers; 184 + 184 + 88 + 56 is what that pool gives back (ptx-isa: setmaxnreg).
SOFTMAX_REGISTERS = 184
CORRECTION_REGISTERS = 88  # spills with 80 beside 184
ISSUE_REGISTERS = 56
# A softmax thread holds its row of scores, 16 packed probabilities and what ptxas adds, measured with NVRTC 13.5.
BASE_REGISTERS = 40

# Of the fourth warpgroup.
LOAD_WARP, MMA_WARP, STORE_WARP = 12, 13, 14

L2_SECTION_MIB = 64  # of K and V that heads in flight share; not measured, B200s have 126 MB of L2

PROBABILITY_GROUP = 32  # keys whose probabilities are computed and stored together
PAIRS_OF_A_GROUP = PROBABILITY_GROUP // 2  # two exponentials are emulated together

# Probabilities of 8 bits, which are scaled by 2^8, end at 448.
LARGEST_RESCALE_THRESHOLD = {"float16": 15, "bfloat16": 60, "float8_e4m3fn": 0.8}
DEFAULT_RESCALE_THRESHOLD = 0.5  # as on sm_90a: docs/kernels/prefill_sm90.md has the figures


def plan_prefill_sm100(spec: KernelSpec) -> KernelPlan:
    """Resolve a prefill spec for sm_100a.

    Raises:
        UnsupportedError: An option has no kernel in this family yet.
        PlanError: The spec's `config` does not fit shared memory or tensor memory.
    """
    refuse_unsupported(spec, SM100)
    arch = ARCHS[spec.arch]
    layout = choose_layout(spec)
    ranges = key_ranges(spec.mask)
    assert ranges is not None
    geometry, config = spec.geometry, spec.config
    emulation_share = config.exp2_emulation_share or 0.0
    softmax_order = bool(config.softmax_order)
    flops = 2 * layout.tile_m * layout.tile_n * (geometry.qk_head_dim + geometry.v_head_dim)
    return KernelPlan(
        spec=spec,
        name=kernel_name(spec),
        family="prefill_sm100",
        arch=arch,
        tile_m=layout.tile_m,
        tile_n=layout.tile_n,
        k_stages=layout.rope_buffers,
        v_stages=layout.kv_slots // 2,
        rescale_threshold=(
            DEFAULT_RESCALE_THRESHOLD
            if config.rescale_threshold is None
            else config.rescale_threshold
        ),
        half_diagonal=False,
        ping_pong=False,
        key_ranges=ranges,
        regions=shared_memory_map(spec, layout),
        barriers=barriers(layout),
        named_barriers=named_barriers(layout, softmax_order=softmax_order),
        roles=(
            Role(
                "softmax",
                HALVES,
                SOFTMAX_REGISTERS,
                "scores of 128 rows each to probabilities, in tensor memory"
                if layout.query_tiles == HALVES
                else "scores of every other key tile each to probabilities, in tensor memory",
            ),
            Role(
                "correction",
                1,
                CORRECTION_REGISTERS,
                "rescales the output, in the end brings it to shared memory"
                if layout.single_output
                else "rescales both outputs, in the end brings them to shared memory",
            ),
            Role(
                "issue",
                1,
                ISSUE_REGISTERS,
                "a warp each draws tiles and loads, issues products, stores; one is idle",
                ("load warp", "MMA warp", "store warp", "idle warp"),
            ),
        ),
        tensor_maps=tensor_maps(spec, layout),
        arguments=prefill_arguments(spec),
        estimated_registers=layout.tile_n + BASE_REGISTERS,
        sass=sass_facts(spec, layout),
        cost=Cost(
            tensor_cycles=flops * layout.element_bytes // (2 * arch.tensor_flops_per_cycle),
            exp2_cycles=round(
                (1 - emulation_share) * layout.tile_m * layout.tile_n / arch.exp2_per_cycle
            ),
            bytes_from_l2=layout.element_bytes
            * layout.tile_n
            * (geometry.qk_head_dim + geometry.v_head_dim)
            // layout.cta_group,
        ),
        kv_slots=layout.kv_slots,
        tensor_regions=tensor_memory_map(layout),
        exp2_emulation_share=emulation_share,
        softmax_order=softmax_order,
        state_elements=state_elements(spec, outputs=layout.padded_v_head_dim, rows=1),
        probability_shift=PROBABILITY_SHIFT.get(spec.dtype, 0),
        cta_group=layout.cta_group,
        alternates_keys=layout.query_tiles == 1,
        turns_in_tails=turns_in_tails(layout),
        single_output=layout.single_output,
    )


def forms(config: FA4Config) -> list[tuple[int, bool]]:
    """Query tiles of 128 rows and single output, of each form that a spec lets the planner choose, best first.

    One query tile with two outputs is a choice for short queries, so it is only taken where it is asked for.
    """
    if config.tile_m is None and config.single_output is None:
        return [(2, False), (1, True)]
    return [
        (query_tiles, single_output)
        for query_tiles, single_output in ((2, False), (1, False), (1, True))
        if config.tile_m in (None, HALF_M * query_tiles)
        and config.single_output in (None, single_output)
    ]


def choose_layout(spec: KernelSpec) -> FA4Layout:
    """The configuration that the spec asks for, or the first form and widest key tile that fit.

    Raises:
        PlanError: What the spec asks for does not fit; the message shows the budget and one that does.
    """
    config = spec.config
    if not forms(config):
        output = " with single_output" if config.single_output else ""
        raise PlanError(
            f"config: tile_m {config.tile_m}{output} is no form of {spec.arch} {spec.op}\n"
            f"  use tile_m {2 * HALF_M}, or {HALF_M} with or without single_output"
        )
    tiles = TILE_N_CHOICES if config.tile_n is None else (config.tile_n,)
    wanted = layouts(spec, forms(config), tiles)
    fitting = [layout for layout in wanted if not problems(spec, layout)]
    if fitting:
        return fitting[0]
    nearest = wanted[len(tiles) - 1]  # the best form, with the narrowest tile
    others = layouts(spec, [*forms(config), *forms(FA4Config())], TILE_N_CHOICES)
    supported = [one for one in others if one.supported() and not spills(spec, one)]
    advice = advice_for(nearest, supported)
    where = f"config.tile_n: {nearest.tile_n} does not fit {spec.arch}"
    lines = (f"  {line}" for line in problems(spec, nearest))
    raise PlanError("\n".join([where, *lines, f"  {advice}"]))


def advice_for(refused: FA4Layout, fitting: list[FA4Layout]) -> str:
    """What to write instead of a configuration that does not fit."""
    if not fitting:
        return "change these fields: with them, no configuration of this family fits"
    best = fitting[0]
    kib = best.shared_memory_bytes / 1024
    found = [f"use tile_n {best.tile_n} with {best.kv_slots} slots of K and V ({kib:.0f} KiB)"]
    if best.tile_m != refused.tile_m:
        found.append(f"tile_m {best.tile_m}")
    if best.single_output and not refused.single_output:
        found.append("single_output true")
    return ", ".join(found)


def layouts(
    spec: KernelSpec, forms: Iterable[tuple[int, bool]], tiles: Iterable[int]
) -> list[FA4Layout]:
    """Configurations of each form with each key tile."""
    return [
        fa4_layout(
            spec.geometry,
            ARCHS[spec.arch],
            query_tiles=query_tiles,
            single_output=single_output,
            tile_n=n,
            element_bytes=DTYPES[spec.dtype].size_bytes,
            cta_group=spec.config.cta_group or 1,
            tile_bytes=tile_bytes(spec),
            splits_keys=splits_keys(spec),
        )
        for query_tiles, single_output in forms
        for n in tiles
    ]


def problems(spec: KernelSpec, layout: FA4Layout) -> list[str]:
    """Why a configuration does not fit, one line each."""
    found = []
    n = layout.tile_n
    if n not in TILE_N_CHOICES:
        choices = " or ".join(map(str, TILE_N_CHOICES))
        found.append(f"tile_n {n} is not {choices}: a row of scores is one load of tensor memory")
    found += page_problems(spec, n)
    if spills(spec, layout):
        found.append(f"tile_n {n}: ptxas spills where a bias is added to rows so wide")
    largest = LARGEST_RESCALE_THRESHOLD[spec.dtype]
    threshold = spec.config.rescale_threshold
    if threshold is not None and threshold > largest:
        found.append(
            f"rescale_threshold {threshold:g}: probabilities reach 2^it; {spec.dtype} allows {largest}"
        )
    share = spec.config.exp2_emulation_share
    if share is not None and not (share * PAIRS_OF_A_GROUP).is_integer():
        found.append(
            f"exp2_emulation_share {share:g} is no multiple of 1/{PAIRS_OF_A_GROUP}: of {PAIRS_OF_A_GROUP} pairs of "
            "keys, a whole number is emulated"
        )
    return found + layout.problems()


def turns_in_tails(layout: FA4Layout) -> bool:
    """Whether the halves of a tile take key tiles in turn where only the first has rows.

    Where blocks merge the states of their parts, each half's is one; and a half of a pair has 256 rows, of which a last
    tile needs both CTAs for more than 128.
    """
    return layout.query_tiles == HALVES and layout.cta_group == 1 and not layout.splits_keys


def sass_facts(spec: KernelSpec, layout: FA4Layout) -> SassFacts:
    """What the machine code must show: a round is a key block; the MMA warp does both halves, or two blocks, in one."""
    element_bytes = layout.element_bytes
    products = (spec.geometry.qk_head_dim + layout.tile_n) // layout.mma_k
    groups = layout.tile_n // PROBABILITY_GROUP
    # With the mask and without it: two bodies of one loop.
    bodies = 2
    return SassFacts(
        (
            SassLoop(
                "MMA warp", (("UTCQMMA" if element_bytes == 1 else "UTCHMMA", HALVES * products),)
            ),
            SassLoop(
                "softmax",
                (
                    ("LDTM.x32", bodies * groups),
                    (f"STTM.x{PROBABILITY_GROUP * element_bytes // 4}", bodies * groups),
                ),
            ),
        ),
        (SOFTMAX_REGISTERS, CORRECTION_REGISTERS, ISSUE_REGISTERS),
    )


def spills(spec: KernelSpec, layout: FA4Layout) -> bool:
    """Whether ptxas lacks registers for the numbers of a bias beside a row of scores."""
    config = spec.config
    is_crowded = layout.splits_keys or config.exp2_emulation_share or config.softmax_order
    return bool(adds_bias(spec.score_mod) and is_crowded and layout.tile_n > TILE_N_CHOICES[-1])


def tensor_maps(spec: KernelSpec, layout: FA4Layout) -> tuple[TensorMapPlan, ...]:
    """The tensor maps, in the order of the kernel's parameters."""
    dtype = DTYPES[spec.dtype]
    q_addressing: Addressing = "batched" if spec.q_layout == "dense" else "clipped"
    queries = ("q",) if spec.q_form == "fused" else ("q_nope", "q_pe")
    maps = [
        TensorMapPlan(name, name, q_addressing, HALF_M, PANEL_COLUMNS, dtype) for name in queries
    ]
    maps += key_tensor_maps(
        spec, tile_n=layout.tile_n, panel_columns=PANEL_COLUMNS, cta_group=layout.cta_group
    )
    out_dtype = DTYPES[str(spec.output_dtype)]
    maps.append(TensorMapPlan("out", "out", q_addressing, HALF_M, PANEL_COLUMNS, out_dtype))
    return tuple(maps)
