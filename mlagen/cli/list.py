"""`mlagen list`: the kernels of a spec and their state, or the options that mlagen knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlagen.arch import ARCHS
from mlagen.build import BuiltKernel, build_plans
from mlagen.cli.options import Verb, arch_option, debug_option, json_option, words_option
from mlagen.cli.output import note, print_json, print_table
from mlagen.cli.selection import select_kernels
from mlagen.cli.support import known_options, one_line, support_table
from mlagen.errors import MissingDependencyError, MlagenError
from mlagen.plan import plan_kernel
from mlagen.plan.name import kernel_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec


@click.command("list", cls=Verb)
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option("--unsupported", is_flag=True, help="Only what has no kernel yet, and why.")
@click.option("--markdown", is_flag=True, help="The options as the table of README.md.")
@arch_option
@words_option
@json_option
@debug_option
def command(
    *,
    spec: Path | None,
    unsupported: bool,
    markdown: bool,
    archs: tuple[str, ...] | None,
    words: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the kernels of a spec with their state; without a spec, the options mlagen knows.

    mlagen list                              # every option, and whether it has a kernel
    mlagen list --unsupported                # those that have none, with the reason
    mlagen list specs/deepseek.yaml -k lse   # kernels: built, not built, or refused
    """
    if markdown:
        if spec or unsupported or as_json:
            raise click.UsageError("--markdown prints all options and stands alone")
        print(support_table(), end="")
        return
    if spec is None:
        if archs or words:
            raise click.UsageError("-k and --arch choose kernels of a SPEC: name one")
        _list_options(unsupported=unsupported, as_json=as_json)
        return
    states = _states(select_kernels(spec, archs=archs, words=words).specs)
    rows = [
        {
            "name": kernel_name(kernel),
            "spec_hash": kernel.hash,
            "state": state,
            "reason": reason,
            "proven_on": ARCHS[kernel.arch].proven_on,
        }
        for kernel, (state, reason) in states.items()
        if state == "refused" or not unsupported
    ]
    if as_json:
        print_json(rows)
    elif any(row["reason"] for row in rows):
        columns = ("name", "state", "reason")
        print_table(("kernel", "state", "why"), [[row[c] for c in columns] for row in rows])
    else:
        print_table(("kernel", "state"), [(row["name"], row["state"]) for row in rows])
    for arch in sorted({kernel.arch for kernel in states if ARCHS[kernel.arch].proven_on != "GPU"}):
        note(f"{arch}: no GPU has run these kernels yet, they are proven in the simulator only")


def _states(specs: Sequence[KernelSpec]) -> dict[KernelSpec, tuple[str, str | None]]:
    """Return state and reason of each kernel: `built`, `not built` or `refused`; compiles nothing."""
    states: dict[KernelSpec, tuple[str, str | None]] = {}
    plans: list[KernelPlan] = []
    for spec in specs:
        try:
            plans.append(plan_kernel(spec))
            states[spec] = ("not built", None)
        except MlagenError as error:
            states[spec] = ("refused", one_line(error))
    try:
        outcomes = build_plans(plans, policy="never")
    except MissingDependencyError:
        return states  # without a compiler there is no build key to look for
    for plan, outcome in zip(plans, outcomes, strict=True):
        if isinstance(outcome, BuiltKernel):
            states[plan.spec] = ("built", None)
    return states


def _list_options(*, unsupported: bool, as_json: bool) -> None:
    shown = [option for option in known_options() if option.reason or not unsupported]
    if as_json:
        print_json(
            [
                {
                    "option": option.option,
                    "value": option.value,
                    "available": option.reason is None,
                    "reason": option.reason,
                }
                for option in shown
            ]
        )
        return
    rows = [
        (option.option, option.value, "yes" if option.reason is None else "no", option.reason)
        for option in shown
    ]
    if unsupported:
        print_table(
            ("option", "value", "why there is no kernel"), [(o, v, r) for o, v, _, r in rows]
        )
    else:
        print_table(("option", "value", "has a kernel"), [row[:3] for row in rows])
