"""`mlagen show`: everything about one kernel."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from mlagen.build import BuiltKernel, build_plans
from mlagen.cli.options import Verb, debug_option, json_option, kernel_argument, target_argument
from mlagen.cli.output import print_code, print_facts, print_json, print_table
from mlagen.cli.selection import find_kernel
from mlagen.compile.sass import disassemble, find_nvdisasm, loops_like
from mlagen.errors import MissingDependencyError
from mlagen.plan import plan_kernel
from mlagen.plan.cycle_model import DEVICES, NUM_HEADS, predictions, step_of
from mlagen.render import render_kernel

if TYPE_CHECKING:
    from mlagen.build import FailedKernel
    from mlagen.plan.plan import KernelPlan


@click.command("show", cls=Verb)
@target_argument
@kernel_argument
@click.option("--source", "what", flag_value="source", help="Print the rendered CUDA.")
@click.option("--ptx", "what", flag_value="ptx", help="Print the PTX, compiled if need be.")
@click.option(
    "--sass", "what", flag_value="sass", help="Print the machine code, compiled if need be."
)
@json_option
@debug_option
def command(*, target: str, kernel: str | None, what: str | None, as_json: bool) -> None:
    """Show the plan, the budgets and the machine code of one kernel.

    mlagen show model.yaml                                  # if it has one kernel
    mlagen show specs/deepseek.yaml mla_prefill_sm90a_192x128_bf16_causal_dense
    mlagen show fd47                                        # the beginning of a hash
    mlagen show fd47 --sass | grep HGMMA
    """
    plan = plan_kernel(find_kernel(target, kernel))
    if what and as_json:
        raise click.UsageError(f"--{what} prints text: leave out --json")
    match what:
        case "source":
            print_code(render_kernel(plan), language="cuda")
        case "ptx":
            print(_compiled(plan).ptx)
        case "sass":
            for instruction in disassemble(_compiled(plan).cubin).instructions:
                print(instruction)
        case _:
            built = _from_cache(plan)
            if as_json:
                print_json(_as_json(plan, built))
            else:
                _print_plan(plan)
                _print_prediction(plan)
                _print_built(built)


def _compiled(plan: KernelPlan) -> BuiltKernel:
    (outcome,) = build_plans([plan])
    if isinstance(outcome, BuiltKernel):
        return outcome
    raise outcome.error


def _from_cache(plan: KernelPlan) -> BuiltKernel | None:
    """Return the compiled kernel if it is there already: to look at a plan compiles nothing."""
    try:
        outcome: BuiltKernel | FailedKernel = build_plans([plan], policy="never")[0]
    except MissingDependencyError:
        return None
    return outcome if isinstance(outcome, BuiltKernel) else None


def _rescale_words(plan: KernelPlan) -> str:
    words = f"when a row's maximum grows by more than 2^{plan.rescale_threshold:g}"
    if plan.largest_rescale_threshold > plan.rescale_threshold:
        words += f", up to 2^{plan.largest_rescale_threshold:g} where the new key weighs little"
    return words


def _print_plan(plan: KernelPlan) -> None:
    cost = plan.cost
    print_facts(
        {
            "spec hash": plan.spec.hash,
            "family": f"{plan.family} for {plan.arch.name}",
            "tile": plan.tile_words,
            "stages": f"{plan.kv_slots} slots in which K and V take turns"
            if plan.kv_slots
            else f"{plan.k_stages} of K, {plan.v_stages} of V",
            "rescale": _rescale_words(plan),
            "diagonal": "half of it multiplied" if plan.half_diagonal else "whole",
            "ping-pong": "yes" if plan.ping_pong else "no",
            "block": f"{plan.threads} threads",
            "shared memory": f"{_kib(plan.shared_memory_bytes)} of "
            f"{_kib(plan.arch.shared_memory_bytes)} KiB",
            "registers": f"about {plan.estimated_registers} of a "
            f"{'softmax' if plan.tensor_regions else 'math'} thread",
            "a step costs": f"{cost.tensor_cycles} tensor-core cycles, {cost.exp2_cycles} of exp2, "
            f"{_kib(cost.bytes_from_l2)} KiB from L2",
        },
        title=plan.name,
    )
    print()
    print_table(
        ("region", "element", "shape", "offset", "KiB", "holds"),
        [
            (r.name, r.element, _shape(r.shape), r.offset_bytes, _kib(r.size_bytes), r.comment)
            for r in plan.regions
        ],
        title="Shared memory",
    )
    print()
    if plan.tensor_regions:
        print_table(
            ("region", "columns", "count", "holds"),
            [
                (r.name, f"{r.first_column}-{r.first_column + r.columns - 1}", r.columns, r.comment)
                for r in plan.tensor_regions
            ],
            title=f"Tensor memory, of {plan.arch.tensor_memory_columns} columns",
        )
        print()
    print_table(
        ("barrier", "copies", "arrivals", "bytes", "arrives", "waits"),
        [(b.name, b.copies, b.arrivals, b.bytes, b.arrives, b.waits) for b in plan.barriers],
        title="Barriers, numbers of one phase",
    )
    print()
    print_table(
        ("role", "warpgroups", "registers", "work"),
        [(r.name, r.warpgroups, r.registers, r.work) for r in plan.roles],
        title="Roles",
    )
    print()
    print_table(
        ("map", "tensor", "addressing", "box", "element"),
        [
            (m.name, m.tensor, m.addressing, f"{m.box_rows} x {m.box_columns}", m.dtype.name)
            for m in plan.tensor_maps
        ],
        title="Tensor maps",
    )
    print()
    print_table(
        ("argument", "type", "meaning"),
        [(a.name, a.ctype, a.comment) for a in plan.arguments],
        title="Arguments",
    )


def _print_prediction(plan: KernelPlan) -> None:
    """What the cycle model says, and that nobody has measured it."""
    device = DEVICES[plan.arch.name]
    step = step_of(plan, device)
    print()
    print_table(
        ("unit", "cycles", "of the step"),
        [
            *((unit, f"{n:.0f}", f"{n / step.cycles:.0%}") for unit, n in step.units.items()),
            ("a step, with losses", f"{step.cycles:.0f}", ""),
        ],
        title=f"Predicted step on a {device.name}",
    )
    found = predictions(plan)
    if not found:
        return
    print()
    print_table(
        (f"one sequence, {NUM_HEADS} heads", "ms", "TFLOP/s", "of peak", "bound by"),
        [
            (p.shape, f"{p.time_ms:.3f}", f"{p.tflops:.0f}", f"{p.of_peak:.0%}", p.bound_by)
            for p in found
        ],
        title=f"Predicted, not measured: {device.name} at {device.clock_ghz} GHz",
    )


def _print_built(built: BuiltKernel | None) -> None:
    print()
    if built is None:
        print("not compiled yet: mlagen build SPEC")
        return
    facts: dict[str, object] = {"build key": built.key, **dataclasses.asdict(built.resources)}
    print_facts(facts | {"SASS lint": built.lint} | _sass_facts(built), title="Compiled")


def _sass_facts(built: BuiltKernel) -> dict[str, object]:
    """Return what the machine code shows; nothing without nvdisasm."""
    if find_nvdisasm() is None:
        return {}
    sass = disassemble(built.cubin)
    loops = {
        f"loop of {wanted.role}": "; ".join(
            loop.describe(*dict(wanted.counts)) for loop in loops_like(sass, wanted)
        )
        for wanted in built.plan.sass.loops
    }
    return {
        "instructions": len(sass.instructions),
        "highest register": sass.highest_register,
        **{name: found or "none" for name, found in loops.items()},
    }


def _as_json(plan: KernelPlan, built: BuiltKernel | None) -> dict[str, object]:
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    spec = fields.pop("spec")
    shown: dict[str, object] = {name: _plain(value) for name, value in fields.items()}
    shown |= {
        "spec": spec.canonical,
        "spec_hash": spec.hash,
        "threads": plan.threads,
        "shared_memory_bytes": plan.shared_memory_bytes,
        "predicted": _prediction(plan),
        "compiled": None,
    }
    if built is not None:
        compiled = {"key": built.key, "lint": built.lint, **dataclasses.asdict(built.resources)}
        shown["compiled"] = compiled | {
            name.replace(" ", "_"): value for name, value in _sass_facts(built).items()
        }
    return shown


def _prediction(plan: KernelPlan) -> dict[str, object]:
    device = DEVICES[plan.arch.name]
    step = step_of(plan, device)
    return {
        "device": dataclasses.asdict(device),
        "step": {"units": step.units, "cycles": step.cycles, "bound_by": step.bound_by},
        "launches": [dataclasses.asdict(prediction) for prediction in predictions(plan)],
    }


def _plain(value: object) -> object:
    """Return dataclasses as dicts, at any depth."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _kib(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.1f}"
