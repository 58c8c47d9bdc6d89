"""What an FA4-style kernel derives from head dimensions and element sizes: tile, ring, tensor-memory columns.

Pure arithmetic, also for forms whose kernels are not built yet: the planner asks it what would fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlagen.plan.memory import TILE_BYTES
from mlagen.plan.split_kv import STORES_BYTES

if TYPE_CHECKING:
    from mlagen.arch import Arch
    from mlagen.spec.geometry import HeadGeometry

HALF_M = 128  # rows of one tcgen05 product, and of one softmax warpgroup
PV_STAGES = 2  # parts in which probabilities are handed over
QK_STAGES = 1  # nope and rope columns of K are one stage
LEAST_TILE_N = 64
TILE_N_CHOICES = (128, 64)  # one tensor-memory load takes a power of two of columns
TILE_SLOTS = 2  # announced tiles: one in work, one ahead
BARRIER_BYTES = 8
ADDRESS_BYTES = 4  # of tensor memory
ROW_BYTES = 4  # of an fp32 value that threads of a row hand to each other
HALVES = 2  # softmax warpgroups: a tile of 128 query rows each, or every other key tile of one
OUTPUT_BYTES = 2  # of an element
ALIGNMENT = 1024  # of a 128-byte-swizzled operand
BARRIERS_OF_A_QUERY_TILE = 3  # q_full, q_empty, o_staged
BARRIERS_OF_A_HALF = 5  # s_full, p_ready, p_last, factor_full, factor_empty


@dataclass(frozen=True, slots=True)
class FA4Layout:
    """An FA4 configuration, resolved; the origin's names in parentheses.

    Attributes:
        qk_head_dim: Columns of Q and K (depth).
        qk_nope_head_dim: Those that come with K (nope).
        v_head_dim: Columns of V and the output (ov).
        element_bytes: Of Q's and K's nope columns, and V (dtype_size).
        rope_bytes: Of an element of the rope columns.
        scale_bytes: Of the scale of a token, 0 without.
        query_tiles: Tiles of 128 query rows, 2 or 1 (num_q).
        single_output: One output accumulator for all key tiles (single-O).
        cta_group: CTAs that multiply together; each holds its part of K and V (cta_group).
        tile_n: Keys of a step (BN); 0 if none fits.
        arch: Limits.
        tile_bytes: Of an announced tile.
        splits_keys: Several blocks share the keys of a tile.
    """

    qk_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    element_bytes: int
    rope_bytes: int
    scale_bytes: int
    query_tiles: int
    single_output: bool
    cta_group: int
    tile_n: int
    arch: Arch
    tile_bytes: int = TILE_BYTES
    splits_keys: bool = False

    @property
    def tile_m(self) -> int:
        """Query rows of a block (BM)."""
        return HALF_M * self.query_tiles

    @property
    def outputs(self) -> int:
        """Output accumulators."""
        return 1 if self.single_output else 2

    @property
    def mma_k(self) -> int:
        """Columns of one product (MMA_K): 32 bytes."""
        return 32 // self.element_bytes

    @property
    def swizzle_bytes(self) -> int:
        """Swizzle span (swizzle_mode): 64 columns of any type."""
        return 64 * self.element_bytes

    @property
    def padded_qk_head_dim(self) -> int:
        """Columns of Q and K in whole swizzle spans (padded_depth)."""
        return padded(self.qk_head_dim)

    @property
    def padded_nope_head_dim(self) -> int:
        """Nope columns in whole swizzle spans."""
        return padded(self.qk_nope_head_dim)

    @property
    def padded_rope_head_dim(self) -> int:
        """Rope columns in whole swizzle spans."""
        return self.padded_qk_head_dim - self.padded_nope_head_dim

    @property
    def padded_v_head_dim(self) -> int:
        """Columns of V in whole swizzle spans (padded ov)."""
        return padded(self.v_head_dim)

    @property
    def score_columns(self) -> tuple[int, int]:
        """First tensor-memory columns of both scores (TMEM_S0, TMEM_S1)."""
        return 0, self.tile_n

    @property
    def probability_columns(self) -> tuple[int, int]:
        """First columns of the probabilities (TMEM_P0, TMEM_P1): the end of their scores, which have been read."""
        offset = self.tile_n - self.tile_n * self.element_bytes // 4
        return offset, self.tile_n + offset

    @property
    def output_columns(self) -> tuple[int, int]:
        """First columns of the outputs (TMEM_O0, TMEM_O1), spaced by `v_head_dim`."""
        first = 2 * self.tile_n
        return first, first if self.single_output else first + self.padded_v_head_dim

    @property
    def tensor_memory_columns(self) -> int:
        """Columns in use (tmem_used); all are allocated."""
        return self.output_columns[1] + self.padded_v_head_dim

    @property
    def slot_bytes(self) -> int:
        """A slot of the ring: nope columns of K, or V; of a pair's, each CTA holds half."""
        columns = max(self.padded_nope_head_dim, self.padded_v_head_dim)
        return self.tile_n * columns * self.element_bytes // self.cta_group

    @property
    def rope_buffer_bytes(self) -> int:
        """What K has beside its slot: rope columns and scales."""
        row = self.padded_rope_head_dim * self.rope_bytes + self.scale_bytes
        return self.tile_n * row // self.cta_group

    @property
    def q_bytes(self) -> int:
        """The place of all queries of a block, with their scales; in the end of its output."""
        nope = self.padded_nope_head_dim * self.element_bytes
        rope = self.padded_rope_head_dim * self.rope_bytes
        return self.tile_m * (nope + rope + self.scale_bytes) + self.output_overhang_bytes

    @property
    def output_overhang_bytes(self) -> int:
        """What an output of 16 bits needs beyond the columns of narrower queries."""
        columns = self.padded_nope_head_dim * self.element_bytes
        columns += self.padded_rope_head_dim * self.rope_bytes
        return self.tile_m * max(self.padded_v_head_dim * OUTPUT_BYTES - columns, 0)

    @property
    def row_values_bytes(self) -> int:
        """What threads of one row hand to each other: factors and sums; maxima, where halves share an output."""
        values = 2 * HALVES
        if self.single_output:
            values += HALVES
        return ROW_BYTES * HALF_M * values

    def bytes_with(self, slots: int) -> int:
        """Shared memory with so many slots, barriers and all."""
        barriers = (
            BARRIERS_OF_A_QUERY_TILE * self.query_tiles
            + BARRIERS_OF_A_HALF * HALVES
            + self.outputs
            + (HALVES if self.single_output else 0)
            + 2 * slots
            + 2 * TILE_SLOTS
        )
        rest = BARRIER_BYTES * barriers + self.row_values_bytes + self.tile_bytes * TILE_SLOTS
        if self.splits_keys:
            rest += STORES_BYTES * self.query_tiles
        ring = slots * self.slot_bytes + -(-slots // 2) * self.rope_buffer_bytes
        return -(-(self.q_bytes + ring + rest + ADDRESS_BYTES) // ALIGNMENT) * ALIGNMENT

    @property
    def kv_slots(self) -> int:
        """Slots of the ring (num_kv_stages): as many as shared memory takes."""
        if self.tile_n == 0:
            return 0
        slots = 0
        while self.bytes_with(slots + 1) <= self.arch.shared_memory_bytes:
            slots += 1
        return slots

    @property
    def least_slots(self) -> int:
        """Slots below which loads wait for products: a K and a V; where scores run further ahead, a K more."""
        return 2 if self.query_tiles == HALVES else 3

    @property
    def rope_buffers(self) -> int:
        """K tiles that the ring can hold at once."""
        return -(-self.kv_slots // 2)

    @property
    def shared_memory_bytes(self) -> int:
        """Shared memory of a block (smem_used)."""
        return self.bytes_with(self.kv_slots)

    @property
    def kv_ring(self) -> Literal["shared"]:
        """K and V take turns in one ring (separate_kv): no slot is ever kept for the other."""
        return "shared"

    @property
    def num_threads(self) -> int:
        """Threads of a block: two softmax warpgroups, one of correction, one that issues."""
        return 512

    def problems(self) -> list[str]:
        """Why no kernel can have this configuration, one line each."""
        found = []
        if self.qk_head_dim < LEAST_TILE_N:
            found.append(f"qk_head_dim {self.qk_head_dim}: at least {LEAST_TILE_N}")
        if self.padded_v_head_dim % (64 * self.cta_group):
            found.append(f"v_head_dim {self.v_head_dim}: a CTA of a pair needs whole spans of 64")
        limit = self.arch.tensor_memory_columns
        if self.tile_n < LEAST_TILE_N:
            found.append(
                f"tensor memory: 2 x {LEAST_TILE_N} columns of scores and {self.outputs} x {self.padded_v_head_dim} of "
                f"output, {limit} available"
            )
            return found
        if self.tensor_memory_columns > limit:
            found.append(f"tensor memory: {self.tensor_memory_columns} columns, {limit} available")
        if self.kv_slots < self.least_slots:
            found.append(
                f"shared memory: {self.bytes_with(self.least_slots)} bytes with {self.least_slots} slots of the ring, "
                f"{self.arch.shared_memory_bytes} available"
            )
        return found

    def supported(self) -> bool:
        """Whether tensor memory and shared memory suffice."""
        return not self.problems()


def fa4_layout(
    geometry: HeadGeometry,
    arch: Arch,
    *,
    element_bytes: int = 2,
    rope_bytes: int | None = None,
    scale_bytes: int = 0,
    query_tiles: int = 2,
    single_output: bool = False,
    cta_group: int = 1,
    tile_n: int | None = None,
    tile_bytes: int = TILE_BYTES,
    splits_keys: bool = False,
) -> FA4Layout:
    """The configuration of head dimensions: the widest key tile that tensor memory takes, unless one is given."""
    outputs = (1 if single_output else 2) * padded(geometry.v_head_dim)
    most = (arch.tensor_memory_columns - outputs) // 2
    widest = next((n for n in TILE_N_CHOICES if n <= most), 0)
    return FA4Layout(
        geometry.qk_head_dim,
        geometry.qk_nope_head_dim,
        geometry.v_head_dim,
        element_bytes,
        element_bytes if rope_bytes is None else rope_bytes,
        scale_bytes,
        query_tiles,
        single_output,
        cta_group,
        widest if tile_n is None else tile_n,
        arch,
        tile_bytes,
        splits_keys,
    )


def padded(columns: int) -> int:
    """Columns in whole swizzle spans of 64."""
    return -(-columns // 64) * 64
