"""The rendered kernels of a spec as files, `<spec name>/<arch>/<kernel>.cu`, and what differs from them.

`generated/` in the repository is such a tree: it shows what a change does to every kernel.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import TYPE_CHECKING

from mlagen.build.parallel import plan_specs
from mlagen.cache import write_atomically
from mlagen.errors import CheckError
from mlagen.render import render_kernel

if TYPE_CHECKING:
    from pathlib import Path

    from mlagen.build.kernel import Render
    from mlagen.spec.model import SpecFile

MANIFEST = "manifest.json"


def render_tree(spec_file: SpecFile, *, render: Render = render_kernel) -> dict[str, str]:
    """Return path (with `/`, below `generated/`) to text, for each kernel of the spec and a manifest.

    Raises:
        SpecError, PlanError: A kernel of the spec cannot be planned.
    """
    tree: dict[str, str] = {}
    kernels = []
    for plan in plan_specs(spec_file.expand()):
        path = f"{plan.arch.name}/{plan.name}.cu"
        source = render(plan)
        tree[f"{spec_file.name}/{path}"] = source
        kernels.append(
            {
                "file": path,
                "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
                "spec_hash": plan.spec.hash,
            }
        )
    kernels.sort(key=lambda kernel: kernel["file"])
    manifest = {"schema": 1, "spec": spec_file.name, "kernels": kernels}
    tree[f"{spec_file.name}/{MANIFEST}"] = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    return dict(sorted(tree.items()))


def check_generated(
    spec_file: SpecFile, root: Path, *, render: Render = render_kernel
) -> list[str]:
    """Return a unified diff for each file under `root` that is not as the spec renders now.

    Missing files and files that no kernel of the spec makes count, too; an empty list means that
    all is as it should be.
    """
    wanted = render_tree(spec_file, render=render)
    diffs = []
    for path in sorted({*wanted, *_present(spec_file, root)}):
        file = root / path
        old = file.read_bytes().decode(errors="replace") if file.is_file() else None
        new = wanted.get(path)
        if old != new:
            diffs.append(_diff(path, old, new))
    return diffs


def write_generated(
    spec_file: SpecFile, root: Path, *, render: Render = render_kernel
) -> list[str]:
    """Make the spec's folder under `root` hold what the spec renders, and return what changed.

    Files that are right are not touched; `.cu` files that no kernel makes are removed.

    Raises:
        CheckError: The folder cannot be written.
    """
    wanted = render_tree(spec_file, render=render)
    changed = []
    try:
        for path, text in wanted.items():
            file = root / path
            if file.is_file() and file.read_bytes() == text.encode():
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
            changed.append(path)
        for path in _present(spec_file, root) - set(wanted):
            if path.endswith(".cu"):
                (root / path).unlink()
                changed.append(path)
    except OSError as error:
        raise CheckError(
            f"{root}: cannot write the rendered kernels there ({error.strerror})\n"
            "  choose a folder with room that you may write to"
        ) from error
    return sorted(changed)


def _present(spec_file: SpecFile, root: Path) -> set[str]:
    """Return the paths of all files in the spec's folder, relative to `root`."""
    folder = root / spec_file.name
    return {path.relative_to(root).as_posix() for path in folder.rglob("*") if path.is_file()}


def _diff(path: str, old: str | None, new: str | None) -> str:
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        (new or "").splitlines(keepends=True),
        fromfile="/dev/null" if old is None else f"a/{path}",
        tofile="/dev/null" if new is None else f"b/{path}",
    )
    # A last line without a line end must not run into the next one.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline\n" for line in lines)
