"""`mlagen cache` and `mlagen doctor`: this machine."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from mlagen.errors import MissingDependencyError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


@pytest.fixture
def own_cache(filled_cache: Path, cache_folder: Path) -> Path:
    """A filled cache that a test may change."""
    shutil.copytree(filled_cache, cache_folder)
    return cache_folder


def test_info_of_a_cache_that_is_not_there_yet(mlagen: Command, cache_folder: Path) -> None:
    outcome = mlagen("cache", "info")
    assert outcome.status == 0
    assert str(cache_folder) in outcome.out
    assert json.loads(mlagen("cache", "info", "--json").out)["entries"] == []
    assert not cache_folder.exists()


def test_info_lists_kernels(mlagen: Command, own_cache: Path) -> None:
    document = json.loads(mlagen("cache", "info", "--json").out)
    assert document["folder"] == str(own_cache)
    assert len(document["entries"]) == 2
    assert document["size_bytes"] >= sum(entry["size_bytes"] for entry in document["entries"])


def test_clear_removes_everything(mlagen: Command, own_cache: Path) -> None:
    assert "removed 2 kernels" in mlagen("cache", "clear").out
    assert json.loads(mlagen("cache", "info", "--json").out)["entries"] == []


def test_clear_older_than_keeps_what_is_newer(mlagen: Command, own_cache: Path) -> None:
    old = min(own_cache.rglob("*.kernel"))
    day_before_yesterday = time.time() - 2 * 86_400
    os.utime(old, (day_before_yesterday, day_before_yesterday))
    outcome = mlagen("cache", "clear", "--older-than", "1d", "--json")
    assert json.loads(outcome.out)["removed"] == 1
    assert not old.exists()


def test_age_that_is_none(mlagen: Command) -> None:
    outcome = mlagen("cache", "clear", "--older-than", "yesterday")
    assert outcome.status == 2
    assert "30d" in outcome.err


def test_doctor_says_what_works(mlagen: Command) -> None:
    outcome = mlagen("doctor")
    assert outcome.status == 0
    for topic in ("mlagen", "Python", "NVRTC", "cache", "driver", "torch", "MLAGEN_COMPILE=auto"):
        assert topic in outcome.out
    document = json.loads(mlagen("doctor", "--json").out)
    assert document["can_build"] is True
    assert document["can_run"] in (True, False)


def test_doctor_without_a_driver_can_still_build(
    mlagen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    document = json.loads(mlagen("doctor", "--json").out)
    assert document["can_run"] is False
    assert "install NVIDIA's driver" in json.dumps(document)


def test_doctor_without_a_compiler_has_status_3_and_the_cure(
    mlagen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("NVRTC: not found\n  pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr("mlagen.compile.nvrtc.nvrtc_identity", missing)
    outcome = mlagen("doctor")
    assert outcome.status == 3
    assert "-> pip install nvidia-cuda-nvrtc" in outcome.out


def test_doctor_survives_whatever_is_broken(
    mlagen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("mlagen.cli.machine.shipped_folder", broken, raising=False)
    monkeypatch.setattr("mlagen.package_files.shipped_folder", broken)
    monkeypatch.setattr("mlagen.compile.nvrtc.nvrtc_identity", broken)
    monkeypatch.setattr("mlagen.cli.cache.user_cache", broken)
    monkeypatch.setattr("importlib.metadata.version", broken)
    outcome = mlagen("doctor")
    assert outcome.status == 3
    assert outcome.out.count("broken") >= 4


def test_doctor_reports_a_bad_setting(mlagen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_LOG", "loud")
    outcome = mlagen("doctor")
    assert outcome.status == 3
    assert "MLAGEN_LOG: 'loud'" in outcome.out


def test_doctor_reports_a_folder_of_kernels_that_is_none(
    mlagen: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLAGEN_KERNELS", str(tmp_path / "nowhere"))
    out = mlagen("doctor").out
    assert f"{tmp_path / 'nowhere'} is no folder of built kernels" in out
    assert "-> unset MLAGEN_KERNELS" in out


def test_doctor_leaves_no_trace(mlagen: Command, cache_folder: Path) -> None:
    mlagen("doctor")
    assert not cache_folder.exists()
