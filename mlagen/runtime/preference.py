"""Which of several configurations of one meaning suits a call, by what the host knows of its shapes."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any  # Any: tensors of any library

from mlagen.errors import MlagenError
from mlagen.plan import plan_kernel
from mlagen.plan.cycle_model import DEVICES
from mlagen.plan.fa4_config import HALF_M

if TYPE_CHECKING:
    from mlagen.plan import KernelPlan
    from mlagen.runtime.arguments import Call
    from mlagen.spec.model import KernelSpec

WHOLE_TILE = 2 * HALF_M  # query rows of a tile of full height


def reluctance(spec: KernelSpec, call: Call) -> tuple[float, float]:
    """How unwelcome a kernel is: by its tile's query rows first, then by the estimated cycles of one score."""
    plan = _plan_of(spec)
    if plan is None:
        return math.inf, math.inf
    cycles = max(plan.cost.tensor_cycles, plan.cost.exp2_cycles) / (plan.tile_m * plan.tile_n)
    return (plan.tile_m if _wants_small_tiles(plan, call) else -plan.tile_m), cycles


@functools.cache
def _plan_of(spec: KernelSpec) -> KernelPlan | None:
    """The plan of a kernel, made once: it takes as long as the rest of a first call. None if there is none."""
    try:
        return plan_kernel(spec)
    except MlagenError:
        return None


def _wants_small_tiles(plan: KernelPlan, call: Call) -> bool:
    """Whether half of a tile of full height would be empty, or half of the GPU without such a tile.

    Two warpgroups then do better to share out the keys of 128 rows (tile_m 128) than to have 128 rows each.
    """
    queries: Any = call.tensors.get("q", call.tensors.get("q_nope"))
    *batch, rows, heads, _ = (int(size) for size in queries.shape)
    sequences = batch[0] if batch else int(call.tensors["cu_seqlens_q"].shape[0]) - 1
    said = (call.options.max_seqlen_q, plan.spec.max_seqlen)
    longest = min([rows, *(length for length in said if isinstance(length, int))])
    tiles = sequences * math.ceil(longest / WHOLE_TILE)
    if not batch:  # of uneven sequences, each but the last tile of one is whole
        tiles = min(tiles, rows // WHOLE_TILE + sequences)
    return longest <= HALF_M or tiles * heads <= DEVICES[plan.arch.name].sms // 2
