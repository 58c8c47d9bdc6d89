"""Many kernels at once, with events for a progress bar.

Threads are enough, because NVRTC and nvdisasm run without the GIL. Each kernel is stored when it is
finished, so an interrupted build goes on where it stopped.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlagen.build.kernel import BuiltKernel, FailedKernel, KernelCompiler, LintPolicy, Render
from mlagen.cache import KernelCache
from mlagen.errors import MlagenError
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.settings import CompilePolicy, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec

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


def processors() -> int:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _joined(errors: Sequence[MlagenError]) -> MlagenError:
    """Return one error with every distinct message, of the first one's type."""
    return type(errors[0])("\n\n".join(dict.fromkeys(map(str, errors))))
