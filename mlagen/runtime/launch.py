"""One launch, whoever runs it: what is decided once for all calls that are alike, and what addresses add to it.

Alike are calls with the same shapes, strides, dtypes, device and options. `LaunchForm` holds everything that follows
from these; with the addresses of one call it gives that call's `LaunchRecord`. The simulator runs the record; the CUDA
launcher (`cuda_launch.py`) keeps its parts in memory and rewrites what has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import InputError
from mlagen.launch_record import LaunchRecord
from mlagen.plan.split_kv import STATE_THREADS
from mlagen.runtime.addressing import (
    ALIGNMENT_BYTES,
    check_even_rows,
    extent_bytes,
    wrong_address,
)
from mlagen.runtime.parameters import ArgumentStruct, num_splits, scalar_values, tile_bound
from mlagen.runtime.tensor_map import TensorGeometry, tensor_map_at, tensor_map_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlagen.launch_record import TensorMapSpec
    from mlagen.plan.plan import KernelPlan, TensorMapPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.inputs import Extents

    Extent = tuple[str, int, int]  # shown name, place of the address, bytes


# What a call has addresses of besides its inputs.
_NO_INPUTS = ("out", "lse", "states", "arrivals", "tickets")


@dataclass(frozen=True, slots=True)
class MapForm:
    """A tensor map that lacks only its tensor's address.

    Attributes:
        plan: Order of dimensions and box.
        geometry: The tensor.
        place: Of the address among those of a call.
    """

    plan: TensorMapPlan
    geometry: TensorGeometry
    place: int

    def at(self, address: int) -> TensorMapSpec:
        """The map of a tensor at this address."""
        return tensor_map_at(tensor_map_spec(self.plan, self.geometry), address)


class LaunchForm:
    """Everything about the launches of calls that are alike but their addresses.

    A call's addresses are those of the tensors in `names`, then of `out`, of the LSE, of the states and arrivals of
    parts, and of the ticket counter (0 of what there is not).

    Attributes:
        plan: The kernel.
        inputs: Canonical names of the inputs whose addresses the kernel needs.
        names: The caller's names of the same.
        maps: Tensor maps in the order of the kernel's parameters.
        arguments: The struct behind them.
        slots: `(slot of the struct, place of its address)`.
        has_tiles: Whether there may be anything to do.
        grid: Blocks to launch.
        state_floats: Memory for the states of parts, 0 if no tile has several.
        arrival_ints: Memory for their counters, which must be 0 before each launch.
    """

    def __init__(
        self,
        plan: KernelPlan,
        call: Call,
        *,
        extents: Extents,
        out: Any,
        lse: Any,
        most_blocks: int,
    ) -> None:
        """Decide everything but addresses.

        Args:
            plan: The kernel.
            call: One of them; its tensors are not kept.
            extents: Its sizes.
            out: Its output, or anything with the same shape and strides.
            lse: Likewise.
            most_blocks: Most blocks to launch, where a block walks several tiles.
        """
        self.plan = plan
        bound = tile_bound(plan, call, extents)
        self.has_tiles = bound > 0
        splits = num_splits(plan, call, extents, most_blocks=most_blocks)
        parts = bound * splits
        self.state_floats = parts * STATE_THREADS * plan.state_elements if splits > 1 else 0
        self.arrival_ints = 2 * parts if splits > 1 else 0
        # A block that walks no further must find no more than one tile: the grid is not for the caller to choose.
        takers = parts
        if plan.spec.scheduler.kind != "transient":
            takers = min(parts, max(most_blocks // plan.cta_group, min(most_blocks, 1)))
        self.grid = takers * plan.cta_group
        self.arguments = ArgumentStruct(
            plan, scalar_values(plan, call, extents, lse, splits=splits)
        )
        sources = [_source(tensor_map, call, out) for tensor_map in plan.tensor_maps]
        mapped = [name for name in dict.fromkeys(sources) if name != "out"]
        pointers = self.arguments.open_slots
        self.inputs = (*mapped, *(name for name in pointers if name not in _NO_INPUTS))
        self.names = tuple(call.written[name] for name in self.inputs)
        place = {name: index for index, name in enumerate([*self.inputs, *_NO_INPUTS])}
        self.maps = tuple(
            MapForm(tensor_map, _geometry(plan, tensor_map, call, out), place[source])
            for tensor_map, source in zip(plan.tensor_maps, sources, strict=True)
        )
        self.slots = [(slot, place[name]) for name, slot in pointers.items()]
        tensors = {name: call.tensors[name] for name in self.inputs} | {"out": out}
        if plan.spec.lse:
            tensors["lse"] = lse
        self._aligned = [
            (
                call.written.get(name, name),
                place[name],
                ALIGNMENT_BYTES if name in sources else tensor.element_size(),
            )
            for name, tensor in tensors.items()
            if tensor.numel() > 0
        ]
        self._apart = _must_be_apart(call, self.inputs, place)

    def record(self, addresses: Sequence[int]) -> LaunchRecord:
        """The launch of a call with these addresses.

        Raises:
            ShapeError: TMA cannot start at an address.
            InputError: An output overlaps another tensor.
        """
        self.check(addresses)
        packed = self.arguments.pack([(slot, addresses[place]) for slot, place in self.slots])
        return LaunchRecord(
            kernel=self.plan.name,
            grid=(self.grid, 1, 1),
            block=(self.plan.threads, 1, 1),
            shared_memory_bytes=self.plan.shared_memory_bytes,
            parameters=(*(one.at(addresses[one.place]) for one in self.maps), packed),
            cluster=(self.plan.cta_group, 1, 1),
        )

    def check(self, addresses: Sequence[int]) -> None:
        """Raise unless a call may have these addresses.

        Raises:
            ShapeError: TMA cannot start at an address.
            InputError: A tensor has no memory, or that of `out=` or `lse=` is another tensor's.
        """
        for shown, place, alignment in self._aligned:
            address = addresses[place]
            if address % alignment or not address:
                raise wrong_address(shown, address, alignment)
        for (output, place, size_bytes), others in self._apart:
            start = addresses[place]
            end = start + size_bytes
            for other, other_place, other_bytes in others:
                other_start = addresses[other_place]
                if other_start < end and start < other_start + other_bytes:
                    message = f"{output}: its memory overlaps that of {other}"
                    raise InputError(f"{message}\n  pass a tensor of its own, or leave it out")


def output_shapes(plan: KernelPlan, call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of `out` and of the LSE."""
    query = call.tensors["q" if "q" in call.tensors else "q_nope"]
    rows = tuple(int(size) for size in query.shape[:-1])
    return (*rows, plan.spec.geometry.v_head_dim), rows


def _source(tensor_map: TensorMapPlan, call: Call, out: Any) -> str:
    """Canonical name of the tensor that gives a map its address."""
    name = tensor_map.tensor
    tensor = out if name == "out" else call.tensors[name]
    # A tensor without elements has no address and is never read; that of `out` serves its map.
    return "out" if tensor.numel() == 0 else name


def _geometry(plan: KernelPlan, tensor_map: TensorMapPlan, call: Call, out: Any) -> TensorGeometry:
    """The tensor of a map, as the map sees it."""
    name, spec = tensor_map.tensor, plan.spec
    tensor = out if name == "out" else call.tensors[name]
    columns, outer = int(tensor.shape[-1]), tensor.ndim - 2
    if name == "k_rope":  # cache rows, and perhaps no dimension of heads
        columns = spec.geometry.qk_rope_head_dim
        outer = 1 if spec.k_rope.layout == "ragged" else 2
    if outer == 2 and tensor_map.addressing in ("packed", "clipped"):
        check_even_rows(call.written.get(name, name), tensor)
    return TensorGeometry(tuple(tensor.shape), tuple(tensor.stride()), columns, outer)


def _must_be_apart(
    call: Call, inputs: Sequence[str], place: Mapping[str, int]
) -> list[tuple[Extent, list[Extent]]]:
    """Each output that the caller gave, and the other tensors; new outputs overlap nothing."""
    given = [name for name in ("out", "lse") if name in call.tensors]
    extents = {
        name: (call.written[name], place[name], extent_bytes(call.tensors[name]))
        for name in [*inputs, *given]
    }
    return [
        (extents[output], [extents[other] for other in [*inputs, *given[index + 1 :]]])
        for index, output in enumerate(given)
    ]
