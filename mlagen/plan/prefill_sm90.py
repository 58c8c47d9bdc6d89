"""Plan of the Hopper prefill family: one load warp, two math warpgroups of 64 query rows, rings of K and V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.arch import ARCHS
from mlagen.dtypes import DTYPES, FLOAT8_E4M3
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
from mlagen.plan.probability import PROBABILITY_SHIFT
from mlagen.plan.split_kv import splits_keys, state_elements
from mlagen.plan.support import SM90, refuse_unsupported
from mlagen.sass_facts import SassFacts, SassLoop

if TYPE_CHECKING:
    from mlagen.plan.plan import OutputPlace
    from mlagen.spec.model import KernelSpec

TILE_M = 128
MATH_WARPGROUPS = 2
ROWS_PER_WARPGROUP = TILE_M // MATH_WARPGROUPS
PANEL_COLUMNS = (
    64  # a row of them is the span over which TMA and wgmma swizzle: 128 bytes, 64 of an 8-bit type
)
TILE_SLOTS = 2  # announced tiles: one that the math warpgroups work on, one ahead
PRODUCT_BYTES = 32  # of a row of A and B that one wgmma multiplies
TRANSPOSE_WARPS = 1  # that turn V of 8 bits; each has as many columns of it

# Three warpgroups enter with 168 registers a thread; 40 + 232 + 232 is what that pool gives back (ptx-isa: setmaxnreg).
PRODUCER_REGISTERS = 40
MATH_REGISTERS = 232
# ptxas needs room below the cap for addresses and temporaries; measured on the rendered kernels with NVRTC 13.5.
REGISTER_LIMIT = 224
BASE_REGISTERS = 26
# Of 8 bits likewise: ptxas comes down to this much where a product as wide as the output lies beside it, if neither
# parts of tiles nor a mask with a left bound needs a few more.
REGISTER_LIMIT_OF_BYTES = 231
BASE_REGISTERS_OF_BYTES = 22
OPTION_REGISTERS_OF_BYTES = 4
SCORE_MOD_REGISTERS = {"identity": 0, "alibi": 12, "softcap": 12, "bias": 12, "relative_bias": 12}

# Probabilities reach 2^threshold: fp16 ends at 65504, and fp32 sums of bf16 ones must not overflow.
# Where every product is added to an output in registers, rescaling that is free: no threshold is worth anything.
LARGEST_RESCALE_THRESHOLD = {"float16": 15, "bfloat16": 60, "float8_e4m3fn": 0}

L2_SECTION_MIB = (
    32  # of K and V that heads in flight share; measured best on an H200 (60 MB of L2), 2026-12-01
)

# What people call the large regions of shared memory.
OPERAND_WORDS = {"q": "Q", "k": "K", "v_rows": "V rows", "v": "V", "out": "output"}

TILE_N_CHOICES = (128, 112, 96, 80, 64)
TILE_N_CHOICES_OF_BYTES = (128, 96, 64, 32)
DEFAULT_STAGES = 2
# Of K in 8 bits: a step takes half the time, its loads as long as ever to begin.
DEFAULT_K_STAGES_OF_BYTES = 3
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
    usual = (0.0, 0.0) if transposes_v(spec) else DEFAULT_RESCALE_THRESHOLDS
    smallest, largest = usual if asked is None else (asked, asked)
    element_bytes = DTYPES[spec.dtype].size_bytes
    flops = 2 * TILE_M * configuration.tile_n * (geometry.qk_head_dim + geometry.v_head_dim)
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
        barriers=barriers(spec, configuration),
        named_barriers=named_barriers(ping_pong=ping_pong),
        roles=(
            Role(
                "load",
                1,
                PRODUCER_REGISTERS,
                "one warp draws tiles and issues TMA"
                + (f", {TRANSPOSE_WARPS} transpose V" if transposes_v(spec) else ""),
            ),
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
            (SassLoop("math", (products_of_a_step(spec, configuration),)),),
            (PRODUCER_REGISTERS, MATH_REGISTERS),
        ),
        cost=Cost(
            tensor_cycles=flops * element_bytes // 2 // arch.tensor_flops_per_cycle,
            exp2_cycles=TILE_M * configuration.tile_n // arch.exp2_per_cycle,
            bytes_from_l2=element_bytes
            * configuration.tile_n
            * (geometry.qk_head_dim + geometry.v_head_dim),
        ),
        state_elements=state_elements(spec, outputs=geometry.v_head_dim // 2, rows=2),
        largest_rescale_threshold=largest,
        output_place=output_place(spec, configuration),
        probability_shift=PROBABILITY_SHIFT.get(spec.dtype, 0),
        product_columns=product_columns(spec, configuration.tile_n) if transposes_v(spec) else 0,
    )


def transposes_v(spec: KernelSpec) -> bool:
    """Whether V is transposed on its way: of 8-bit operands, wgmma wants the keys of V contiguous."""
    return spec.dtype == FLOAT8_E4M3.name


def output_place(spec: KernelSpec, configuration: Configuration) -> OutputPlace:
    """Where the output of a tile is laid out: in a stage of V if it fits, then Q is free for the next tile before."""
    if transposes_v(spec):
        return "own"  # wider than all operands, which leave room for it
    return "v stage" if configuration.tile_n >= TILE_M else "q slice"


def products_of_a_step(spec: KernelSpec, configuration: Configuration) -> tuple[str, int]:
    """Name and number of the tensor-core instructions of a step."""
    depth = PRODUCT_BYTES // DTYPES[spec.dtype].size_bytes
    scores, keys = spec.geometry.qk_head_dim // depth, configuration.tile_n // depth
    if not transposes_v(spec):
        return "HGMMA", scores + keys
    parts = spec.geometry.v_head_dim // product_columns(spec, configuration.tile_n)
    return "QGMMA", scores + parts * keys


def product_columns(spec: KernelSpec, tile_n: int) -> int:
    """Columns of P V that are multiplied at a time and then added to the output: all, if registers allow."""
    columns = spec.geometry.v_head_dim
    fits = registers_of_bytes(spec, tile_n, columns) <= REGISTER_LIMIT_OF_BYTES
    return columns if fits else PANEL_COLUMNS


def estimate_registers(spec: KernelSpec, tile_n: int) -> int:
    """Registers of a math thread: output, scores and packed probabilities live together, plus a measured base."""
    if transposes_v(spec):
        return registers_of_bytes(spec, tile_n, product_columns(spec, tile_n))
    outputs, scores, probabilities = spec.geometry.v_head_dim // 2, tile_n // 2, tile_n // 4
    score_mods = SCORE_MOD_REGISTERS.get(spec.score_mod.kind, 0)
    return outputs + scores + probabilities + BASE_REGISTERS + score_mods


def registers_of_bytes(spec: KernelSpec, tile_n: int, columns: int) -> int:
    """The same with 8-bit operands, where so many columns of a product lie beside the output."""
    outputs, scores, probabilities = spec.geometry.v_head_dim // 2, tile_n // 2, tile_n // 8
    ranges = key_ranges(spec.mask)
    assert ranges is not None
    options = (splits_keys(spec), mask_bounds(ranges)[0])
    score_mods = SCORE_MOD_REGISTERS.get(spec.score_mod.kind, 0)
    each = OPTION_REGISTERS_OF_BYTES
    if (
        spec.score_mod.kind == "bias"
    ):  # of which more numbers are under way the more scores there are
        score_mods += tile_n // 8
        each += tile_n // 16
    fixed = BASE_REGISTERS_OF_BYTES + each * sum(options) + score_mods
    return outputs + scores + probabilities + columns // 2 + fixed


def shared_memory_map(spec: KernelSpec, configuration: Configuration) -> tuple[Region, ...]:
    """Regions of shared memory: operands first, each panel 1024-byte aligned by its size, then barriers."""
    geometry = spec.geometry
    qk_panels = geometry.qk_head_dim // PANEL_COLUMNS
    v_panels = geometry.v_head_dim // PANEL_COLUMNS
    n, place = configuration.tile_n, output_place(spec, configuration)
    rows = ROWS_PER_WARPGROUP
    element, size = spec.dtype, DTYPES[spec.dtype].size_bytes
    regions: list[RegionRequest] = [
        (
            "q",
            element,
            size,
            (MATH_WARPGROUPS, qk_panels, rows, PANEL_COLUMNS),
            "of each warpgroup" + ("; then its output" if place == "q slice" else ""),
        ),
        (
            "k",
            element,
            size,
            (configuration.k_stages, qk_panels, n, PANEL_COLUMNS),
            "keys, nope panels before rope",
        ),
        (
            "v_rows" if transposes_v(spec) else "v",
            element,
            size,
            (configuration.v_stages, v_panels, n, PANEL_COLUMNS),
            "values" + ("; a stage at times the output" if place == "v stage" else ""),
        ),
    ]
    if transposes_v(spec):
        out = DTYPES[str(spec.output_dtype)]
        key_panels = -(-n // PANEL_COLUMNS)
        regions += [
            (
                "v",
                element,
                size,
                (configuration.v_stages, key_panels, geometry.v_head_dim, PANEL_COLUMNS),
                "values transposed: panels of keys",
            ),
            (
                "out",
                out.name,
                out.size_bytes,
                (MATH_WARPGROUPS, v_panels, rows, PANEL_COLUMNS),
                "output of each warpgroup",
            ),
        ]
    regions += [barrier_region(barrier) for barrier in barriers(spec, configuration)]
    regions.append(("tile", "tile", tile_bytes(spec), (TILE_SLOTS,), "announced tiles"))
    return lay_out(regions)


def barriers(spec: KernelSpec, configuration: Configuration) -> tuple[Barrier, ...]:
    """The mbarriers, with what each phase expects."""
    geometry, size = spec.geometry, DTYPES[spec.dtype].size_bytes
    q_bytes = size * ROWS_PER_WARPGROUP * geometry.qk_head_dim
    k_bytes = size * configuration.tile_n * geometry.qk_head_dim
    math_warps = 4 * MATH_WARPGROUPS
    transposes = transposes_v(spec)
    readers = math_warps + (TRANSPOSE_WARPS if transposes else 0)
    role_warps = "math and transpose warps" if transposes else "math warps"
    return (
        Barrier("q_full", MATH_WARPGROUPS, 1, q_bytes, "load warp", "its warpgroup"),
        (
            Barrier("q_empty", MATH_WARPGROUPS, 1, 0, "thread that stored the output", "load warp")
            if output_place(spec, configuration) == "q slice"
            else Barrier(
                "q_empty", MATH_WARPGROUPS, 4, 0, "every warp of its warpgroup", "load warp"
            )
        ),
        Barrier("k_full", configuration.k_stages, 1, k_bytes, "load warp", "math warps"),
        Barrier("k_empty", configuration.k_stages, math_warps, 0, "every math warp", "load warp"),
        *value_barriers(spec, configuration),
        Barrier("tile_full", TILE_SLOTS, 1, 0, "load warp", role_warps),
        Barrier(
            "tile_empty",
            TILE_SLOTS,
            readers,
            0,
            "each of them" if transposes else "every math warp",
            "load warp",
        ),
    )


def value_barriers(spec: KernelSpec, configuration: Configuration) -> tuple[Barrier, ...]:
    """Those of V, which may be transposed between the load warp and the math warps."""
    stages, math_warps = configuration.v_stages, 4 * MATH_WARPGROUPS
    size = DTYPES[spec.dtype].size_bytes
    v_bytes = size * configuration.tile_n * spec.geometry.v_head_dim
    if not transposes_v(spec):
        return (
            Barrier("v_full", stages, 1, v_bytes, "load warp", "math warps"),
            Barrier("v_empty", stages, math_warps, 0, "every math warp", "load warp"),
        )
    warps, each = "transpose warps", "every transpose warp"
    return (
        Barrier("v_rows_full", stages, 1, v_bytes, "load warp", warps),
        Barrier("v_rows_empty", stages, TRANSPOSE_WARPS, 0, each, "load warp"),
        Barrier("v_full", stages, TRANSPOSE_WARPS, 0, each, "math warps"),
        Barrier("v_empty", stages, math_warps, 0, "every math warp", warps),
    )


def named_barriers(*, ping_pong: bool) -> tuple[NamedBarrier, ...]:
    """The hardware barriers: one a math warpgroup of each purpose."""
    own = NamedBarrier("warpgroup", 3, MATH_WARPGROUPS)
    return (NamedBarrier("turn", 1, MATH_WARPGROUPS), own) if ping_pong else (own,)


def tensor_maps(spec: KernelSpec, configuration: Configuration) -> tuple[TensorMapPlan, ...]:
    """The tensor maps, in the order of the kernel's parameters."""
    dtype = DTYPES[spec.dtype]
    q_addressing: Addressing = "batched" if spec.q_layout == "dense" else "clipped"
    rows = ROWS_PER_WARPGROUP
    queries = ("q",) if spec.q_form == "fused" else ("q_nope", "q_pe")
    maps = [TensorMapPlan(name, name, q_addressing, rows, PANEL_COLUMNS, dtype) for name in queries]
    maps += key_tensor_maps(spec, tile_n=configuration.tile_n, panel_columns=PANEL_COLUMNS)
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
    default_k_stages = DEFAULT_K_STAGES_OF_BYTES if transposes_v(spec) else DEFAULT_STAGES
    k_stages = config.k_stages or default_k_stages
    v_stages = config.v_stages or DEFAULT_STAGES
    fitting = fitting_configurations(spec, k_stages, v_stages)
    if asked is None and fitting:
        return fitting[0]
    wanted = Configuration(asked or tile_n_choices(spec)[-1], k_stages, v_stages)
    found = problems(spec, wanted)
    if not found:
        return wanted
    default = fitting_configurations(spec, default_k_stages, DEFAULT_STAGES)
    advice = (
        f"use tile_n {default[0].tile_n} with {default[0].k_stages} stages of K and {default[0].v_stages} of V "
        f"({kib(used_bytes(spec, default[0]))} KiB, about {estimate_registers(spec, default[0].tile_n)} registers)"
        if default
        else "change these fields: with them, no configuration of this family fits"
    )
    where = f"config.tile_n: {wanted.tile_n} does not fit {spec.arch}"
    raise PlanError("\n".join([where, *(f"  {line}" for line in found), f"  {advice}"]))


def tile_n_choices(spec: KernelSpec) -> tuple[int, ...]:
    """Key tiles to choose from, the widest first."""
    return TILE_N_CHOICES_OF_BYTES if transposes_v(spec) else TILE_N_CHOICES


def fitting_configurations(spec: KernelSpec, k_stages: int, v_stages: int) -> list[Configuration]:
    """The configurations with these stages that fit, widest key tile first."""
    choices = (Configuration(n, k_stages, v_stages) for n in tile_n_choices(spec))
    return [choice for choice in choices if not problems(spec, choice)]


def problems(spec: KernelSpec, configuration: Configuration) -> list[str]:
    """Why a configuration does not fit, one line each."""
    found = []
    n = configuration.tile_n
    depth = PRODUCT_BYTES // DTYPES[spec.dtype].size_bytes
    if n % depth != 0 or not depth <= n <= 256:
        found.append(
            f"tile_n {n} is not a multiple of {depth} between {depth} and 256, the key steps of wgmma"
        )
    found += page_problems(spec, n)
    limit = ARCHS[spec.arch].shared_memory_bytes
    if used_bytes(spec, configuration) > limit:
        found.append(
            f"shared memory: {budget_text(spec, configuration)}, {kib(limit)} KiB available"
        )
    found += _config_problems(spec, n)
    registers = estimate_registers(spec, n)
    usable = REGISTER_LIMIT_OF_BYTES if transposes_v(spec) else REGISTER_LIMIT
    if registers > usable:
        found.append(
            f"registers: about {registers} a math thread, {usable} usable of {MATH_REGISTERS}"
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
    operands = [name for name in ("q", "k", "v_rows", "v", "out") if name in regions]
    rest = sum(region.size_bytes for name, region in regions.items() if name not in operands)
    parts = []
    for name in operands:
        region = regions[name]
        stages = f"{region.shape[0]} x " if name not in ("q", "out") else ""
        size_bytes = region.size_bytes // (region.shape[0] if stages else 1)
        parts.append(f"{OPERAND_WORDS[name]} {stages}{kib(size_bytes)}")
    return (
        f"{' + '.join(parts)} + barriers {kib(rest)} = {kib(used_bytes(spec, configuration))} KiB"
    )


def kib(size_bytes: int) -> str:
    """Bytes as KiB with at most one decimal."""
    return f"{size_bytes / 1024:.1f}".removesuffix(".0")
