"""Faulty kernels on a GPU: what the simulator calls a deadlock must time out there, clean kernels never.

Every job runs in a child process, since an error ends a process's CUDA context. The wait loops of `deadlock` and
`clean` jobs trap at a clock limit (a debug render), so that nothing hangs the GPU; a child that does not answer in time
is killed all the same. `lucky` jobs are plain renders: faults that a GPU may forgive, launched many times.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from benchmarks.validation.whole import input_digest, specs
from mlagen.compile.resources import Resources
from mlagen.errors import DriverError, MlagenError
from mlagen.kernel_compiler import BuiltKernel
from mlagen.plan import plan_kernel
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.kernel import Kernels
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import make_problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from mlagen.trials import Expected
    from mlagen.verify.problems import Problem

Group = Literal["clean", "lucky", "deadlock"]
Outcome = Literal["ok", "wrong", "trap", "error", "killed"]

INDEX = "index.json"
RECORDING = "mutants.json"
# Of one job, the start of CUDA in its child included.
LIMIT_S = 20.0
# `debug_render.LIMIT_CYCLES` at more than an H200's highest clock of 1.98 GHz: an earlier error is no time limit.
SHORTEST_TRAP_S = (1 << 31) / 2.0e9
_NO_RESOURCES = Resources(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel on one problem.

    Attributes:
        group: `deadlock` and `clean` are debug renders, `lucky` is a plain one.
        fault: Name of the mutant; empty for a clean kernel.
        kernel: Whose plan and problems it has.
        problem: Which one.
        file: Its machine code.
        inputs: Digest of the problem's tensors, in hexadecimal.
        simulator: The simulator's first finding, or `clean`.
        report: How its report begins.
        launches: How often it runs.
        luck: Why a GPU is likely to forgive the fault.
        same_code: The fault is in the PTX only: the machine code is that of the kernel without it.
    """

    group: Group
    fault: str
    kernel: str
    problem: str
    file: str
    inputs: str
    simulator: str
    report: str = ""
    launches: int = 1
    luck: str = ""
    same_code: bool = False

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.group}: {self.fault or 'no fault'}; {self.kernel}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job.

    Attributes:
        outcome: `ok`; `wrong` numbers; `trap`, an error after the clock limit; `error`, any other; `killed`.
        seconds: Of the launch that failed, else of all.
        wrong: How many launches had wrong results.
        distinct: How many results differ in a bit.
        detail: The error, or what is wrong.
    """

    outcome: Outcome
    seconds: float
    wrong: int = 0
    distinct: int = 0
    detail: str = ""

    @property
    def ends_child(self) -> bool:
        """Whether the child's CUDA context is of no more use."""
        return self.outcome in ("trap", "error", "killed")


class Launcher(Protocol):
    """How a child runs kernels."""

    def start(self) -> None:
        """Called once in the child."""

    def launch(self, job: Job, problem: Problem, outputs: Outputs) -> None:
        """Run a job's kernel once and wait for its outputs.

        Raises:
            RuntimeError, MlagenError: The kernel failed, or could not be launched.
        """


class GpuLauncher:
    """Launches on the GPU."""

    def __init__(self, folder: Path) -> None:
        """Machine code is read from the folder that `prepare` wrote."""
        self._kernels = functools.lru_cache(maxsize=1)(lambda job: job_kernels(job, folder))

    def start(self) -> None:
        """Make the CUDA context, so that no launch's time holds it."""
        import torch

        torch.zeros(1, device="cuda").cpu()

    def launch(self, job: Job, problem: Problem, outputs: Outputs) -> None:
        """See `Launcher`."""
        from mlagen.verify.device_copies import DeviceCopies

        kernels, copies = self._kernels(job), DeviceCopies("cuda")
        arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
        kernels.most_blocks = problem.ctas
        kernels.run(
            {
                name: copies.copy(value) if isinstance(value, np.ndarray) else value
                for name, value in arguments.items()
            }
        )
        copies.bring_back()


class DryLauncher:
    """Stands in for a GPU that does what the simulator says: the exact result, or an error after the limit."""

    def start(self) -> None:
        """Nothing to do."""

    def launch(self, job: Job, problem: Problem, outputs: Outputs) -> None:
        """See `Launcher`."""
        if job.group == "deadlock":
            time.sleep(SHORTEST_TRAP_S)
            raise DriverError("CUDA error: unspecified launch failure (none was launched)")
        del problem
        wanted = known_problem(job.kernel, job.problem)[1]
        rows = outputs.out.written
        outputs.out.view[rows] = wanted.out[rows]
        if outputs.lse:
            outputs.lse.view[rows] = wanted.lse[rows]


def job_kernels(job: Job, folder: Path) -> Kernels:
    """The kernel of a job, in place of the one that its plan would give."""
    spec = specs()[job.kernel]
    built = BuiltKernel(
        plan=plan_kernel(spec),
        source="",
        cubin=(folder / job.file).read_bytes(),
        ptx="",
        resources=_NO_RESOURCES,
        key="",
        cached=False,
        seconds=0.0,
        lint="skipped",
    )
    binaries = Binaries(built=[built], cache=None, jit="never", source=job.name)
    return Kernels((spec,), binaries=binaries, backend="cuda", source=job.name)


@functools.cache
def known_problem(kernel: str, name: str) -> tuple[Problem, Expected]:
    """A problem and its exact result; made before the children are forked, who find it here."""
    spec = specs()[kernel]
    problem = make_problem(spec, name)
    return problem, expected(spec, problem)


def read_jobs(folder: Path) -> list[Job]:
    """The jobs that `prepare` wrote into a folder."""
    return [Job(**entry) for entry in json.loads((folder / INDEX).read_text())]


def write_jobs(folder: Path, jobs: Iterable[Job]) -> None:
    """Write the index of a folder."""
    (folder / INDEX).write_text(json.dumps([asdict(job) for job in jobs], indent=1))


def record_all(folder: Path, out: Path, *, launcher: Launcher, words: Sequence[str] = ()) -> int:
    """Run the jobs of a folder; write `mutants.json` into `out`. Returns the number of surprises."""
    from benchmarks.validation.place import facts  # torch: children need not import it again

    start = time.monotonic()
    jobs = [
        job for job in read_jobs(folder) if not words or any(word in job.name for word in words)
    ]
    stale = [job for job in jobs if not has_same_inputs(job)]
    jobs = [job for job in jobs if job not in stale]
    print(
        f"{len(jobs)} jobs, {len(stale)} out of date, problems made in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    refused = Answer("error", 0.0, detail="has other inputs here than where it was prepared")
    results: list[dict[str, Any]] = [asdict(job) | asdict(refused) for job in stale]  # Any: JSON

    def save(facts: dict[str, Any]) -> None:
        (out / RECORDING).write_text(json.dumps({"facts": facts, "results": results}, indent=1))

    calm = [[job for job in jobs if job.group == group] for group in ("clean", "lucky")]
    waiting = [[job] for job in jobs if job.group == "deadlock"]
    surprises = len(stale)
    for job, answer in run_batches([batch for batch in (*calm, *waiting) if batch], launcher):
        results.append(asdict(job) | asdict(answer))
        print(f"{answer.outcome} {answer.seconds:.2f} s: {job.name} {answer.detail}", flush=True)
        surprises += agrees(job.group, answer.outcome) is False
        save({})
    save(facts())
    print(f"{len(results)} answers in {time.monotonic() - start:.0f} s, {surprises} surprises")
    return surprises


def has_same_inputs(job: Job) -> bool:
    """Whether the problem is what it was when the job was prepared."""
    problem, _ = known_problem(job.kernel, job.problem)
    return input_digest(problem).hex() == job.inputs


def agrees(group: str, outcome: str) -> bool | None:
    """Whether a GPU did what the simulator says; None where it may do anything."""
    wanted = {"clean": "ok", "deadlock": "trap"}.get(group)
    return None if wanted is None else outcome == wanted


@dataclass(slots=True)
class _Child:
    """A process that works on the jobs that are left, in order."""

    process: multiprocessing.process.BaseProcess
    receiver: Connection
    jobs: deque[Job]

    @classmethod
    def start(cls, jobs: Sequence[Job], launcher: Launcher) -> _Child:
        context = multiprocessing.get_context("fork")  # nothing here has touched CUDA
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(jobs, launcher, sender), daemon=True)
        process.start()
        sender.close()
        return cls(process, receiver, deque(jobs))

    def answer(self, limit_s: float) -> Answer:
        """Its answer to the next job."""
        if not self.receiver.poll(limit_s):
            return Answer("killed", limit_s, detail="no answer in time")
        try:
            found: Answer = self.receiver.recv()
        except EOFError:
            self.process.join(limit_s)
            how = f"the child ended with status {self.process.exitcode}"
            return Answer("error", 0.0, detail=how)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.join(5)
        self.receiver.close()


def run_batches(
    batches: Iterable[Sequence[Job]], launcher: Launcher, *, limit_s: float = LIMIT_S
) -> Iterator[tuple[Job, Answer]]:
    """Run each batch in a child process, another child for the rest of a batch of which a job failed.

    One child at a time: a kernel that traps stops the GPU for all its users, up to many seconds.

    Args:
        batches: Jobs that share a process as long as all goes well.
        launcher: How the children run them.
        limit_s: When a job's child is killed.
    """
    waiting = deque(batches)
    while waiting:
        child = _Child.start(waiting.popleft(), launcher)
        while child.jobs:
            answer = child.answer(limit_s)
            yield child.jobs.popleft(), answer
            if answer.ends_child:
                break
        child.end()
        if child.jobs:
            waiting.appendleft(list(child.jobs))


def _work(jobs: Sequence[Job], launcher: Launcher, sender: Connection) -> None:
    """In the child: one job after the other, until the context is broken."""
    launcher.start()
    for job in jobs:
        answer = run_job(job, launcher)
        sender.send(answer)
        if answer.ends_child:
            return


def run_job(job: Job, launcher: Launcher) -> Answer:
    """Launch as often as asked, and hold every result against the exact one."""
    spec = specs()[job.kernel]
    problem, wanted = known_problem(job.kernel, job.problem)
    verdicts: dict[bytes, tuple[str, ...]] = {}
    wrong, seconds = 0, 0.0
    for _ in range(job.launches):
        outputs = Outputs.of(spec, problem)
        begin = time.perf_counter()
        try:
            launcher.launch(job, problem, outputs)
        except (RuntimeError, MlagenError) as error:
            seconds = time.perf_counter() - begin
            outcome: Outcome = "trap" if seconds >= SHORTEST_TRAP_S else "error"
            return Answer(outcome, seconds, wrong, len(verdicts), str(error).splitlines()[0])
        seconds += time.perf_counter() - begin
        bits = outputs.out.buffer.tobytes() + (outputs.lse.buffer.tobytes() if outputs.lse else b"")
        if bits not in verdicts:
            trial = Trial(spec, problem.name)
            verdict = judge(trial, outputs, wanted, simulated=None, seconds=0.0)
            verdicts[bits] = verdict.complaints
        wrong += bool(verdicts[bits])
    complaints = [text for found in verdicts.values() for text in found]
    detail = complaints[0][:300] if complaints else ""
    return Answer("wrong" if wrong else "ok", seconds, wrong, len(verdicts), detail)
