"""Build: a whole spec file, from text to checked kernels, in parallel; and `generated/`.

Threads are enough, because NVRTC and nvdisasm run without the GIL. Each kernel is stored when it is
finished, so an interrupted build goes on where it stopped.

`generated/` holds the rendered kernels of the specs that ship, `<spec name>/<arch>/<kernel>.cu`:
it shows in a diff what a change does to every kernel.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlagen.atomic_file import write_atomically
from mlagen.cache import KernelCache
from mlagen.errors import CacheError, MlagenError
from mlagen.kernel_compiler import (
    BuildKey,
    BuiltKernel,
    FailedKernel,
    KernelCompiler,
    LintPolicy,
    LintState,
    Output,
    Render,
    build_key,
    generator_digest,
)
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.settings import CompilePolicy, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec, SpecFile

__all__ = [
    "BuildEvent",
    "BuildKey",
    "BuiltKernel",
    "FailedKernel",
    "LintPolicy",
    "LintState",
    "Progress",
    "build_key",
    "build_plans",
    "build_specs",
    "check_generated",
    "plan_specs",
    "render_tree",
    "write_generated",
]

GENERATED_MANIFEST = "manifest.json"
EventKind = Literal["started", "waiting", "finished", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """One step of a build, for progress; delivered in the thread that called `build_*`.

    Attributes:
        kind: `started`, `waiting` (another process compiles this kernel), `finished`, `failed`, or
            `stopping` (interrupted: kernels being compiled are finished and stored first).
        name: The kernel, empty for `stopping`.
        done: Kernels finished or failed so far.
        total: Kernels of the build.
        outcome: What came of it, with `finished` and `failed`.
    """

    kind: EventKind
    name: str
    done: int
    total: int
    outcome: BuiltKernel | FailedKernel | None = None


Progress = Callable[[BuildEvent], None]


def build_specs(
    specs: Iterable[KernelSpec],
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    policy: CompilePolicy | None = None,
    lint: LintPolicy = "auto",
    output: Output = "cubin",
    progress: Progress | None = None,
) -> list[BuiltKernel]:
    """Return the built kernels of `specs`, in their order; for the arguments see `build_plans`.

    Raises:
        SpecError, PlanError: A spec has no kernel; nothing was compiled.
        CompileError: Kernels failed; the others were built and stored first.
        CacheError: A kernel is not in the cache, and compiling is off.
        MissingDependencyError: No NVRTC; with a strict lint, no nvdisasm.
    """
    outcomes = build_plans(
        plan_specs(specs),
        jobs=jobs,
        cache=cache,
        policy=policy,
        lint=lint,
        output=output,
        progress=progress,
    )
    if failed := [outcome for outcome in outcomes if isinstance(outcome, FailedKernel)]:
        raise _joined([failure.error for failure in failed]) from failed[0].error
    return [outcome for outcome in outcomes if isinstance(outcome, BuiltKernel)]


def plan_specs(specs: Iterable[KernelSpec]) -> list[KernelPlan]:
    """Return the plan of each spec.

    Raises:
        SpecError, PlanError: Some have none; the message holds every distinct reason.
    """
    plans: list[KernelPlan] = []
    errors: list[MlagenError] = []
    for spec in specs:
        try:
            plans.append(plan_kernel(spec))
        except MlagenError as error:
            errors.append(error)
    if errors:
        raise _joined(errors) from errors[0]
    return plans


def build_plans(
    plans: Sequence[KernelPlan],
    *,
    jobs: int | None = None,
    cache: KernelCache | None = None,
    policy: CompilePolicy | None = None,
    lint: LintPolicy = "auto",
    output: Output = "cubin",
    progress: Progress | None = None,
    render: Render = render_kernel,
) -> list[BuiltKernel | FailedKernel]:
    """Build kernels side by side and return what came of each, in their order.

    A kernel that fails does not stop the others. On KeyboardInterrupt the kernels being compiled
    are finished and stored, the rest is not begun, and the exception goes on.

    Args:
        plans: What to build.
        jobs: Kernels compiled at once; None for one a processor.
        cache: Where kernels are kept; None for the cache that settings name.
        policy: `auto` compiles what the cache lacks, `never` nothing, `always` everything; None as
            settings say.
        lint: `auto` skips the SASS lint where nvdisasm is not installed, `strict` fails there (for
            CI).
        output: `cubin`, or for the simulator `ptx` with source lines.
        progress: Called with each event.
        render: Plan to CUDA text.

    Raises:
        MissingDependencyError: No NVRTC; with a strict lint, no nvdisasm.
    """
    compiler = KernelCompiler(
        cache=cache or KernelCache.open(),
        policy=policy or Settings.from_environment().compile,
        lint=lint,
        render=render,
        generator=generator_digest() if render is render_kernel else None,
        output=output,
    )
    compiler.check_tools()
    report = progress or (lambda _event: None)
    events: queue.SimpleQueue[tuple[EventKind, int]] = queue.SimpleQueue()

    def build(index: int) -> BuiltKernel | FailedKernel:
        events.put(("started", index))
        try:
            return compiler.build(plans[index], waiting=lambda: events.put(("waiting", index)))
        finally:
            events.put(("finished", index))

    workers = max(1, min(jobs or processors(), len(plans)))
    with ThreadPoolExecutor(workers, thread_name_prefix="mlagen-build") as pool:
        futures = [pool.submit(build, index) for index in range(len(plans))]
        try:
            _follow(plans, futures, events, report)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            report(BuildEvent("stopping", "", sum(f.done() for f in futures), len(plans)))
            raise  # leaving the pool waits for the kernels being compiled
        return [future.result() for future in futures]


def _follow(
    plans: Sequence[KernelPlan],
    futures: Sequence[Future[BuiltKernel | FailedKernel]],
    events: queue.SimpleQueue[tuple[EventKind, int]],
    report: Progress,
) -> None:
    """Report events until every kernel is done; raise what stopped the build itself."""
    done = 0
    while done < len(plans):
        kind, index = events.get()
        outcome = None
        if kind == "finished":
            done += 1
            outcome = futures[index].result()
            kind = "failed" if isinstance(outcome, FailedKernel) else kind
        report(BuildEvent(kind, plans[index].name, done, len(plans), outcome))


def processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _joined(errors: Sequence[MlagenError]) -> MlagenError:
    """Return one error with every distinct message, of the first one's type."""
    return type(errors[0])("\n\n".join(dict.fromkeys(map(str, errors))))


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
    tree[f"{spec_file.name}/{GENERATED_MANIFEST}"] = (
        json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    )
    return dict(sorted(tree.items()))


def check_generated(
    spec_file: SpecFile, root: Path, *, render: Render = render_kernel
) -> list[str]:
    """Return a unified diff for each file under `root` that is not as the spec renders now.

    Missing files and `.cu` files that no kernel of the spec makes count, too; an empty list means that
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
        CacheError: The folder cannot be written.
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
            (root / path).unlink()
            changed.append(path)
    except OSError as error:
        raise CacheError(
            f"{root}: cannot write the rendered kernels there ({error.strerror})\n"
            "  choose a folder with room that you may write to"
        ) from error
    return sorted(changed)


def _present(spec_file: SpecFile, root: Path) -> set[str]:
    """Return the paths of the `.cu` files in the spec's folder, relative to `root`.

    Nothing else there is ours to judge or to remove.
    """
    folder = root / spec_file.name
    return {path.relative_to(root).as_posix() for path in folder.rglob("*.cu") if path.is_file()}


def _diff(path: str, old: str | None, new: str | None) -> str:
    lines = difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        (new or "").splitlines(keepends=True),
        fromfile="/dev/null" if old is None else f"a/{path}",
        tofile="/dev/null" if new is None else f"b/{path}",
    )
    # A last line without a line end must not run into the next one.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline\n" for line in lines)
