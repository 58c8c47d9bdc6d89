"""What a measurement was made on and with: without it a number means nothing."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import torch

from mlagen.artifacts import MANIFEST
from mlagen.bench.card import Card
from mlagen.bench.installed import peer_versions
from mlagen.settings import Settings


def facts() -> dict[str, Any]:  # Any: JSON values
    """Date, GPU, driver, limits, and the versions of everything that decides a time or a result."""
    properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    card = current_card()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": properties.name if properties else None,
        "sms": properties.multi_processor_count if properties else None,
        "driver": driver_version(),
        **(card.limits() if card else {}),
        "mlagen": importlib.metadata.version("mlagen"),
        "cubins": compiler_of_cubins(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "peers": peer_versions(),
    }


def current_card() -> Card | None:
    """The GPU that torch uses; None if there is none, or none that NVML knows."""
    if not torch.cuda.is_available():
        return None
    return Card.of_uuid(str(torch.cuda.get_device_properties(0).uuid))


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
