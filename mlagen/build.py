"""From specs to checked cubins: plan, render, compile, lint and store, in parallel over kernels.

Threads are enough, because NVRTC and nvdisasm run without the GIL. Each kernel is stored when it is
finished, so an interrupted build goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mlagen.cache import BuildKey, Entry, KernelCache
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda, nvrtc_identity
from mlagen.compile.resources import Resources, check_resources, parse_resources
from mlagen.compile.sass import LINT_VERSION, disassemble, find_nvdisasm, lint_sass
from mlagen.errors import CacheError, CompileError, MissingDependencyError, MlagenError
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.settings import CompilePolicy, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlagen.compile.finding import Finding
    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec

LintPolicy = Literal["auto", "strict"]
LintState = Literal["passed", "skipped"]
EventKind = Literal["started", "waiting", "finished", "failed", "stopping"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel that can be launched.

    Attributes:
        plan: How it works and what it takes.
        source: Its CUDA text.
        cubin: Its binary.
        ptx: What the binary was assembled from; empty for a kernel from a folder of `mlagen build
            --out`.
        resources: Registers, spills, shared memory.
        key: Build key, `BuildKey.digest`.
        cached: It was not compiled now.
        seconds: How long it took here, from plan to binary.
        lint: Whether the SASS lint has passed, or was skipped because nvdisasm is not installed.
    """

    plan: KernelPlan
    source: str = field(repr=False)
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)
    resources: Resources
    key: str
    cached: bool
    seconds: float
    lint: LintState


@dataclass(frozen=True, slots=True)
class FailedKernel:
    """A kernel that did not compile, or that a check refused; `error` says why."""

    plan: KernelPlan
    error: MlagenError
    seconds: float


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
        plan_specs(specs), jobs=jobs, cache=cache, policy=policy, lint=lint, progress=progress
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
    progress: Progress | None = None,
    render: Callable[[KernelPlan], str] = render_kernel,
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


@dataclass(frozen=True, slots=True)
class KernelCompiler:
    """One plan to one checked kernel, through the cache."""

    cache: KernelCache
    policy: CompilePolicy
    lint: LintPolicy
    render: Callable[[KernelPlan], str]

    def check_tools(self) -> None:
        """Raise MissingDependencyError if what every kernel needs is not here."""
        nvrtc_identity()
        if self.lint == "strict" and find_nvdisasm() is None:
            raise MissingDependencyError(
                "nvdisasm: not found, and this build must check the SASS of its kernels\n"
                "  pip install nvidia-cuda-nvdisasm"
            )

    def build(self, plan: KernelPlan, *, waiting: Callable[[], None]) -> BuiltKernel | FailedKernel:
        """Return the kernel, or why there is none.

        Args:
            plan: What to build.
            waiting: Called if another process is compiling it.
        """
        begin = time.perf_counter()
        source = self.render(plan)
        key = build_key(source, arch=plan.arch.name).digest
        cached = True
        try:
            entry = self._stored(plan, key)
            if entry is None:
                with self.cache.lock(plan.spec.hash, key, waiting=waiting):
                    entry = self._stored(plan, key)
                    if entry is None:
                        entry, cached = self._compile(plan, source, key), False
        except (CompileError, CacheError) as error:
            return FailedKernel(plan, error, time.perf_counter() - begin)
        return BuiltKernel(
            plan=plan,
            source=source,
            cubin=entry.cubin,
            ptx=entry.ptx,
            resources=entry.resources,
            key=key,
            cached=cached,
            seconds=time.perf_counter() - begin,
            lint="skipped" if entry.lint is None else "passed",
        )

    def _stored(self, plan: KernelPlan, key: str) -> Entry | None:
        """Return the cache's entry if it will do, None if the kernel has to be compiled."""
        if self.policy == "always":
            return None
        entry = self.cache.read(plan.spec.hash, key)
        if entry is not None and self.lint == "strict" and entry.lint != lint_mark(plan):
            entry = self._checked(plan, entry)
            self.cache.write(entry)
        if entry is None and self.policy == "never":
            raise CacheError(
                f"{plan.name}: not in the cache {self.cache.folder}, and compiling is off\n"
                "  build it first with `mlagen build SPEC`, or set MLAGEN_COMPILE=auto"
            )
        return entry

    def _compile(self, plan: KernelPlan, source: str, key: str) -> Entry:
        begin = time.perf_counter()
        compiled = compile_cuda(source, name=plan.name, arch=plan.arch.name)
        entry = Entry(
            spec_hash=plan.spec.hash,
            key=key,
            name=plan.name,
            cubin=compiled.cubin,
            ptx=compiled.ptx,
            log=compiled.log,
            resources=parse_resources(compiled.log),
            lint=None,
            compile_seconds=time.perf_counter() - begin,
        )
        entry = self._checked(plan, entry)
        self.cache.write(entry)
        logger.info("%s: compiled in %.2f s", plan.name, entry.compile_seconds)
        return entry

    def _checked(self, plan: KernelPlan, entry: Entry) -> Entry:
        """Return the entry marked with the checks that it has passed.

        Raises:
            CompileError: It breaks a rule.
        """
        findings = check_resources(entry.log, entry.resources)
        can_lint = find_nvdisasm() is not None
        if can_lint:
            sass = disassemble(entry.cubin)
            findings += lint_sass(sass, hgmma_per_tile=plan.hgmma_per_tile)
        if findings:
            raise CompileError(_violations(plan, findings))
        return replace(entry, lint=lint_mark(plan) if can_lint else None)


def build_key(source: str, *, arch: str) -> BuildKey:
    """Return the key of a kernel with that text, compiled here with this process's NVRTC."""
    return BuildKey(
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        arch=arch,
        options=KERNEL_OPTIONS,
        compiler=nvrtc_identity().compiler,
    )


def lint_mark(plan: KernelPlan) -> str:
    """Return what a cached verdict of the lint must say to hold for this plan."""
    return f"lint {LINT_VERSION}, {plan.hgmma_per_tile} HGMMA"


def processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _violations(plan: KernelPlan, findings: Sequence[Finding]) -> str:
    lines = "\n".join(f"  {line}" for finding in findings for line in str(finding).splitlines())
    return (
        f"{plan.name}: compiled, but not to the machine code that its plan promises\n{lines}\n"
        "  choose a smaller tile (config.tile_m, config.tile_n), or another NVRTC (MLAGEN_NVRTC)"
    )


def _joined(errors: Sequence[MlagenError]) -> MlagenError:
    """Return one error with every distinct message, of the first one's type."""
    return type(errors[0])("\n\n".join(dict.fromkeys(map(str, errors))))
