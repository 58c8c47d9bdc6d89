"""Kernels of these tests are compiled once a run, whichever tests want them and in whichever worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache_folder(
    cache_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The run's cache in place of the test's own: what is in it depends on sources and compiler only."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    folder = run / "kernels"
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(folder))
    return folder
