from __future__ import annotations

from pathlib import Path

import pytest

from mlagen.errors import MlagenError
from mlagen.settings import VARIABLES, Settings


def test_nothing_set_is_the_default() -> None:
    assert Settings.from_environment({}) == Settings()


def test_empty_means_unset() -> None:
    assert Settings.from_environment(dict.fromkeys(VARIABLES, " ")) == Settings()


def test_every_variable_is_read() -> None:
    values = {
        "MLAGEN_CACHE_DIR": "/cache",
        "MLAGEN_COMPILE": "NEVER",
        "MLAGEN_LOG": "debug",
        "MLAGEN_NVRTC": "/lib/libnvrtc.so.13",
        "MLAGEN_KERNELS": "/kernels",
    }
    assert set(values) == set(VARIABLES)
    assert Settings.from_environment(values) == Settings(
        cache_dir=Path("/cache"),
        compile="never",
        log="debug",
        nvrtc=Path("/lib/libnvrtc.so.13"),
        kernels=Path("/kernels"),
    )


def test_relative_folder_is_taken_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_environment({"MLAGEN_CACHE_DIR": "c"}).cache_dir == tmp_path / "c"


@pytest.mark.parametrize("name", ["MLAGEN_COMPILE", "MLAGEN_LOG"])
def test_unknown_value_is_named_with_those_allowed(name: str) -> None:
    with pytest.raises(MlagenError) as caught:
        Settings.from_environment({name: "sometimes"})
    assert str(caught.value).startswith(f"{name}: 'sometimes'")
    assert "set it to one of" in str(caught.value)


def test_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_COMPILE", "always")
    assert Settings.from_environment().compile == "always"
