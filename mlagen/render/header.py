"""The head of a rendered file: what it is, the spec it came from, and its budget."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mlagen.plan.prefill_sm90 import kib

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan


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
        f"Tile       {plan.tile_m} query rows x {plan.tile_n} keys; {plan.k_stages} stages of K, {plan.v_stages} of V",
        *_role_lines(plan),
        f"Registers  about {plan.estimated_registers} of a math thread: output, scores and packed probabilities",
        *_memory_lines(plan),
        "",
        "Barriers   (arrivals and bytes of one phase)",
        *_barrier_lines(plan),
        "",
        f"Step       {plan.cost.tensor_cycles} tensor-core cycles, {plan.cost.exp2_cycles} of exp2, "
        f"{kib(plan.cost.bytes_from_l2)} KiB of K and V from L2",
        "",
        "Schedule",
        "  load warp   tile -> K(n) -> Q -> { K(n-1), V(n) } -> V(first)",
        "  math        S = Q K(n)' -> softmax -> { S = Q K(n-1)', O += P V(n) -> softmax } -> O += P V(first) -> store",
    ]


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
    operands = [region for region in plan.regions if region.name in ("q", "k", "v")]
    rest = sum(region.size_bytes for region in plan.regions) - sum(
        region.size_bytes for region in operands
    )
    parts = [f"{region.name.upper()} {kib(region.size_bytes)}" for region in operands]
    used, limit = kib(plan.shared_memory_bytes), kib(plan.arch.shared_memory_bytes)
    return [f"Shared     {' + '.join(parts)} + barriers {kib(rest)} = {used} of {limit} KiB"]


def _barrier_lines(plan: KernelPlan) -> list[str]:
    return [
        f"  {barrier.name + f'[{barrier.copies}]':<14} {barrier.arrivals:>2} {barrier.bytes:>6}  "
        f"{barrier.arrives} -> {barrier.waits}"
        for barrier in plan.barriers
    ]
