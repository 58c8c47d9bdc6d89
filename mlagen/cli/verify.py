"""`mlagen verify`: the kernels of a spec on small problems, in the simulator or on a GPU, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from mlagen.build import processors
from mlagen.cli.machine import archs_of_gpu, gpu_count
from mlagen.cli.options import (
    Verb,
    arch_option,
    debug_option,
    json_option,
    spec_argument,
    words_option,
)
from mlagen.cli.output import count, note, print_json, print_table, progress_bar
from mlagen.cli.selection import plan_selection, select_kernels
from mlagen.errors import MissingDependencyError
from mlagen.runtime.simulator import Simulator
from mlagen.trial_log import TrialLog
from mlagen.trials import Trial, draw_trial, run_trials
from mlagen.verify.problems import problem_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.spec.model import KernelSpec
    from mlagen.trials import Verdict

_PCT_SEEDS = 8


@click.command("verify", cls=Verb)
@spec_argument
@click.option(
    "--backend",
    type=click.Choice(["sim", "cuda"]),
    help="Where kernels run [cuda where there is a GPU, else sim].",
)
@arch_option
@words_option
@click.option(
    "--problem",
    "problem_words",
    multiple=True,
    metavar="WORD",
    help="Only problems whose name contains WORD. May be repeated: any of them.",
)
@click.option("--first", is_flag=True, help="Only the first kernel, on its first problem.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the values."
)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="lazy|eager|pct:SEED|replay:FILE",
    help="Of the simulator [lazy]. May be repeated; `full` is lazy and eight seeds.",
)
@click.option(
    "--level",
    type=click.Choice(["strict", "practice"]),
    default="strict",
    help="Of the simulator's checks [strict].",
)
@click.option("--ctas", type=click.IntRange(min=1), help="Most blocks [as each problem says].")
@click.option("--jobs", type=click.IntRange(min=1), help="Simulations at once [all cores].")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append verdicts to this file, and do not repeat what has passed there.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the first run into this SVG: one lane a role, order and not time.",
)
@json_option
@debug_option
def command(
    *,
    spec: Path,
    backend: Literal["sim", "cuda"] | None,
    archs: tuple[str, ...] | None,
    words: tuple[str, ...],
    problem_words: tuple[str, ...],
    first: bool,
    seed: int,
    schedules: tuple[str, ...],
    level: Literal["strict", "practice"],
    ctas: int | None,
    jobs: int | None,
    log: Path | None,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Run the kernels of a spec on small problems and check every element and every rule.

    Without a GPU the compiled PTX runs in a simulator that also checks synchronisation; errors are
    measured in units of what rounding explains.

      mlagen verify specs/deepseek.yaml -k causal
      mlagen verify specs/deepseek.yaml --first --trace run.svg
      mlagen verify specs/deepseek.yaml -k paged64 --problem walk --schedule pct:3
    """
    has_gpu = gpu_count() > 0
    if backend == "cuda" and not has_gpu:
        raise MissingDependencyError(
            "--backend cuda: this machine has no GPU that can be used\n  leave it out, or see: mlagen doctor"
        )
    backend = backend or ("cuda" if has_gpu else "sim")
    if backend == "cuda":
        archs = archs or archs_of_gpu()
    selection = select_kernels(spec, archs=archs, words=words)
    plan_selection(selection)  # refusals come before anything is run
    backends = [backend] if backend == "cuda" else _simulators(schedules, level)
    trials = [
        Trial(kernel, problem, seed, one, ctas)
        for kernel in selection.specs[: 1 if first else None]
        for problem in _problems(kernel, problem_words)[: 1 if first else None]
        for one in backends
    ]
    if not trials:
        raise click.UsageError(f"no problem contains {' or '.join(problem_words)}")
    if trace:
        trace.parent.mkdir(parents=True, exist_ok=True)  # before a run that may take minutes
        trace.write_text(draw_trial(trials[0]), encoding="utf-8")
        note(f"{trace}: {trials[0].key}")
    verdicts = _run(trials, jobs=1 if backend == "cuda" else jobs or processors(), log=log)
    if as_json:
        passed = all(verdict.passed for verdict in verdicts)
        print_json({"passed": passed, "trials": [one.to_json() for one in verdicts]})
    else:
        _print_table(verdicts)
    unusual = {"seed": seed or None, "level": level if level != "strict" else None, "ctas": ctas}
    options = [f" --{name} {value}" for name, value in unusual.items() if value is not None]
    return _report(verdicts, again=f"mlagen verify {spec}{''.join(options)} --backend {backend}")


def _simulators(
    schedules: tuple[str, ...], level: Literal["strict", "practice"]
) -> list[Simulator]:
    """The simulators with the schedules asked for; `full` stands for lazy and eight seeds."""
    full = ["lazy", *(f"pct:{seed}" for seed in range(1, _PCT_SEEDS + 1))]
    wanted = [one for name in schedules or ["lazy"] for one in (full if name == "full" else [name])]
    return [Simulator(schedule, level) for schedule in dict.fromkeys(wanted)]


def _problems(spec: KernelSpec, words: tuple[str, ...]) -> list[str]:
    """The problems whose names contain a word, or are one."""
    names = problem_names(spec)
    if not words:
        return names
    return [
        name
        for name in names
        if any(word == name or (word in name and word not in names) for word in words)
    ]


def _run(trials: Sequence[Trial], *, jobs: int, log: Path | None) -> list[Verdict]:
    """Run what the log does not know to have passed."""
    known = TrialLog(log) if log else None
    found = {trial.key: known.find(trial) for trial in trials} if known else {}
    verdicts = [verdict for verdict in found.values() if verdict]
    open_trials = [trial for trial in trials if not found.get(trial.key)]
    if verdicts:
        note(f"{log}: {count(len(verdicts), 'run')} passed before")
    with progress_bar(len(open_trials), what="verifying") as bar:
        for verdict in run_trials(open_trials, jobs=jobs):
            bar.label(verdict.kernel)
            bar.advance()
            verdicts.append(verdict)
            if known:
                known.add(verdict)
            if not verdict.passed:
                bar.say(f"failed: {verdict.key}")
    order = {trial.key: index for index, trial in enumerate(trials)}
    return sorted(verdicts, key=lambda verdict: order[verdict.key])


def _print_table(verdicts: Sequence[Verdict]) -> None:
    """One line a kernel; errors in units of what rounding explains."""
    by_kernel: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_kernel.setdefault(verdict.kernel, []).append(verdict)
    rows = []
    for kernel, runs in by_kernel.items():
        findings = sorted({kind for run in runs for kind in run.findings})
        rows.append(
            (
                kernel,
                len(runs),
                sum(not run.passed for run in runs),
                _worst([run.out_error for run in runs]),
                _worst([run.lse_error for run in runs]),
                ", ".join(findings) or "none",
                len(set.intersection(*(set(run.unreached) for run in runs))),
                f"{sum(run.seconds for run in runs):.1f}",
            )
        )
    columns = (
        "kernel",
        "runs",
        "failed",
        "error / bound",
        "of LSE",
        "findings",
        "lines unreached",
        "seconds",
    )
    print_table(columns, rows)


def _worst(errors: Sequence[float | None]) -> str | None:
    known = [error for error in errors if error is not None]
    return f"{max(known):.2f}" if known else None


def _report(verdicts: Sequence[Verdict], *, again: str) -> int:
    """Say what is wrong, and how to see it again; returns the exit status."""
    failed = [verdict for verdict in verdicts if not verdict.passed]
    for verdict in failed:
        words = f"-k {verdict.kernel} --problem '{verdict.problem}'"
        if verdict.schedule:
            words += f" --schedule {verdict.schedule}"
        lines = "\n".join(verdict.complaints)
        note(f"\n{verdict.kernel}, {verdict.problem}:\n{lines}\n  again: {again} {words}\n")
    note(f"{count(len(verdicts), 'run')}, {len(failed) or 'none'} failed")
    return 1 if failed else 0
