"""What `mlagen doctor` finds out about this machine, as values.

Every question is asked on its own, and its failure is an answer: a broken driver must not hide a
missing compiler. The driver is asked through ctypes: cuda-python or torch may be what is broken.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlagen.arch import ARCHS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Purpose = Literal["build", "run"]

PACKAGES = (
    "numpy", "pydantic", "jinja2", "ruamel.yaml", "ml_dtypes",
    "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc",
)  # fmt: skip

# CUDA 12.0 is the first driver with tensor maps and cuLaunchKernelEx.
_OLDEST_DRIVER = 12_000
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
# The first NVRTC that knows sm_100a.
_OLDEST_NVRTC = (12, 8)
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _SM_COUNT = 75, 76, 16  # CUdevice_attribute


@dataclass(frozen=True, slots=True)
class Answer:
    """One thing about the machine.

    Attributes:
        topic: What it is about.
        value: What was found.
        mend: What to do about it, None if nothing need be done.
        prevents: What cannot be done without it, None if everything can.
    """

    topic: str
    value: str
    mend: str | None = None
    prevents: Purpose | None = None


def examine() -> list[Answer]:
    """Ask everything; raises nothing."""
    questions: dict[str, tuple[Callable[[], Iterator[Answer]], Purpose | None]] = {
        "mlagen": (_mlagen, "build"),
        "packages": (_packages, "build"),
        "NVRTC": (_nvrtc, "build"),
        "templates": (_templates, "build"),
        "SASS lint": (_disassembler, None),
        "cache": (_cache, None),
        "settings": (_settings, "build"),
        "driver": (_driver, "run"),
        "torch": (_torch, "run"),
    }
    answers = []
    for topic, (ask, prevents) in questions.items():
        try:
            answers += list(ask())
        except Exception as error:  # any failure at all is the answer
            first, *rest = (str(error) or type(error).__name__).splitlines()
            mend = "; ".join(line.strip() for line in rest) or None
            answers.append(Answer(topic, first, mend or "reinstall: pip install mlagen", prevents))
    return answers


def gpu_count() -> int:
    """How many GPUs the driver sees; 0 also where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def archs_of_gpu() -> tuple[str, ...] | None:
    """The architecture of the first GPU; None if there is none, or none that kernels can be generated for."""
    if not gpu_count():
        return None
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in ((major, _CAPABILITY_MAJOR), (minor, _CAPABILITY_MINOR)):
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
            return None
    capability = (major.value, minor.value)
    found = tuple(arch.name for arch in ARCHS.values() if arch.compute_capability == capability)
    return found or None


def _mlagen() -> Iterator[Answer]:
    import mlagen

    version = importlib.metadata.version("mlagen")
    yield Answer("mlagen", f"{version} in {Path(mlagen.__file__).parent}")
    yield Answer("Python", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")


def _packages() -> Iterator[Answer]:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    yield Answer("packages", ", ".join(found))
    if missing:
        mend = f"pip install {' '.join(missing)}"
        yield Answer("packages", f"not installed: {', '.join(missing)}", mend, "build")


def _nvrtc() -> Iterator[Answer]:
    from mlagen.compile.nvrtc import nvrtc_identity

    identity = nvrtc_identity()
    value = f"{identity.version} at {identity.path} (found: {identity.found_via})"
    if tuple(map(int, identity.version.split("."))) < _OLDEST_NVRTC:
        mend = "pip install 'nvidia-cuda-nvrtc>=12.8' to compile for sm_100a"
        yield Answer("NVRTC", value, mend)
    else:
        yield Answer("NVRTC", value)


def _templates() -> Iterator[Answer]:
    from mlagen.package_files import shipped_folder

    yield Answer("templates", str(shipped_folder("templates")))


def _disassembler() -> Iterator[Answer]:
    from cuda.pathfinder import find_nvidia_binary_utility

    path = find_nvidia_binary_utility("nvdisasm")
    if path:
        yield Answer("SASS lint", f"with {path}")
    else:
        mend = "pip install nvidia-cuda-nvdisasm to check machine code after each compile"
        yield Answer("SASS lint", "skipped: no nvdisasm", mend)


def _cache() -> Iterator[Answer]:
    from mlagen.cli.cache import user_cache
    from mlagen.cli.output import count

    mend = "set MLAGEN_CACHE_DIR to a folder you may write to; until then kernels stay in memory"
    info = user_cache().info()
    if info.folder is None:
        yield Answer("cache", "no home folder to hold one", mend)
        return
    value = (
        f"{info.folder}: {count(len(info.entries), 'kernel')}, {info.size_bytes / 2**20:.1f} MiB"
    )
    # The folder is made when first written to: ask its nearest existing parent, and leave no trace.
    nearest = next(path for path in (info.folder, *info.folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            yield Answer("cache", value)
    except OSError as error:
        yield Answer("cache", f"{value}; cannot be written ({error.strerror})", mend)


def _settings() -> Iterator[Answer]:
    from mlagen.artifacts import MANIFEST
    from mlagen.settings import VARIABLES, Settings

    settings = Settings.from_environment()
    for name, meaning in VARIABLES.items():
        value = getattr(settings, name.removeprefix("MLAGEN_").lower())
        yield Answer("settings", f"{name}={'' if value is None else value}  ({meaning})")
    if settings.kernels is not None and not (settings.kernels / MANIFEST).is_file():
        mend = "unset MLAGEN_KERNELS, or write the folder: mlagen build SPEC --out FOLDER"
        yield Answer("settings", f"{settings.kernels} is no folder of built kernels", mend)


def _driver() -> Iterator[Answer]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        mend = "install NVIDIA's driver to run kernels; building needs none"
        yield Answer("driver", "none (libcuda.so.1 cannot be loaded)", mend, "run")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    words = f"supports CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if version.value < _OLDEST_DRIVER:
        yield Answer("driver", words, "update it: CUDA 12.0 or newer is needed", "run")
    else:
        yield Answer("driver", words)
    if status := cuda.cuInit(0):
        mend = "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Answer("GPU", f"none can be used (cuInit: {_error_name(cuda, status)})", mend, "run")
        return
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for ordinal in range(count.value):
        yield _gpu(cuda, ordinal)
    if not count.value:
        yield Answer("GPU", "none", "check nvidia-smi and CUDA_VISIBLE_DEVICES", "run")


def _gpu(cuda: ctypes.CDLL, ordinal: int) -> Answer:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor, sm_count = (
        _attribute(cuda, device, which)
        for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _SM_COUNT)
    )
    archs = [a.name for a in ARCHS.values() if a.compute_capability == (major, minor)]
    value = (
        f"cuda:{ordinal} {name.value.decode()}, {sm_count} SMs, {memory.value / 2**30:.0f} GiB, "
        f"compute capability {major}.{minor}"
    )
    if archs:
        return Answer("GPU", f"{value}: runs kernels for {archs[0]}")
    return Answer("GPU", value, f"mlagen generates kernels for {', '.join(ARCHS)} only", "run")


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _error_name(cuda: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else str(status)


def _torch() -> Iterator[Answer]:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        mend = "pip install 'mlagen[torch]' to run kernels; building needs none"
        yield Answer("torch", "not installed", mend, "run")
        return
    import torch

    if torch.version.cuda is None:
        mend = "install a CUDA build of torch to run kernels; building needs none"
        yield Answer("torch", f"{version}, built without CUDA", mend, "run")
    else:
        yield Answer("torch", f"{version}, built for CUDA {torch.version.cuda}")
