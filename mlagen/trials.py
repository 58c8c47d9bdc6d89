"""Trials: one problem on one kernel, in the simulator or on a GPU, and what came of it.

A trial puts the outputs between guards, runs the call as any user would, and holds every element against the float64
reference. In the simulator, findings count too.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from mlagen.errors import CompileError, PtxError, SimulationError
from mlagen.plan.name import kernel_name
from mlagen.runtime.kernel import Kernels, load
from mlagen.runtime.simulator import Simulator
from mlagen.verify.compare import compare, lse_bound, rounding_bound, score_error
from mlagen.verify.device_copies import DeviceCopies
from mlagen.verify.guards import Guarded, guarded
from mlagen.verify.problems import make_problem
from mlagen.verify.reference import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mlagen.runtime.simulator import Simulated
    from mlagen.spec.model import KernelSpec
    from mlagen.verify.arrays import Array
    from mlagen.verify.problems import Problem


_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_SCALES = ("softmax_scale", "q_scale", "k_scale", "v_scale")
# What an interrupted run loses of each process at most.
_MOST_TOGETHER = 18


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run.

    Attributes:
        spec: The kernel.
        problem: One of `verify.problems.problem_names(spec)`.
        seed: Of the problem's values.
        backend: A `Simulator` with its schedule, or `cuda`.
        ctas: Most blocks, in place of the problem's own number.
    """

    spec: KernelSpec
    problem: str
    seed: int = 0
    backend: Simulator | Literal["cuda"] = "cuda"
    ctas: int | None = None

    @property
    def schedule(self) -> str:
        """The simulator's schedule; empty on a GPU."""
        return self.backend.schedule if isinstance(self.backend, Simulator) else ""

    @property
    def key(self) -> str:
        """Tells it from all other trials."""
        how = f"sim {self.backend}" if isinstance(self.backend, Simulator) else self.backend
        return (
            f"{kernel_name(self.spec)}: {self.problem}, seed {self.seed}, {how}, ctas {self.ctas}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial; plain values, for JSON.

    Attributes:
        key: Of the trial.
        kernel: Its name.
        problem: Its name.
        schedule: The simulator's; empty on a GPU.
        complaints: What is wrong, each a text; none if the trial passed.
        findings: Kinds of the simulator's errors and notes.
        out_error: Largest error of the output in units of its bound; None if there is no result, or an error where none
            is allowed.
        lse_error: Likewise of the LSE; None also if the kernel writes none.
        unreached: Lines of the CUDA source whose instructions were not executed; only the simulator knows them.
        replay: The schedule as it went, if the trial failed in the simulator: contents for `replay:FILE`.
        seconds: How long the run took, reference and comparison not included.
    """

    key: str
    kernel: str
    problem: str
    schedule: str
    complaints: tuple[str, ...]
    findings: tuple[str, ...]
    out_error: float | None
    lse_error: float | None
    unreached: tuple[int, ...]
    replay: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.complaints

    def to_json(self) -> dict[str, Any]:
        """Its values for `json.dumps`."""
        return asdict(self) | {"passed": self.passed}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Verdict:
        """The verdict with the values that `to_json` gave."""
        lists = {name: tuple(values[name]) for name in ("complaints", "findings", "unreached")}
        return cls(**{name: values[name] for name in cls.__slots__} | lists)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Guarded outputs of one call; `lse` is None if the kernel writes none."""

    out: Guarded
    lse: Guarded | None

    @classmethod
    def of(cls, spec: KernelSpec, problem: Problem) -> Outputs:
        """New outputs; strided where the problem's inputs are."""
        tensors = problem.tensors
        query = tensors["q" if "q" in tensors else "q_nope"]
        rows = query.shape[:-1]
        used = slice(None)
        if "cu_seqlens_q" in tensors:
            used = slice(int(tensors["cu_seqlens_q"][-1]))
        strided = not query.flags.c_contiguous
        out = guarded(
            (*rows, spec.geometry.v_head_dim),
            str(spec.output_dtype),
            written=used,
            strided=strided,
        )
        lse = guarded(rows, "float32", written=used, strided=strided) if spec.lse else None
        return cls(out, lse)

    def arguments(self) -> dict[str, Any]:
        """As arguments of `run`."""
        if self.lse is None:
            return {"out": self.out.view}
        return {"out": self.out.view, "lse": self.lse.view, "return_lse": True}

    def complaints(self) -> Iterator[str]:
        """What was not written, and what else was."""
        for name, output in (("out", self.out), ("lse", self.lse)):
            if output is None:
                continue
            if count := output.unwritten():
                yield f"{name}: {count} elements not written"
            if count := output.damaged():
                yield f"{name}: {count} elements written outside of it"


@dataclass(frozen=True, slots=True)
class Expected:
    """The float64 result of a problem, and how far a kernel may be from it."""

    out: Array
    lse: Array
    out_bound: Array
    lse_bound: Array


def expected(spec: KernelSpec, problem: Problem) -> Expected:
    """The exact result of a problem, with its bounds."""
    scales = {name: problem.options[name] for name in _SCALES if name in problem.options}
    out, lse = reference(spec, problem.tensors, **scales)
    bound = rounding_bound(
        spec,
        problem.tensors,
        out,
        **scales,
        exact_probabilities=problem.is_exact,
    )
    queries_and_keys = {name: scale for name, scale in scales.items() if name != "v_scale"}
    moved = 0.0 if problem.is_exact else score_error(spec, problem.tensors, **queries_and_keys)
    return Expected(out, lse, bound, lse_bound(lse, score_error=moved))


def run_trial(trial: Trial, kernels: Kernels | None = None) -> Verdict:
    """Run a trial.

    Args:
        trial: What to run.
        kernels: Its kernel, loaded; None to load it.

    Raises:
        MissingDependencyError: This machine cannot run it at all.
    """
    problem, wanted = _problem(trial.spec, trial.problem, trial.seed)
    kernels = kernels or _loaded(trial.spec)
    outputs = Outputs.of(trial.spec, problem)
    ctas = trial.ctas or problem.ctas
    begin = time.perf_counter()
    simulated = None
    try:
        if isinstance(trial.backend, Simulator):
            arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
            simulator = replace(trial.backend, ctas=ctas)
            simulated = kernels.simulate(arguments, simulator=simulator)
        else:
            _run_on_gpu(kernels, problem, outputs, ctas)
    except (CompileError, PtxError, SimulationError) as error:
        return _verdict(trial, [str(error)], seconds=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    return judge(trial, outputs, wanted, simulated=simulated, seconds=seconds)


def judge(
    trial: Trial,
    outputs: Outputs,
    wanted: Expected,
    *,
    simulated: Simulated | None,
    seconds: float,
) -> Verdict:
    """Hold what a run left against what it should have.

    Args:
        trial: What was run.
        outputs: As the run left them.
        wanted: The exact result.
        simulated: The simulator's own result; None for a GPU's.
        seconds: How long the run took.
    """
    complaints = list(outputs.complaints())
    errors: dict[str, float] = {}
    for name, output, exact, bound in (
        ("out", outputs.out, wanted.out, wanted.out_bound),
        ("lse", outputs.lse, wanted.lse, wanted.lse_bound),
    ):
        if output is not None:
            rows = output.written
            found = compare(output.view[rows], exact[rows], bound=bound[rows])
            if math.isfinite(found.ratio):  # JSON knows no infinity
                errors[name] = found.ratio
            if found.misplaced + found.beyond:
                complaints.append(f"{name}: {found}")
    result = simulated.result if simulated else None
    if simulated and result and result.errors:
        complaints.insert(0, simulated.report)
    return _verdict(
        trial,
        complaints,
        seconds=seconds,
        findings=tuple(finding.kind for finding in result.findings) if result else (),
        errors=errors,
        unreached=tuple(sorted(result.uncovered_lines)) if result else (),
        replay=result.schedule if result and complaints else "",
    )


def draw_trial(trial: Trial) -> str:
    """An SVG of a trial in the simulator, one lane a role: the order of its steps, not their time."""
    from mlagen.sim.drawing import draw

    problem = make_problem(trial.spec, trial.problem, seed=trial.seed)
    simulator = trial.backend if isinstance(trial.backend, Simulator) else Simulator()
    simulator = replace(simulator, ctas=trial.ctas or problem.ctas, trace=True)
    arguments = {**problem.tensors, **problem.options}
    simulated = _loaded(trial.spec).simulate(arguments, simulator=simulator)
    return draw(simulated.result.trace if simulated.result else (), simulated.names)


def run_trials(trials: Sequence[Trial], *, jobs: int) -> Iterator[Verdict]:
    """Run trials in `jobs` processes and give their verdicts as they come.

    Verdicts come in groups of trials of one kernel.
    """
    groups = _groups(trials, jobs)
    if jobs == 1 or len(groups) < 2:
        yield from map(run_trial, trials)
        return
    for verdicts in _in_processes(_run_all, groups, min(jobs, len(groups))):
        yield from verdicts


def _in_processes(
    function: Callable[[_Task], _Result], tasks: Sequence[_Task], count: int
) -> Iterator[_Result]:
    """Results of a function of a module, as they come; who stops asking, or interrupts, ends the processes at once.

    Their tasks take minutes, and one that is interrupted begins the next: they cannot be waited for.
    """
    # Forked children would inherit threads and CUDA contexts in whatever state they are.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            started = set(multiprocessing.active_children()) - others
            for process in started:
                process.terminate()
            for process in started:
                process.join()
            raise


def _groups(trials: Sequence[Trial], jobs: int) -> list[list[Trial]]:
    """Trials of one kernel together, so that it is lowered once; one by one where there are too few kernels."""
    kernels: dict[str, list[Trial]] = {}
    for trial in trials:
        kernels.setdefault(trial.spec.hash, []).append(trial)
    if len(kernels) < jobs:
        return [[trial] for trial in trials]
    return [
        own[first : first + _MOST_TOGETHER]
        for own in kernels.values()
        for first in range(0, len(own), _MOST_TOGETHER)
    ]


def _run_all(trials: list[Trial]) -> list[Verdict]:
    return [run_trial(trial) for trial in trials]


def _run_on_gpu(kernels: Kernels, problem: Problem, outputs: Outputs, ctas: int) -> None:
    """Run the call on the current GPU, on copies, and bring the outputs back."""
    copies = DeviceCopies("cuda")
    arguments = {
        name: copies.copy(value) if isinstance(value, np.ndarray) else value
        for name, value in (
            *problem.tensors.items(),
            *problem.options.items(),
            *outputs.arguments().items(),
        )
    }
    kernels.most_blocks = ctas
    kernels.run(arguments)
    copies.bring_back()


@functools.lru_cache(maxsize=4)
def _loaded(spec: KernelSpec) -> Kernels:
    """One kernel, loaded; its next trial finds it compiled and lowered."""
    return load(spec)


@functools.lru_cache(maxsize=4)
def _problem(spec: KernelSpec, name: str, seed: int) -> tuple[Problem, Expected]:
    """A problem and its exact result; trials that differ in the schedule share it."""
    problem = make_problem(spec, name, seed=seed)
    return problem, expected(spec, problem)


def _verdict(
    trial: Trial,
    complaints: Sequence[str],
    *,
    seconds: float,
    findings: tuple[str, ...] = (),
    errors: Mapping[str, float] | None = None,
    unreached: tuple[int, ...] = (),
    replay: str = "",
) -> Verdict:
    errors = errors or {}
    return Verdict(
        key=trial.key,
        kernel=kernel_name(trial.spec),
        problem=trial.problem,
        schedule=trial.schedule,
        complaints=tuple(complaints),
        findings=findings,
        out_error=errors.get("out"),
        lse_error=errors.get("lse"),
        unreached=unreached,
        replay=replay,
        seconds=seconds,
    )
