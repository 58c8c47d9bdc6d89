"""Launches on a GPU: the form of a launch kept ready in memory, so that a warm call writes only what has changed.

A `Recipe` serves all calls that are alike (`known_calls.py`). It compares addresses with those of the call before,
writes what has changed, and launches.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mlagen.errors import DriverError, MlagenError
from mlagen.plan.arguments import draws_tickets
from mlagen.runtime.driver import TENSOR_MAP_BYTES
from mlagen.runtime.launch import LaunchForm, output_shapes
from mlagen.runtime.tensor_map import tensor_map_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlagen.plan.plan import KernelPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device
    from mlagen.runtime.driver import Driver
    from mlagen.runtime.inputs import Extents

POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)


class Recipe:
    """How calls that are alike are launched. Thread safe: threads take turns at a device."""

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
            call: One of them; its tensors are not kept.
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
        # States, and behind them arrivals; both have elements of 4 bytes.
        self._new_workspace = _allocator(call, (form.state_floats + form.arrival_ints,), "float32")
        self._state_bytes, self._arrival_bytes = 4 * form.state_floats, 4 * form.arrival_ints
        self._input_names, self._grid, self._has_tiles = form.names, form.grid, form.has_tiles
        self._address_of = type(like).data_ptr
        self._parameters = _Parameters(form, device.driver)
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
            arguments: Of a call like that of this recipe, under the caller's names.

        Returns:
            `out`, or `(out, lse)`.
        """
        lse = None
        if self._writes_lse:
            lse = self._new_lse() if self._lse_name is None else arguments[self._lse_name]
        out = self._new_out() if self._out_name is None else arguments[self._out_name]
        if self._has_tiles:
            inputs = map(arguments.__getitem__, self._input_names)
            addresses = [*map(self._address_of, inputs), out.data_ptr()]
            addresses.append(0 if lse is None else lse.data_ptr())
            if self._state_bytes:
                self._launch_with_workspace(addresses)
            else:
                self._launch_on_device([*addresses, 0, 0])
        else:  # rows of no sequence, if any
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
        return (out, lse) if self._returns_lse else out

    def _launch_with_workspace(self, addresses: list[int]) -> None:
        """Launch with memory for the states and arrivals of parts.

        torch gives it in the order of the stream, in a capture from the memory of the graph: so it can be freed as soon
        as the launch is queued.
        """
        workspace = self._new_workspace()
        states = workspace.data_ptr()
        self._launch_on_device([*addresses, states, states + self._state_bytes])

    def _launch_on_device(self, addresses: list[int]) -> None:
        device, parameters = self._device, self._parameters
        driver, counters = device.driver, device.counters
        stream = driver.current_stream(device.ordinal)
        foreign = driver.current_context() != device.context
        captured = None  # the counter of a launch in a graph
        if foreign:
            driver.push_context(device.context)
        try:
            if self._arrival_bytes:  # torch's zero_ takes 7.7 us (docs/measurements.md)
                driver.clear(addresses[-1], self._arrival_bytes, stream)
            if not self._draws_tickets:
                addresses.append(0)
            elif driver.is_capturing(stream):
                captured = counters.take()
                addresses.append(captured)
            else:
                addresses.append(counters.of_stream(driver.stream_id(stream)))
            with device.launch_lock:
                if addresses != parameters.addresses:
                    parameters.write(addresses)
                try:
                    self._launch(stream)
                except DriverError as error:
                    message = f"{error}\n  launching {self._grid} blocks of {self._plan.name}"
                    raise DriverError(message) from error
        except MlagenError:
            if captured is not None:  # the graph does not hold it; after an interrupt it may
                counters.give_back(captured)
            raise
        finally:
            if foreign:
                driver.pop_context()


class _Parameters:
    """The parameters of a form's launches in host memory: tensor maps, then the struct of scalars and pointers.

    Attributes:
        addresses: Of the call for which the memory is written; none if it is for no call.
    """

    def __init__(self, form: LaunchForm, driver: Driver) -> None:
        """Write everything but addresses."""
        self.addresses: list[int] = []
        self._check = form.check
        count = len(form.maps)
        size = count * TENSOR_MAP_BYTES + form.arguments.size_bytes
        self._memory = ctypes.create_string_buffer(size + TENSOR_MAP_BYTES)
        start = ctypes.addressof(self._memory)
        padding = -start % TENSOR_MAP_BYTES  # CUtensorMap is aligned to 64 bytes, in CUDA 13 to 128
        places = [padding + index * TENSOR_MAP_BYTES for index in range(count + 1)]
        self._pointers = (ctypes.c_void_p * len(places))(*(start + place for place in places))
        # By places among a call's addresses: what writes an address wherever it goes.
        writers: defaultdict[int, list[Callable[[int], None]]] = defaultdict(list)
        for tensor_map, place in zip(form.maps, places[:-1], strict=True):
            spec = tensor_map_spec(tensor_map.plan, tensor_map.geometry)
            writers[tensor_map.place].append(driver.prepare_tensor_map(spec, start + place))
        struct = memoryview(self._memory).cast("B")[places[-1] :]
        packed = form.arguments.pack(())
        struct[: len(packed)] = packed
        for slot, place in form.slots:
            offset = form.arguments.offsets[slot]
            pointer = struct[offset : offset + POINTER_BYTES].cast("P")
            writers[place].append(functools.partial(pointer.__setitem__, 0))
        self._writers = tuple(writers.items())

    @property
    def address(self) -> int:
        """Address of the array of pointers that the driver takes; valid as long as this object lives."""
        return ctypes.addressof(self._pointers)

    def write(self, addresses: list[int]) -> None:
        """Bring the memory up to date. The caller holds the device's lock.

        Raises:
            InputError: A call may not have these addresses.
        """
        self._check(addresses)
        before = self.addresses or [-1] * len(addresses)
        self.addresses = []  # whatever fails below, no call is written
        for place, writers in self._writers:
            address = addresses[place]
            if address != before[place]:
                for write in writers:
                    write(address)
        self.addresses = addresses


def _allocator(call: Call, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
    """A function that makes a new contiguous tensor beside the others of the call."""
    import torch

    # `empty_strided` takes 0.7 us less than `empty` (torch 2.13, CPU, 2026-12).
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    device, torch_dtype = call.tensors["v"].device, getattr(torch, dtype)
    return functools.partial(torch.empty_strided, shape, strides, dtype=torch_dtype, device=device)
