"""Where Triton keeps what it has compiled: outside the tree, for one session."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of this session."""
    return str(tmp_path_factory.mktemp("triton"))


@pytest.fixture(autouse=True)
def triton_settings(triton_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Triton from writing into the home folder, and fix what its next version does otherwise."""
    monkeypatch.setenv("TRITON_CACHE_DIR", triton_cache)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
