"""One launch: what is decided once for all calls of a signature, and what is left for each call.

A `Recipe` belongs to one signature: shapes, strides, dtypes, device and options. Everything but
addresses is decided when it is made. So a warm call compares addresses with those of the call
before, writes what has changed, and launches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlagen.errors import DriverError, InputError, MlagenError
from mlagen.runtime.addressing import (
    ALIGNMENT_BYTES,
    check_even_rows,
    extent_bytes,
    unaligned,
)
from mlagen.runtime.parameters import ParameterBlock, scalar_values, tile_bound
from mlagen.runtime.tensor_map import TensorGeometry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlagen.plan.plan import KernelPlan, TensorMapPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device
    from mlagen.runtime.inputs import Extents
    from mlagen.runtime.tensor_map import BoundMap


class Recipe:
    """How calls of one signature are launched. Thread safe: threads take turns at a device."""

    def __init__(
        self,
        *,
        device: Device,
        plan: KernelPlan,
        function: int,
        call: Call,
        extents: Extents,
        grid_limit: int,
    ) -> None:
        """Decide everything but addresses.

        Args:
            device: Where the tensors live.
            plan: The kernel.
            function: The kernel, loaded on that device.
            call: A call of this signature; its tensors are not kept.
            extents: Its sizes.
            grid_limit: Most blocks to launch.
        """
        self._device = device
        self._plan = plan
        rows = tuple(call.tensors["q" if "q" in call.tensors else "q_nope"].shape[:-1])
        out_shape = (*rows, plan.spec.geometry.v_head_dim)
        self._out_name, self._lse_name = call.written.get("out"), call.written.get("lse")
        self._new_out = _allocator(call, out_shape, str(plan.spec.output_dtype))
        self._new_lse = _allocator(call, rows, "float32")
        self._writes_lse, self._returns_lse = plan.spec.lse, call.options.return_lse
        out = call.tensors.get("out", call.tensors["v"].new_empty(out_shape, device="meta"))
        lse = call.tensors.get("lse", call.tensors["v"].new_empty(rows, device="meta"))
        with device.launch_lock:  # its cache of maps is not thread safe
            maps = [_bind(device, plan, index, call, out) for index in range(len(plan.tensor_maps))]
        self._block = ParameterBlock(plan, scalar_values(plan, call, extents, lse))
        self._sources = _Sources(call, maps, self._block.open_slots)
        bound = tile_bound(plan, call, extents)
        self._grid = min(bound, grid_limit)
        self._has_tiles = bound > 0
        self._launch = device.driver.prepare_launch(
            function,
            grid=self._grid,
            block=plan.threads,
            shared_memory_bytes=plan.shared_memory_bytes,
            parameters=self._block.address,
        )

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Launch on the current stream of the tensors' device.

        Args:
            arguments: Of a call of this recipe's signature, under the caller's names.

        Returns:
            `out`, or `(out, lse)`.
        """
        lse = None
        if self._writes_lse:
            lse = self._new_lse() if self._lse_name is None else arguments[self._lse_name]
        out = self._new_out() if self._out_name is None else arguments[self._out_name]
        if self._has_tiles:
            addresses = [arguments[name].data_ptr() for name in self._sources.names]
            addresses.append(out.data_ptr())
            addresses.append(0 if lse is None else lse.data_ptr())
            self._launch_on_device(addresses)
        else:  # rows of no sequence, if any
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
        return (out, lse) if self._returns_lse else out

    def _launch_on_device(self, addresses: list[int]) -> None:
        device = self._device
        driver = device.driver
        stream = driver.current_stream(device.ordinal)
        foreign = driver.current_context() != device.context
        if foreign:
            driver.push_context(device.context)
        try:
            if driver.is_capturing(stream):
                self._capture(stream, addresses)
            else:
                addresses.append(device.counters.of_stream(driver.stream_id(stream)))
                self._write_and_launch(stream, addresses)
        finally:
            if foreign:
                driver.pop_context()

    def _capture(self, stream: int, addresses: list[int]) -> None:
        """Record the launch in the graph being captured, with a counter of its own."""
        counters = self._device.counters
        counter = counters.take()
        try:
            self._write_and_launch(stream, [*addresses, counter])
        except MlagenError:
            counters.give_back(counter)  # the graph does not hold it; after an interrupt it may
            raise

    def _write_and_launch(self, stream: int, addresses: list[int]) -> None:
        with self._device.launch_lock:
            self._sources.write(self._block, addresses)
            try:
                self._launch(stream)
            except DriverError as error:
                message = f"{error}\n  launching {self._grid} blocks of {self._plan.name}"
                raise DriverError(message) from error


class _Sources:
    """Which address of a call goes where in the parameter block.

    A call's addresses are those of the tensors in `names`, then of `out`, of the LSE and of the
    ticket counter.

    Attributes:
        names: The caller's names of the inputs whose addresses the kernel needs.
    """

    def __init__(
        self,
        call: Call,
        maps: list[tuple[str, BoundMap]],
        open_slots: Mapping[str, int],
    ) -> None:
        """Sort them out.

        Args:
            call: A call of the recipe's signature.
            maps: `(tensor, map)` of every tensor map of the plan.
            open_slots: Places of the arguments that are addresses.
        """
        mapped = dict.fromkeys(name for name, _ in maps if name != "out")
        inputs = [*mapped, *(name for name in open_slots if name not in ("lse", "tickets"))]
        self.names = tuple(call.written[name] for name in inputs)
        place = {name: index for index, name in enumerate([*inputs, "out", "lse", "tickets"])}
        shown = [*self.names, call.written.get("out", "out")]
        self._maps = [
            (index, place[name], bound, shown[place[name]])
            for index, (name, bound) in enumerate(maps)
        ]
        self._slots = [(slot, place[name]) for name, slot in open_slots.items()]
        # New outputs overlap nothing.
        given = [name for name in ("out", "lse") if name in call.tensors and name in place]
        extents = {
            name: (call.written[name], place[name], extent_bytes(call.tensors[name]))
            for name in [*mapped, *given]
        }
        self._apart = [
            (extents[output], extents[other])
            for index, output in enumerate(given)
            for other in [*mapped, *given[index + 1 :]]
        ]
        self._written: list[int] = []

    def write(self, block: ParameterBlock, addresses: list[int]) -> None:
        """Bring the block up to date. Its owner holds the device's lock."""
        before = self._written
        if addresses == before:
            return
        self._written = []  # should an address be refused below, nothing counts as written
        for index, place, bound, name in self._maps:
            address = addresses[place]
            if not before or address != before[place]:
                if address % ALIGNMENT_BYTES:
                    raise unaligned(name, address)
                block.set_map(index, bound.at(address))
        self._check_overlap(addresses)
        block.set_addresses([(slot, addresses[place]) for slot, place in self._slots])
        self._written = addresses

    def _check_overlap(self, addresses: list[int]) -> None:
        """Raise InputError if the memory of `out=` or `lse=` is that of another tensor."""
        for (output, place, size_bytes), (other, other_place, other_bytes) in self._apart:
            start, other_start = addresses[place], addresses[other_place]
            if other_start < start + size_bytes and start < other_start + other_bytes:
                message = f"{output}: its memory overlaps that of {other}"
                raise InputError(f"{message}\n  pass a tensor of its own, or leave it out")


def _allocator(call: Call, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
    """A function that makes a new contiguous tensor beside the others of the call."""
    import torch

    # `empty_strided` takes 0.7 us less than `empty` (torch 2.13, CPU, 2026-12).
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    empty, device, torch_dtype = (
        torch.empty_strided,
        call.tensors["v"].device,
        getattr(torch, dtype),
    )
    return lambda: empty(shape, strides, dtype=torch_dtype, device=device)


def _bind(
    device: Device, plan: KernelPlan, index: int, call: Call, out: Any
) -> tuple[str, BoundMap]:
    """The tensor map of one operand, lacking only its address, and the tensor that gives it."""
    tensor_map: TensorMapPlan = plan.tensor_maps[index]
    name, spec = tensor_map.tensor, plan.spec
    tensor = out if name == "out" else call.tensors[name]
    columns, outer = int(tensor.shape[-1]), tensor.ndim - 2
    if name == "k_rope":  # cache rows, and perhaps no dimension of heads
        columns = spec.geometry.qk_rope_head_dim
        outer = 1 if spec.k_rope.layout == "ragged" else 2
    if outer == 2 and tensor_map.addressing in ("packed", "clipped"):
        check_even_rows(call.written.get(name, name), tensor)
    geometry = TensorGeometry(tuple(tensor.shape), tuple(tensor.stride()), columns, outer)
    # A tensor without elements has no address and is never read; that of `out` serves its map.
    return ("out" if tensor.numel() == 0 else name), device.maps.bind(tensor_map, geometry)
