"""Names for the simulator's reports: what a plan calls its barriers, regions and warps. Names only, no meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim.report import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.plan.plan import KernelPlan, Region

WARPS_OF_WARPGROUP = 4


def names_of(plan: KernelPlan, source: str) -> Names:
    """The names of a kernel.

    Args:
        plan: Its plan.
        source: Its CUDA text, from which reports quote lines.
    """
    barriers = {barrier.name for barrier in plan.barriers}
    return Names(
        barriers={
            first: name
            for region in plan.regions
            if region.name in barriers
            for first, _, name in _stages(region)
        },
        regions=tuple(stage for region in plan.regions for stage in _stages(region)),
        roles=dict(_roles(plan)),
        named_barriers={
            barrier.first_id + index: f"{barrier.name}[{index}]"
            for barrier in plan.named_barriers
            for index in range(barrier.copies)
        },
        source=source,
    )


def _stages(region: Region) -> Iterator[tuple[int, int, str]]:
    """First byte, bytes and name of each stage of a region."""
    stages = region.shape[0]
    size = region.size_bytes // stages
    for stage in range(stages):
        name = region.name if stages == 1 else f"{region.name}[{stage}]"
        yield region.offset_bytes + stage * size, size, name


def _roles(plan: KernelPlan) -> Iterator[tuple[int, str]]:
    """First warp of each role, and what it does."""
    warpgroup = 0
    for role in plan.roles:
        for index in range(role.warpgroups):
            name = role.name if role.warpgroups == 1 else f"{role.name} {index}"
            for warp, own in enumerate(role.warps or (name,)):
                yield WARPS_OF_WARPGROUP * warpgroup + warp, own
            warpgroup += 1
