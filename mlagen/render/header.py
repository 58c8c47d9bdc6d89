"""The head of a rendered file: what it is, the spec it came from, and its budget."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mlagen.plan.prefill_sm90 import OPERAND_WORDS, kib

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan


OPERANDS = ("q", "k", "v_rows", "v", "kv", "k_rope", "out")
SCHEDULES = {
    "prefill_sm90": (
        "  load warp   tile -> K(n) -> Q -> { K(n-1), V(n) } -> V(first)",
        "  math        S = Q K(n)' -> softmax -> { S = Q K(n-1)', O += P V(n) -> softmax } -> O += P V(first) -> store",
    ),
    "prefill_sm100": (
        "  load warp   tile -> K(n) -> V(n) -> Q0, Q1 -> { K(n-1) -> V(n-1) }",
        "  MMA warp    S0 = Q0 K(n)' -> S1 = Q1 K(n)' -> { O0 += P0 V(n) -> S0 = Q0 K(n-1)' -> O1 += P1 V(n) -> S1 }",
        "  softmax     S -> maximum -> factor to correction -> P, in two parts -> sum; in the end both to correction",
        "  correction  { O *= factor }; in the end O / sum -> shared memory -> store warp",
    ),
}
# Of prefill_sm90 with operands of 8 bits.
TRANSPOSED_SCHEDULE = (
    SCHEDULES["prefill_sm90"][0],
    "  transpose   { V(n) -> V(n)', its keys in the order of the probabilities }",
    SCHEDULES["prefill_sm90"][1],
)
# Of prefill_sm100 where the halves are key tiles in turn, with an output each and with one.
TWO_OUTPUTS_SCHEDULE = (
    "  load warp   tile -> K(n) -> V(n) -> Q -> { K(n-1) -> V(n-1) }",
    "  MMA warp    S0 = Q K(n)' -> S1 = Q K(n-1)' -> { O0 += P0 V(n) -> S0 = Q K(n-2)' -> O1 += P1 V(n-1) -> S1 }",
    "  softmax     S -> maximum -> factor to correction -> P, in two parts -> sum; in the end both to correction",
    "  correction  { O *= factor }; in the end the sum of O * share / sum -> shared memory -> store warp",
)
ONE_OUTPUT_SCHEDULE = (
    "  load warp   tile -> K(n) -> V(n) -> Q -> { K(n-1) -> V(n-1) }",
    "  MMA warp    S0 = Q K(n)' -> S1 = Q K(n-1)' -> { O += P0 V(n) -> S0 = Q K(n-2)' -> O += P1 V(n-1) -> S1 }",
    "  softmax     S -> common maximum -> factor to correction -> P, in two parts -> sum; in the end all to correction",
    "  correction  { O *= factor }; in the end O / sum -> shared memory -> store warp",
)


TAIL_SCHEDULE = "  last tile   128 rows: { O0 += P0 V(n) -> S0 = Q0 K(n-2)' -> O1 += P1 V(n-1) -> S1 = Q0 K(n-3)' }"
PARTS_SCHEDULE = (
    "  parts       state -> memory; the block that comes last of a tile's merges all and stores"
)


def header(plan: KernelPlan) -> str:
    """The comment that opens the file, without a line end."""
    return "\n".join("//" if line == "" else f"// {line}" for line in header_lines(plan))


def header_lines(plan: KernelPlan) -> list[str]:
    """Lines of the header, without comment marks."""
    spec, geometry = plan.spec, plan.spec.geometry
    return [
        plan.name,
        f"MLA {spec.op} for {spec.arch}: qk {geometry.qk_nope_head_dim}+{geometry.qk_rope_head_dim}, "
        f"v {geometry.v_head_dim}, {spec.dtype}",
        "",
        "Rendered by mlagen; edits here are lost.",
        "",
        "Spec",
        *(f"  {field}: {json.dumps(value)}" for field, value in sorted(spec.canonical.items())),
        "",
        *_tile_lines(plan),
        *_role_lines(plan),
        *_register_lines(plan),
        *_memory_lines(plan),
        *_tensor_memory_lines(plan),
        "",
        "Barriers   (arrivals and bytes of one phase)",
        *_barrier_lines(plan),
        "",
        f"Step       {plan.cost.tensor_cycles} tensor-core cycles, {plan.cost.exp2_cycles} of exp2, "
        f"{kib(plan.cost.bytes_from_l2)} KiB of K and V from L2",
        "",
        "Schedule",
        *_schedule_lines(plan),
        *([TAIL_SCHEDULE] if plan.turns_in_tails else []),
        *([PARTS_SCHEDULE] if plan.state_elements else []),
    ]


def _schedule_lines(plan: KernelPlan) -> tuple[str, ...]:
    if plan.alternates_keys:
        return ONE_OUTPUT_SCHEDULE if plan.single_output else TWO_OUTPUTS_SCHEDULE
    return TRANSPOSED_SCHEDULE if plan.product_columns else SCHEDULES[plan.family]


def _tile_lines(plan: KernelPlan) -> list[str]:
    tile = f"Tile       {plan.tile_words}; "
    if plan.kv_slots:
        return [f"{tile}K and V take turns in {plan.kv_slots} slots"]
    return [f"{tile}{plan.k_stages} stages of K, {plan.v_stages} of V"]


def _register_lines(plan: KernelPlan) -> list[str]:
    registers = f"Registers  about {plan.estimated_registers} of a "
    if plan.tensor_regions:
        return [f"{registers}softmax thread: a row of scores and some packed probabilities"]
    product = f"{plan.product_columns} columns of P V, " if plan.product_columns else ""
    return [f"{registers}math thread: output, {product}scores and packed probabilities"]


def _tensor_memory_lines(plan: KernelPlan) -> list[str]:
    """Columns of each region, as in `S0 0-127`."""
    if not plan.tensor_regions:
        return []
    parts = [
        f"{region.name} {region.first_column}-{region.first_column + region.columns - 1}"
        for region in plan.tensor_regions
    ]
    return [f"Tensor     {', '.join(parts)} of {plan.arch.tensor_memory_columns} columns"]


def _role_lines(plan: KernelPlan) -> list[str]:
    lines = []
    first = 0
    for role in plan.roles:
        last = first + role.warpgroups - 1
        which = f"warpgroup {first}" if role.warpgroups == 1 else f"warpgroups {first}-{last}"
        lines.append(
            f"{'Roles' if first == 0 else '':<10} {which}, {role.registers} registers a thread: {role.work}"
        )
        first = last + 1
    return lines


def _memory_lines(plan: KernelPlan) -> list[str]:
    operands = [region for region in plan.regions if region.name in OPERANDS]
    rest = sum(region.size_bytes for region in plan.regions) - sum(
        region.size_bytes for region in operands
    )
    parts = [
        f"{OPERAND_WORDS.get(region.name, region.name.upper())} {kib(region.size_bytes)}"
        for region in operands
    ]
    used, limit = kib(plan.shared_memory_bytes), kib(plan.arch.shared_memory_bytes)
    return [f"Shared     {' + '.join(parts)} + barriers {kib(rest)} = {used} of {limit} KiB"]


def _barrier_lines(plan: KernelPlan) -> list[str]:
    return [
        f"  {barrier.name + f'[{barrier.copies}]':<14} {barrier.arrivals:>2} {barrier.bytes:>6}  "
        f"{barrier.arrives} -> {barrier.waits}"
        for barrier in plan.barriers
    ]
