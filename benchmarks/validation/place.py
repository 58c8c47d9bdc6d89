"""When and on what a recording was made."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import torch

from mlagen.bench.machine import driver_version


def facts() -> dict[str, Any]:  # Any: JSON values
    """Date, GPU, driver. Starts CUDA in this process: not before processes are forked that need it."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "driver": driver_version(),
        "python": platform.python_version(),
    }
