"""`mlagen build`: from a spec to checked kernels in the cache and their sources in `generated/`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlagen.artifacts import write_kernels
from mlagen.build import (
    BuildEvent,
    BuiltKernel,
    FailedKernel,
    LintPolicy,
    build_plans,
    check_generated,
    write_generated,
)
from mlagen.cli.options import (
    Verb,
    arch_option,
    debug_option,
    json_option,
    spec_argument,
    words_option,
)
from mlagen.cli.output import count, note, print_code, print_json, print_table, progress_bar
from mlagen.cli.selection import Selection, plan_selection, select_kernels
from mlagen.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import SpecFile

GENERATED = Path("generated")


@click.command("build", cls=Verb)
@spec_argument
@click.option("--check", is_flag=True, help="Compile nothing: compare generated/ with the spec.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write binaries and a manifest to this folder, which `load` takes without a compiler.",
)
@arch_option
@words_option
@click.option("--jobs", type=click.IntRange(min=1), help="Kernels compiled at once [all cores].")
@click.option("--no-compile", is_flag=True, help="Only write the sources to generated/.")
@click.option(
    "--lint",
    type=click.Choice(["auto", "strict"]),
    default="auto",
    help="Without nvdisasm the check of the machine code is skipped (auto), or an error (strict).",
)
@json_option
@debug_option
def command(
    *,
    spec: Path,
    check: bool,
    out: Path | None,
    archs: tuple[str, ...] | None,
    words: tuple[str, ...],
    jobs: int | None,
    no_compile: bool,
    lint: LintPolicy,
    as_json: bool,
) -> int:
    """Render and compile the kernels of a spec; needs no GPU.

    Compiled kernels go to the cache; after Ctrl-C the same command goes on where it stopped. The
    sources go to generated/<spec>/<arch>/ here, except with --out, -k or --arch.

      mlagen build specs/deepseek.yaml
      mlagen build specs/deepseek.yaml -k causal -k fp16
      mlagen build specs/deepseek.yaml --out kernels/   # for machines without a compiler
      mlagen build specs/deepseek.yaml --check          # in CI: is generated/ current?
    """
    if out and (check or no_compile):
        raise click.UsageError("--out needs compiled kernels: leave out --check and --no-compile")
    if (words or archs) and (check or no_compile):
        raise click.UsageError(f"{GENERATED}/ holds whole specs: leave out -k and --arch")
    selection = select_kernels(spec, archs=archs, words=words)
    if check:
        return _check(selection, as_json=as_json)
    if no_compile:
        return _write(selection.file, as_json=as_json)
    outcomes = _build(plan_selection(selection), jobs=jobs, lint=lint)
    built = [outcome for outcome in outcomes if isinstance(outcome, BuiltKernel)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedKernel)]
    if as_json:
        print_json(_as_json(selection, built, failed))
    elif built:
        _print_table(built)
    if failed:
        return _report(failed)
    if out:
        write_kernels(out, built)
        note(
            f"{count(len(built), 'kernel')} in {out}: mlagen.load({str(out)!r}), or MLAGEN_KERNELS={out}"
        )
    elif not words and archs is None:
        _write(selection.file, as_json=False)
    return 0


def _build(
    plans: Sequence[KernelPlan], *, jobs: int | None, lint: LintPolicy
) -> list[BuiltKernel | FailedKernel]:
    with progress_bar(len(plans), what="building") as bar:

        def show(event: BuildEvent) -> None:
            match event.kind:
                case "started":
                    bar.label(event.name)
                case "waiting":
                    bar.say(f"waiting for another process that compiles {event.name}")
                case "finished" | "failed":
                    bar.advance()
                case "stopping":
                    bar.say("stopping: kernels that are being compiled are finished first")

        return build_plans(plans, jobs=jobs, lint=lint, progress=show)


def _check(selection: Selection, *, as_json: bool) -> int:
    diffs = check_generated(selection.file, GENERATED)
    folder = GENERATED / selection.file.name
    if as_json:
        print_json({"current": not diffs, "kernels": len(selection.specs), "diffs": diffs})
    else:
        for diff in diffs:
            print_code(diff, language="diff")
    if diffs:
        raise CheckError(
            f"{folder}: {count(len(diffs), 'file')} not what {selection.path} renders to\n"
            f"  renew them and review the change: mlagen build {selection.path}"
        )
    note(f"{folder}: {count(len(selection.specs), 'kernel')}, as {selection.path} renders them")
    return 0


def _write(file: SpecFile, *, as_json: bool) -> int:
    changed = write_generated(file, GENERATED)
    if as_json:
        print_json({"folder": str(GENERATED / file.name), "changed": changed})
    note(f"{GENERATED / file.name}: {count(len(changed), 'file')} changed")
    return 0


def _print_table(built: Sequence[BuiltKernel]) -> None:
    rows = [
        (
            kernel.plan.name,
            kernel.resources.registers,
            kernel.resources.spill_store_bytes + kernel.resources.spill_load_bytes,
            f"{kernel.plan.shared_memory_bytes / 1024:.1f}",
            kernel.lint,
            "cache" if kernel.cached else f"{kernel.seconds:.1f} s",
        )
        for kernel in built
    ]
    print_table(("kernel", "registers", "spills", "shared KiB", "SASS lint", "built"), rows)
    compiled = sum(not kernel.cached for kernel in built)
    note(
        f"{count(len(built), 'kernel')}, {compiled} compiled now, {len(built) - compiled} from the cache"
    )
    if any(kernel.lint == "skipped" for kernel in built):
        note("the SASS lint was skipped: pip install nvidia-cuda-nvdisasm to have it")


def _as_json(
    selection: Selection, built: Sequence[BuiltKernel], failed: Sequence[FailedKernel]
) -> dict[str, object]:
    kernels = [
        {
            "name": kernel.plan.name,
            "arch": kernel.plan.arch.name,
            "spec_hash": kernel.plan.spec.hash,
            "key": kernel.key,
            "cached": kernel.cached,
            "seconds": round(kernel.seconds, 3),
            "lint": kernel.lint,
            "shared_memory_bytes": kernel.plan.shared_memory_bytes,
            "resources": dataclasses.asdict(kernel.resources),
        }
        for kernel in built
    ]
    failures = [{"name": failure.plan.name, "error": str(failure.error)} for failure in failed]
    return {"spec": selection.file.name, "kernels": kernels, "failed": failures}


def _report(failed: Sequence[FailedKernel]) -> int:
    """Print why kernels failed; the sources stay as they were."""
    for failure in failed:
        note(f"\nerror: {failure.error}")
    note(f"\n{count(len(failed), 'kernel')} failed; {GENERATED}/ is unchanged")
    return max(failure.error.exit_status for failure in failed)
