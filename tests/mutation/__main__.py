"""Run all mutants: `python -m tests.mutation --log build/mutants.jsonl`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutation.accepted import reason
from tests.mutation.campaign import (
    ARCHITECTURES,
    append,
    bench,
    read_log,
    run_all,
    tasks,
    unlogged,
)

if TYPE_CHECKING:
    from tests.mutation.bench import Outcome

_SECONDS_BETWEEN_LINES = 10


def main() -> int:
    """Run what the arguments ask for; 1 if a mutant survived that is not accepted."""
    arguments = _parser().parse_args()
    wanted = tasks(
        archs=arguments.arch or ARCHITECTURES,
        rules=arguments.rule,
        kernels=arguments.kernel,
        once=arguments.once,
    )
    done = read_log(arguments.log, any_version=arguments.any_version)
    left = unlogged(wanted, done, retry=arguments.retry)
    kernels = {task.kernel for task in wanted}
    _say(f"{len(wanted)} mutants, {len(left)} to run, {len(kernels)} kernels")
    begin = last = time.monotonic()
    for count, outcome in enumerate(run_all(left, jobs=arguments.jobs), start=1):
        append(arguments.log, outcome)
        done[outcome.kernel, outcome.name] = outcome
        if _is_bad(outcome):
            _say(_line(outcome))
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            rest = (last - begin) / count * (len(left) - count)
            _say(f"{count} of {len(left)}, {rest / 60:.0f} minutes left")
    return _summary([done[bench(task.kernel).plan.name, task.name] for task in wanted])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--log", type=Path, default=Path("build/mutants.jsonl"), help="outcomes; resumed from"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="only kernels for this one"
    )
    parser.add_argument(
        "--rule", action="append", default=[], help="only rules whose name contains this"
    )
    parser.add_argument(
        "--kernel",
        type=int,
        action="append",
        default=[],
        help="only this one of the chosen kernels, from 0",
    )
    parser.add_argument(
        "--once", action="store_true", help="a line that several kernels share only once"
    )
    parser.add_argument("--retry", action="store_true", help="run those again that survived")
    parser.add_argument(
        "--any-version", action="store_true", help="go on behind outcomes of other versions, too"
    )
    return parser


def _summary(outcomes: list[Outcome]) -> int:
    statuses = Counter(one.status for one in outcomes)
    checkers = Counter(one.by for one in outcomes if one.status == "caught")
    kinds = {one.rule for one in outcomes if one.status == "caught"}
    accepted = [one for one in outcomes if one.status == "survived" and reason(one)]
    bad = [one for one in outcomes if _is_bad(one)]
    _say("")
    _say(", ".join(f"{count} {status}" for status, count in statuses.most_common()))
    _say(
        f"{len(kinds)} kinds caught; by "
        + ", ".join(f"{by} {count}" for by, count in checkers.most_common())
    )
    _say(f"{len(accepted)} survivors accepted, {len(bad)} not:")
    for one in bad:
        _say("  " + _line(one))
    return 1 if bad else 0


def _is_bad(outcome: Outcome) -> bool:
    return outcome.status in ("survived", "unsupported", "crashed") and not reason(outcome)


def _line(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.kernel}:{outcome.line}: {outcome.name} {outcome.detail}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
