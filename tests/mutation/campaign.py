"""Every rule at every place of every chosen kernel: `python -m tests.mutation`."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.trial_log import version_digest
from tests.mutation.bench import Bench, Outcome
from tests.mutation.catalogue import RULES
from tests.mutation.cover import covering_specs
from tests.plan.kernels import shipped_specs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mlagen.spec.model import KernelSpec
    from tests.mutation.rule import Mutant

ARCHITECTURES = ("sm_90a", "sm_100a")
# Workers leave the cores to others that want them.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Task:
    """One mutant to run: the kernel's place among the chosen ones, the rule, and which of its mutants."""

    kernel: int
    rule: str
    index: int
    name: str


@functools.cache
def chosen_kernels() -> tuple[KernelSpec, ...]:
    """Of each architecture the fewest shipped kernels that together use every template block."""
    return tuple(kernel for arch in ARCHITECTURES for kernel in covering_specs(shipped_specs(arch)))


def kernels_of(arch: str) -> list[int]:
    """Places of an architecture's kernels among the chosen ones."""
    return [place for place, kernel in enumerate(chosen_kernels()) if kernel.arch == arch]


@functools.cache
def bench(kernel: int) -> Bench:
    """The bench of a chosen kernel; one a process."""
    return Bench(chosen_kernels()[kernel])


@functools.lru_cache(maxsize=4)
def mutants(kernel: int, rule: str) -> list[Mutant]:
    """The mutants of one rule in one kernel."""
    (found,) = (one for one in RULES if one.name == rule)
    return found.sites(bench(kernel).source)


def tasks(
    *,
    archs: Sequence[str] = ARCHITECTURES,
    rules: Sequence[str] = (),
    kernels: Sequence[int] = (),
    once: bool = False,
) -> list[Task]:
    """All mutants.

    Args:
        archs: Of kernels for these architectures.
        rules: Parts of names of rules; none for all.
        kernels: Places among the chosen kernels; none for all.
        once: Leave out places, function and line, that an earlier kernel has, too.
    """
    found = []
    seen: set[str] = set()
    of_archs = [kernel for arch in archs for kernel in kernels_of(arch)]
    for kernel in kernels or of_archs:
        for rule in RULES:
            if rules and not any(part in rule.name for part in rules):
                continue
            for index, mutant in enumerate(rule.sites(bench(kernel).source)):
                if not (once and mutant.name in seen):
                    found.append(Task(kernel, rule.name, index, mutant.name))
                seen.add(mutant.name)
    return found


def run(task: Task) -> Outcome:
    """Run one."""
    mutant = mutants(task.kernel, task.rule)[task.index]
    return bench(task.kernel).run(mutant)


def run_all(wanted: Sequence[Task], *, jobs: int) -> Iterator[Outcome]:
    """Run them in `jobs` processes and give outcomes as they come."""
    if jobs == 1:
        yield from map(run, wanted)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=os.nice, initargs=(_NICENESS,)) as pool:
        yield from pool.imap_unordered(run, wanted)


def read_log(log: Path, *, any_version: bool = False) -> dict[tuple[str, str], Outcome]:
    """Outcomes of earlier runs, the last of each mutant, by kernel and name.

    Args:
        log: A line of JSON each; a missing file is an empty one.
        any_version: Take those of other versions of mlagen and its templates, too.
    """
    if not log.exists():
        return {}
    found = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        if not line.endswith("}"):
            continue  # what an interrupted run was writing
        values = json.loads(line)
        if values.pop("version", None) == version_digest() or any_version:
            outcome = Outcome(**values)
            found[outcome.kernel, outcome.name] = outcome
    return found


def append(log: Path, outcome: Outcome) -> None:
    """Add one to the log; an interrupted run goes on behind it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"version": version_digest(), **outcome.to_json()}) + "\n")


def unlogged(
    wanted: Iterable[Task], done: dict[tuple[str, str], Outcome], *, retry: bool
) -> list[Task]:
    """Tasks without an outcome; with `retry`, those that survived or were not supported, too."""
    again = {"survived", "unsupported", "crashed"} if retry else set()
    return [
        task
        for task in wanted
        if (one := done.get((bench(task.kernel).plan.name, task.name))) is None
        or one.status in again
    ]
