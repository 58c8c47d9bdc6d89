"""Runs mutants of one kernel in the simulator and says what catches each: a finding, a wrong number, or nothing."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda
from mlagen.errors import CompileError, MlagenError
from mlagen.plan.name import kernel_name
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulator, run_simulated
from mlagen.trials import Expected, Outputs, Trial, expected, judge
from mlagen.verify.problems import make_problem, problem_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlagen.kernel_compiler import BuiltKernel
    from mlagen.spec.model import KernelSpec
    from mlagen.verify.problems import Problem
    from tests.mutation.rule import Mutant

Outcome = Literal["found", "wrong", "survived", "equal", "refused"]

_LINE_INFO = re.compile(r"^\s*\.(?:loc|file|section)\b.*$|//.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant.

    Attributes:
        kernel: Name of the kernel.
        rule: Name of the rule.
        place: Where the fault is.
        line: Its line.
        outcome: `found` by a checker, `wrong` numbers, `survived`; `equal` if its PTX is the kernel's own, and
            `refused` if it does not compile: these two are no mutants.
        problem: The problem that caught it; empty if none did.
        by: Kinds of findings, or the first complaint.
    """

    kernel: str
    rule: str
    place: str
    line: int
    outcome: Outcome
    problem: str = ""
    by: str = ""

    def to_json(self) -> dict[str, Any]:
        """Its values for `json.dumps`."""
        return asdict(self)


def instructions_of(ptx: str) -> str:
    """PTX without what only says where it comes from."""
    return "\n".join(line for line in _LINE_INFO.sub("", ptx).splitlines() if line.strip())


@functools.lru_cache(maxsize=2)
def built(spec: KernelSpec) -> BuiltKernel:
    """The kernel itself, with source lines in its PTX."""
    return load(spec)._binaries.get_with_lines(spec)  # a mutant is run as its kernel is


@functools.lru_cache(maxsize=32)
def _problem(spec: KernelSpec, name: str) -> tuple[Problem, Expected]:
    problem = make_problem(spec, name)
    return problem, expected(spec, problem)


def run_mutants(
    spec: KernelSpec, mutants: Sequence[Mutant], problems: Sequence[str] | None = None
) -> Iterator[Fate]:
    """Run mutants on problems until something catches them.

    Args:
        spec: The kernel.
        mutants: Of its rendered source.
        problems: Names; None for all.
    """
    kernel = built(spec)
    own = instructions_of(kernel.ptx)
    for mutant in mutants:
        yield _run(spec, kernel, own, mutant, problems or problem_names(spec))


def _run(
    spec: KernelSpec, kernel: BuiltKernel, own: str, mutant: Mutant, problems: Sequence[str]
) -> Fate:
    fate = Fate(kernel_name(spec), mutant.rule, mutant.place, mutant.line, "survived")
    try:
        ptx = compile_cuda(
            mutant.source, name=kernel.plan.name, arch=spec.arch, options=LINE_OPTIONS
        ).ptx
    except CompileError as error:
        return replace(fate, outcome="refused", by=str(error).splitlines()[0])
    if instructions_of(ptx) == own:
        return replace(fate, outcome="equal")
    changed = replace(kernel, source=mutant.source, ptx=ptx)
    for name in problems:
        problem, wanted = _problem(spec, name)
        caught = _caught(spec, changed, problem, wanted)
        if caught is not None:
            outcome, by = caught
            return replace(fate, outcome=outcome, problem=name, by=by)
    return fate


def _caught(
    spec: KernelSpec, kernel: BuiltKernel, problem: Problem, wanted: Expected
) -> tuple[Outcome, str] | None:
    """What catches a mutant on one problem; None if nothing does."""
    outputs = Outputs.of(spec, problem)
    simulator = Simulator(ctas=problem.ctas)
    call = parse_call({**problem.tensors, **problem.options, **outputs.arguments()})
    try:
        simulated = run_simulated(kernel, call, simulator)
    except MlagenError as error:
        return "found", str(error).splitlines()[0]
    result = simulated.result
    if result is not None and result.errors:
        return "found", ", ".join(sorted({finding.kind for finding in result.errors}))
    verdict = judge(
        Trial(spec, problem.name, backend=simulator),
        outputs,
        wanted,
        simulated=simulated,
        seconds=0.0,
    )
    if verdict.complaints:
        return "wrong", verdict.complaints[0].splitlines()[0]
    return None
