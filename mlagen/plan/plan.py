"""`KernelPlan`: everything about one kernel that is decided before its text is written.

The plan is frozen and complete. Templates, the launcher, `mlagen show` and the header of a rendered file read it;
nobody derives a number a second time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.arch import Arch
    from mlagen.dtypes import DType
    from mlagen.plan.mask import KeyRange
    from mlagen.sass_facts import SassFacts
    from mlagen.spec.model import KernelSpec

SHARED_MEMORY_ALIGNMENT = 1024  # of a 128-byte-swizzled operand, and so of the whole map

Addressing = Literal["packed", "clipped", "batched", "paged", "paged_clipped"]
OutputPlace = Literal["q slice", "v stage", "own"]


@dataclass(frozen=True, slots=True)
class Region:
    """A named range of dynamic shared memory.

    Attributes:
        name: C++ member name.
        element: What one element is, for people: a dtype name, or `barrier`.
        element_bytes: Bytes of one element.
        shape: Elements per dimension, outermost first; the first is the stage of a ring.
        offset_bytes: From the 1024-byte-aligned base.
        comment: What it holds.
    """

    name: str
    element: str
    element_bytes: int
    shape: tuple[int, ...]
    offset_bytes: int
    comment: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole region."""
        return math.prod(self.shape) * self.element_bytes


def occupied_bytes(regions: Sequence[Region]) -> int:
    """Shared memory that a map of regions takes, up to a multiple of its alignment."""
    end = max(region.offset_bytes + region.size_bytes for region in regions)
    return -(-end // SHARED_MEMORY_ALIGNMENT) * SHARED_MEMORY_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Barrier:
    """One array of mbarriers.

    Attributes:
        name: The event it announces.
        copies: How many barriers of this kind there are (stages, or warpgroups).
        arrivals: Expected arrivals of one phase; a TMA producer's `arrive.expect_tx` is one of them.
        bytes: Bytes that TMA writes in one phase, 0 if none.
        arrives: Who arrives.
        waits: Who waits.
    """

    name: str
    copies: int
    arrivals: int
    bytes: int
    arrives: str
    waits: str


@dataclass(frozen=True, slots=True)
class NamedBarrier:
    """Consecutive hardware barriers (`bar.sync`) of one purpose; 0 is `__syncthreads`.

    Attributes:
        name: What it is for.
        first_id: Id of the first.
        copies: How many there are (one a math warpgroup).
    """

    name: str
    first_id: int
    copies: int


@dataclass(frozen=True, slots=True)
class Role:
    """What a warpgroup does and how many registers each of its threads may hold.

    Attributes:
        name: Of the role.
        warpgroups: How many have it.
        registers: Of a thread, after setmaxnreg.
        work: In a few words.
        warps: Names of its warps, where each has work of its own.
    """

    name: str
    warpgroups: int
    registers: int
    work: str
    warps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """One tensor map: which tensor it reads or writes, in which order of dimensions, in which box.

    Where a tensor with a batch dimension is `packed` or `clipped`, batch and rows count as one dimension of rows, so
    the batch stride must be that of `rows` rows.

    Every map has boxes of 64 columns, one head, and is swizzled over a row of them.

    Attributes:
        name: Parameter name in CUDA is `<name>_map`.
        tensor: The name under which `run` takes the tensor.
        addressing: Dimensions of the map, innermost first; D is the last dimension of the tensor, H its heads (1 if
            the tensor has no head dimension):
            `packed`  tensor `[T, H, D]`           -> `(D, H, T)`;
            `clipped` tensor `[T, H, D]`           -> `(D, H, 2^30, 2^31-1, 2^31-1)` with row strides
            `(row, 2^34 - row, row)`: the kernel gives coordinates `(2^30 - length + row, 2^30, offset + length)`, so
            that rows past a sequence's end are zero when loaded and skipped when stored;
            `batched` tensor `[B, S, H, D]`        -> `(D, H, S, B)`;
            `paged`   tensor `[pages, page_size, H, D]` -> `(D, H, page_size, pages)`;
            `paged_clipped` the same -> `(D, H, page_size, page_size + 1, pages)` with strides `(row, row, page)`, its
            base `page_size` rows before the tensor: the kernel gives coordinates `(page_size - length + row, length,
            page)`, so that rows of a page past a sequence's end are zero when loaded.
        box_rows: Rows of one box, in the third map dimension; every other dimension but the first has 1.
        box_columns: Columns of one box.
        dtype: Element type.
    """

    name: str
    tensor: str
    addressing: Addressing
    box_rows: int
    box_columns: int
    dtype: DType

    @property
    def rank(self) -> int:
        """Dimensions of the map."""
        return {"packed": 3, "clipped": 5, "batched": 4, "paged": 4, "paged_clipped": 5}[
            self.addressing
        ]

    @property
    def swizzle_bytes(self) -> int:
        """Over which TMA swizzles: a row of a box."""
        return self.box_columns * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Argument:
    """One field of the struct that a kernel takes by value after its tensor maps; fields in this order, C alignment.

    Attributes:
        name: Parameter name in CUDA, and the key under which the launcher finds the value.
        ctype: `int`, `int64`, `float`, or a pointer (`const int*`, `const float*`, `float*`, `int*`).
        comment: Meaning and unit.
    """

    name: str
    ctype: str
    comment: str


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """A named range of tensor-memory columns, in all 128 lanes; ranges of different phases may overlap."""

    name: str
    first_column: int
    columns: int
    comment: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What one key tile of one CTA costs, in SM clock cycles unless said.

    Attributes:
        tensor_cycles: Tensor-core cycles of Q K^T and P V for `tile_m` x `tile_n`.
        exp2_cycles: Cycles of the special-function units.
        bytes_from_l2: K and V bytes that TMA brings.
    """

    tensor_cycles: int
    exp2_cycles: int
    bytes_from_l2: int


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel, resolved for its architecture.

    Attributes:
        spec: What was asked for.
        name: Entry point and file stem; human first, the head of the spec's hash last.
        family: Stem of the template under `templates/kernels/`.
        arch: Facts of the target.
        tile_m: Query rows of a CTA.
        tile_n: Keys of a step.
        k_stages: Most K tiles that are there at once: the depth of the K ring.
        v_stages: Most V tiles.
        rescale_threshold: Base-2 logits by which a row's maximum may grow before the output is rescaled.
        half_diagonal: The upper warpgroup multiplies only half of the diagonal block.
        ping_pong: Named barriers make the math warpgroups take turns at the tensor cores.
        key_ranges: What a query sees: the keys of any of these ranges.
        regions: Shared-memory map, in order of offsets, without gaps other than alignment.
        barriers: The mbarriers, in the order of their storage.
        named_barriers: The hardware barriers, in the order of their ids.
        roles: Warpgroups in order; their sizes give the block.
        tensor_maps: Tensor maps in parameter order.
        arguments: Scalar and pointer parameters, after the maps.
        estimated_registers: Estimate for a math thread, from the register rule of the family.
        sass: What its machine code must show.
        cost: Cost of one key tile.
        kv_slots: Slots of the ring in which K and V take turns, 0 if each has its own.
        tensor_regions: Tensor-memory map; empty where there is none.
        exp2_emulation_share: Share of the exponentials that the multiply-add units compute.
        softmax_order: Named barriers make the softmax warpgroups take turns at the exponentials.
        state_elements: fp32 numbers that each of STATE_THREADS threads leaves of a part of a tile; 0 if there are no
            parts.
        cta_group: CTAs of a cluster that multiply together: 2 for a pair, each with `tile_m` rows of a tile.
        alternates_keys: The softmax warpgroups take key tiles of the same rows in turn; else rows of their own.
        turns_in_tails: They do so in last tiles of a sequence, where only the first has rows of its own.
        single_output: Both softmax warpgroups' products add to one output in tensor memory.
        largest_rescale_threshold: If above `rescale_threshold`, what it rises to the more a row has seen.
        output_place: From where a tile's output leaves: its own slices of Q, the next stage of V, or its own region.
        probability_shift: Probabilities are scaled by 2^it.
        product_columns: Columns of P V that one product has, where products are added to the output in registers; 0
            where tensor cores add them.
    """

    spec: KernelSpec
    name: str
    family: str
    arch: Arch
    tile_m: int
    tile_n: int
    k_stages: int
    v_stages: int
    rescale_threshold: float
    half_diagonal: bool
    ping_pong: bool
    key_ranges: tuple[KeyRange, ...]
    regions: tuple[Region, ...]
    barriers: tuple[Barrier, ...]
    named_barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    tensor_maps: tuple[TensorMapPlan, ...]
    arguments: tuple[Argument, ...]
    estimated_registers: int
    sass: SassFacts
    cost: Cost
    kv_slots: int = 0
    tensor_regions: tuple[TensorRegion, ...] = ()
    exp2_emulation_share: float = 0.0
    softmax_order: bool = False
    state_elements: int = 0
    cta_group: int = 1
    alternates_keys: bool = False
    turns_in_tails: bool = False
    single_output: bool = False
    largest_rescale_threshold: float = 0.0
    output_place: OutputPlace = "q slice"
    probability_shift: int = 0
    product_columns: int = 0

    @property
    def tile_rows(self) -> int:
        """Query rows of a tile, the unit of work of a CTA or of a pair."""
        return self.tile_m * self.cta_group

    @property
    def tile_words(self) -> str:
        """What a step multiplies, for people."""
        owner = " of a pair of CTAs" if self.cta_group == 2 else ""
        return f"{self.tile_rows} query rows{owner} x {self.tile_n} keys"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * sum(role.warpgroups for role in self.roles)

    @property
    def shared_memory_bytes(self) -> int:
        """Dynamic shared memory of a block: the map, up to a multiple of its alignment."""
        return occupied_bytes(self.regions)

    def named_barrier(self, name: str) -> NamedBarrier:
        """The hardware barriers of that name."""
        return next(barrier for barrier in self.named_barriers if barrier.name == name)

    def tensor_region(self, name: str) -> TensorRegion:
        """The tensor-memory region of that name."""
        return next(region for region in self.tensor_regions if region.name == name)

    def map(self, name: str) -> TensorMapPlan:
        """The tensor map of that name."""
        return next(tensor_map for tensor_map in self.tensor_maps if tensor_map.name == name)
