"""Which kernels a command is about: a spec file, words of names, or the beginning of a name or hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlagen.errors import MlagenError, SpecError
from mlagen.package_files import shipped_folder
from mlagen.plan import plan_kernel
from mlagen.plan.name import kernel_name
from mlagen.spec.yaml import load_spec_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec, SpecFile

_SHOWN_NAMES = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """Kernels of one spec file.

    Attributes:
        path: The file.
        file: What it says.
        specs: Those of its kernels that were asked for, in its order.
    """

    path: Path
    file: SpecFile
    specs: tuple[KernelSpec, ...]


def select_kernels(
    path: Path, *, archs: tuple[str, ...] | None = None, words: Sequence[str] = ()
) -> Selection:
    """Read a spec file and keep the kernels of these architectures whose names contain all words.

    Raises:
        SpecError: The file is missing or not valid, or nothing is left.
    """
    file = read_spec_file(path)
    kernels = file.expand()
    specs = tuple(
        spec
        for spec in kernels
        if (archs is None or spec.arch in archs)
        and all(word in kernel_name(spec) for word in words)
    )
    if not specs:
        asked = [
            *(f"-k {word}" for word in words),
            *([f"--arch {','.join(archs)}"] if archs else []),
        ]
        names = [kernel_name(spec) for spec in kernels]
        raise SpecError(
            f"{path}: no kernel of it matches {' '.join(asked)}\n"
            f"{_list_names(names, 'give words of one name after -k, or leave the filters out')}"
        )
    return Selection(path, file, specs)


def plan_selection(selection: Selection) -> list[KernelPlan]:
    """Return the plans of the selected kernels.

    Raises:
        SpecError, PlanError: Kernels have none; every reason is there once, with a kernel it is about.
    """
    plans: list[KernelPlan] = []
    refused: dict[str, list[str]] = {}
    first: MlagenError | None = None
    for spec in selection.specs:
        try:
            plans.append(plan_kernel(spec))
        except MlagenError as error:
            first = first or error
            refused.setdefault(str(error), []).append(kernel_name(spec))
    if first is None:
        return plans
    texts = []
    for reason, names in refused.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(f"{selection.path}: {names[0]}{more}: {reason}")
    raise type(first)("\n\n".join(texts)) from first


def read_spec_file(path: Path) -> SpecFile:
    """Read a spec file; a missing one is answered with the specs that ship with mlagen.

    Raises:
        SpecError: The file is missing or not valid.
    """
    if path.is_file():
        return load_spec_file(path)
    what = "is a folder" if path.is_dir() else "no such file"
    shipped = "\n".join(
        f"    {shipped}" for shipped in sorted(shipped_folder("specs").glob("*.yaml"))
    )
    raise SpecError(
        f"{path}: {what}\n  specs that ship with mlagen:\n{shipped}\n"
        "  name a spec file, or make one: mlagen init config.json > model.yaml"
    )


def find_kernel(target: str, beginning: str | None) -> KernelSpec:
    """Find one kernel by a spec file and the beginning of its name or hash, or by the beginning alone.

    Without a file, the specs in `specs/` here and those that ship with mlagen are searched.

    Raises:
        SpecError: There is no such kernel, or more than one.
    """
    path = Path(target)
    if beginning is not None or path.exists() or path.suffix in {".yaml", ".yml"}:
        return _pick(read_spec_file(path).expand(), beginning, where=str(path))
    local = Path("specs")
    folders = {folder.resolve() for folder in (local, shipped_folder("specs"))}
    paths = sorted(path for folder in folders for path in folder.glob("*.yaml"))
    kernels = tuple(dict.fromkeys(spec for path in paths for spec in load_spec_file(path).expand()))
    return _pick(kernels, target, where=", ".join(map(str, paths)) or "no spec file")


def _pick(kernels: tuple[KernelSpec, ...], beginning: str | None, *, where: str) -> KernelSpec:
    if beginning is None:
        found = list(kernels)
        problem = f"has {len(found)} kernels"
    else:
        found = [
            spec
            for spec in kernels
            if kernel_name(spec).startswith(beginning) or spec.hash.startswith(beginning)
        ]
        exact = [spec for spec in found if beginning in (kernel_name(spec), spec.hash)]
        found = exact or found
        problem = f"{len(found) or 'no'} kernels begin with {beginning!r}"
    if len(found) == 1:
        return found[0]
    names = [kernel_name(spec) for spec in found or kernels]
    raise SpecError(f"{where}: {problem}\n{_list_names(names)}")


def _list_names(
    names: Sequence[str], advice: str = "give the beginning of one name or hash"
) -> str:
    """Return the last lines of a message about a kernel that is not clear."""
    shown = [f"    {name}" for name in names[:_SHOWN_NAMES]]
    if len(names) > _SHOWN_NAMES:
        shown.append(f"    and {len(names) - _SHOWN_NAMES} more: mlagen list SPEC")
    return "\n".join(["  its kernels:", *shown, f"  {advice}"])
