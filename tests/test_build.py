"""Builds through the cache: events, failures, interruptions; and the tree of rendered kernels."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlagen import build as build_module
from mlagen import kernel_compiler
from mlagen.build import (
    BuildEvent,
    BuiltKernel,
    FailedKernel,
    build_key,
    build_plans,
    build_specs,
    check_generated,
    plan_specs,
    render_tree,
    write_generated,
)
from mlagen.cache import KernelCache
from mlagen.compile.nvrtc import nvrtc_identity
from mlagen.compile.sass import find_nvdisasm
from mlagen.errors import CacheError, CompileError, MissingDependencyError, SpecError
from mlagen.kernel_compiler import BuildKey, generator_digest
from mlagen.package_files import shipped_folder
from mlagen.render.environment import environment
from mlagen.sass_facts import SassFacts, SassLoop
from mlagen.spec.model import KernelSpec, SpecFile
from mlagen.spec.yaml import load_spec_file, spec_from_dict
from tests.cache.plans import GEOMETRY, CompileCounter, files_below, tiny_plan, tiny_plans
from tests.cache.plans import tiny_source as render
from tests.compile.sources import local_array_kernel

if TYPE_CHECKING:
    from mlagen.compile.nvrtc import Compiled
    from mlagen.plan.plan import KernelPlan


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> CompileCounter:
    return CompileCounter(monkeypatch)


def built_of(outcomes: list[BuiltKernel | FailedKernel]) -> list[BuiltKernel]:
    assert all(isinstance(outcome, BuiltKernel) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, BuiltKernel)]


# One real build.


def test_kernel_is_compiled_checked_and_kept(cache: KernelCache) -> None:
    (first,) = built_of(build_plans([tiny_plan()], cache=cache, render=render, lint="strict"))
    (second,) = built_of(build_plans([tiny_plan()], cache=cache, render=render, lint="strict"))
    assert first.cubin.startswith(b"\x7fELF")
    assert f".entry {first.plan.name}(" in first.ptx
    assert first.resources.registers > 0
    assert (first.cached, second.cached) == (False, True)
    assert first.lint == second.lint == "passed"
    assert (second.cubin, second.ptx, second.key) == (first.cubin, first.ptx, first.key)
    assert first.key == build_key(render(tiny_plan()), arch="sm_90a").digest


def test_shipped_kernel_passes_every_check(cache: KernelCache) -> None:
    plans = plan_specs(load_spec_file(shipped_folder("specs") / "deepseek.yaml").expand())
    plan = next(plan for plan in plans if plan.spec.mask.kind == "causal")
    (built,) = built_of(build_plans([plan], cache=cache, lint="strict"))
    assert built.lint == "passed"
    assert built.resources.spill_store_bytes == built.resources.stack_bytes == 0


# The key.


def test_key_can_be_computed_by_hand() -> None:
    key = BuildKey("ab", "sm_90a", ("-std=c++17",), "nvrtc 13.5 feeb")
    assert key.canonical == (
        '{"arch":"sm_90a","compiler":"nvrtc 13.5 feeb","options":["-std=c++17"],'
        '"schema":1,"source_sha256":"ab"}'
    )
    # printf %s '<the text above>' | sha256sum
    assert key.digest == ("26d05b2164349dccc56890a7f41c05a2da06a429ca15c2aaf61ab712f9e28347")


def test_everything_in_the_key_changes_it() -> None:
    keys = {
        BuildKey("ab", "sm_90a", ("-a",), "nvrtc 1").digest,
        BuildKey("ac", "sm_90a", ("-a",), "nvrtc 1").digest,
        BuildKey("ab", "sm_100a", ("-a",), "nvrtc 1").digest,
        BuildKey("ab", "sm_90a", ("-a", "-b"), "nvrtc 1").digest,
        BuildKey("ab", "sm_90a", ("-a",), "nvrtc 2").digest,
        BuildKey("ab", "sm_90a", ("-a",), "nvrtc 1", schema=2).digest,
    }
    assert len(keys) == 6


# Order, events, policies.


def test_outcomes_have_the_order_of_the_plans(cache: KernelCache, compiles: CompileCounter) -> None:
    plans = tiny_plans(6)
    outcomes = built_of(build_plans(plans, jobs=3, cache=cache, render=render))
    assert [outcome.plan for outcome in outcomes] == plans
    assert sorted(compiles.names) == sorted(plan.name for plan in plans)


def test_events_arrive_in_the_calling_thread(cache: KernelCache, compiles: CompileCounter) -> None:
    events: list[BuildEvent] = []
    threads: set[int] = set()

    def note(event: BuildEvent) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    build_plans(tiny_plans(3), jobs=2, cache=cache, render=render, progress=note)
    assert threads == {threading.get_ident()}
    assert sorted(event.kind for event in events) == ["finished"] * 3 + ["started"] * 3
    assert [event.done for event in events if event.kind == "finished"] == [1, 2, 3]
    assert {event.total for event in events} == {3}
    assert len(compiles.names) == 3


def test_no_plans_are_built_at_once(cache: KernelCache) -> None:
    assert build_plans([], cache=cache, render=render) == []


def test_same_plan_twice_is_compiled_once(cache: KernelCache, compiles: CompileCounter) -> None:
    outcomes = built_of(build_plans([tiny_plan()] * 4, jobs=4, cache=cache, render=render))
    assert len(compiles.names) == 1
    assert len({outcome.cubin for outcome in outcomes}) == 1


def test_waiting_for_another_builder_is_reported(
    cache: KernelCache, compiles: CompileCounter
) -> None:
    plan = tiny_plan()
    key = build_key(render(plan), arch="sm_90a").digest
    waited = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with cache.lock(plan.spec.hash, key, waiting=pytest.fail):
            held.set()
            assert waited.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    kinds: list[str] = []

    def note(event: BuildEvent) -> None:
        kinds.append(event.kind)
        if event.kind == "waiting":
            waited.set()

    build_plans([plan], cache=cache, render=render, progress=note)
    holder.join()
    assert kinds == ["started", "waiting", "finished"]
    assert len(compiles.names) == 1


def test_never_uses_the_cache_only(cache: KernelCache, compiles: CompileCounter) -> None:
    (failed,) = build_plans([tiny_plan()], cache=cache, render=render, policy="never")
    assert isinstance(failed, FailedKernel)
    assert isinstance(failed.error, CacheError)
    assert "mlagen build" in str(failed.error)
    assert compiles.names == []
    build_plans([tiny_plan()], cache=cache, render=render)
    (built,) = built_of(build_plans([tiny_plan()], cache=cache, render=render, policy="never"))
    assert built.cached


def test_always_compiles_again(cache: KernelCache, compiles: CompileCounter) -> None:
    for _ in range(2):
        (built,) = built_of(build_plans([tiny_plan()], cache=cache, render=render, policy="always"))
        assert not built.cached
    assert len(compiles.names) == 2


def test_policy_is_read_from_the_settings(
    cache: KernelCache, compiles: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLAGEN_COMPILE", "never")
    (failed,) = build_plans([tiny_plan()], cache=cache, render=render)
    assert isinstance(failed, FailedKernel)
    assert compiles.names == []


def test_full_disk_does_not_stop_a_build(
    cache: KernelCache, compiles: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    for cached in (False, True):
        (built,) = built_of(build_plans([tiny_plan()], cache=cache, render=render))
        assert built.cached == cached
    assert len(compiles.names) == 1


# What is in the cache need not be rendered.


def test_warm_build_renders_nothing(
    cache: KernelCache, compiles: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cold,) = built_of(build_plans([tiny_plan()], cache=cache))
    monkeypatch.setattr(environment(), "loader", None)
    (warm,) = built_of(build_plans([tiny_plan()], cache=cache))
    assert warm.cached
    assert (warm.source, warm.cubin, warm.key) == (cold.source, cold.cubin, cold.key)
    assert len(compiles.names) == 1


def test_other_plan_of_the_same_spec_is_rendered(
    cache: KernelCache, compiles: CompileCounter
) -> None:
    """Nobody should, but who changes a plan by hand gets the kernel of that plan."""
    plans = [tiny_plan(), dataclasses.replace(tiny_plan(), rescale_threshold=0.0)]
    first, second = built_of(build_plans(plans, jobs=1, cache=cache))
    assert first.source != second.source
    assert len(compiles.names) == 2


def test_other_generator_renders_again_and_finds_the_same_kernel(
    cache: KernelCache, compiles: CompileCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_plans([tiny_plan()], cache=cache)
    monkeypatch.setattr(build_module, "generator_digest", lambda: "another mlagen")
    (again,) = built_of(build_plans([tiny_plan()], cache=cache))
    assert again.cached
    assert len(compiles.names) == 1
    assert len(files_below(cache.folder or Path())) == 2, "one entry, one note"


@pytest.mark.parametrize("text", ["", "0" * 64, "nonsense \xff"])
def test_damaged_note_is_no_harm(cache: KernelCache, compiles: CompileCounter, text: str) -> None:
    build_plans([tiny_plan()], cache=cache)
    (note,) = [path for path in files_below(cache.folder or Path()) if path.suffix == ".source"]
    note.write_text(text, encoding="latin-1")
    (again,) = built_of(build_plans([tiny_plan()], cache=cache))
    assert again.cached
    assert len(compiles.names) == 1


def test_generator_is_what_is_in_the_files() -> None:
    assert len(generator_digest()) == 64


# Failures.


def test_failing_kernel_does_not_stop_the_others(cache: KernelCache) -> None:
    plans = tiny_plans(3)
    broken = plans[1].name

    def render_one_broken(plan: KernelPlan) -> str:
        return "nonsense" if plan.name == broken else render(plan)

    events: list[BuildEvent] = []
    outcomes = build_plans(plans, cache=cache, render=render_one_broken, progress=events.append)
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["BuiltKernel", "FailedKernel", "BuiltKernel"]
    (failed,) = [event for event in events if event.kind == "failed"]
    assert failed.name == broken
    assert failed.outcome is outcomes[1]
    assert len(cache.info().entries) == 2, "what failed is not kept"


def test_kernel_with_a_stack_frame_fails_with_evidence(cache: KernelCache) -> None:
    (failed,) = build_plans(
        [tiny_plan()], cache=cache, render=lambda plan: local_array_kernel(plan.name)
    )
    assert isinstance(failed, FailedKernel)
    message = str(failed.error)
    assert message.startswith(failed.plan.name)
    assert "stack frame: 1024 bytes a thread" in message
    assert "LDL and STL" in message
    assert files_below(cache.folder or Path()) == []


LOOPS = (SassLoop("math", (("HGMMA", 20),)),)


def test_kernel_without_its_products_fails(cache: KernelCache) -> None:
    plan = dataclasses.replace(tiny_plan(), sass=SassFacts(LOOPS))
    (failed,) = build_plans([plan], cache=cache, render=render)
    assert isinstance(failed, FailedKernel)
    assert "no loop is that of math: 20 HGMMA" in str(failed.error)


def test_build_of_specs_raises_every_reason(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, compiles: CompileCounter
) -> None:
    def refuse(source: str, *, name: str, arch: str, **_: object) -> Compiled:
        raise CompileError(f"{name}: refused\n  mend it")

    monkeypatch.setattr(kernel_compiler, "compile_cuda", refuse)
    specs = [plan.spec for plan in tiny_plans(2)]
    with pytest.raises(CompileError) as caught:
        build_specs(specs, cache=cache)
    for plan in tiny_plans(2):
        assert f"{plan.name}: refused" in str(caught.value)
    assert compiles.names == []


def test_specs_that_have_no_kernel_are_all_named_once() -> None:
    base = {"arch": "sm_90a", "geometry": GEOMETRY}
    refused = [
        KernelSpec.model_validate({**base, "mask": {"kind": "prefix_lm"}}),
        KernelSpec.model_validate({**base, "mask": {"kind": "prefix_lm"}, "lse": True}),
        KernelSpec.model_validate({**base, "score_mod": {"kind": "temperature"}}),
    ]
    with pytest.raises(SpecError) as caught:
        plan_specs(refused)
    assert "prefix_lm" in str(caught.value)
    assert "temperature" in str(caught.value)


# The lint.


@pytest.fixture
def no_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compiler, "find_nvdisasm", lambda: None)


@pytest.mark.usefixtures("no_nvdisasm")
def test_skipped_lint_is_said(cache: KernelCache) -> None:
    (first,) = built_of(build_plans([tiny_plan()], cache=cache, render=render))
    (second,) = built_of(build_plans([tiny_plan()], cache=cache, render=render))
    assert first.lint == second.lint == "skipped"


@pytest.mark.usefixtures("no_nvdisasm")
def test_strict_lint_needs_nvdisasm(cache: KernelCache) -> None:
    with pytest.raises(MissingDependencyError, match="pip install nvidia-cuda-nvdisasm"):
        build_plans([tiny_plan()], cache=cache, render=render, lint="strict")


def test_strict_lint_checks_what_was_kept_without(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_compiler, "find_nvdisasm", lambda: None)
    plan = dataclasses.replace(tiny_plan(), sass=SassFacts(LOOPS))
    (skipped,) = built_of(build_plans([plan], cache=cache, render=render))
    assert skipped.lint == "skipped"
    monkeypatch.setattr(kernel_compiler, "find_nvdisasm", find_nvdisasm)
    (failed,) = build_plans([plan], cache=cache, render=render, lint="strict")
    assert isinstance(failed, FailedKernel)
    (passed,) = built_of(build_plans([tiny_plan()], cache=cache, render=render, lint="strict"))
    assert (passed.lint, passed.cached) == ("passed", True)


# Interruptions.


def test_build_goes_on_after_ctrl_c(cache: KernelCache, compiles: CompileCounter) -> None:
    plans = tiny_plans(6)
    events: list[BuildEvent] = []

    def interrupt_after_two(event: BuildEvent) -> None:
        events.append(event)
        if event.done == 2 and event.kind == "finished":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        build_plans(plans, jobs=1, cache=cache, render=render, progress=interrupt_after_two)
    assert events[-1].kind == "stopping"
    kept = len(compiles.names)
    assert 2 <= kept < 6
    assert len(files_below(cache.folder or Path())) == kept, "whole entries and nothing else"
    again = built_of(build_plans(plans, jobs=2, cache=cache, render=render))
    assert len(compiles.names) == 6
    assert sum(outcome.cached for outcome in again) == kept


def test_error_in_the_progress_callback_is_raised(
    cache: KernelCache, compiles: CompileCounter
) -> None:
    def fail(_event: BuildEvent) -> None:
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        build_plans(tiny_plans(3), jobs=1, cache=cache, render=render, progress=fail)
    assert len(compiles.names) < 3


def test_missing_compiler_stops_before_anything_else(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("NVRTC: not found\n  pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(kernel_compiler, "nvrtc_identity", missing)
    with pytest.raises(MissingDependencyError, match="NVRTC"):
        build_plans([tiny_plan()], cache=cache, render=render)


# The tree of rendered kernels.


@pytest.fixture
def spec_file() -> SpecFile:
    return spec_from_dict(
        {
            "spec": 1,
            "name": "small",
            "geometry": {**GEOMETRY.model_dump(exclude_none=True), "num_heads": [128]},
            "arch": ["sm_90a"],
            "kernels": [{"op": "prefill", "mask": ["causal", "none"]}],
        }
    )


def test_tree_holds_each_kernel_and_a_manifest(spec_file: SpecFile) -> None:
    tree = render_tree(spec_file, render=render)
    plans = plan_specs(spec_file.expand())
    files = [f"small/sm_90a/{plan.name}.cu" for plan in plans]
    assert sorted(tree) == sorted([*files, "small/manifest.json"])
    for file, plan in zip(files, plans, strict=True):
        assert tree[file] == render(plan)
        assert plan.spec.hash in tree["small/manifest.json"]


def test_every_kernel_has_an_entry_name_of_its_own(spec_file: SpecFile) -> None:
    tree = render_tree(spec_file)
    kernels = [path for path in tree if path.endswith(".cu")]
    for path in kernels:
        name = Path(path).stem
        assert f" {name}(" in tree[path].replace("\n", " ")
        assert sum(f" {name}(" in text.replace("\n", " ") for text in tree.values()) == 1


def test_written_tree_passes_the_check(spec_file: SpecFile, tmp_path: Path) -> None:
    changed = write_generated(spec_file, tmp_path, render=render)
    assert changed == sorted(render_tree(spec_file, render=render))
    assert check_generated(spec_file, tmp_path, render=render) == []
    assert write_generated(spec_file, tmp_path, render=render) == []


def test_check_shows_edits_missing_and_stale_files(spec_file: SpecFile, tmp_path: Path) -> None:
    write_generated(spec_file, tmp_path, render=render)
    edited, missing = sorted((tmp_path / "small" / "sm_90a").glob("*.cu"))
    edited.write_text(edited.read_text().replace("1.0f", "2.0f"))
    missing.unlink()
    (edited.parent / "stale.cu").write_text("// no kernel of the spec\n")
    diffs = "\n".join(check_generated(spec_file, tmp_path, render=render))
    assert f"--- a/small/sm_90a/{edited.name}" in diffs
    assert "-  out[threadIdx.x] = 2.0f;" in diffs
    assert "+  out[threadIdx.x] = 1.0f;" in diffs
    assert f"+++ b/small/sm_90a/{missing.name}" in diffs
    assert "--- a/small/sm_90a/stale.cu\n+++ /dev/null" in diffs


def test_check_leaves_files_of_others_alone(spec_file: SpecFile, tmp_path: Path) -> None:
    # Writing keeps them, so a check that minds them could never be satisfied.
    write_generated(spec_file, tmp_path, render=render)
    (tmp_path / "small" / "notes.md").write_text("somebody's notes\n")
    (tmp_path / "small" / "sm_90a" / "picture.png").write_bytes(b"\x89PNG\xff")
    assert check_generated(spec_file, tmp_path, render=render) == []


def test_check_sees_a_missing_line_end(spec_file: SpecFile, tmp_path: Path) -> None:
    write_generated(spec_file, tmp_path, render=render)
    file = next((tmp_path / "small" / "sm_90a").glob("*.cu"))
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    (diff,) = check_generated(spec_file, tmp_path, render=render)
    assert "\\ No newline" in diff


def test_writing_removes_stale_kernels_only(spec_file: SpecFile, tmp_path: Path) -> None:
    folder = tmp_path / "small" / "sm_90a"
    folder.mkdir(parents=True)
    (folder / "stale.cu").write_text("// no kernel of the spec\n")
    (folder / "notes.md").write_text("somebody's notes\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kernel.cu").write_text("// of another spec\n")
    assert "small/sm_90a/stale.cu" in write_generated(spec_file, tmp_path, render=render)
    assert not (folder / "stale.cu").exists()
    assert (folder / "notes.md").exists()
    assert (tmp_path / "other" / "kernel.cu").exists()


def test_folder_that_cannot_be_written_is_named(spec_file: SpecFile, tmp_path: Path) -> None:
    (tmp_path / "small").write_text("a file in the way")
    with pytest.raises(CacheError, match="cannot write the rendered kernels"):
        write_generated(spec_file, tmp_path, render=render)


def test_job_count_is_that_of_this_process() -> None:
    assert build_module.processors() >= 1
    assert nvrtc_identity().version
