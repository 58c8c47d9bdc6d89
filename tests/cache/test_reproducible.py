"""The same kernel has the same source and the same key, whatever machine and user build it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from mlagen.compile.nvrtc import nvrtc_identity
from tests.compile.fresh_process import CHECKOUT, run_python

if TYPE_CHECKING:
    from pathlib import Path

PRINT_KEYS = """
import hashlib, json
from mlagen.build import build_key, plan_specs
from mlagen.package_files import shipped_folder
from mlagen.render import render_kernel
from mlagen.spec.yaml import load_spec_file
keys = {}
for plan in plan_specs(load_spec_file(shipped_folder("specs") / "deepseek.yaml").expand()[:4]):
    source = render_kernel(plan)
    digest = hashlib.sha256(source.encode()).hexdigest()
    keys[plan.name] = [digest, build_key(source, arch=plan.arch.name).digest]
print(json.dumps(keys))
"""


@pytest.fixture(scope="module")
def usual_keys() -> dict[str, list[str]]:
    return dict(json.loads(run_python(PRINT_KEYS)))


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_key_depends_on_no_environment(
    usual_keys: dict[str, list[str]], tmp_path: Path, seed: str
) -> None:
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
        "TZ": "Asia/Kathmandu",
        "PYTHONHASHSEED": seed,
        "MLAGEN_CACHE_DIR": str(tmp_path / "elsewhere"),
    }
    keys = json.loads(run_python(PRINT_KEYS, cwd=tmp_path, environment=environment))
    assert keys == usual_keys


def test_key_depends_on_no_path(usual_keys: dict[str, list[str]], tmp_path: Path) -> None:
    """The package is another copy, and NVRTC is found by another path."""
    for name in ("mlagen", "templates", "specs"):
        shutil.copytree(
            CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    library = tmp_path / "cuda" / nvrtc_identity().path.name
    library.parent.mkdir()
    for file in nvrtc_identity().path.parent.glob("libnvrtc*"):
        (library.parent / file.name).symlink_to(file)
    code = f"import mlagen; assert mlagen.__file__.startswith({str(tmp_path)!r})\n{PRINT_KEYS}"
    environment = {"MLAGEN_NVRTC": str(library)}
    keys = json.loads(run_python(code, package=tmp_path, cwd=tmp_path, environment=environment))
    assert keys == usual_keys
