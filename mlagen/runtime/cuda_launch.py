"""Launches on a GPU: the form of a launch kept ready in memory, so that a warm call writes only what has changed.

A `Recipe` belongs to one signature. A warm call compares addresses with those of the call before, writes what has
changed, and launches.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

from mlagen.errors import DriverError, MlagenError
from mlagen.plan.arguments import draws_tickets
from mlagen.runtime.driver import TENSOR_MAP_BYTES
from mlagen.runtime.launch import LaunchForm, output_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlagen.plan.plan import KernelPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device
    from mlagen.runtime.inputs import Extents


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
        out_shape, rows = output_shapes(plan, call)
        self._out_name, self._lse_name = call.written.get("out"), call.written.get("lse")
        self._new_out = _allocator(call, out_shape, str(plan.spec.output_dtype))
        self._new_lse = _allocator(call, rows, "float32")
        self._draws_tickets = draws_tickets(plan.spec)
        self._writes_lse, self._returns_lse = plan.spec.lse, call.options.return_lse
        like = call.tensors["v"]
        form = LaunchForm(
            plan,
            call,
            extents=extents,
            out=call.tensors.get("out", like.new_empty(out_shape, device="meta")),
            lse=call.tensors.get("lse", like.new_empty(rows, device="meta")),
            most_blocks=grid_limit,
        )
        self._new_states = _allocator(call, (form.state_floats,), "float32")
        self._new_arrivals = _allocator(call, (form.arrival_ints,), "int32")
        self._has_parts = form.state_floats > 0
        self._input_names, self._grid, self._has_tiles = form.names, form.grid, form.has_tiles
        self._parameters = _Parameters(form, device)
        self._launch = device.driver.prepare_launch(
            function,
            grid=form.grid,
            block=plan.threads,
            cluster=plan.cta_group,
            shared_memory_bytes=plan.shared_memory_bytes,
            parameters=self._parameters.address,
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
            addresses = [arguments[name].data_ptr() for name in self._input_names]
            addresses.append(out.data_ptr())
            addresses.append(0 if lse is None else lse.data_ptr())
            self._launch_with_workspace(addresses)
        else:  # rows of no sequence, if any
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
        return (out, lse) if self._returns_lse else out

    def _launch_with_workspace(self, addresses: list[int]) -> None:
        """Launch with memory for the states of parts, if there are any.

        torch gives it in the order of the stream, in a capture from the memory of the graph: so it can be freed as soon
        as the launch is queued.
        """
        if not self._has_parts:
            self._launch_on_device([*addresses, 0, 0])
            return
        states, arrivals = self._new_states(), self._new_arrivals().zero_()
        self._launch_on_device([*addresses, states.data_ptr(), arrivals.data_ptr()])

    def _launch_on_device(self, addresses: list[int]) -> None:
        device = self._device
        driver = device.driver
        stream = driver.current_stream(device.ordinal)
        foreign = driver.current_context() != device.context
        if foreign:
            driver.push_context(device.context)
        try:
            if not self._draws_tickets:
                self._write_and_launch(stream, [*addresses, 0])
            elif driver.is_capturing(stream):
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
            self._parameters.write(addresses)
            try:
                self._launch(stream)
            except DriverError as error:
                message = f"{error}\n  launching {self._grid} blocks of {self._plan.name}"
                raise DriverError(message) from error


class _Parameters:
    """The parameters of a form's launches in host memory: tensor maps, then the struct of scalars and pointers."""

    def __init__(self, form: LaunchForm, device: Device) -> None:
        """Lay out the memory; `write` fills it."""
        self._form = form
        with device.launch_lock:  # its cache of maps is not thread safe
            bound = [device.maps.bind(one.plan, one.geometry) for one in form.maps]
        self._maps = [
            (index, tensor_map.place, encoder, tensor_map)
            for index, (tensor_map, encoder) in enumerate(zip(form.maps, bound, strict=True))
        ]
        count = len(form.maps)
        size = count * TENSOR_MAP_BYTES + form.arguments.size_bytes
        self._memory = ctypes.create_string_buffer(size + TENSOR_MAP_BYTES)
        start = ctypes.addressof(self._memory)
        padding = -start % TENSOR_MAP_BYTES  # CUtensorMap is aligned to 64 bytes, in CUDA 13 to 128
        self._base = start + padding
        self._struct_offset = padding + count * TENSOR_MAP_BYTES
        pointers = [self._base + index * TENSOR_MAP_BYTES for index in range(count + 1)]
        self._pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self._written: list[int] = []

    @property
    def address(self) -> int:
        """Address of the array of pointers that the driver takes; valid as long as this object lives."""
        return ctypes.addressof(self._pointers)

    def write(self, addresses: list[int]) -> None:
        """Bring the memory up to date with a call's addresses. The caller holds the device's lock."""
        before = self._written
        if addresses == before:
            return
        self._written = []  # should an address be refused below, nothing counts as written
        for index, place, encoder, tensor_map in self._maps:
            address = addresses[place]
            if not before or address != before[place]:
                tensor_map.check(address)
                target = self._base + index * TENSOR_MAP_BYTES
                ctypes.memmove(target, encoder.at(address), TENSOR_MAP_BYTES)
        form = self._form
        form.check_overlap(addresses)
        slots = [(slot, addresses[place]) for slot, place in form.slots]
        form.arguments.pack_into(self._memory, self._struct_offset, slots)
        self._written = addresses


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
