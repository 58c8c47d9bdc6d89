"""A driver that launches nothing and records what it was asked, with the rules that the real one enforces."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlagen.errors import DriverError
from mlagen.runtime.tensor_map import tensor_map_at

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from mlagen.launch_record import TensorMapSpec
    from mlagen.plan.plan import KernelPlan

H200_SMS = 132
FORMATS = {"int": "i", "int64": "q", "float": "f"}


@dataclass(frozen=True)
class Launch:
    """What one launch consisted of, read back from the parameters as the driver would."""

    entry: str
    context: int
    stream: int
    grid: int
    block: int
    cluster: int
    shared_memory_bytes: int
    maps: dict[str, TensorMapSpec]
    arguments: dict[str, int | float]


@dataclass
class FakeDriver:
    """Two H200s; torch tensors on the CPU pass for tensors of device `ordinal`, meta tensors for the next device's."""

    plans: dict[str, KernelPlan]
    ordinal: int = 0
    capability: tuple[int, int] = (9, 0)
    stream: int = 7
    capturing: set[int] = field(default_factory=set)
    context: int = 100  # of device 0; 0 is none
    launches: list[Launch] = field(default_factory=list)
    encoded: list[TensorMapSpec] = field(default_factory=list)
    loaded: list[tuple[int, str]] = field(default_factory=list)  # context, entry
    allowed: dict[int, int] = field(default_factory=dict)
    uploads: list[tuple[int, int, bytes]] = field(default_factory=list)  # context, address, data
    cleared: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # context, address, bytes, stream
    stream_ids: dict[int, int] = field(default_factory=dict)
    refuse: str | None = None
    relaxed: bool = False
    _stack: list[int] = field(default_factory=list)

    __hash__ = object.__hash__

    def ordinal_of(self, device: torch.device) -> int | None:
        return {"cpu": self.ordinal, "meta": self.ordinal + 1}.get(device.type)

    def current_stream(self, ordinal: int) -> int:
        assert 0 <= ordinal < 2
        return self.stream

    def version(self) -> int:
        return 13_000

    def device_count(self) -> int:
        return 2

    def compute_capability(self, ordinal: int) -> tuple[int, int]:
        return self.capability

    def sm_count(self, ordinal: int) -> int:
        return H200_SMS

    def primary_context(self, ordinal: int) -> int:
        return 100 + ordinal

    def current_context(self) -> int:
        return self.context

    def push_context(self, context: int) -> None:
        self._stack.append(self.context)
        self.context = context

    def pop_context(self) -> None:
        self.context = self._stack.pop()

    def load_function(self, cubin: bytes, entry: str) -> int:
        self._check("cuModuleLoadData")
        assert cubin == f"cubin of {entry}".encode()
        assert self.relaxed or not self.capturing, "loading invalidates captures in other modes"
        self.loaded.append((self.context, entry))
        return len(self.loaded)

    def allow_shared_memory(self, function: int, size_bytes: int) -> None:
        self.allowed[function] = size_bytes

    def encode_tensor_map(self, spec: TensorMapSpec) -> bytes:
        """Refuse what `cuTensorMapEncodeTiled` refuses; the bytes only number the map."""
        assert spec.address % 16 == 0
        assert spec.address > 0
        assert 3 <= len(spec.dims) <= 5
        assert len(spec.strides_bytes) == len(spec.box) - 1 == len(spec.dims) - 1
        assert all(1 <= dim <= 2**32 for dim in spec.dims)
        assert all(stride % 16 == 0 and 0 < stride < 2**40 for stride in spec.strides_bytes)
        assert all(1 <= rows <= 256 for rows in spec.box)
        self.encoded.append(spec)
        return struct.pack("<q", len(self.encoded) - 1).ljust(128, b"\0")

    def prepare_tensor_map(self, spec: TensorMapSpec, memory: int) -> Callable[[int], None]:
        def write(address: int) -> None:
            encoded = self.encode_tensor_map(tensor_map_at(spec, address))
            ctypes.memmove(memory, encoded, len(encoded))

        return write

    def prepare_launch(
        self,
        function: int,
        *,
        grid: int,
        block: int,
        cluster: int,
        shared_memory_bytes: int,
        parameters: int,
    ) -> Callable[[int], None]:
        context, entry = self.loaded[function - 1]

        def launch(stream: int) -> None:
            self._check("cuLaunchKernelEx")
            assert self.context == context, "a kernel runs in the context that it was loaded into"
            if grid == 0 or grid % cluster:
                raise DriverError("cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE\n  advice")
            assert shared_memory_bytes <= self.allowed[function]
            maps, arguments = self._read(self.plans[entry], parameters)
            self.launches.append(
                Launch(
                    entry,
                    context,
                    stream,
                    grid,
                    block,
                    cluster,
                    shared_memory_bytes,
                    maps,
                    arguments,
                )
            )

        return launch

    def _read(
        self, plan: KernelPlan, parameters: int
    ) -> tuple[dict[str, TensorMapSpec], dict[str, int | float]]:
        count = len(plan.tensor_maps)
        pointers = (ctypes.c_void_p * (count + 1)).from_address(parameters)
        maps = {}
        for pointer, tensor_map in zip(pointers, plan.tensor_maps, strict=False):
            assert pointer is not None
            assert pointer % 128 == 0
            (number,) = struct.unpack_from("<q", ctypes.string_at(pointer, 128))
            maps[tensor_map.name] = self.encoded[number]
        codes = "".join(FORMATS.get(argument.ctype, "P") for argument in plan.arguments)
        layout = struct.Struct("@" + codes)
        struct_address = pointers[count]
        assert struct_address is not None
        values = layout.unpack(ctypes.string_at(struct_address, layout.size))
        names = [argument.name for argument in plan.arguments]
        return maps, dict(zip(names, values, strict=True))

    def stream_id(self, stream: int) -> int:
        return self.stream_ids.get(stream, stream)

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def relax_capture(self) -> int:
        before, self.relaxed = self.relaxed, True
        return int(before)

    def restore_capture(self, mode: int) -> None:
        self.relaxed = bool(mode)

    def clear(self, address: int, size_bytes: int, stream: int) -> None:
        ctypes.memset(address, 0, size_bytes)
        self.cleared.append((self.context, address, size_bytes, stream))

    def upload(self, data: bytes) -> int:
        self._check("cuMemAlloc")
        assert self.relaxed or not self.capturing, "allocating invalidates captures in other modes"
        address = 0x7000_0000_0000 + 0x100_0000 * len(self.uploads)
        self.uploads.append((self.context, address, data))
        return address

    def _check(self, call: str) -> None:
        if self.refuse == call:
            raise DriverError(f"{call}: CUDA_ERROR_INVALID_VALUE: invalid argument\n  advice")
