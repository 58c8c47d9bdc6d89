"""Where the shipped specs are."""

from __future__ import annotations

from pathlib import Path

SPECS = Path(__file__).parents[2] / "specs"
