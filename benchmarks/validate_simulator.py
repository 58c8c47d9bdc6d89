"""The simulator against a GPU: the same PTX on both, from single instructions to whole kernels.

    python -m benchmarks.validate_simulator prepare micro .carry                  # here: machine code
    python -m benchmarks.validate_simulator prepare mutants .carry
    python -m benchmarks.validate_simulator record micro .carry                   # on the GPU, into $OUT
    MLAGEN_KERNELS=.carry/kernels python -m benchmarks.validate_simulator record whole .carry
    python -m benchmarks.validate_simulator record mutants .carry                 # on the GPU, or --dry here
    python -m benchmarks.validate_simulator compare micro RECORDINGS RESULTS      # here, without a GPU
    python -m benchmarks.validate_simulator compare whole RECORDINGS RESULTS
    python -m benchmarks.validate_simulator compare mutants RECORDINGS RESULTS
    python -m benchmarks.validate_simulator fixtures RECORDINGS                   # into tests/hardware/fixtures
    python -m benchmarks.validate_simulator publish RECORDINGS RESULTS             # docs/validation.md

RECORDINGS and RESULTS are folders. A comparison that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """One step."""
    parser = argparse.ArgumentParser(description="Compare the simulator with a GPU.")
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("prepare", help="compile what runs on the GPU")
    step.add_argument("part", choices=("micro", "mutants"))
    step.add_argument("folder", type=Path)
    step = steps.add_parser("record", help="run on the GPU; answers go to $OUT")
    step.add_argument("part", choices=("micro", "whole", "mutants"))
    step.add_argument("folder", type=Path, help="what `prepare` wrote")
    step.add_argument("-k", dest="words", action="append", default=[], help="only these kernels")
    step.add_argument(
        "--dry", action="store_true", help="only say what would run; mutants: run without a GPU"
    )
    step = steps.add_parser("compare", help="run in the simulator what the GPU has answered")
    step.add_argument("part", choices=("micro", "whole", "mutants"))
    step.add_argument("recordings", type=Path)
    step.add_argument("results", type=Path)
    step.add_argument("-k", dest="words", action="append", default=[], help="only these")
    step.add_argument("--jobs", type=int, default=os.cpu_count())
    step.add_argument("--most", type=int, help="calls of a whole kernel")
    step.add_argument("--accumulation", choices=("fast", "hardware"), default="fast")
    step = steps.add_parser("fixtures", help="keep what a replay in CI needs")
    step.add_argument("recordings", type=Path)
    step = steps.add_parser("publish", help="write the tables of docs/validation.md")
    step.add_argument("recordings", type=Path)
    step.add_argument("results", type=Path)
    arguments = parser.parse_args()
    steps_by_name = {
        "prepare": _prepare,
        "record": _record,
        "compare": _compare,
        "fixtures": _fixtures,
        "publish": _publish,
    }
    return steps_by_name[arguments.step](arguments)


def _out() -> Path:
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _prepare(arguments: argparse.Namespace) -> int:
    if arguments.part == "micro":
        from benchmarks.validation.micro import prepare
    else:
        from benchmarks.validation.mutant_jobs import prepare
    folder = arguments.folder / arguments.part
    size = prepare(folder)
    print(f"{folder}: {size / 2**20:.1f} MiB")
    return 0


def _record(arguments: argparse.Namespace) -> int:
    if arguments.part == "mutants":
        return _record_mutants(arguments)
    from benchmarks.validation import micro, whole

    if arguments.dry:
        calls = [f"{case.name} ({case.module}.{case.entry})" for case in micro.recorded_cases()]
        if arguments.part == "whole":
            names = whole.names_of_problems()
            calls = [whole.key(kernel, name) for kernel, found in names.items() for name in found]
        print("\n".join(calls))
        print(f"{len(calls)} calls")
        return 0
    if arguments.part == "micro":
        failures = micro.record_all(arguments.folder / "micro", _out(), arguments.words)
    else:
        failures = whole.record_all(_out(), arguments.words)
    return int(failures > 0)


def _record_mutants(arguments: argparse.Namespace) -> int:
    from benchmarks.validation import mutants

    folder, out = arguments.folder / "mutants", _out()
    launcher: mutants.Launcher = mutants.GpuLauncher(folder)
    if arguments.dry:
        launcher, out = mutants.DryLauncher(), out / "dry"
        out.mkdir(exist_ok=True)
    return int(mutants.record_all(folder, out, launcher=launcher, words=arguments.words) > 0)


def _compare(arguments: argparse.Namespace) -> int:
    from benchmarks.validation import micro_compare, mutant_compare, whole

    arguments.results.mkdir(parents=True, exist_ok=True)
    if arguments.part == "mutants":
        failures = mutant_compare.compare_all(
            arguments.recordings, arguments.results / "mutants.jsonl", words=arguments.words
        )
    elif arguments.part == "micro":
        failures = micro_compare.compare_all(
            arguments.recordings,
            arguments.results / "micro.jsonl",
            jobs=arguments.jobs,
            words=arguments.words,
        )
    else:
        failures = whole.compare_all(
            arguments.recordings,
            arguments.results / f"whole-{arguments.accumulation}.jsonl",
            jobs=arguments.jobs,
            words=arguments.words,
            most=arguments.most,
            accumulation=arguments.accumulation,
        )
    return int(failures > 0)


def _fixtures(arguments: argparse.Namespace) -> int:
    from benchmarks.validation.fixtures import write_fixtures

    print(f"{write_fixtures(arguments.recordings) / 2**20:.2f} MiB")
    return 0


def _publish(arguments: argparse.Namespace) -> int:
    from benchmarks.validation.publish import publish

    publish(arguments.recordings, arguments.results, ROOT / "docs/validation.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
