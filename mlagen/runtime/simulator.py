"""Calls in the simulator: the compiled PTX of the right variant, run on the CPU on arrays of the caller."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from mlagen.errors import FindingsError, InputError
from mlagen.plan.arguments import draws_tickets
from mlagen.runtime.addressing import check_strides
from mlagen.runtime.device_values import check_device_values
from mlagen.runtime.host_tensor import HostTensor, host_tensor, new_host_array
from mlagen.runtime.inputs import check_tensors
from mlagen.runtime.launch import LaunchForm, output_shapes
from mlagen.runtime.plan_names import names_of
from mlagen.runtime.tickets import COUNTER_BYTES

if TYPE_CHECKING:
    from mlagen.build import BuiltKernel
    from mlagen.plan.plan import KernelPlan
    from mlagen.runtime.arguments import Call
    from mlagen.sim.memory import GlobalMemory
    from mlagen.sim.products import Accumulation
    from mlagen.sim.report import Names
    from mlagen.sim.simulate import SimulationResult

# Kernels are persistent: with few blocks each walks many tiles, and one tile costs the same in any block.
FEW_CTAS = 3


@dataclass(frozen=True, slots=True)
class Simulator:
    """How `load(..., backend=Simulator(...))` runs kernels.

    Attributes:
        schedule: In which order warps and asynchronous operations take turns: `lazy` (copies and products complete as
            late as possible), `eager`, `pct:SEED` (random priorities), or `replay:FILE`.
        level: `strict` applies the rules of the PTX ISA by the letter; in `practice`, those that working compilers
            break are notes.
        ctas: Most blocks of a launch, or pairs of blocks that multiply together, where each walks several tiles.
        trace: Whether to keep every step, for `mlagen.sim.trace`.
        most_steps: After how many steps to give up; None for the simulator's own limit, beyond any small problem.
        accumulation: How wgmma adds up: `fast`, or as `hardware` does, to the last bit; see `mlagen.sim.products`.
        arch: Whose kernels to run; None for the architecture that the specs name first.
    """

    schedule: str = "lazy"
    level: Literal["strict", "practice"] = "strict"
    ctas: int = FEW_CTAS
    trace: bool = False
    most_steps: int | None = None
    accumulation: Accumulation = "fast"
    arch: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: No blocks, or a level or accumulation that there is not.
            ScheduleError: A schedule that there is not.
        """
        from mlagen.sim.products import Accumulation as Accumulations
        from mlagen.sim.schedule import parse_schedule

        if self.level not in ("strict", "practice"):
            raise InputError(
                f"level: {self.level!r} is neither strict nor practice\n  pass one of them"
            )
        if self.accumulation not in (known := get_args(Accumulations)):
            raise InputError(
                f"accumulation: {self.accumulation!r} is none of {', '.join(known)}\n  pass one of them"
            )
        if self.ctas < 1:
            raise InputError(f"ctas: {self.ctas} blocks run nothing\n  pass 1 or more")
        parse_schedule(self.schedule)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated call.

    Attributes:
        out: The output.
        lse: The LSE; None if the kernel writes none.
        result: Findings, counters, the schedule as it went; None if the call had no tile, so that nothing ran.
        names: What its kernel calls its barriers, memory and warps.
    """

    out: Any  # of the caller's kind
    lse: Any
    result: SimulationResult | None
    names: Names

    @property
    def report(self) -> str:
        """The findings as text; empty if there are none."""
        from mlagen.sim.report import render_text

        return render_text(self.result.findings, self.names) if self.result else ""

    def check(self) -> None:
        """Raise FindingsError if the simulator has found an error in the kernel."""
        if self.result is not None and self.result.errors:
            raise FindingsError(self.report)


def run_simulated(kernel: BuiltKernel, call: Call, simulator: Simulator) -> Simulated:
    """Check a call of this kernel, and run it.

    Args:
        kernel: It, with source lines in its PTX.
        call: Its arguments: NumPy arrays, or torch tensors on the CPU.
        simulator: How to run it.

    Raises:
        InputError: An argument is wrong.
        SimulationError: The simulator cannot run this kernel.
    """
    plan = kernel.plan
    hosted = _hosted(call)
    extents = check_tensors(plan.spec, hosted)
    check_strides(hosted)
    if call.options.validate:
        check_device_values(plan.spec, call, extents)
    outputs = _Outputs.of(plan, call)
    form = LaunchForm(
        plan,
        hosted,
        extents=extents,
        out=outputs.host_out,
        lse=outputs.host_lse,
        most_blocks=simulator.ctas * plan.cta_group,
    )
    names = names_of(plan, kernel.source)
    result = None
    if form.has_tiles:
        result = _simulate(kernel, form, hosted, outputs, simulator=simulator, names=names)
    else:  # rows of no sequence, if any
        outputs.host_out.array[...] = 0
        outputs.host_lse.array[...] = -math.inf
    return Simulated(outputs.out, outputs.lse if plan.spec.lse else None, result, names)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What a call writes, as the caller sees it and as arrays."""

    out: Any  # of the caller's kind
    lse: Any
    host_out: HostTensor
    host_lse: HostTensor

    @classmethod
    def of(cls, plan: KernelPlan, call: Call) -> _Outputs:
        """Those that the caller gave, else new ones of the kind of its inputs."""
        shape, rows = output_shapes(plan, call)
        like = call.tensors["v"]
        out, lse = call.tensors.get("out"), call.tensors.get("lse")
        out = new_host_array(like, shape, str(plan.spec.output_dtype)) if out is None else out
        lse = new_host_array(like, rows, "float32") if lse is None else lse
        hosted = []
        for name, output in (("out", out), ("lse", lse)):
            shown = call.written.get(name, name)
            tensor = host_tensor(output, shown)
            if not tensor.array.flags.writeable:
                raise InputError(f"{shown}: a read-only array\n  pass one that can be written")
            hosted.append(tensor)
        return cls(out, lse, *hosted)


def _hosted(call: Call) -> Call:
    """The call with arrays behind the interface that checks and launches read."""
    tensors = {name: host_tensor(value, call.written[name]) for name, value in call.tensors.items()}
    return replace(call, tensors=tensors)


def _simulate(
    kernel: BuiltKernel,
    form: LaunchForm,
    call: Call,
    outputs: _Outputs,
    *,
    simulator: Simulator,
    names: Names,
) -> SimulationResult:
    """Lay out device memory and run the launch."""
    from mlagen.sim.memory import GlobalMemory
    from mlagen.sim.schedule import parse_schedule
    from mlagen.sim.simulate import MOST_STEPS, Checks, simulate

    memory = GlobalMemory()
    written = call.written
    try:
        # Outputs first: what shares memory with one is no input that must not be written.
        out = memory.add(outputs.host_out.array, written.get("out", "out"))
        lse = memory.add(outputs.host_lse.array, written.get("lse", "lse"))
        inputs = [
            memory.add(call.tensors[name].array, written[name], read_only=True)
            for name in form.inputs
        ]
    except ValueError as error:
        raise InputError(f"{error}\n  pass copies of the arrays") from error
    workspace = [0, 0]
    if form.state_floats:
        size = (
            4 * form.state_floats
        )  # bytes of 255: not a number, until a part has written its state
        workspace = [
            memory.place("states", size, b"\xff" * size),
            memory.reserve(4 * form.arrival_ints, "arrivals"),
        ]
    draws = draws_tickets(form.plan.spec)
    tickets = memory.reserve(COUNTER_BYTES, "tickets") if draws else 0
    result = simulate(
        kernel.ptx,
        form.record([*inputs, out, lse, *workspace, tickets]),
        memory,
        schedule=parse_schedule(simulator.schedule),
        checks=Checks(simulator.level),
        names=names,
        trace=simulator.trace,
        most_steps=simulator.most_steps or MOST_STEPS,
        accumulation=simulator.accumulation,
    )
    return _with_counter_checked(result, memory, tickets) if draws else result


def _with_counter_checked(
    result: SimulationResult, memory: GlobalMemory, tickets: int
) -> SimulationResult:
    """The result, with an error if the launch leaves the counter other than zero: the next one would fail."""
    from mlagen.sim.report import Finding

    place = memory.locate(tickets, COUNTER_BYTES)
    assert place is not None
    left = int(place[0].bytes[:COUNTER_BYTES].view("<i4")[0])
    if left == 0 or result.errors:
        return result
    message = f"the ticket counter is {left} after the launch; the next launch needs 0"
    found = Finding("tickets-left", "error", message, region="tickets")
    return replace(result, findings=(*result.findings, found))
