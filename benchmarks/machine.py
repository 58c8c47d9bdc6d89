"""What a measurement was made on and with: without it a number means nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mlagen.artifacts import MANIFEST
from mlagen.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

# What other implementations of attention come in, and what decides about their speed.
PEERS = ("flash-attn-4", "nvidia-cutlass-dsl", "flashinfer-python", "triton")


def facts() -> dict[str, Any]:  # Any: JSON values
    """Date, GPU, driver, and the versions of everything that decides a time or a result."""
    properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": properties.name if properties else None,
        "sms": properties.multi_processor_count if properties else None,
        "driver": driver_version(),
        "cubins": compiler_of_cubins(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "peers": versions(PEERS),
    }


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Those that are installed, and their versions."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def graphics_card() -> dict[str, str]:
    """Clock and power limits as nvidia-smi tells them; nothing without it.

    Not the clock under load: what the driver reports in short runs is not what the SMs do.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    names = ("clocks.max.sm", "power.limit", "temperature.gpu")
    command = [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    values = [value.strip() for value in done.stdout.split(",")]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def driver_version() -> str | None:
    """The release of the NVIDIA kernel module, as `nvidia-smi` prints it."""
    try:
        first, *_ = Path("/proc/driver/nvidia/version").read_text().splitlines()
    except OSError:
        return None
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ..."
    releases = [word for word in first.split() if word.replace(".", "").isdigit() and "." in word]
    return releases[0] if releases else first


def compiler_of_cubins() -> str:
    """The compiler of the kernels that run: of the folder that MLAGEN_KERNELS names, else NVRTC."""
    folder = Settings.from_environment().kernels
    if folder is None:
        from mlagen.compile.nvrtc import nvrtc_identity

        return f"NVRTC {nvrtc_identity().version}, compiled here"
    compiler = json.loads((Path(folder) / MANIFEST).read_text())["compiler"]
    return f"NVRTC {compiler['release'] or compiler['version']}, built before"


def heading(found: dict[str, Any]) -> str:
    """The facts in one line, for the top of a table."""
    return (
        f"{found['date']}, {found['gpu']}, driver {found['driver']}, cubins by {found['cubins']}, "
        f"torch {found['torch']}, cuDNN {found['cudnn']}, Python {found['python']}"
    )
