"""Runs the program `hostile_values` in a process of its own, which a fault would take along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_hostile_values_on_the_device_neither_fault_nor_hang_nor_write_outside() -> None:
    command = [sys.executable, "-m", "tests.gpu.hostile_values"]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        command, cwd=root, check=False, capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
