"""Plan of the Hopper prefill family: a load and a store warp, two math warpgroups of 64 rows, rings of K and V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.arch import ARCHS
from mlagen.dtypes import DTYPES
from mlagen.errors import PlanError
from mlagen.plan.arguments import prefill_arguments
from mlagen.plan.key_maps import key_tensor_maps, page_problems
from mlagen.plan.mask import key_ranges, mask_bounds
from mlagen.plan.memory import RegionRequest, barrier_region, lay_out, tile_bytes
from mlagen.plan.name import kernel_name
from mlagen.plan.plan import (
    Addressing,
    Barrier,
    Cost,
    KernelPlan,
    NamedBarrier,
    Region,
    Role,
    TensorMapPlan,
    occupied_bytes,
)
from mlagen.plan.split_kv import splits_keys, state_elements
from mlagen.plan.support import SM90, refuse_unsupported
from mlagen.sass_facts import SassFacts, SassLoop

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

TILE_M = 128
MATH_WARPGROUPS = 2
ROWS_PER_WARPGROUP = TILE_M // MATH_WARPGROUPS
SWIZZLE_ROWS = 8  # of an atom: a box must begin at one
PANEL_COLUMNS = 64  # 128 bytes, the widest span over which TMA and wgmma swizzle
TILE_SLOTS = 2  # announced tiles: one that the math warpgroups work on, one ahead
ELEMENT_BYTES = 2

# Three warpgroups enter with 168 registers a thread; 40 + 232 + 232 is what that pool gives back (ptx-isa: setmaxnreg).
PRODUCER_REGISTERS = 40
MATH_REGISTERS = 232
# ptxas needs room below the cap for addresses and temporaries; measured on the rendered kernels with NVRTC 13.5.
REGISTER_LIMIT = 224
BASE_REGISTERS = 26
SCORE_MOD_REGISTERS = {"identity": 0, "alibi": 12, "softcap": 12, "bias": 12, "relative_bias": 12}

# Probabilities reach 2^threshold: fp16 ends at 65504, and fp32 sums of bf16 ones must not overflow.
LARGEST_RESCALE_THRESHOLD = {"float16": 15, "bfloat16": 60}

L2_SECTION_MIB = (
    32  # of K and V that heads in flight share; measured best on an H200 (60 MB of L2), 2026-12-01
)

TILE_N_CHOICES = (128, 112, 96, 80, 64)
DEFAULT_STAGES = 2
# A key that outweighs the others gets an inexact probability above 1 instead of exactly 1 where its row has grown by
# less than the threshold. 8 for all rows doubles the largest error of normal inputs at times, 0.5 does not show. By the
# row's sum, only keys of little weight get such a probability (docs/kernels/prefill_sm90.md has the figures).
DEFAULT_RESCALE_THRESHOLDS = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The choices that decide shared memory and registers."""

    tile_n: int
    k_stages: int
    v_stages: int


def plan_prefill_sm90(spec: KernelSpec) -> KernelPlan:
    """Resolve a prefill spec for sm_90a.

    Raises:
        UnsupportedError: An option has no kernel in this family yet.
        PlanError: The spec's `config` does not fit shared memory or registers.
    """
    refuse_unsupported(spec, SM90)
    arch = ARCHS[spec.arch]
    configuration = choose_configuration(spec)
    geometry = spec.geometry
    ranges = key_ranges(spec.mask)
    assert ranges is not None
    config = spec.config
    # At 128/128 ptxas 13.5 serialised wgmma in a variant that had it (C7511), before scores were local to a step; not
    # tried there again. At 192/128 no variant is serialised.
    half_diagonal_pays = mask_bounds(ranges)[1] and geometry.qk_head_dim > geometry.v_head_dim
    ping_pong = True if config.ping_pong is None else config.ping_pong
    asked = config.rescale_threshold
    smallest, largest = DEFAULT_RESCALE_THRESHOLDS if asked is None else (asked, asked)
    flops = 2 * TILE_M * configuration.tile_n * (geometry.qk_head_dim + geometry.v_head_dim)
    overlap = tiles_overlap(spec, configuration)
    return KernelPlan(
        spec=spec,
        name=kernel_name(spec),
        family="prefill_sm90",
        arch=arch,
        tile_m=TILE_M,
        tile_n=configuration.tile_n,
        k_stages=configuration.k_stages,
        v_stages=configuration.v_stages,
        rescale_threshold=smallest,
        half_diagonal=(
            configuration.tile_n == 2 * PANEL_COLUMNS
            and (half_diagonal_pays if config.half_diagonal is None else config.half_diagonal)
        ),
        ping_pong=ping_pong,
        key_ranges=ranges,
        regions=shared_memory_map(spec, configuration),
        barriers=barriers(spec, configuration, overlap=overlap),
        named_barriers=named_barriers(ping_pong=ping_pong, own=not overlap or splits_keys(spec)),
        roles=(
            issue_role(overlap=overlap),
            Role(
                "math",
                MATH_WARPGROUPS,
                MATH_REGISTERS,
                "Q K', softmax, P V and the output of 64 rows each",
            ),
        ),
        tensor_maps=tensor_maps(spec, configuration),
        arguments=prefill_arguments(spec),
        estimated_registers=estimate_registers(spec, configuration.tile_n),
        sass=SassFacts(
            # Of the unmasked steady-state step.
            (SassLoop("math", (("HGMMA", (geometry.qk_head_dim + configuration.tile_n) // 16),)),),
            (PRODUCER_REGISTERS, MATH_REGISTERS),
        ),
        cost=Cost(
            tensor_cycles=flops // arch.tensor_flops_per_cycle,
            exp2_cycles=TILE_M * configuration.tile_n // arch.exp2_per_cycle,
            bytes_from_l2=ELEMENT_BYTES
            * configuration.tile_n
            * (geometry.qk_head_dim + geometry.v_head_dim)
            // blocks_of_cluster(spec),
        ),
        state_elements=state_elements(spec, outputs=geometry.v_head_dim // 2, rows=2),
        largest_rescale_threshold=largest,
        tiles_overlap=overlap,
        cta_group=blocks_of_cluster(spec),
    )


def blocks_of_cluster(spec: KernelSpec) -> int:
    """Blocks that share keys, each bringing its part of every block of them to all: 1 or 2."""
    return spec.config.cluster_size or 1


def tiles_overlap(spec: KernelSpec, configuration: Configuration) -> bool:
    """Whether the first scores of a tile are computed beside the last product of the tile before.

    Its Q must be there by then, so that no output can lie in it: there must be room for a buffer of the output.
    With 256 columns of output ptxas spills.
    """
    if spec.geometry.v_head_dim > 2 * PANEL_COLUMNS:
        return False
    regions = lay_out(region_requests(spec, configuration, overlap=True))
    return occupied_bytes(regions) <= ARCHS[spec.arch].shared_memory_bytes


def issue_role(*, overlap: bool) -> Role:
    """The role of the first warpgroup."""
    if overlap:
        work = "a warp each draws tiles and loads, stores; two are idle"
        warps = ("load warp", "store warp", "idle warp", "idle warp")
        return Role("issue", 1, PRODUCER_REGISTERS, work, warps)
    return Role("issue", 1, PRODUCER_REGISTERS, "one warp draws tiles and issues TMA")


def estimate_registers(spec: KernelSpec, tile_n: int) -> int:
    """Registers of a math thread: output, scores and packed probabilities live together, plus a measured base."""
    outputs, scores, probabilities = spec.geometry.v_head_dim // 2, tile_n // 2, tile_n // 4
    score_mods = SCORE_MOD_REGISTERS.get(spec.score_mod.kind, 0)
    return outputs + scores + probabilities + BASE_REGISTERS + score_mods


def shared_memory_map(spec: KernelSpec, configuration: Configuration) -> tuple[Region, ...]:
    """Regions of shared memory: operands first, each panel 1024-byte aligned by its size, then barriers."""
    overlap = tiles_overlap(spec, configuration)
    return lay_out(region_requests(spec, configuration, overlap=overlap))


def region_requests(
    spec: KernelSpec, configuration: Configuration, *, overlap: bool
) -> list[RegionRequest]:
    """What `shared_memory_map` lays out."""
    geometry = spec.geometry
    qk_panels = geometry.qk_head_dim // PANEL_COLUMNS
    v_panels = geometry.v_head_dim // PANEL_COLUMNS
    n = configuration.tile_n
    operands = [
        (
            "q",
            (MATH_WARPGROUPS, qk_panels, ROWS_PER_WARPGROUP, PANEL_COLUMNS),
            "of each warpgroup" + ("" if overlap else "; then its output"),
        ),
        (
            "k",
            (configuration.k_stages, qk_panels, n, PANEL_COLUMNS),
            "keys, nope panels before rope",
        ),
        ("v", (configuration.v_stages, v_panels, n, PANEL_COLUMNS), "values"),
    ]
    requests: list[RegionRequest] = [
        (name, spec.dtype, ELEMENT_BYTES, shape, comment) for name, shape, comment in operands
    ]
    if overlap:
        out = (v_panels, ROWS_PER_WARPGROUP, PANEL_COLUMNS)
        comment = "output of one warpgroup, then of the other"
        requests.append(("out", str(spec.output_dtype), ELEMENT_BYTES, out, comment))
    requests += [
        barrier_region(barrier) for barrier in barriers(spec, configuration, overlap=overlap)
    ]
    requests.append(("tile", "tile", tile_bytes(spec), (TILE_SLOTS,), "announced tiles"))
    if overlap and splits_keys(spec):
        requests.append(("stores", "uint32", 4, (1,), "whether there is an output to store"))
    return requests


def barriers(
    spec: KernelSpec, configuration: Configuration, *, overlap: bool
) -> tuple[Barrier, ...]:
    """The mbarriers, with what each phase expects."""
    geometry = spec.geometry
    q_bytes = ELEMENT_BYTES * ROWS_PER_WARPGROUP * geometry.qk_head_dim
    k_bytes = ELEMENT_BYTES * configuration.tile_n * geometry.qk_head_dim
    v_bytes = ELEMENT_BYTES * configuration.tile_n * geometry.v_head_dim
    math_warps, ctas = 4 * MATH_WARPGROUPS, blocks_of_cluster(spec)
    every = "every math warp" + (" of both blocks" if ctas == 2 else "")
    if overlap:
        q_empty = Barrier("q_empty", MATH_WARPGROUPS, 4, 0, "its warps", "load warp")
        outputs: tuple[Barrier, ...] = (
            Barrier("out_full", 1, 4, 0, "a warpgroup's warps", "store warp"),
            Barrier("out_empty", MATH_WARPGROUPS, 1, 0, "store warp", "its warpgroup"),
        )
        tile_empty = Barrier(
            "tile_empty",
            TILE_SLOTS,
            # Of a pair, the leader's: the other block's load warp reads tiles, too.
            ctas * (math_warps + 1) + ctas - 1,
            0,
            "math and store warps",
            "load warp",
        )
    else:
        q_empty = Barrier(
            "q_empty", MATH_WARPGROUPS, 1, 0, "thread that stored the output", "load warp"
        )
        outputs = ()
        tile_empty = Barrier(
            "tile_empty", TILE_SLOTS, math_warps, 0, "every math warp", "load warp"
        )
    return (
        Barrier("q_full", MATH_WARPGROUPS, 1, q_bytes, "load warp", "its warpgroup"),
        q_empty,
        Barrier("k_full", configuration.k_stages, 1, k_bytes, "load warp", "math warps"),
        Barrier("k_empty", configuration.k_stages, ctas * math_warps, 0, every, "load warp"),
        Barrier("v_full", configuration.v_stages, 1, v_bytes, "load warp", "math warps"),
        Barrier("v_empty", configuration.v_stages, ctas * math_warps, 0, every, "load warp"),
        *outputs,
        Barrier(
            "tile_full",
            TILE_SLOTS,
            1,
            0,
            "load warp",
            "math warps" + (" and store warp" if overlap else ""),
        ),
        tile_empty,
    )


def named_barriers(*, ping_pong: bool, own: bool) -> tuple[NamedBarrier, ...]:
    """The hardware barriers: one a math warpgroup of each purpose."""
    turn = (NamedBarrier("turn", 1, MATH_WARPGROUPS),) if ping_pong else ()
    return (*turn, NamedBarrier("warpgroup", 3, MATH_WARPGROUPS)) if own else turn


def tensor_maps(spec: KernelSpec, configuration: Configuration) -> tuple[TensorMapPlan, ...]:
    """The tensor maps, in the order of the kernel's parameters."""
    dtype = DTYPES[spec.dtype]
    q_addressing: Addressing = "batched" if spec.q_layout == "dense" else "clipped"
    rows = ROWS_PER_WARPGROUP
    queries = ("q",) if spec.q_form == "fused" else ("q_nope", "q_pe")
    maps = [TensorMapPlan(name, name, q_addressing, rows, PANEL_COLUMNS, dtype) for name in queries]
    own_keys = configuration.tile_n // blocks_of_cluster(spec)
    maps += key_tensor_maps(spec, tile_n=own_keys, panel_columns=PANEL_COLUMNS)
    out_dtype = DTYPES[str(spec.output_dtype)]
    maps.append(TensorMapPlan("out", "out", q_addressing, rows, PANEL_COLUMNS, out_dtype))
    return tuple(maps)


def choose_configuration(spec: KernelSpec) -> Configuration:
    """The configuration that the spec asks for, or the widest key tile that fits with two stages each of K and V.

    Raises:
        PlanError: What the spec asks for does not fit; the message shows the budget and one that does.
    """
    config = spec.config
    asked = config.tile_n
    k_stages = config.k_stages or DEFAULT_STAGES
    v_stages = config.v_stages or DEFAULT_STAGES
    fitting = fitting_configurations(spec, k_stages, v_stages)
    if asked is None and fitting:
        return fitting[0]
    wanted = Configuration(asked or TILE_N_CHOICES[-1], k_stages, v_stages)
    found = problems(spec, wanted)
    if not found:
        return wanted
    default = fitting_configurations(spec, DEFAULT_STAGES, DEFAULT_STAGES)
    advice = (
        f"use tile_n {default[0].tile_n} with {default[0].k_stages} stages of K and {default[0].v_stages} of V "
        f"({kib(used_bytes(spec, default[0]))} KiB, about {estimate_registers(spec, default[0].tile_n)} registers)"
        if default
        else "change these fields: with them, no configuration of this family fits"
    )
    where = f"config.tile_n: {wanted.tile_n} does not fit {spec.arch}"
    raise PlanError("\n".join([where, *(f"  {line}" for line in found), f"  {advice}"]))


def fitting_configurations(spec: KernelSpec, k_stages: int, v_stages: int) -> list[Configuration]:
    """The configurations with these stages that fit, widest key tile first."""
    choices = (Configuration(n, k_stages, v_stages) for n in TILE_N_CHOICES)
    return [choice for choice in choices if not problems(spec, choice)]


def problems(spec: KernelSpec, configuration: Configuration) -> list[str]:
    """Why a configuration does not fit, one line each."""
    found = []
    n = configuration.tile_n
    if n % 16 != 0 or not 16 <= n <= 256:
        found.append(
            f"tile_n {n} is not a multiple of 16 between 16 and 256, the key steps of wgmma"
        )
    found += page_problems(spec, n // blocks_of_cluster(spec))
    limit = ARCHS[spec.arch].shared_memory_bytes
    if used_bytes(spec, configuration) > limit:
        found.append(
            f"shared memory: {budget_text(spec, configuration)}, {kib(limit)} KiB available"
        )
    if blocks_of_cluster(spec) > 1:
        found += _cluster_problems(spec, configuration)
    found += _config_problems(spec, n)
    registers = estimate_registers(spec, n)
    if registers > REGISTER_LIMIT:
        found.append(
            f"registers: about {registers} a math thread, {REGISTER_LIMIT} usable of {MATH_REGISTERS}"
        )
    return found


def _cluster_problems(spec: KernelSpec, configuration: Configuration) -> list[str]:
    """Why blocks of a cluster cannot share the keys of this configuration."""
    size = blocks_of_cluster(spec)
    found = []
    own_keys, rest = divmod(configuration.tile_n, size)
    if rest or own_keys % SWIZZLE_ROWS:
        found.append(
            f"cluster_size {size}: its part of {configuration.tile_n} keys is no multiple of {SWIZZLE_ROWS}"
        )
    if not tiles_overlap(spec, configuration):
        found.append(
            f"cluster_size {size}: tiles must overlap, and shared memory has no room for their output"
        )
    return found


def _config_problems(spec: KernelSpec, tile_n: int) -> list[str]:
    """What `config` asks for and this tile or dtype cannot give."""
    found = []
    config = spec.config
    if config.half_diagonal and tile_n != 2 * PANEL_COLUMNS:
        found.append(
            f"half_diagonal: half of {tile_n} keys is no swizzle panel of {PANEL_COLUMNS}; remove it"
        )
    largest = LARGEST_RESCALE_THRESHOLD[spec.dtype]
    if config.rescale_threshold is not None and config.rescale_threshold > largest:
        asked = f"rescale_threshold {config.rescale_threshold:g}"
        found.append(f"{asked}: probabilities reach 2^it; {spec.dtype} allows {largest}")
    return found


def used_bytes(spec: KernelSpec, configuration: Configuration) -> int:
    """Bytes of shared memory that a configuration takes."""
    return occupied_bytes(shared_memory_map(spec, configuration))


def budget_text(spec: KernelSpec, configuration: Configuration) -> str:
    """The shared-memory budget in one line, as in `Q 48 + K 2 x 48 + V 2 x 32 + barriers 0.2 = 208.2 KiB`."""
    regions = {region.name: region for region in shared_memory_map(spec, configuration)}
    matrices = ("q", "k", "v", "out")
    rest = sum(region.size_bytes for name, region in regions.items() if name not in matrices)
    stage = {name: regions[name].size_bytes // regions[name].shape[0] for name in ("k", "v")}
    out = f"output {kib(regions['out'].size_bytes)} + " if "out" in regions else ""
    return (
        f"Q {kib(regions['q'].size_bytes)} + K {configuration.k_stages} x {kib(stage['k'])} + "
        f"V {configuration.v_stages} x {kib(stage['v'])} + {out}barriers {kib(rest)} = "
        f"{kib(used_bytes(spec, configuration))} KiB"
    )


def kib(size_bytes: int) -> str:
    """Bytes as KiB with at most one decimal."""
    return f"{size_bytes / 1024:.1f}".removesuffix(".0")
