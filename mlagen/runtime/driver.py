"""The CUDA driver calls that mlagen uses, each a typed function that raises `DriverError`.

`Driver` is the seam at which tests put a fake; nothing else in the package calls CUDA. It also
answers the two questions about torch that need a GPU: which device a tensor lives on, and which
stream is current there. Nothing here runs at import: `system_driver()` loads `libcuda` when the
first CUDA tensor comes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mlagen.errors import DriverError, MissingDependencyError
from mlagen.runtime.tensor_map import tensor_map_at

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from mlagen.launch_record import TensorMapSpec

logger = logging.getLogger(__name__)

# CUDA 12.0 is the first driver with tensor maps and `cuLaunchKernelEx`; `cuStreamGetId` came with
# it.
OLDEST_DRIVER = 12_000
TENSOR_MAP_BYTES = 128
# Torch's default stream, by the handle that no compile-time or environment setting turns into another
# (CU_STREAM_LEGACY). There is one in a context, and it cannot be captured.
LEGACY_STREAM = 1

_ADVICE = {
    "CUDA_ERROR_NO_DEVICE": "this process sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory (torch.cuda.empty_cache()) or use a smaller batch",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "build the spec for this GPU's architecture: mlagen build SPEC --arch",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "update the NVIDIA driver, or build with an older NVRTC",
    "CUDA_ERROR_INVALID_IMAGE": "the cubin is damaged or newer than the driver: rebuild it, or update the driver",
    "CUDA_ERROR_INVALID_SOURCE": "the cubin is damaged or newer than the driver: rebuild it, or update the driver",
    "CUDA_ERROR_NOT_FOUND": "the cubin does not hold this kernel: rebuild it with mlagen build",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "an earlier kernel broke this process's CUDA context: restart it, and find the kernel with compute-sanitizer"
    ),
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "call kernels.warmup() before capturing a graph",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": "call kernels.warmup() before capturing a graph",
}


class Driver(Protocol):
    """What the runtime asks of CUDA; handles are plain integers."""

    def ordinal_of(self, device: torch.device) -> int | None:
        """The CUDA ordinal of a torch device; None if it is no CUDA device."""

    def current_stream(self, ordinal: int) -> int:
        """The handle of torch's current stream on a device."""

    def version(self) -> int:
        """The CUDA version of the driver, 13000 for 13.0."""

    def device_count(self) -> int:
        """How many GPUs this process sees."""

    def compute_capability(self, ordinal: int) -> tuple[int, int]:
        """Major and minor compute capability."""

    def sm_count(self, ordinal: int) -> int:
        """Streaming multiprocessors of a device."""

    def primary_context(self, ordinal: int) -> int:
        """The context that torch uses on a device; retained once and never released."""

    def current_context(self) -> int:
        """The calling thread's context, 0 if it has none."""

    def push_context(self, context: int) -> None:
        """Make `context` the calling thread's own until `pop_context`."""

    def pop_context(self) -> None:
        """Undo the last `push_context`."""

    def load_function(self, cubin: bytes, entry: str) -> int:
        """Load a cubin into the current context and return the handle of its kernel `entry`."""

    def allow_shared_memory(self, function: int, size_bytes: int) -> None:
        """Permit launches of `function` with this much dynamic shared memory."""

    def encode_tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes of a tensor map; calls no device."""

    def prepare_tensor_map(self, spec: TensorMapSpec, memory: int) -> Callable[[int], None]:
        """A function that writes the map, moved to a tensor at the address given, into host memory; calls no device."""

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
        """A function that launches on the stream given; `parameters` is the address of the array of pointers.

        Consecutive blocks form clusters of `cluster`.
        """

    def stream_id(self, stream: int) -> int:
        """An id that no other stream of this process ever has, unlike the handle."""

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream records a graph instead of running."""

    def relax_capture(self) -> int:
        """Let this thread allocate while some stream captures; returns what `restore_capture` needs."""

    def restore_capture(self, mode: int) -> None:
        """Undo `relax_capture`."""

    def clear(self, address: int, size_bytes: int, stream: int) -> None:
        """Have the stream fill device memory of the current context with zeros."""

    def upload(self, data: bytes) -> int:
        """Device memory of the current context that holds `data`, complete on return, also for other streams."""


@functools.cache
def system_driver() -> Driver:
    """The driver of this machine.

    Raises:
        MissingDependencyError: No driver, cuda-python or torch, or a driver that is too old.
    """
    return CudaDriver()


class CudaDriver:
    """`Driver` through `cuda.bindings.driver`."""

    def __init__(self) -> None:
        """Load libcuda and initialise it; makes no context."""
        self._cuda = _load_bindings()
        self._raw_stream = _load_raw_stream()
        self._get_context = self._cuda.cuCtxGetCurrent  # asked in every call
        self._contexts: dict[int, int] = {}
        self._check("cuInit", self._cuda.cuInit(0))
        if self.version() < OLDEST_DRIVER:
            message = f"the NVIDIA driver supports CUDA {_spelled(self.version())}"
            message += f"; mlagen needs {_spelled(OLDEST_DRIVER)} or newer"
            raise MissingDependencyError(f"{message}\n  update the driver")

    def _check(self, call: str, result: tuple[Any, ...]) -> Any:
        """The value of a driver call, or DriverError."""
        if result[0] != 0:
            self._fail(call, result[0])
        return result[1] if len(result) == 2 else None

    def _fail(self, call: str, code: Any) -> NoReturn:
        words = self._cuda.cuGetErrorString(code)[1]
        text = words.decode() if isinstance(words, bytes) else "unknown error"
        name = getattr(code, "name", str(code))
        advice = _ADVICE.get(
            name, "mlagen doctor shows driver, GPU and versions; restart the process if it persists"
        )
        raise DriverError(f"{call}: {name}: {text}\n  {advice}")

    def ordinal_of(self, device: torch.device) -> int | None:
        """See `Driver`."""
        return device.index if device.type == "cuda" else None

    def current_stream(self, ordinal: int) -> int:
        """See `Driver`."""
        return int(self._raw_stream(ordinal)) or LEGACY_STREAM

    def version(self) -> int:
        """See `Driver`."""
        return int(self._check("cuDriverGetVersion", self._cuda.cuDriverGetVersion()))

    def device_count(self) -> int:
        """See `Driver`."""
        return int(self._check("cuDeviceGetCount", self._cuda.cuDeviceGetCount()))

    def _device(self, ordinal: int) -> Any:
        return self._check("cuDeviceGet", self._cuda.cuDeviceGet(ordinal))

    def _attribute(self, ordinal: int, name: str) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        call = self._cuda.cuDeviceGetAttribute(attribute, self._device(ordinal))
        return int(self._check("cuDeviceGetAttribute", call))

    def compute_capability(self, ordinal: int) -> tuple[int, int]:
        """See `Driver`."""
        major = self._attribute(ordinal, "COMPUTE_CAPABILITY_MAJOR")
        return major, self._attribute(ordinal, "COMPUTE_CAPABILITY_MINOR")

    def sm_count(self, ordinal: int) -> int:
        """See `Driver`."""
        return self._attribute(ordinal, "MULTIPROCESSOR_COUNT")

    def primary_context(self, ordinal: int) -> int:
        """See `Driver`."""
        if ordinal not in self._contexts:
            call = self._cuda.cuDevicePrimaryCtxRetain(self._device(ordinal))
            self._contexts[ordinal] = int(self._check("cuDevicePrimaryCtxRetain", call))
        return self._contexts[ordinal]

    def current_context(self) -> int:
        """See `Driver`."""
        result, context = self._get_context()
        if result != 0:
            self._fail("cuCtxGetCurrent", result)
        return int(context)

    def push_context(self, context: int) -> None:
        """See `Driver`."""
        self._check("cuCtxPushCurrent", self._cuda.cuCtxPushCurrent(self._cuda.CUcontext(context)))

    def pop_context(self) -> None:
        """See `Driver`."""
        self._check("cuCtxPopCurrent", self._cuda.cuCtxPopCurrent())

    def load_function(self, cubin: bytes, entry: str) -> int:
        """See `Driver`."""
        call = f"cuModuleLoadData({entry}), driver for CUDA {_spelled(self.version())}"
        module = self._check(call, self._cuda.cuModuleLoadData(cubin))
        call = self._cuda.cuModuleGetFunction(module, entry.encode())
        return int(self._check(f"cuModuleGetFunction({entry})", call))

    def allow_shared_memory(self, function: int, size_bytes: int) -> None:
        """See `Driver`."""
        attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call = self._cuda.cuFuncSetAttribute(self._cuda.CUfunction(function), attribute, size_bytes)
        self._check(f"cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, {size_bytes})", call)

    def encode_tensor_map(self, spec: TensorMapSpec) -> bytes:
        """See `Driver`."""
        cuda = self._cuda
        element = getattr(
            cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{spec.element_type.upper()}"
        )
        swizzle = f"{spec.swizzle_bytes}B" if spec.swizzle_bytes else "NONE"
        result = cuda.cuTensorMapEncodeTiled(
            element,
            len(spec.dims),
            spec.address,
            [cuda.cuuint64_t(dim) for dim in spec.dims],
            # One dimension has no stride, but the driver refuses to be given none.
            [cuda.cuuint64_t(stride) for stride in spec.strides_bytes or (0,)],
            [cuda.cuuint32_t(rows) for rows in spec.box],
            [cuda.cuuint32_t(1)] * len(spec.dims),
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        tensor_map = self._check(f"cuTensorMapEncodeTiled({spec})", result)
        return b"".join(int(word).to_bytes(8, "little") for word in tensor_map.opaque)

    def prepare_tensor_map(self, spec: TensorMapSpec, memory: int) -> Callable[[int], None]:
        """See `Driver`."""
        target = self._cuda.CUtensorMap(memory)
        replace_address, fail = self._cuda.cuTensorMapReplaceAddress, self._fail
        is_encoded = False

        def write(address: int) -> None:
            nonlocal is_encoded
            if is_encoded:  # which takes a tenth of the time
                result = replace_address(target, address + spec.address)[0]
                if result != 0:
                    fail("cuTensorMapReplaceAddress", result)
            else:
                encoded = self.encode_tensor_map(tensor_map_at(spec, address))
                ctypes.memmove(memory, encoded, TENSOR_MAP_BYTES)
                is_encoded = True

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
        """See `Driver`."""
        cuda = self._cuda
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_memory_bytes
        if cluster > 1:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        handle = cuda.CUfunction(function)
        launch_kernel, as_stream, fail = cuda.cuLaunchKernelEx, cuda.CUstream, self._fail
        last_stream = -1

        def launch(stream: int) -> None:
            nonlocal last_stream
            if stream != last_stream:  # a write to the config costs as much as a driver call
                config.hStream = as_stream(stream)
                last_stream = stream
            result = launch_kernel(config, handle, parameters, 0)[0]
            if result != 0:
                fail("cuLaunchKernelEx", result)

        return launch

    def stream_id(self, stream: int) -> int:
        """See `Driver`."""
        if stream == LEGACY_STREAM:
            return -1  # ids of other streams are not negative
        return int(
            self._check("cuStreamGetId", self._cuda.cuStreamGetId(self._cuda.CUstream(stream)))
        )

    def is_capturing(self, stream: int) -> bool:
        """See `Driver`."""
        if stream == LEGACY_STREAM:
            return False
        call = self._cuda.cuStreamIsCapturing(self._cuda.CUstream(stream))
        # An invalidated capture counts too: the launch then reports it.
        return bool(self._check("cuStreamIsCapturing", call) != 0)

    def relax_capture(self) -> int:
        """See `Driver`."""
        relaxed = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        return int(self._exchange_capture_mode(relaxed))

    def restore_capture(self, mode: int) -> None:
        """See `Driver`."""
        self._exchange_capture_mode(self._cuda.CUstreamCaptureMode(mode))

    def _exchange_capture_mode(self, mode: Any) -> Any:
        call = self._cuda.cuThreadExchangeStreamCaptureMode(mode)
        return self._check("cuThreadExchangeStreamCaptureMode", call)

    def clear(self, address: int, size_bytes: int, stream: int) -> None:
        """See `Driver`."""
        cuda = self._cuda
        place, queue = cuda.CUdeviceptr(address), cuda.CUstream(stream)
        self._check("cuMemsetD8Async", cuda.cuMemsetD8Async(place, 0, size_bytes, queue))

    def upload(self, data: bytes) -> int:
        """See `Driver`."""
        cuda = self._cuda
        address = int(self._check("cuMemAlloc", cuda.cuMemAlloc(len(data))))
        # A stream of its own: the copy is neither captured nor ordered behind the caller's work.
        non_blocking = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = self._check("cuStreamCreate", cuda.cuStreamCreate(non_blocking))
        try:
            call = cuda.cuMemcpyHtoDAsync(cuda.CUdeviceptr(address), data, len(data), stream)
            self._check("cuMemcpyHtoDAsync", call)
            self._check("cuStreamSynchronize", cuda.cuStreamSynchronize(stream))
        finally:
            self._check("cuStreamDestroy", cuda.cuStreamDestroy(stream))
        return address


def _spelled(version: int) -> str:
    """A CUDA version as people write it: 13.0 for 13000."""
    major, minor = divmod(version // 10, 100)
    return f"{major}.{minor}"


# The bindings carry no types, so both loaders return Any.
def _load_bindings() -> Any:
    try:
        from cuda.bindings import driver
        from cuda.pathfinder import DynamicLibNotFoundError
    except ImportError as error:
        message = f"cuda-python cannot be imported: {error}\n  pip install cuda-python (not available on macOS)"
        raise MissingDependencyError(message) from error
    try:
        driver.cuDriverGetVersion()
    except (DynamicLibNotFoundError, RuntimeError) as error:
        message = (
            f"no NVIDIA driver: {str(error).splitlines()[0]}\n"
            "  install the driver, or load with backend='sim' or backend='reference' for CPU tensors"
        )
        raise MissingDependencyError(message) from error
    return driver


def _load_raw_stream() -> Any:
    """Torch's current stream as a handle, without an object around it: 0.1 us, not 1.7.

    TorchInductor's generated code calls the same function.
    """
    try:
        import torch
    except ImportError as error:
        message = "running kernels needs torch\n  pip install 'mlagen[torch]'"
        raise MissingDependencyError(message) from error
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is None:
        message = f"torch {torch.__version__} was built without CUDA"
        raise MissingDependencyError(f"{message}\n  install a torch build for CUDA")
    return raw_stream
