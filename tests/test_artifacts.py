"""Folders of built kernels: whole or refused, with no compiler."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from mlagen import artifacts
from mlagen.artifacts import MANIFEST, open_kernels, write_kernels
from mlagen.build import BuiltKernel, build_plans
from mlagen.cache import KernelCache
from mlagen.errors import CacheError
from tests.cache.plans import CompileCounter, files_below, tiny_plan, tiny_plans, tiny_source
from tests.compile.fresh_process import run_python, without_nvidia_wheels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[BuiltKernel]:
    CompileCounter(monkeypatch)
    outcomes = build_plans(tiny_plans(3), cache=KernelCache(None), render=tiny_source)
    return [outcome for outcome in outcomes if isinstance(outcome, BuiltKernel)]


@pytest.fixture
def folder(tmp_path: Path, kernels: list[BuiltKernel]) -> Path:
    folder = tmp_path / "kernels"
    write_kernels(folder, kernels)
    return folder


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def recompiled(kernel: BuiltKernel) -> BuiltKernel:
    """Return the kernel as another compiler would have made it."""
    return dataclasses.replace(kernel, cubin=kernel.cubin[::-1], key="0" * 64)


def test_what_was_written_is_opened(folder: Path, kernels: list[BuiltKernel]) -> None:
    opened = open_kernels(folder)
    by_name = {kernel.plan.name: kernel for kernel in kernels}
    assert sorted(by_name) == [kernel.plan.name for kernel in opened]
    for kernel in opened:
        original = by_name[kernel.plan.name]
        assert kernel.plan.spec == original.plan.spec
        assert artifacts.interface(kernel.plan) == artifacts.interface(original.plan)
        assert (kernel.cubin, kernel.source) == (original.cubin, original.source)
        assert (kernel.key, kernel.resources) == (original.key, original.resources)
        assert kernel.lint == original.lint
        assert kernel.cached


def test_folder_is_readable_by_people(folder: Path, kernels: list[BuiltKernel]) -> None:
    names = {path.name.split(".")[0] for path in folder.glob("*.cubin")}
    assert names == {kernel.plan.name for kernel in kernels}
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["compiler"]["name"] == "nvrtc"
    assert manifest["compiler"]["version"]
    assert manifest["kernels"][0]["spec"]["op"] == "prefill"


def test_it_opens_where_there_is_no_compiler(folder: Path, tmp_path: Path) -> None:
    wheels = without_nvidia_wheels(tmp_path)
    code = f"""
import importlib.util
from pathlib import Path
from mlagen.artifacts import open_kernels
from mlagen.compile.nvrtc import nvrtc_identity
from mlagen.errors import MissingDependencyError
print(len(open_kernels(Path({str(folder)!r}))))
try:
    nvrtc_identity()
except MissingDependencyError:
    print("no compiler")
"""
    assert run_python(code, wheels=wheels).split("\n") == ["3", "no compiler"]


def test_same_kernels_write_the_same_bytes(
    folder: Path, tmp_path: Path, kernels: list[BuiltKernel]
) -> None:
    write_kernels(tmp_path / "again", list(reversed(kernels)))
    for path in files_below(folder):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


# Damage.


@pytest.mark.parametrize("suffix", [".cubin", ".cu"])
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_file_is_named(folder: Path, suffix: str, damage: str) -> None:
    path = next(path for path in files_below(folder) if path.suffix == suffix)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CacheError) as caught:
        open_kernels(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder}: the folder of kernels is damaged")
    assert path.name in message
    assert "mlagen build" in message.splitlines()[-1]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "kernels": {}}'])
def test_damaged_manifest_is_named(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(CacheError, match=f"damaged\n.*{MANIFEST}"):
        open_kernels(folder)


@pytest.mark.parametrize("missing", ["cubin", "cubin_sha256", "spec", "resources", "interface"])
def test_incomplete_record_is_damage(folder: Path, missing: str) -> None:
    edit_manifest(folder, lambda manifest: manifest["kernels"][0].pop(missing))
    with pytest.raises(CacheError, match="damaged"):
        open_kernels(folder)


def test_file_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.cubin").write_bytes(b"")
    edit_manifest(folder, lambda manifest: manifest["kernels"][0].update(cubin="../secret.cubin"))
    with pytest.raises(CacheError, match="names a file elsewhere"):
        open_kernels(folder)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no folder of built kernels") as caught:
        open_kernels(tmp_path / "nowhere")
    assert "mlagen build SPEC --out" in str(caught.value)


# Another mlagen.


def test_other_schema_is_refused(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(schema=99))
    with pytest.raises(CacheError, match="another version of mlagen"):
        open_kernels(folder)


def test_other_interface_is_refused(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["kernels"][0]["interface"]["arguments"].pop())
    with pytest.raises(CacheError, match="its interface is not the one"):
        open_kernels(folder)


def test_spec_that_is_not_known_here_is_refused(folder: Path) -> None:
    edit_manifest(
        folder, lambda manifest: manifest["kernels"][0]["spec"].update(mask={"kind": "moon"})
    )
    with pytest.raises(CacheError, match="its spec has no kernel here"):
        open_kernels(folder)


def test_edited_spec_is_refused(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["kernels"][0]["spec"].update(lse=True))
    with pytest.raises(CacheError, match="its interface is not the one"):
        open_kernels(folder)


# Writing over.


def test_rewriting_replaces_and_removes_old_kernels(
    folder: Path, kernels: list[BuiltKernel]
) -> None:
    (folder / "notes.txt").write_text("somebody's")
    write_kernels(folder, [recompiled(kernels[0])])
    (opened,) = open_kernels(folder)
    assert opened.cubin == recompiled(kernels[0]).cubin
    assert (folder / "notes.txt").exists()
    assert len(files_below(folder)) == 4


def test_interrupted_write_leaves_the_old_kernels(
    folder: Path, kernels: list[BuiltKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == MANIFEST:
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr(artifacts, "write_atomically", full)
    with pytest.raises(CacheError, match="No space left on device"):
        write_kernels(folder, [recompiled(kernel) for kernel in kernels])
    opened = {kernel.plan.name: kernel.cubin for kernel in open_kernels(folder)}
    assert opened == {kernel.plan.name: kernel.cubin for kernel in kernels}


def test_reader_that_is_overtaken_gets_the_new_kernels(
    folder: Path, kernels: list[BuiltKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [recompiled(kernel) for kernel in kernels]
    read = artifacts._read_manifest

    def read_and_be_overtaken(where: Path) -> str:
        text = read(where)
        monkeypatch.undo()
        write_kernels(folder, new)
        return text

    monkeypatch.setattr(artifacts, "_read_manifest", read_and_be_overtaken)
    opened = {kernel.plan.name: kernel.cubin for kernel in open_kernels(folder)}
    assert opened == {kernel.plan.name: kernel.cubin for kernel in new}


def test_writing_over_a_damaged_folder_mends_it(folder: Path, kernels: list[BuiltKernel]) -> None:
    (folder / MANIFEST).write_text("{")
    write_kernels(folder, kernels)
    assert len(open_kernels(folder)) == 3


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, kernels: list[BuiltKernel]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError, match="cannot write kernels there"):
        write_kernels(tmp_path / "file" / "kernels", kernels)


def test_empty_build_makes_an_empty_folder(tmp_path: Path) -> None:
    write_kernels(tmp_path / "empty", [])
    assert open_kernels(tmp_path / "empty") == []


def test_tiny_plan_is_a_real_plan_to_the_launcher() -> None:
    assert artifacts.interface(tiny_plan())["entry"] == tiny_plan().name
