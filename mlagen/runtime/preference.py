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

# From where on two blocks of a cluster do better to share their keys (config.cluster_size 2): they have tiles of twice
# the rows, so each pair of SMs must have several, and what comes from L2 must be much. To be measured: no GPU has run
# these kernels yet; the numbers are from a prototype, which gained with 4k dense and lost with 2k causal keys.
LEAST_TILES_OF_A_PAIR = 8
LEAST_KEYS_OF_A_PAIR = {"dense": 4096, "masked": 16384}


def reluctance(spec: KernelSpec, call: Call) -> tuple[float, float, float]:
    """How unwelcome a kernel is: by its tile's query rows, then by the cycles of one score, then by its cluster."""
    plan = _plan_of(spec)
    if plan is None:
        return math.inf, math.inf, math.inf
    cycles = max(plan.cost.tensor_cycles, plan.cost.exp2_cycles) / (plan.tile_m * plan.tile_n)
    cluster = spec.config.cluster_size or 1
    return (
        plan.tile_m if _wants_small_tiles(plan, call) else -plan.tile_m,
        cycles,
        -cluster if _wants_pairs(plan, call) else cluster,
    )


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
    sms = DEVICES[plan.arch.name].sms
    return _longest(plan, call) <= HALF_M or _most_tiles(plan, call) <= sms // 2


def _wants_pairs(plan: KernelPlan, call: Call) -> bool:
    """Whether there are many tiles of full height, with many keys each."""
    kind = "dense" if plan.spec.mask.kind == "none" else "masked"
    pairs = DEVICES[plan.arch.name].sms // 2
    return (
        _most_tiles(plan, call) >= LEAST_TILES_OF_A_PAIR * pairs
        and _keys_of_a_sequence(plan.spec, call) >= LEAST_KEYS_OF_A_PAIR[kind]
    )


def _most_tiles(plan: KernelPlan, call: Call) -> int:
    """The most tiles of full height that a call can have."""
    *batch, rows, heads, _ = _query_shape(call)
    sequences = _sequences(call)
    tiles = sequences * math.ceil(_longest(plan, call) / WHOLE_TILE)
    if not batch:  # of uneven sequences, each but the last tile of one is whole
        tiles = min(tiles, rows // WHOLE_TILE + sequences)
    return tiles * heads


def _longest(plan: KernelPlan, call: Call) -> int:
    """An upper bound on the queries of a sequence."""
    said = (call.options.max_seqlen_q, plan.spec.max_seqlen)
    rows = _query_shape(call)[-3]
    return min([rows, *(length for length in said if isinstance(length, int))])


def _keys_of_a_sequence(spec: KernelSpec, call: Call) -> int:
    """Keys of a sequence: their mean in a ragged batch, else the most that there is room for."""
    if spec.kv.layout == "paged":
        return int(call.tensors["block_table"].shape[1]) * (spec.kv.page_size or 0)
    rows = int(call.tensors["k"].shape[-3])
    return rows if spec.kv.layout == "dense" else rows // max(_sequences(call), 1)


def _sequences(call: Call) -> int:
    *batch, _, _, _ = _query_shape(call)
    return batch[0] if batch else int(call.tensors["cu_seqlens_q"].shape[0]) - 1


def _query_shape(call: Call) -> list[int]:
    """`[batch, rows, heads, columns]`, or without a batch where sequences lie one after the other."""
    queries: Any = call.tensors.get("q", call.tensors.get("q_nope"))
    return [int(size) for size in queries.shape]
