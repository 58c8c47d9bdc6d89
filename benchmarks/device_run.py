"""Everything that needs the GPU in one call: doctor, tests, checkers, timings; leaves a report.

    MLAGEN_KERNELS=folder python -m benchmarks.device_run                     # doctor, tests, figures, host
    MLAGEN_KERNELS=folder python -m benchmarks.device_run memcheck racecheck  # chosen stages

The folder is what `python -m benchmarks.prepare_kernels` wrote, maybe on another machine; without it kernels are
compiled here. `report.md`, `report.json` and `log.txt` go to `$OUT` if that is set, else to `benchmarks/results`. A
stage that fails or runs out of time does not keep the others from running. The exit status is 1 if any stage failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = [sys.executable]
TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Stage:
    """One program to run.

    Attributes:
        command: What is run, from the root of the checkout.
        limit_s: When it is stopped.
        result: JSON file that it writes into the output folder, if any.
        checker: Run it under this tool of compute-sanitizer.
    """

    command: tuple[str, ...]
    limit_s: int
    result: str | None = None
    checker: str | None = None


STAGES: dict[str, Stage] = {
    "doctor": Stage(("-m", "mlagen", "doctor"), 60),
    "smoke": Stage(
        (
            "-m",
            "pytest",
            "-q",
            "--maxfail=12",
            "tests/gpu/test_accuracy.py",
            "tests/gpu/test_cases.py",
        ),
        120,
    ),
    "tests": Stage(("-m", "pytest", "-q", "--maxfail=60", "--durations=8", "tests/gpu"), 420),
    "figures": Stage(("-m", "benchmarks.prefill", "--regime", "cool", "hot"), 120, "prefill.json"),
    "host": Stage(("-m", "benchmarks.host_overhead"), 60, "host_overhead.json"),
    "flex": Stage(
        ("-m", "benchmarks.prefill", "--peers", "torch_cudnn", "flex"), 240, "prefill_flex.json"
    ),
    "speed": Stage(
        ("-m", "benchmarks.prefill", "--rows", "speed", "--regime", "cool", "hot"),
        400,
        "speed.json",
    ),
    "forms": Stage(("-m", "benchmarks.prefill", "--rows", "operands", "masks"), 240, "forms.json"),
    "example": Stage(("-m", "examples.prefill"), 120),
    "memcheck": Stage(("-m", "tests.gpu.sanitizer_shapes", "--all"), 300, checker="memcheck"),
    "hostile": Stage(("-m", "tests.gpu.hostile_values", "--exact"), 300, checker="memcheck"),
    "racecheck": Stage(("-m", "tests.gpu.sanitizer_shapes"), 300, checker="racecheck"),
    "synccheck": Stage(("-m", "tests.gpu.sanitizer_shapes"), 300, checker="synccheck"),
}
DEFAULT = ("doctor", "tests", "figures", "host")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a stage."""

    name: str
    command: str
    status: str
    seconds: float
    tail: str

    @property
    def failed(self) -> bool:
        """Whether it did not do what it should."""
        return self.status != "passed"


def main() -> int:
    """Run the stages, write the report after each."""
    parser = argparse.ArgumentParser(
        description="Run tests and measurements on this machine's GPU."
    )
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="STAGE",
        help=f"of: {', '.join(STAGES)}; default: {' '.join(DEFAULT)}",
    )
    parser.add_argument("--total-s", type=float, default=560, help="time for all stages together")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.stages if name not in STAGES]:
        parser.error(f"no such stage: {', '.join(unknown)}; stages: {', '.join(STAGES)}")
    out = Path(os.environ.get("OUT") or ROOT / "benchmarks/results").absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "log.txt").unlink(missing_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + arguments.total_s
    for name in arguments.stages or DEFAULT:
        outcome = run_stage(name, out, left_s=end - time.monotonic())
        outcomes.append(outcome)
        print(f"{name}: {outcome.status}, {outcome.seconds:.0f} s", flush=True)
        print(outcome.tail if outcome.failed or name != "doctor" else "", flush=True)
        write_report(out, outcomes)
    print(summary(outcomes))
    return int(any(outcome.failed for outcome in outcomes))


def run_stage(name: str, out: Path, *, left_s: float) -> Outcome:
    """Run one stage; its whole output goes to the log."""
    stage = STAGES[name]
    command = [*PYTHON, *stage.command]
    if stage.result:
        (out / stage.result).unlink(missing_ok=True)
        command += ["--json", str(out / stage.result)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if (
        "MLAGEN_KERNELS" in environment
    ):  # what the folder lacks is an error, not a compile of another compiler
        environment.setdefault("MLAGEN_COMPILE", "never")
    if stage.checker:
        checker = find_checker()
        if checker is None:
            return Outcome(name, " ".join(command), "not run: no compute-sanitizer here", 0.0, "")
        options = ["--tool", stage.checker, "--error-exitcode", "9"]
        if stage.checker == "memcheck":
            # Python's CUDA bindings look for functions that an older driver lacks; that is no error of a kernel.
            options += ["--report-api-errors", "no"]
        command = [checker, *options, *command]
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    shown = " ".join(Path(word).name if Path(word).is_absolute() else word for word in command)
    shown = shown.replace(Path(sys.executable).name, "python")
    if left_s < 5:
        return Outcome(name, shown, "not run: out of time", 0.0, "")
    log = out / "log.txt"
    with log.open("a") as stream:
        stream.write(f"\n===== {name}: {shown}\n")
        stream.flush()
        start, begin = stream.tell(), time.monotonic()
        try:
            done = subprocess.run(  # noqa: S603 (this interpreter, on programs of this repository)
                command,
                cwd=ROOT,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=min(stage.limit_s, left_s),
            )
            status = "passed" if done.returncode == 0 else f"failed with status {done.returncode}"
        except subprocess.TimeoutExpired:
            status = "stopped: out of time"
    seconds = time.monotonic() - begin
    text = log.read_bytes()[start:].decode(errors="replace")
    return Outcome(name, shown, status, seconds, "\n".join(text.splitlines()[-TAIL_LINES:]))


def find_checker() -> str | None:
    """NVIDIA's compute-sanitizer, on the path or where the toolkit puts it."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )


def write_report(out: Path, outcomes: list[Outcome]) -> None:
    """`report.json` and `report.md` of what ran so far."""
    from mlagen.bench.document import heading
    from mlagen.bench.machine import facts

    found = facts()
    results: dict[str, Any] = {}  # JSON values
    for outcome in outcomes:
        file = STAGES[outcome.name].result
        if file and (out / file).exists():
            results[outcome.name] = json.loads((out / file).read_text())
    document = {
        "machine": found,
        "stages": [asdict(outcome) for outcome in outcomes],
        "results": results,
    }
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    lines = [
        "# Run on a GPU",
        "",
        heading(found),
        "",
        "| stage | result | seconds |",
        "|---|---|---:|",
    ]
    lines += [
        f"| `{outcome.command}` | {outcome.status} | {outcome.seconds:.0f} |"
        for outcome in outcomes
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.name}", "", "```", outcome.tail, "```"]
    (out / "report.md").write_text("\n".join(lines) + "\n")


def summary(outcomes: list[Outcome]) -> str:
    """One line a stage."""
    return "\n".join(
        f"{outcome.name:10} {outcome.status} ({outcome.seconds:.0f} s)" for outcome in outcomes
    )


if __name__ == "__main__":
    sys.exit(main())
