"""Code in a process of its own, with another environment, or without NVIDIA's wheels."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import mlagen.errors

CHECKOUT = Path(mlagen.errors.__file__).parent.parent
# Where cuda-pathfinder would find another NVRTC than the one a test means.
TOOLKITS = {"LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"}


def run_python(
    code: str,
    *,
    wheels: Path | None = None,
    package: Path = CHECKOUT,
    cwd: Path = CHECKOUT,
    environment: dict[str, str] | None = None,
) -> str:
    """Run `code` and return what it prints.

    Args:
        code: Python text.
        wheels: A folder that takes the place of site-packages.
        package: Folder that holds the package `mlagen`.
        cwd: Folder to run in.
        environment: Variables to add or change; an empty value removes one.
    """
    kept = {name: value for name, value in os.environ.items() if name not in TOOLKITS}
    python, search = [sys.executable], [str(package)]
    if wheels is not None:
        # Not this environment's interpreter: its site-packages would be searched all the same.
        base = Path(sys.base_prefix) / "bin" / f"python{sysconfig.get_python_version()}"
        python, search = [str(base), "-S"], [str(package), str(wheels)]
    kept["PYTHONPATH"] = os.pathsep.join(search)
    result = subprocess.run(
        [*python, "-W", "ignore", "-c", code],
        env={name: value for name, value in {**kept, **(environment or {})}.items() if value},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not result.stderr, result.stderr
    return result.stdout.strip()


def without_nvidia_wheels(tmp_path: Path) -> Path:
    """Return a folder with everything that is installed here but NVIDIA's libraries."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for installed in map(Path, site.getsitepackages()):
        for entry in installed.iterdir():
            if entry.name != "nvidia" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder
