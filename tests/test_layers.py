"""The direction of imports, read from the source: docs/architecture.md draws the same picture."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mlagen.errors

PACKAGE = Path(mlagen.errors.__file__).parent

# Facts and errors that every layer may import.
SHARED = {
    "arch",
    "atomic_file",
    "dtypes",
    "errors",
    "launch_record",
    "package_files",
    "sass_facts",
    "settings",
}

# Layer -> the layers it may import besides itself and SHARED.
MAY_IMPORT = {
    "spec": set(),
    "plan": {"spec"},
    "render": {"spec", "plan"},
    "compile": set(),
    "cache": {"compile"},
    "kernel_compiler": {"spec", "plan", "compile", "cache"},
    "build": {"spec", "plan", "render", "cache", "kernel_compiler"},
    "artifacts": {"spec", "plan", "compile", "cache", "kernel_compiler"},
    "sim": set(),
    # The sizes of problems are those of a plan's tiles.
    "verify": {"spec", "plan"},
    # `backend="reference"` runs the definition, `backend="sim"` the simulator.
    "runtime": {"spec", "plan", "compile", "cache", "build", "artifacts", "sim", "verify"},
    "trials": {"spec", "plan", "sim", "verify", "runtime"},
    "bench": {"spec", "plan", "compile", "artifacts", "verify", "runtime"},
    "trial_log": {"compile", "trials"},
    "cli": {
        "spec",
        "plan",
        "render",
        "compile",
        "cache",
        "build",
        "artifacts",
        "sim",
        "verify",
        "runtime",
        "trials",
        "trial_log",
        "bench",
    },
}

# What `sim` may import of SHARED: it knows PTX and launches, and nothing of how a kernel came to be.
SIM_MAY_SHARE = {"errors", "launch_record"}

# Library -> the layers (or single files) that may import it.
ONLY_IN = {
    # `cli/machine.py` and `cli/bench.py` look whether they can be imported at all.
    "torch": {"runtime", "verify", "bench", "cli/machine.py", "cli/bench.py"},
    "numpy": {"runtime/host_tensor.py", "sim", "trials", "verify", "bench"},
    "ml_dtypes": {"runtime/host_tensor.py", "sim", "verify"},
    "cuda": {
        "compile/nvrtc_library.py",
        "compile/sass.py",
        "runtime/driver.py",
        "cli/machine.py",
    },
    "jinja2": {"render"},
    "rich": {"cli/output.py"},
    "click": {"cli"},
    "ruamel": {"spec"},
    "pydantic": {"spec", "runtime"},
    "platformdirs": {"cache", "settings"},
    "filelock": {"cache"},
}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if "_templates" not in path.parts)


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """Return `(line, module)` of each import of a file, those for type checking too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write absolute imports"
            module = node.module or ""
            names = [alias.name for alias in node.names] if module == "mlagen" else []
            found += [(node.lineno, f"mlagen.{name}") for name in names] or [(node.lineno, module)]
    return found


def layer_of(path: Path) -> str:
    """Return the folder below `mlagen/`, or the file's stem if it lies in `mlagen/` itself."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    layer = layer_of(path)
    if layer in {"__init__", "__main__"}:
        return
    shared = SIM_MAY_SHARE if layer == "sim" else SHARED
    allowed = SHARED if layer in SHARED else shared | MAY_IMPORT[layer] | {layer}
    for line, module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "mlagen" and len(parts) > 1:
            assert parts[1] in allowed, f"{path}:{line}: {layer} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_stay_in_their_layer(path: Path) -> None:
    places = {layer_of(path), path.relative_to(PACKAGE).as_posix()}
    for line, module in imported_modules(path):
        library = module.split(".")[0]
        if library in ONLY_IN:
            assert places & ONLY_IN[library], (
                f"{path}:{line}: {library} belongs to {ONLY_IN[library]}"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_settings_reads_the_environment(path: Path) -> None:
    if path.name == "settings.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        is_environ = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
        assert not is_environ, f"{path}: read the environment in mlagen/settings.py"


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=lambda p: p.name)
def test_each_folder_says_what_belongs_in_it(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def test_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "cuda", "numpy", "pydantic", "jinja2", "rich", "click", "ml_dtypes")
    code = f"import sys, mlagen; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_help_imports_no_stage() -> None:
    code = (
        "import sys\nfrom mlagen.cli.main import run\nassert run(['--help']) == 0\n"
        "heavy = ('torch', 'numpy', 'pydantic', 'jinja2', 'rich')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
