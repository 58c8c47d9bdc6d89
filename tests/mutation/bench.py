"""One kernel on the bench: a mutant of it is compiled, compared, simulated and judged."""

from __future__ import annotations

import functools
import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda
from mlagen.compile.resources import Resources
from mlagen.errors import CompileError, MlagenError
from mlagen.kernel_compiler import BuiltKernel
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.simulator import Simulator, run_simulated
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import make_problem, problem_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec
    from mlagen.trials import Expected
    from mlagen.verify.problems import Problem
    from tests.mutation.rule import Mutant

Status = Literal["caught", "survived", "equivalent", "refused", "unsupported", "crashed"]

# Three times what the longest problem takes.
MOST_STEPS = 60_000
# What finds most faults at the least cost comes first.
_FIRST_PROBLEMS = ("integer walk", "rising", "random", "three blocks walk")
_NO_RESOURCES = Resources(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a mutant.

    Attributes:
        kernel: Its kernel.
        rule: The kind of fault.
        place: Where it was planted.
        line: Its line.
        status: `caught`; `survived`; `equivalent` (the same PTX); `refused` (the compiler does not take it);
            `unsupported` (the simulator does not take it); `crashed` (the simulator has a bug).
        by: The first finding's kind, or `numerics`; the error's text if it was refused.
        detail: The finding's text.
        problem: On which problem.
        seconds: How long it took, with the compile.
    """

    kernel: str
    rule: str
    place: str
    line: int
    status: Status
    by: str = ""
    detail: str = ""
    problem: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Unique in its kernel; that of the mutant."""
        return f"{self.rule} @ {self.place}"

    def to_json(self) -> dict[str, Any]:
        """Its values for `json.dumps`."""
        return asdict(self)


class Bench:
    """A kernel with its problems.

    Attributes:
        spec: The kernel.
        plan: Its plan.
        source: Its text, from which mutants are made.
    """

    def __init__(self, spec: KernelSpec) -> None:
        """Render it; the rest is done when it is needed."""
        self.spec = spec
        self.plan = plan_kernel(spec)
        self.source = render_kernel(self.plan)
        names = problem_names(spec)
        self.problem_names = [name for name in _FIRST_PROBLEMS if name in names]
        self.problem_names += [name for name in names if name not in self.problem_names]

    def run(self, mutant: Mutant) -> Outcome:
        """Compile a mutant and run it on one problem after the other, until something is wrong."""
        begin = time.perf_counter()
        status, by, detail, problem = self._judge(mutant)
        return Outcome(
            self.plan.name,
            mutant.rule,
            mutant.place,
            mutant.line,
            status,
            by,
            detail,
            problem,
            round(time.perf_counter() - begin, 2),
        )

    def simulate(self, source: str, ptx: str, name: str) -> list[tuple[str, str]]:
        """What is wrong with a run of one problem: kinds of findings, or `numerics`, each with its text."""
        problem, wanted = self._problem(name)
        outputs = Outputs.of(self.spec, problem)
        kernel = BuiltKernel(
            plan=self.plan,
            source=source,
            cubin=b"",
            ptx=ptx,
            resources=_NO_RESOURCES,
            key="",
            cached=False,
            seconds=0.0,
            lint="skipped",
        )
        arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
        simulator = Simulator(ctas=problem.ctas, most_steps=MOST_STEPS)
        simulated = run_simulated(kernel, parse_call(arguments), simulator)
        errors = simulated.result.errors if simulated.result else ()
        if errors:
            return [(error.kind, error.message) for error in errors]
        trial = Trial(self.spec, name, backend=simulator)
        verdict = judge(trial, outputs, wanted, simulated=simulated, seconds=0.0)
        return [("numerics", complaint) for complaint in verdict.complaints]

    @functools.cached_property
    def ptx(self) -> str:
        """The PTX of the kernel itself."""
        return compile_ptx(self.source, self.plan)

    def _judge(self, mutant: Mutant) -> tuple[Status, str, str, str]:
        try:
            ptx = compile_ptx(mutant.source, self.plan)
            if same_instructions(ptx, self.ptx):
                return "equivalent", "", "", ""
            if self._changes_assembly(mutant):
                compile_cuda(mutant.source, name=self.plan.name, arch=self.plan.arch.name)
        except CompileError as error:
            return "refused", str(error).splitlines()[0], "", ""
        for name in self.problem_names:
            try:
                wrong = self.simulate(mutant.source, ptx, name)
            except MlagenError as error:
                return "unsupported", type(error).__name__, str(error), name
            except Exception as error:
                return "crashed", type(error).__name__, str(error), name
            if wrong:
                return "caught", wrong[0][0], wrong[0][1], name
        return "survived", "", "", ""

    def _changes_assembly(self, mutant: Mutant) -> bool:
        """Whether the mutant differs in inline assembly, which only ptxas checks."""
        before, after = self.source.splitlines(), mutant.source.splitlines()
        changed = (line for line, old in zip(after, before, strict=True) if line != old)
        return any('"' in line for line in changed)

    @functools.cache  # noqa: B019  benches live as long as the process
    def _problem(self, name: str) -> tuple[Problem, Expected]:
        problem = make_problem(self.spec, name)
        return problem, expected(self.spec, problem)


def compile_ptx(source: str, plan: KernelPlan) -> str:
    """The PTX of the plan's text, or a mutant of it. The virtual architecture gives the same and leaves ptxas out.

    Raises:
        CompileError: It does not compile.
    """
    return compile_cuda(
        source, name=plan.name, arch=plan.arch.virtual_name, options=LINE_OPTIONS
    ).ptx


def same_instructions(ptx: str, other: str) -> bool:
    """Whether two texts differ only in line numbers, comments and debug sections."""
    return list(_instructions(ptx)) == list(_instructions(other))


def _instructions(ptx: str) -> Iterator[str]:
    code = ptx.partition("\t.section\t")[0].partition("\n.section")[0]
    for line in re.sub(r"//[^\n]*", "", code).splitlines():
        text = line.strip()
        if text and not text.startswith((".loc", ".file")):
            yield text
