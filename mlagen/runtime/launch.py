"""One launch: a block of parameters that is packed once, and per call only receives pointers.

A `Recipe` belongs to one signature of a call: shapes, strides, dtypes, device and options. Everything but addresses is
decided when it is made. So a warm call checks alignments, looks up encoded tensor maps by pointer, writes a few words and
launches.
"""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import DriverError, InputError
from mlagen.runtime.driver import TENSOR_MAP_BYTES
from mlagen.runtime.inputs import check_alignment, check_even_rows
from mlagen.runtime.tensor_map import TensorGeometry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.plan.plan import KernelPlan, TensorMapPlan
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.device import Device
    from mlagen.runtime.inputs import Extents
    from mlagen.runtime.tensor_map import BoundMap
    from mlagen.spec.model import KernelSpec

# Native order, sizes and alignment: the struct that the compiler lays out on the other side.
_FORMATS = {"int": "i", "int64": "q", "float": "f"}
_POINTER_FORMAT = "P"
# Pointers that change from call to call; `tickets` is always the last argument that is filled in.
_POINTERS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "cache_seqlens",
    "block_table",
    "lse",
    "sinks",
    "alibi_slopes",
)


def tile_bound(plan: KernelPlan, extents: Extents, max_seqlen_q: int) -> int:
    """The most tiles that a call can have; the number that has work is known on the device only.

    A ragged batch of T rows in B sequences has at most T / tile_m full tiles and B tiles that are not full.
    """
    if plan.spec.q_layout == "dense":
        return extents.num_heads * extents.batch * -(-extents.seqlen_q // plan.tile_m)
    by_rows = extents.rows_q // plan.tile_m + extents.batch
    by_length = extents.batch * -(-max_seqlen_q // plan.tile_m)
    return extents.num_heads * min(by_rows, by_length)


def scalar_values(plan: KernelPlan, call: Call, extents: Extents) -> dict[str, int | float]:
    """The arguments that are no pointers, except the strides of the LSE."""
    spec, options = plan.spec, call.options
    scale = spec.geometry.softmax_scale if options.softmax_scale is None else options.softmax_scale
    values: dict[str, int | float] = {
        "softmax_scale_log2": scale * math.log2(math.e),
        "num_heads": extents.num_heads,
        "batch": extents.batch,
        "total_q": extents.rows_q,
        "seqlen_q": extents.seqlen_q,
        "max_seqlen_q": longest_queries(spec, call, extents),
        "total_k": extents.rows_k,
        "seqlen_k": extents.seqlen_k,
    }
    if "block_table" in call.tensors:
        table = call.tensors["block_table"]
        values["block_table_stride"] = int(table.stride(0))
        values["block_table_width"] = int(table.shape[1])
        values["num_pages"] = int(call.tensors["k_rope"].shape[0])
    return values


def longest_queries(spec: KernelSpec, call: Call, extents: Extents) -> int:
    """An upper bound on the query lengths: what the caller or the spec says, else all rows."""
    given = call.options.max_seqlen_q
    known = [length for length in (given, spec.max_seqlen) if isinstance(length, int)]
    return min([extents.rows_q, *known])


class ParameterBlock:
    """The kernel's parameters in host memory: tensor maps, then one struct, and the array of pointers to them."""

    def __init__(self, plan: KernelPlan) -> None:
        """Lay out the block of a plan."""
        maps = len(plan.tensor_maps)
        codes = [_FORMATS.get(argument.ctype, _POINTER_FORMAT) for argument in plan.arguments]
        self._struct = struct.Struct("@" + "".join(codes))
        size = maps * TENSOR_MAP_BYTES + self._struct.size
        self._memory = ctypes.create_string_buffer(size + TENSOR_MAP_BYTES)
        address = ctypes.addressof(self._memory)
        padding = (
            -address % TENSOR_MAP_BYTES
        )  # CUtensorMap is aligned to 64 bytes, in CUDA 13 to 128
        self._base = base = address + padding
        self._struct_offset = padding + maps * TENSOR_MAP_BYTES
        offsets = [index * TENSOR_MAP_BYTES for index in range(maps + 1)]
        self._pointers = (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))
        self._held: list[bytes | None] = [None] * maps

    @property
    def address(self) -> int:
        """Address of the array of pointers that the driver takes."""
        return ctypes.addressof(self._pointers)

    def set_map(self, index: int, encoded: bytes) -> None:
        """Put a tensor map in its place, unless it stands there."""
        if self._held[index] is not encoded:
            ctypes.memmove(self._base + index * TENSOR_MAP_BYTES, encoded, TENSOR_MAP_BYTES)
            self._held[index] = encoded

    def set_arguments(self, values: list[int | float]) -> None:
        """Write the struct."""
        self._struct.pack_into(self._memory, self._struct_offset, *values)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A tensor map of a recipe.

    Attributes:
        index: Its place in the block.
        argument: The caller's name of the tensor; None for `out`, which may be ours.
        bound: Encodes by pointer.
        is_empty: The tensor has no element and so no address of its own.
    """

    index: int
    argument: str | None
    bound: BoundMap
    is_empty: bool


class Recipe:
    """How calls of one signature are launched. Thread safe: threads take turns at a device."""

    def __init__(
        self, *, device: Device, plan: KernelPlan, function: int, call: Call, extents: Extents
    ) -> None:
        """Decide everything but addresses.

        Args:
            device: Where the tensors live.
            plan: The kernel.
            function: The kernel, loaded on that device.
            call: A call of this signature; its tensors are not kept.
            extents: Its sizes.
        """
        import torch

        self._empty = torch.empty
        self._device = device
        self._plan = plan
        bound = tile_bound(plan, extents, longest_queries(plan.spec, call, extents))
        self._grid = min(device.sm_count, bound)
        self._block = ParameterBlock(plan)
        query = call.tensors["q" if "q" in call.tensors else "q_nope"]
        self._torch_device = query.device
        leading = tuple(query.shape[:-1])
        self._out_shape = (*leading, plan.spec.geometry.v_head_dim)
        self._out_dtype = getattr(torch, str(plan.spec.output_dtype))
        self._lse_shape = leading
        self._lse_dtype = torch.float32
        self._out_name, self._lse_name = call.written.get("out"), call.written.get("lse")
        self._writes_lse = plan.has_argument("lse")
        self._returns_lse = call.options.return_lse
        out = call.tensors["out"] if "out" in call.tensors else self._new_out()
        lse = call.tensors["lse"] if "lse" in call.tensors else self._new_lse()
        self._maps = [
            self._bind(index, each, call, out) for index, each in enumerate(plan.tensor_maps)
        ]
        values = scalar_values(plan, call, extents) | _lse_strides(lse)
        self._values, self._pointers, self._ticket_slot = _argument_slots(
            plan, values, call, device, extents
        )
        self._inputs = [
            (call.written[name], _extent_bytes(call.tensors[name]))
            for name in ("q", "q_nope", "q_pe", "k", "k_rope", "v")
            if name in call.tensors
        ]
        self._out_bytes = _extent_bytes(out)
        self._launch = None
        if self._grid:
            self._launch = device.driver.prepare_launch(
                function,
                grid=self._grid,
                block=plan.threads,
                shared_memory_bytes=plan.shared_memory_bytes,
                parameters=self._block.address,
            )

    def _new_out(self) -> Any:
        return self._empty(self._out_shape, dtype=self._out_dtype, device=self._torch_device)

    def _new_lse(self) -> Any:
        return self._empty(self._lse_shape, dtype=self._lse_dtype, device=self._torch_device)

    def _bind(self, index: int, plan: TensorMapPlan, call: Call, out: Any) -> _Mapped:
        tensor = out if plan.tensor == "out" else call.tensors[plan.tensor]
        spec = self._plan.spec
        columns, outer = int(tensor.shape[-1]), tensor.ndim - 2
        if plan.tensor == "k_rope":  # cache rows, and perhaps no dimension of heads
            columns = spec.geometry.qk_rope_head_dim
            outer = 1 if spec.k_rope.layout == "ragged" else 2
        name = call.written.get(plan.tensor)
        if outer == 2 and plan.addressing in ("packed", "clipped"):
            check_even_rows(name or plan.tensor, tensor)
        geometry = TensorGeometry(tuple(tensor.shape), tuple(tensor.stride()), columns, outer)
        return _Mapped(index, name, self._device.maps.bind(plan, geometry), tensor.numel() == 0)

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Launch on the current stream of the tensors' device.

        Args:
            arguments: Of a call of this recipe's signature, under the caller's names.

        Returns:
            `out`, or `(out, lse)`.
        """
        out = self._new_out() if self._out_name is None else arguments[self._out_name]
        lse = None
        if self._writes_lse:
            lse = self._new_lse() if self._lse_name is None else arguments[self._lse_name]
        if self._launch is None:
            # No tile: rows that belong to no sequence, if any.
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
        else:
            self._launch_on_device(arguments, out, lse)
        return (out, lse) if self._returns_lse else out

    def _launch_on_device(self, arguments: Mapping[str, Any], out: Any, lse: Any) -> None:
        device = self._device
        driver = device.driver
        if self._out_name is not None:
            self._check_no_overlap(arguments, out)
        stream = driver.current_stream(device.ordinal)
        foreign = driver.current_context() != device.context
        if foreign:
            driver.push_context(device.context)
        try:
            captured = driver.is_capturing(stream)
            counters = device.counters
            counter = counters.take() if captured else counters.of_stream(driver.stream_id(stream))
            try:
                with device.launch_lock:
                    self._pack(arguments, out, lse, counter)
                    assert self._launch is not None
                    self._launch(stream)
            except BaseException as error:
                # The driver refused, so no block has touched the counter.
                if captured:
                    counters.give_back(counter)
                if isinstance(error, DriverError):
                    raise DriverError(
                        f"{error}\n  launch: {self._plan.name}, {self._grid} blocks"
                    ) from error
                raise
        finally:
            if foreign:
                driver.pop_context()

    def _pack(self, arguments: Mapping[str, Any], out: Any, lse: Any, counter: int) -> None:
        block = self._block
        out_pointer = out.data_ptr()
        for mapped in self._maps:
            # A tensor without elements is never read; its map still needs an address that exists.
            name = mapped.argument
            pointer = out_pointer if name is None or mapped.is_empty else arguments[name].data_ptr()
            if pointer & 15:
                check_alignment(name or "out", pointer)
            block.set_map(mapped.index, mapped.bound.at(pointer))
        values = self._values.copy()
        for slot, name in self._pointers:
            values[slot] = lse.data_ptr() if name is None else arguments[name].data_ptr()
        values[self._ticket_slot] = counter
        block.set_arguments(values)

    def _check_no_overlap(self, arguments: Mapping[str, Any], out: Any) -> None:
        start = out.data_ptr()
        end = start + self._out_bytes
        for name, size in self._inputs:
            pointer = arguments[name].data_ptr()
            if pointer < end and start < pointer + size:
                message = f"{self._out_name}: its memory overlaps that of {name}"
                raise InputError(f"{message}\n  pass a tensor of its own, or leave out= out")


def _argument_slots(
    plan: KernelPlan, values: dict[str, int | float], call: Call, device: Device, extents: Extents
) -> tuple[list[int | float], list[tuple[int, str | None]], int]:
    """Arguments in order; `(place, caller's name)` of those filled in per call, None for the LSE; the counter's place."""
    ordered: list[int | float] = []
    pointers: list[tuple[int, str | None]] = []
    ticket_slot = -1
    for slot, argument in enumerate(plan.arguments):
        name = argument.name
        value: int | float = 0
        if name == "tickets":
            ticket_slot = slot
        elif name == "alibi_slopes" and name not in call.tensors:
            value = device.geometric_slopes(extents.num_heads)
        elif name in _POINTERS:
            pointers.append((slot, None if name == "lse" else call.written[name]))
        else:
            value = values[name]
        ordered.append(value)
    assert ticket_slot >= 0, "every kernel has a ticket counter"
    return ordered, pointers, ticket_slot


def _lse_strides(lse: Any) -> dict[str, int]:
    strides = [int(stride) for stride in lse.stride()]
    names = ("lse_batch_stride", "lse_row_stride", "lse_head_stride")[-len(strides) :]
    return dict(zip(names, strides, strict=True))


def _extent_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    reach = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return int((reach + 1) * tensor.element_size())
