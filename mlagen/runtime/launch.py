"""One launch: what is decided once for all calls of a signature, and what is left for each call.

A `Recipe` belongs to one signature: shapes, strides, dtypes, device and options. Everything but
addresses is decided when it is made. So a warm call checks alignments, looks up encoded tensor maps
by pointer, writes a few words and launches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import DriverError, InputError
from mlagen.runtime.addressing import ALIGNMENT_BYTES, check_alignment, check_even_rows
from mlagen.runtime.parameters import ParameterBlock, scalar_values, tile_bound
from mlagen.runtime.tensor_map import TensorGeometry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.plan.plan import KernelPlan, TensorMapPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device
    from mlagen.runtime.inputs import Extents
    from mlagen.runtime.tensor_map import BoundMap

_UNALIGNED = ALIGNMENT_BYTES - 1
_READ_BY_TMA = ("q", "q_nope", "q_pe", "k", "k_rope", "v")


class Output:
    """`out` or `lse` of a recipe: the caller's tensor, or a new one for each call."""

    def __init__(self, call: Call, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Describe the output of calls like `call`."""
        import torch

        self.written = call.written.get(name)
        self._empty = torch.empty
        self._shape = shape
        self._dtype = getattr(torch, dtype)
        self._device = call.tensors["v"].device

    def of(self, arguments: Mapping[str, Any]) -> Any:
        """The tensor to write."""
        if self.written is not None:
            return arguments[self.written]
        return self._empty(self._shape, dtype=self._dtype, device=self._device)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A tensor map of a recipe.

    Attributes:
        index: Its place in the block.
        argument: The caller's name of the tensor; None where the address of `out` serves: for `out`
            itself, and for tensors without elements, which have none and are never read.
        bound: Encodes by pointer.
    """

    index: int
    argument: str | None
    bound: BoundMap


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
        self._returns_lse = call.options.return_lse
        query = call.tensors["q" if "q" in call.tensors else "q_nope"]
        rows = tuple(query.shape[:-1])
        out_shape = (*rows, plan.spec.geometry.v_head_dim)
        self._out = Output(call, "out", out_shape, str(plan.spec.output_dtype))
        self._lse = Output(call, "lse", rows, "float32") if plan.spec.lse else None
        out = call.tensors.get("out", query.new_empty(out_shape, device="meta"))
        lse = call.tensors.get("lse", query.new_empty(rows, device="meta"))
        self._inputs = [
            (call.written[name], extent_bytes(call.tensors[name]))
            for name in _READ_BY_TMA
            if name in call.tensors
        ]
        self._out_bytes = extent_bytes(out)
        self._maps = [
            _bind(device, plan, index, call, out) for index in range(len(plan.tensor_maps))
        ]
        values = scalar_values(plan, call, extents, lse)
        self._block = ParameterBlock(plan, values)
        slots = self._block.open_slots
        self._ticket_slot = slots["tickets"]
        self._lse_slot = slots.get("lse")
        self._pointers = [
            (slot, call.written[name])
            for name, slot in slots.items()
            if name not in ("tickets", "lse")
        ]
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
        out = self._out.of(arguments)
        lse = None if self._lse is None else self._lse.of(arguments)
        if self._has_tiles:
            self._launch_on_device(arguments, out, lse)
        else:  # rows of no sequence, if any
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
        return (out, lse) if self._returns_lse else out

    def _launch_on_device(self, arguments: Mapping[str, Any], out: Any, lse: Any) -> None:
        device = self._device
        driver = device.driver
        if self._out.written is not None:
            self._check_overlap(arguments, out)
        stream = driver.current_stream(device.ordinal)
        foreign = driver.current_context() != device.context
        if foreign:
            driver.push_context(device.context)
        try:
            if driver.is_capturing(stream):
                self._capture(stream, arguments, out, lse)
            else:
                counter = device.counters.of_stream(driver.stream_id(stream))
                self._pack_and_launch(stream, arguments, out, lse, counter)
        finally:
            if foreign:
                driver.pop_context()

    def _capture(self, stream: int, arguments: Mapping[str, Any], out: Any, lse: Any) -> None:
        """Record the launch in the graph being captured, with a counter of its own."""
        counters = self._device.counters
        counter = counters.take()
        try:
            self._pack_and_launch(stream, arguments, out, lse, counter)
        except BaseException:
            counters.give_back(counter)  # the graph does not hold it
            raise

    def _pack_and_launch(
        self, stream: int, arguments: Mapping[str, Any], out: Any, lse: Any, counter: int
    ) -> None:
        pointers = [(slot, arguments[name].data_ptr()) for slot, name in self._pointers]
        pointers.append((self._ticket_slot, counter))
        if self._lse_slot is not None:
            pointers.append((self._lse_slot, lse.data_ptr()))
        out_pointer = out.data_ptr()
        with self._device.launch_lock:
            for mapped in self._maps:
                name = mapped.argument
                pointer = out_pointer if name is None else arguments[name].data_ptr()
                if pointer & _UNALIGNED:
                    check_alignment(name or self._out.written or "out", pointer)
                self._block.set_map(mapped.index, mapped.bound.at(pointer))
            self._block.write(pointers)
            try:
                self._launch(stream)
            except DriverError as error:
                message = f"{error}\n  launching {self._grid} blocks of {self._plan.name}"
                raise DriverError(message) from error

    def _check_overlap(self, arguments: Mapping[str, Any], out: Any) -> None:
        """Raise InputError if the memory of `out=` is that of an input."""
        start = out.data_ptr()
        end = start + self._out_bytes
        for name, size_bytes in self._inputs:
            pointer = arguments[name].data_ptr()
            if pointer < end and start < pointer + size_bytes:
                message = f"{self._out.written}: its memory overlaps that of {name}"
                raise InputError(f"{message}\n  pass a tensor of its own, or leave it out")


def _bind(device: Device, plan: KernelPlan, index: int, call: Call, out: Any) -> Mapped:
    """The tensor map of one operand, lacking only its pointer."""
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
    has_address = name != "out" and tensor.numel() > 0
    argument = call.written[name] if has_address else None
    return Mapped(index, argument, device.maps.bind(tensor_map, geometry))


def extent_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps)
    return int((reach + 1) * tensor.element_size())
