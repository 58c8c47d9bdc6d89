"""What all tests share: a cache folder of their own, and the rule for tests that need a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

# A run differs from the last one by what changed, not by chance; `--hypothesis-profile=default` explores.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

GPU_TESTS = Path(__file__).parent / "gpu"


def missing_gpu() -> str | None:
    """Return why no CUDA device can be used, or None if one can. Asks the driver itself."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver ({error})"
    if status := driver.cuInit(0):
        return f"the CUDA driver cannot start (cuInit: {status})"
    count = ctypes.c_int()
    if status := driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"the CUDA driver cannot count devices (cuDeviceGetCount: {status})"
    return None if count.value else "no CUDA device"


def pytest_configure() -> None:
    """Keep workers quick.

    Of several, each gets one thread of torch and NumPy, as more only wait for each other. Tests and kernels are many
    objects that stay: cycles are looked for less often.
    """
    gc.set_threshold(50_000, 20, 100)
    if "PYTEST_XDIST_WORKER" in os.environ:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # both read them when imported
            os.environ.setdefault(name, "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/gpu `gpu`, and skip it where there is no device."""
    gpu_items = [item for item in items if item.path.is_relative_to(GPU_TESTS)]
    if not gpu_items:
        return
    reason = missing_gpu()
    for item in gpu_items:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {reason}"))


@pytest.fixture(autouse=True)
def cache_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test an empty cache and none of the user's settings.

    Tests on a GPU keep `MLAGEN_KERNELS` and the others: they run cubins that were built elsewhere.
    """
    folder = tmp_path / "mlagen-cache"
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(folder))
    if not request.path.is_relative_to(GPU_TESTS):
        for name in ("MLAGEN_COMPILE", "MLAGEN_LOG", "MLAGEN_NVRTC", "MLAGEN_KERNELS"):
            monkeypatch.delenv(name, raising=False)
    return folder
