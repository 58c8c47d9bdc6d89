"""How fast a kernel should be: what a step costs each unit of an SM, and what a launch adds around its steps.

Predictions, not measurements: whoever shows one says so. The same code predicts the kernels of both architectures, so
that its error is known where a kernel has been timed (docs/kernels/prefill_sm100.md has the comparison, and the origin
of every constant).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.dtypes import DTYPES
from mlagen.plan.mask import key_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlagen.plan.mask import KeyRange
    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.mask import Mask

# What is predicted: one sequence of these lengths, and as many heads as DeepSeek-V3 has.
SEQLENS = (2048, 4096, 8192)
NUM_HEADS = 128


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, as far as a prediction needs it.

    Attributes:
        name: What people call it.
        arch: Of its kernels.
        sms: Streaming multiprocessors (data sheet).
        clock_ghz: Of the SMs under these kernels, in short bursts: tensor cores at work draw more power than the clock
            of the data sheet allows. H200: hardware counters read 1.55 to 1.61 under such kernels (2026-12-01). B200:
            assumed, the same part of the data sheet's clock.
        l2_bytes_per_cycle: That L2 delivers to an SM. H200: the most that a kernel was seen to get (2026-12-01), so no
            limit. B200: assumed to be the same.
        memory_bytes_per_s: Bandwidth of the device's memory (data sheet).
    """

    name: str
    arch: str
    sms: int
    clock_ghz: float
    l2_bytes_per_cycle: float
    memory_bytes_per_s: float


H200 = Device("H200", "sm_90a", 132, 1.60, 33.6, 4.8e12)
B200 = Device("B200", "sm_100a", 148, 1.62, 33.6, 8.0e12)
DEVICES = {device.arch: device for device in (H200, B200)}

SHARED_BYTES_PER_CYCLE = 128  # of an SM: 32 banks of 4 bytes (CUDA programming guide)
ISSUE_SLOTS_PER_CYCLE = 4  # of an SM: one for each quarter
EXP2_CYCLES = 8  # of one warp instruction on the quarter's unit, which does 4 a cycle
# Warp instructions that the softmax takes for 32 scores: 524 for 64 scores a lane, 460 for 128 (packed fp32 pairs and
# maxima of three), counted in the machine code of the main loops without a mask, NVRTC 13.5.
INSTRUCTIONS_PER_SCORE = {"sm_90a": 8.2, "sm_100a": 3.6}
# With V transposed, 492 for 64 scores a lane, and 400 of two warps for the 512 of a step.
INSTRUCTIONS_PER_SCORE_OF_BYTES = 8.5
# More for an exponential without the exp2 unit: 12 for a pair instead of 2.
EMULATION_INSTRUCTIONS = 5
# From the last product of scores to the first exponential and from the last one to the next product: barriers, loads of
# tensor memory, maximum, vote, stores. Assumed.
SOFTMAX_OVERHEAD_CYCLES = 300
HANDED_OVER_FIRST = 0.75  # of the probabilities, after which P V begins (sm_100a)
CHAINS = 2  # warpgroups that do softmax at a time
L2_LATENCY_CYCLES = 650  # of a load by TMA, to its first bytes; assumed
LEAST_SLOTS_IN_TURN = 3  # of the ring, where warpgroups take key tiles in turn

# Fitted to the measured rows of sm_90a (docs/performance, 2026-12-02, cool) and carried over to sm_100a unchecked.
STEP_LOSS = 0.07  # of a step's bound: arbitration between warpgroups, barriers
TILE_CYCLES = 4_750  # of a tile: first loads and softmax that nothing hides, masks, output
BLOCK_CYCLES = 3_000  # of a block's start: launch, barriers, tensor memory, descriptors; assumed
LAUNCH_S = 4e-6  # from event to event around an empty launch; assumed


@dataclass(frozen=True, slots=True)
class Step:
    """What `tile_m` rows x `tile_n` keys cost each unit of an SM, in cycles.

    Attributes:
        units: Cycles by unit; they work side by side.
        lone_units: The same if only the rows of one softmax warpgroup take part, whose K and V are no fewer.
        chain: Least cycles between two steps of one warpgroup: its products and its softmax wait for each other.
        turn: Least cycles between two steps of which the warpgroups take one each.
    """

    units: dict[str, float]
    lone_units: dict[str, float]
    chain: float
    turn: float

    @property
    def bound_by(self) -> str:
        """The unit that takes longest."""
        return max(self.units, key=lambda unit: self.units[unit])

    @property
    def cycles(self) -> float:
        """Cycles of a step among many."""
        return max(self.units.values()) * (1 + STEP_LOSS)

    @property
    def cycles_alone(self) -> float:
        """Cycles of a step in which only one half of the rows takes part: nothing hides its chain."""
        return max(self.chain, *self.lone_units.values()) * (1 + STEP_LOSS)

    @property
    def cycles_in_turn(self) -> float:
        """Cycles of such a step where the warpgroups have one each in turn: one's chain hides the other's."""
        return max(self.turn, *self.lone_units.values()) * (1 + STEP_LOSS)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one launch of a kernel is predicted to take.

    Attributes:
        device: Name of the GPU.
        shape: The mask's kind and the length, for people.
        seqlen: Queries and keys of the one sequence.
        num_heads: Query heads.
        time_ms: Of the launch.
        tflops: 2 (qk + v) x heads x visible pairs of query and key in that time.
        bound_by: What limits it.
        of_peak: Part of what the tensor cores do at that clock.
    """

    device: str
    shape: str
    seqlen: int
    num_heads: int
    time_ms: float
    tflops: float
    bound_by: str
    of_peak: float


def predictions(plan: KernelPlan) -> tuple[Prediction, ...]:
    """What a kernel is predicted to do on its architecture's GPU, one for each of `SEQLENS`.

    None for kernels that split the keys: those are for launches that do not fill the GPU.
    """
    if plan.spec.partition.kind != "none":
        return ()
    device = DEVICES[plan.arch.name]
    return tuple(predict(plan, device, seqlen, NUM_HEADS) for seqlen in SEQLENS)


def predict(plan: KernelPlan, device: Device, seqlen: int, num_heads: int) -> Prediction:
    """Predict one launch over one sequence of `seqlen` queries and keys.

    A mask that depends on data counts as one that hides nothing.
    """
    geometry, mask = plan.spec.geometry, plan.spec.mask
    step = step_of(plan, device)
    tiles = list(tile_costs(plan, step, seqlen, num_heads))
    cycles = makespan(tiles, device.sms // plan.cta_group, plan.spec.scheduler.kind)
    columns = geometry.qk_head_dim + geometry.v_head_dim
    moved = 2 * columns * seqlen * num_heads * DTYPES[plan.spec.dtype].size_bytes
    on_sms, in_memory = cycles / (device.clock_ghz * 1e9), moved / device.memory_bytes_per_s
    time_s = max(on_sms, in_memory) + LAUNCH_S
    pairs = sum(end - begin for begin, end in (visible(mask, q, seqlen) for q in range(seqlen)))
    flops = 2 * columns * num_heads * pairs
    per_cycle = 2 * plan.arch.tensor_flops_per_cycle / DTYPES[plan.spec.dtype].size_bytes
    peak = device.sms * per_cycle * device.clock_ghz * 1e9
    kind = "dense" if mask.kind == "none" else mask.kind.replace("_", " ")
    return Prediction(
        device=device.name,
        shape=f"{kind} {seqlen // 1024}k",
        seqlen=seqlen,
        num_heads=num_heads,
        time_ms=time_s * 1e3,
        tflops=flops / time_s / 1e12,
        bound_by=step.bound_by if on_sms >= in_memory else "device memory",
        of_peak=flops / time_s / peak,
    )


def step_of(plan: KernelPlan, device: Device) -> Step:
    """What a step costs each unit."""
    chain = chain_cycles(plan)
    lone_units = unit_cycles(plan, device, rows_of_chain(plan))
    return Step(
        unit_cycles(plan, device, plan.tile_m), lone_units, chain, turn_cycles(plan, device, chain)
    )


def unit_cycles(plan: KernelPlan, device: Device, rows: int) -> dict[str, float]:
    """What `rows` rows of a step cost each unit."""
    qk, v = plan.spec.geometry.qk_head_dim, plan.spec.geometry.v_head_dim
    m, n, chains = rows, plan.tile_n, rows // rows_of_chain(plan)
    # Products of each chain's rows read both operands of Q K', and V, from shared memory; P comes from elsewhere. A CTA
    # of a pair reads its part of K and V.
    keys = chains * n // plan.cta_group
    operands = (qk * (m + keys) + v * keys) * DTYPES[plan.spec.dtype].size_bytes
    per_score = INSTRUCTIONS_PER_SCORE[plan.arch.name]
    transposed = 0
    if plan.product_columns:
        per_score = INSTRUCTIONS_PER_SCORE_OF_BYTES
        transposed = 2 * v * n  # read and written
    per_score += EMULATION_INSTRUCTIONS * plan.exp2_emulation_share
    return {
        "tensor cores": plan.cost.tensor_cycles * m / plan.tile_m,
        "exp2": plan.cost.exp2_cycles * m / plan.tile_m,
        "instruction issue": per_score * m * n / 32 / ISSUE_SLOTS_PER_CYCLE,
        "shared memory": (operands + plan.cost.bytes_from_l2 + transposed) / SHARED_BYTES_PER_CYCLE,
        "L2": plan.cost.bytes_from_l2 / device.l2_bytes_per_cycle,
        "softmax chain": chain_cycles(plan) * chains / CHAINS,
    }


def turn_cycles(plan: KernelPlan, device: Device, chain: float) -> float:
    """Least cycles a step where the warpgroups take steps in turn.

    Two K and a V fill a ring of three slots: the K of a warpgroup's next step is asked for when its P V is complete.
    """
    if plan.kv_slots != LEAST_SLOTS_IN_TURN:
        return chain / CHAINS
    k_bytes = plan.tile_n * plan.spec.geometry.qk_head_dim * DTYPES[plan.spec.dtype].size_bytes
    return (chain + L2_LATENCY_CYCLES + k_bytes / device.l2_bytes_per_cycle) / CHAINS


def chain_cycles(plan: KernelPlan) -> float:
    """Least cycles between two steps of the rows of one warpgroup."""
    product = products(plan)
    on_exp2_unit = rows_of_chain(plan) / 128 * plan.tile_n * (1 - plan.exp2_emulation_share)
    exponentials = on_exp2_unit * EXP2_CYCLES
    if plan.arch.tensor_memory_columns == 0:  # P V runs beside the softmax of the next scores
        # Where products are added in registers, ptxas has that done first.
        awaited = product["output"] if plan.product_columns else 0.0
        return product["scores"] + awaited + SOFTMAX_OVERHEAD_CYCLES + exponentials
    # Scores overwrite probabilities: all of P V lies between two softmaxes.
    return sum(product.values()) + SOFTMAX_OVERHEAD_CYCLES + HANDED_OVER_FIRST * exponentials


def products(plan: KernelPlan) -> dict[str, float]:
    """Tensor-core cycles of the two products of one warpgroup's rows with a key tile."""
    qk, v = plan.spec.geometry.qk_head_dim, plan.spec.geometry.v_head_dim
    cycles = plan.cost.tensor_cycles * rows_of_chain(plan) / plan.tile_m
    return {"scores": cycles * qk / (qk + v), "output": cycles * v / (qk + v)}


def rows_of_chain(plan: KernelPlan) -> int:
    """Query rows of one product and of one softmax warpgroup."""
    return 64 if plan.arch.tensor_memory_columns == 0 else 128


def tile_costs(plan: KernelPlan, step: Step, seqlen: int, num_heads: int) -> Iterator[float]:
    """Cycles of each tile, in the order in which tiles are handed out."""
    costs = []
    for row in range(0, seqlen, plan.tile_rows):
        both, alone = visited_blocks(plan, row, seqlen)
        cost = both * step.cycles + alone * step.cycles_alone + TILE_CYCLES
        if plan.turns_in_tails and seqlen - row <= rows_of_chain(plan):  # the first step is alone
            cost -= (alone - 1) * (step.cycles_alone - step.cycles_in_turn)
        costs.append(cost - saved_on_diagonal(plan, row, seqlen))
    order = plan.spec.scheduler.order
    if order == "longest_first":  # heads side by side
        for cost in reversed(costs):
            yield from [cost] * num_heads
    else:
        for head in range(num_heads):
            yield from reversed(costs) if order == "rotate" and head % 2 else costs


def saved_on_diagonal(plan: KernelPlan, row: int, seqlen: int) -> float:
    """Half of a product of scores, where the upper warpgroup sees only the first half of the tile's last block."""
    if not plan.half_diagonal:
        return 0.0
    mask, n = plan.spec.mask, plan.tile_n
    last, last_of_upper = (
        min(row + rows, seqlen) - 1 for rows in (plan.tile_m, rows_of_chain(plan))
    )
    block = (visible(mask, last, seqlen)[1] - 1) // n
    if visible(mask, last_of_upper, seqlen)[1] > block * n + n // 2:
        return 0.0
    return products(plan)["scores"] / 2


def visited_blocks(plan: KernelPlan, row: int, seqlen: int) -> tuple[int, int]:
    """Key blocks that all rows of a tile visit together, and those that one half visits alone (sm_100a)."""
    rows = plan.tile_rows if plan.arch.tensor_memory_columns == 0 else plan.tile_rows // 2
    ranges = []
    for first in range(row, row + plan.tile_rows, rows):
        last = min(first + rows, seqlen) - 1
        begin = visible(plan.spec.mask, first, seqlen)[0] // plan.tile_n
        end = math.ceil(visible(plan.spec.mask, last, seqlen)[1] / plan.tile_n)
        ranges.append(range(begin, end if first < seqlen else begin))
    both = set.intersection(*map(set, ranges))
    return len(both), sum(map(len, ranges)) - len(ranges) * len(both)


def visible(mask: Mask, position: int, seqlen: int) -> tuple[int, int]:
    """The first key that a query sees and the end of the last, as far as the mask alone says so; else all."""
    ranges = key_ranges(mask)
    assert ranges is not None
    ends = [_ends(one, position) for one in ranges]
    return max(min(begin for begin, _ in ends), 0), int(min(max(end for _, end in ends), seqlen))


def _ends(one: KeyRange, position: int) -> tuple[int, float]:
    """A range of keys without regard to the keys that there are, or that are valid."""
    chunks = [position // size * size for size in one.chunks]
    begins = [*chunks, *([] if one.left is None else [position - one.left])]
    ends = [begin + size for begin, size in zip(chunks, one.chunks, strict=True)]
    ends += [] if one.right is None else [position + one.right + 1]
    return max(begins, default=0), min(ends, default=math.inf)


def makespan(tiles: Sequence[float], sms: int, kind: str) -> float:
    """Cycles until the last SM, or pair of SMs, is done, with a scheduler of this kind."""
    if kind == "persistent":
        return max(sum(tiles[sm::sms]) for sm in range(sms))
    start = BLOCK_CYCLES if kind == "transient" else 0
    free_at = [0.0] * sms  # each takes the next tile when it is free
    for cycles in tiles:
        heapq.heapreplace(free_at, free_at[0] + start + cycles)
    return max(free_at)
