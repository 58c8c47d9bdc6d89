"""`CudaDriver` over a stand-in for `cuda.bindings.driver`: what it asks for, and what its errors say."""

from __future__ import annotations

import ctypes
import enum
from types import SimpleNamespace
from typing import Any

import pytest

import mlagen.runtime.driver
from mlagen.errors import DriverError, MissingDependencyError
from mlagen.launch_record import TensorMapSpec
from mlagen.runtime.driver import CudaDriver


class Code(enum.IntEnum):
    """Results, named as the bindings name them."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209


class Bindings(SimpleNamespace):
    """Functions that note their calls and answer as the test says."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(calls=[], answers={"cuDriverGetVersion": 13_000, **answers})
        for kind in (
            "CUstream",
            "CUfunction",
            "CUdeviceptr",
            "CUcontext",
            "CUtensorMap",
            "cuuint64_t",
            "cuuint32_t",
        ):
            setattr(self, kind, lambda value: value)
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttribute = lambda: SimpleNamespace(
            value=SimpleNamespace(clusterDim=SimpleNamespace())
        )
        for name in (
            "CUlaunchAttributeID",
            "CUtensorMapDataType",
            "CUtensorMapInterleave",
            "CUtensorMapSwizzle",
            "CUtensorMapL2promotion",
            "CUtensorMapFloatOOBfill",
        ):
            setattr(self, name, Names())

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            if name == "cuGetErrorString":
                return (Code.CUDA_SUCCESS, b"the driver's own words")
            self.calls.append((name, *arguments))
            answer = self.answers.get(name)
            if isinstance(answer, Code):
                return (answer,)
            return (Code.CUDA_SUCCESS,) if answer is None else (Code.CUDA_SUCCESS, answer)

        return call

    def names(self) -> list[str]:
        """The functions called, in order."""
        return [call[0] for call in self.calls]


class Names:
    """An enum whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


def driver_over(bindings: Bindings, monkeypatch: pytest.MonkeyPatch) -> CudaDriver:
    monkeypatch.setattr(mlagen.runtime.driver, "_load_bindings", lambda: bindings)
    monkeypatch.setattr(mlagen.runtime.driver, "_load_raw_stream", lambda: lambda ordinal: ordinal)
    return CudaDriver()


def test_a_driver_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError) as error:
        driver_over(Bindings(cuDriverGetVersion=11_080), monkeypatch)
    assert str(error.value) == (
        "the NVIDIA driver supports CUDA 11.8; mlagen needs 12.0 or newer\n  update the driver"
    )


def test_errors_name_the_call_the_words_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings(cuMemAlloc=Code.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(DriverError) as error:
        driver_over(bindings, monkeypatch).upload(b"data")
    first, last = str(error.value).splitlines()
    assert first == "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: the driver's own words"
    assert last.startswith("  free device memory")


def test_a_cubin_that_the_driver_cannot_load_names_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bindings = Bindings(cuModuleLoadData=Code.CUDA_ERROR_NO_BINARY_FOR_GPU)
    with pytest.raises(
        DriverError, match=r"cuModuleLoadData\(entry\), driver for CUDA 13\.0: "
    ) as error:
        driver_over(bindings, monkeypatch).load_function(b"cubin", "entry")
    assert "mlagen build SPEC --arch" in str(error.value)


def test_upload_is_complete_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings(cuMemAlloc=0x1000, cuStreamCreate=5)
    driver = driver_over(bindings, monkeypatch)
    bindings.calls.clear()
    assert driver.upload(b"data") == 0x1000
    assert bindings.calls == [
        ("cuMemAlloc", 4),
        ("cuStreamCreate", 1),
        ("cuMemcpyHtoDAsync", 0x1000, b"data", 4, 5),
        ("cuStreamSynchronize", 5),
        ("cuStreamDestroy", 5),
    ]


def test_memory_is_cleared_in_the_order_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    driver = driver_over(bindings, monkeypatch)
    driver.clear(0x1000, 24, 7)
    assert bindings.calls[-1] == ("cuMemsetD8Async", 0x1000, 0, 24, 7)
    bindings.answers["cuMemsetD8Async"] = Code.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="cuMemsetD8Async: CUDA_ERROR_INVALID_VALUE"):
        driver.clear(0x1000, 24, 7)


def test_launch_writes_the_stream_only_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    launch = driver_over(bindings, monkeypatch).prepare_launch(
        9, grid=132, block=384, cluster=1, shared_memory_bytes=200_000, parameters=0x2000
    )
    bindings.calls.clear()
    for stream in (7, 7, 8):
        launch(stream)
        name, config, function, parameters, extra = bindings.calls[-1]
        assert (name, function, parameters, extra) == ("cuLaunchKernelEx", 9, 0x2000, 0)
        assert config.hStream == stream
        assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (132, 1, 1)
        assert (config.blockDimX, config.sharedMemBytes) == (384, 200_000)
    bindings.answers["cuLaunchKernelEx"] = Code.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"):
        launch(8)


@pytest.mark.parametrize("cluster", [1, 2])
def test_blocks_of_a_cluster_are_asked_for(cluster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    driver_over(bindings, monkeypatch).prepare_launch(
        9, grid=132, block=512, cluster=cluster, shared_memory_bytes=0, parameters=0x2000
    )(7)
    config = bindings.calls[-1][1]
    asked = [(one.id, vars(one.value.clusterDim)) for one in getattr(config, "attrs", [])]
    size = {"x": 2, "y": 1, "z": 1}
    assert asked == ([("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", size)] if cluster == 2 else [])
    assert getattr(config, "numAttrs", 0) == len(asked)


def test_tensor_map_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    words = SimpleNamespace(opaque=list(range(16)))
    bindings = Bindings(cuTensorMapEncodeTiled=words)
    spec = TensorMapSpec(0x1000, "bfloat16", (192, 4, 272), (384, 1536), (64, 1, 128))
    encoded = driver_over(bindings, monkeypatch).encode_tensor_map(spec)
    assert len(encoded) == 128
    assert encoded[8:16] == (1).to_bytes(8, "little")
    _, *arguments = bindings.calls[-1]
    assert arguments == [
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        3,
        0x1000,
        [192, 4, 272],
        [384, 1536],
        [64, 1, 128],
        [1, 1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    ]


def test_a_tensor_map_is_encoded_once_and_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    words = SimpleNamespace(opaque=list(range(16)))
    bindings = Bindings(cuTensorMapEncodeTiled=words)
    spec = TensorMapSpec(0x400, "bfloat16", (192, 4, 272), (384, 1536), (64, 1, 128))
    memory = ctypes.create_string_buffer(128)
    place = ctypes.addressof(memory)
    write = driver_over(bindings, monkeypatch).prepare_tensor_map(spec, place)
    bindings.calls.clear()
    write(0x1000)
    assert memory.raw[8:16] == (1).to_bytes(8, "little")
    (encoded,) = bindings.calls
    assert (encoded[0], encoded[3]) == ("cuTensorMapEncodeTiled", 0x1400)
    write(0x2000)
    write(0x1000)
    assert bindings.calls[1:] == [
        ("cuTensorMapReplaceAddress", place, 0x2400),
        ("cuTensorMapReplaceAddress", place, 0x1400),
    ]
    bindings.answers["cuTensorMapReplaceAddress"] = Code.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="cuTensorMapReplaceAddress: CUDA_ERROR_INVALID_VALUE"):
        write(0x3000)


def test_a_context_is_retained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings(cuDeviceGet=0, cuDevicePrimaryCtxRetain=42)
    driver = driver_over(bindings, monkeypatch)
    assert [driver.primary_context(0), driver.primary_context(0)] == [42, 42]
    assert bindings.names().count("cuDevicePrimaryCtxRetain") == 1


def test_torchs_default_stream_has_one_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handle 0 can mean a stream of each thread; 1 is the one that torch launches on, which cannot be captured."""
    bindings = Bindings(cuStreamGetId=12, cuStreamIsCapturing=1)
    monkeypatch.setattr(mlagen.runtime.driver, "_load_bindings", lambda: bindings)
    handles = {0: 0, 1: 77}
    monkeypatch.setattr(mlagen.runtime.driver, "_load_raw_stream", lambda: handles.__getitem__)
    driver = CudaDriver()
    bindings.calls.clear()
    default, other = driver.current_stream(0), driver.current_stream(1)
    assert (default, other) == (1, 77)
    assert (driver.stream_id(default), driver.is_capturing(default)) == (-1, False)
    assert not bindings.calls
    assert (driver.stream_id(other), driver.is_capturing(other)) == (12, True)
