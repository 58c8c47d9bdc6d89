"""The wheel, as a user gets it: what is inside, and that its declared dependencies are enough."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parent.parent

SPEC = """\
spec: 1
name: from-wheel
geometry: {num_heads: 16, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: sm_90a
kernels:
  - {op: prefill, dtype: bfloat16, mask: causal, kv: {layout: ragged}, k_rope: {layout: ragged}}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, CHECKOUT],
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def base_dependencies() -> dict[str, importlib.metadata.Distribution]:
    """Return what a plain `pip install mlagen` brings: the closure of the base requirements."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [Requirement(text) for text in importlib.metadata.requires("mlagen") or []]
    while wanted:
        requirement = wanted.pop()
        extras = {"", *requirement.extras}
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name in found and extras == {""}:
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        found[requirement.name] = distribution
        for text in distribution.requires or []:
            child = Requirement(text)
            if any(not child.marker or child.marker.evaluate({"extra": e}) for e in extras):
                child.marker = None
                wanted.append(child)
    return found


def link_distribution(distribution: importlib.metadata.Distribution, site_packages: Path) -> None:
    """Make an installed distribution visible in another environment, file by file."""
    for file in distribution.files or []:
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        target = site_packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(Path(str(file.locate())).resolve())


@pytest.fixture(scope="module")
def clean_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its base dependencies, and nothing else; no network."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    for distribution in base_dependencies().values():
        link_distribution(distribution, site_packages)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--no-deps",
            "--no-index",
            wheel,
        ],
        check=True,
        capture_output=True,
    )
    return folder


def test_wheel_carries_templates_specs_types_and_license(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "mlagen/_templates/kernels/prefill_sm90.cu.j2" in names
    assert "mlagen/_specs/deepseek.yaml" in names
    assert "mlagen/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "generated/", "benchmarks/"))]


def test_wheel_is_the_same_for_every_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_in_a_clean_environment_builds_a_spec(
    clean_environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    environment = {
        "HOME": str(tmp_path),
        "MLAGEN_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": os.defpath,
    }
    result = subprocess.run(
        [clean_environment / "bin" / "mlagen", "build", "spec.yaml", "--out", "kernels", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert kernel["resources"]["spill_store_bytes"] == 0
    assert len(list((tmp_path / "kernels").rglob("*.cubin"))) == 1


def test_clean_environment_has_no_torch(clean_environment: Path) -> None:
    result = subprocess.run(
        [clean_environment / "bin" / "python", "-c", "import torch"], check=False
    )
    assert result.returncode != 0
