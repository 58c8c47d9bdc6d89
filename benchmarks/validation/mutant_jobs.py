"""Faulty kernels for a GPU, chosen, simulated and compiled on a machine without one."""

from __future__ import annotations

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.validation.mutants import Job, write_jobs
from benchmarks.validation.whole import input_digest, specs
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.compile.resources import Resources
from mlagen.errors import CompileError
from mlagen.kernel_compiler import BuiltKernel
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.kernel import Kernels
from mlagen.runtime.simulator import Simulator
from mlagen.trials import Trial, run_trial
from mlagen.verify.problems import make_problem
from tests.mutation.bench import MOST_STEPS, Bench, compile_ptx
from tests.mutation.campaign import bench, kernels_of
from tests.mutation.catalogue import RULES
from tests.mutation.cover import covering_specs
from tests.mutation.debug_render import debug_render
from tests.mutation.lucky import lucky_mutants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.validation.mutants import Group
    from tests.mutation.rule import Mutant

# Rules whose faults leave somebody waiting. Not here: faults of `setmaxnreg` and of collective operations, which cannot
# time out; named barriers that two uses share, which the debug render's counters treat otherwise than the hardware.
DEADLOCK_RULES = (
    "wait-inverted",
    "wait-parity-0",
    "wait-parity-1",
    "arrive-removed",
    "arrive-full-for-empty",
    "arrive-by-one-warp",
    "expect-without-arrival",
    "expect-more",
    "init-count-high",
    "init-count-of-lanes",
    "advance-twice",
    "parity-starts-at-1",
    "ring-short",
    "ring-long",
    "named-barrier-removed",
    "named-barrier-count-high",
    "named-barrier-by-one-warp",
    "turn-not-offered",
    "copy-removed",
    "skip-not-released",
    "end-not-announced",
    "end-mark-removed",
    "empty-tile-attended",
    "empty-tile-without-q",
    "last-v-missing",
    "block-bound-low",
)
SITES_OF_A_RULE = 3  # in the first kernel; one in another
DEADLOCK_PROBLEMS = ("integer walk", "three blocks walk", "longer keys")
# A deadlock is one under each: not a matter of who comes first.
SCHEDULES = ("lazy", "eager", "pct:1")
CLEAN_PROBLEMS = ("random", "integer walk", "three blocks walk", "longer keys")
LUCKY_PROBLEMS = ("integer walk", "three blocks walk", "longer keys")
LUCKY_LAUNCHES = 50
_NO_RESOURCES = Resources(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A job before it is compiled for the GPU."""

    job: Job
    source: str


def prepare(folder: Path) -> int:
    """Choose, simulate and compile; write a folder for `record mutants`. Returns the bytes of machine code."""
    drafts = [*_clean(), *_lucky(), *_deadlocks()]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files: dict[tuple[str, str], str] = {}
    for draft in drafts:
        files.setdefault((draft.job.kernel, draft.source), f"{len(files)}.cubin")

    def build(key: tuple[str, str]) -> bytes:
        return _cubin(source=key[1], kernel=key[0])

    with ThreadPoolExecutor(2) as threads:
        cubins = dict(zip(files, threads.map(build, files), strict=True))
    for key, cubin in cubins.items():
        (folder / files[key]).write_bytes(cubin)
    jobs = []
    for draft in drafts:
        key = draft.job.kernel, draft.source
        same = draft.job.group == "lucky" and cubins[key] == _cubin(
            source=_benches()[draft.job.kernel].source, kernel=draft.job.kernel
        )
        jobs.append(replace(draft.job, file=files[key], same_code=same))
    write_jobs(folder, jobs)
    return sum(map(len, cubins.values()))


@functools.cache
def _cubin(*, source: str, kernel: str) -> bytes:
    arch = specs()[kernel].arch
    return compile_cuda(source, name=kernel, arch=arch, options=KERNEL_OPTIONS).cubin


@functools.cache
def _benches() -> dict[str, Bench]:
    """The kernels of the mutation campaign that an H200 runs."""
    found = [bench(number) for number in kernels_of("sm_90a")]
    return {one.plan.name: one for one in found}


def _clean() -> Iterator[_Draft]:
    """Debug renders of the fewest kernels that use every template block, of those tested and of those shipped."""
    benches = {one.plan.name: one for one in map(Bench, covering_specs(specs().values()))}
    for kernel in (benches | _benches()).values():
        source = _limited(kernel.source)
        kernels = _simulated_kernels(kernel, source)
        for problem in CLEAN_PROBLEMS:
            simulator, report = _verdict(kernel, kernels, problem, SCHEDULES[0])
            job = _job("clean", "", kernel, problem)
            yield _Draft(_said(replace(job, simulator=simulator, report=report)), source)


def _lucky() -> Iterator[_Draft]:
    kernel = bench(0)
    for lucky, mutant in lucky_mutants(kernel.source):
        outcome = kernel.run(mutant)
        for problem in dict.fromkeys((outcome.problem, *LUCKY_PROBLEMS)):
            job = replace(
                _job("lucky", mutant.name, kernel, problem),
                simulator=outcome.by or outcome.status,
                report=_start(outcome.detail),
                launches=LUCKY_LAUNCHES,
                luck=lucky.luck,
            )
            yield _Draft(_said(job), mutant.source)


def _deadlocks() -> Iterator[_Draft]:
    """Candidates that the simulator finds to be nothing but a deadlock, under every schedule."""
    for number, (kernel, mutant) in enumerate(_candidates()):
        try:
            kernels = _simulated_kernels(kernel, mutant.source)
        except CompileError:
            continue
        problem = DEADLOCK_PROBLEMS[number % len(DEADLOCK_PROBLEMS)]
        report = ""
        for schedule in SCHEDULES:
            simulator, report = _verdict(kernel, kernels, problem, schedule)
            if simulator != "deadlock":
                break
        else:
            job = _job("deadlock", mutant.name, kernel, problem)
            job = replace(job, simulator="deadlock", report=report)
            yield _Draft(_said(job), _limited(mutant.source))


def _limited(source: str) -> str:
    """The debug render, in which nothing can wait for ever."""
    found = debug_render(source)
    loops, limits = found.count('"bra WAIT;'), found.count("@late trap;")
    assert loops == limits, "a wait for an mbarrier has no limit"
    assert "bar.sync" not in found, "a wait for a named barrier has no limit"
    return found


def _candidates() -> Iterator[tuple[Bench, Mutant]]:
    rules = {rule.name: rule for rule in RULES}
    for number, name in enumerate(DEADLOCK_RULES):
        sites = rules[name].sites(bench(0).source)
        most = min(SITES_OF_A_RULE, len(sites))
        yield from ((bench(0), sites[i * len(sites) // most]) for i in range(most))
        other = bench(1 + number % (len(kernels_of("sm_90a")) - 1))
        if sites := rules[name].sites(other.source):
            yield other, sites[number % len(sites)]


def _job(group: Group, fault: str, kernel: Bench, problem: str) -> Job:
    inputs = input_digest(make_problem(kernel.spec, problem)).hex()
    return Job(group, fault, kernel.plan.name, problem, file="", inputs=inputs, simulator="")


def _said(job: Job) -> Job:
    print(f"{job.simulator}: {job.name}", flush=True)
    return job


def _simulated_kernels(kernel: Bench, source: str) -> Kernels:
    built = BuiltKernel(
        plan=kernel.plan,
        source=source,
        cubin=b"",
        ptx=compile_ptx(source, kernel.plan),
        resources=_NO_RESOURCES,
        key="",
        cached=False,
        seconds=0.0,
        lint="skipped",
    )
    binaries = Binaries(built=[built], cache=None, jit="never", source=kernel.plan.name)
    return Kernels((kernel.spec,), binaries=binaries, backend="sim", source=kernel.plan.name)


def _verdict(kernel: Bench, kernels: Kernels, problem: str, schedule: str) -> tuple[str, str]:
    """The simulator's first finding, `numerics` or `clean`; and how its report begins."""
    backend = Simulator(schedule=schedule, most_steps=MOST_STEPS)
    verdict = run_trial(Trial(kernel.spec, problem, backend=backend), kernels)
    if verdict.passed:
        return "clean", ""
    kind = verdict.findings[0] if verdict.findings else "numerics"
    return kind, _start(verdict.complaints[0])


def _start(report: str) -> str:
    return "\n".join(report.splitlines()[:3])[:300]
