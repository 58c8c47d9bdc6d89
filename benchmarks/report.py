"""Verify and time every kernel of a spec that this machine's GPU can run, and write a report: one command.

    python -m benchmarks.report specs/deepseek.yaml

For whoever has a GPU that we have not, a B200 first of all. Each kernel is verified as `mlagen verify` does it, then
timed in short bursts beside torch's attention and beside what the cycle model predicts. Verification and timing of each
kernel run in processes of their own: one that hangs or crashes does not keep the others from running. The report,
`report-<gpu>.md` and `.json`, goes to `$OUT` if that is set, else to `build`, and is written anew after each kernel.

Kernels are compiled here, or taken from a folder that another machine has built:

    python -m mlagen build specs/deepseek.yaml --arch sm_100a --out KERNELS      # there
    MLAGEN_KERNELS=KERNELS python -m benchmarks.report specs/deepseek.yaml       # here

The exit status is 1 if a kernel failed, 3 if there is no GPU that kernels can be generated for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import variant
from benchmarks.isolation import run_isolated
from mlagen.bench.document import heading, short_name
from mlagen.bench.installed import OURS, PEER_NAMES
from mlagen.build import build_plans
from mlagen.cli.machine import archs_of_gpu
from mlagen.cli.selection import select_kernels
from mlagen.errors import MissingDependencyError, MlagenError
from mlagen.kernel_compiler import FailedKernel
from mlagen.plan import plan_kernel
from mlagen.plan.cycle_model import DEVICES, NUM_HEADS, Prediction, predict
from mlagen.plan.name import kernel_name
from mlagen.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.bench.measure import Result
    from mlagen.spec.model import KernelSpec
    from mlagen.trials import Verdict

TAIL_LINES = 12


@dataclass(slots=True)
class Record:
    """What is known of one kernel.

    Attributes:
        spec: The kernel.
        verdicts: Of the problems that were run.
        results: What was timed.
        predicted: What the cycle model says, by label of the timed row.
        errors: What went wrong, by stage: `build`, `verify`, `time`; a stage that was not reached is not there.
    """

    spec: KernelSpec
    verdicts: tuple[Verdict, ...] = ()
    results: tuple[Result, ...] = ()
    predicted: dict[str, Prediction] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's."""
        return kernel_name(self.spec)

    @property
    def failures(self) -> list[Verdict]:
        """Problems whose results are wrong."""
        return [verdict for verdict in self.verdicts if not verdict.passed]

    @property
    def is_verified(self) -> bool:
        """Whether all problems were run and passed."""
        return (
            bool(self.verdicts)
            and not self.failures
            and not self.errors.keys() & {"build", "verify"}
        )

    @property
    def state(self) -> str:
        """In a few words."""
        for stage, error in self.errors.items():
            return f"{stage}: {error.splitlines()[-1][:100]}"
        if self.failures:
            return f"{len(self.failures)} of {len(self.verdicts)} problems failed"
        if not self.verdicts:
            return "not run"
        return "passed" if self.results else "passed, not timed"


def main() -> int:
    """Run everything that was asked for."""
    arguments = parse_arguments()
    try:
        return run(arguments)
    except MlagenError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Verify and time all kernels of a spec on this GPU."
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument(
        "-k", dest="words", action="append", default=[], help="only kernels with this word"
    )
    parser.add_argument(
        "--seqlens", type=int, nargs="*", default=[2048, 8192], help="to time; none: verify only"
    )
    parser.add_argument("--heads", type=int, default=NUM_HEADS, help="query heads of what is timed")
    parser.add_argument("--peers", nargs="*", choices=list(PEER_NAMES), default=["torch_cudnn"])
    parser.add_argument("--regime", nargs="+", choices=["cool", "hot"], default=["cool"])
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="kernels verified at once; a hang may slow its neighbours",
    )
    parser.add_argument(
        "--silence-s", type=float, default=120, help="when a process counts as hanging"
    )
    parser.add_argument(
        "--total-s", type=float, default=float("inf"), help="start nothing after so long"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "build"))
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> int:
    """Build, verify, time, report; returns the exit status.

    Raises:
        MissingDependencyError: There is no GPU that kernels can be generated for.
    """
    end = time.monotonic() + arguments.total_s
    if Settings.from_environment().kernels is not None:
        # What the folder lacks is an error, not a compile by another compiler. Children see what is set by now.
        os.environ.setdefault("MLAGEN_COMPILE", "never")
    archs = archs_of_gpu()
    if archs is None:
        message = f"no GPU here that kernels can be generated for ({', '.join(DEVICES)})"
        raise MissingDependencyError(f"{message}\n  see: mlagen doctor")
    records = [
        Record(spec)
        for spec in select_kernels(arguments.spec, archs=archs, words=arguments.words).specs
    ]
    machine = ask_machine(arguments.silence_s)
    report = Report(arguments.out, machine, arguments.spec, " ".join(sys.argv[1:]), records)
    print(heading(machine), flush=True)
    build(records)
    report.write()

    def verify(record: Record) -> None:
        if not record.errors and time.monotonic() < end:
            outcome = run_isolated(variant.verify, record.spec, silence_s=arguments.silence_s)
            record.verdicts = outcome.items
            note_error(record, "verify", outcome.error)
        print(f"verify {record.name}: {record.state}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for _ in pool.map(verify, records):
            report.write()
    for record in records:
        if arguments.seqlens and record.is_verified and time.monotonic() < end:
            measure(record, arguments)
            print(f"time {record.name}: {speeds(record)}", flush=True)
            report.write()
    print(report.write())
    return int(any(not record.is_verified or record.errors for record in records))


def ask_machine(silence_s: float) -> dict[str, Any]:  # Any: JSON values
    """Facts of this machine."""
    outcome = run_isolated(variant.machine, silence_s=silence_s)
    if outcome.error:
        raise MissingDependencyError(
            f"torch cannot use the GPU: {outcome.error}\n  see: mlagen doctor"
        )
    (facts,) = outcome.items
    return facts


def build(records: Sequence[Record]) -> None:
    """Compile what is missing; with a folder of built kernels there is nothing to do."""
    if Settings.from_environment().kernels is not None:
        return
    plans = []
    for record in records:
        try:
            plans.append((record, plan_kernel(record.spec)))
        except MlagenError as error:
            note_error(record, "build", str(error))
    for (record, _), built in zip(plans, build_plans([plan for _, plan in plans]), strict=True):
        if isinstance(built, FailedKernel):
            note_error(record, "build", str(built.error))


def measure(record: Record, arguments: argparse.Namespace) -> None:
    """Time one kernel, and say what was predicted."""
    outcome = run_isolated(
        variant.measure,
        record.spec,
        arguments.seqlens,
        arguments.heads,
        arguments.peers,
        arguments.regime,
        silence_s=arguments.silence_s,
    )
    record.results = outcome.items
    wrong = [
        result.row for result in outcome.items if result.implementation == OURS and result.is_wrong
    ]
    note_error(record, "time", f"wrong output: {', '.join(wrong)}" if wrong else outcome.error)
    plan = plan_kernel(record.spec)
    for seqlen in arguments.seqlens:
        label = variant.row_of(record.spec, seqlen, arguments.heads).name
        record.predicted[label] = predict(plan, DEVICES[record.spec.arch], seqlen, arguments.heads)


def note_error(record: Record, stage: str, error: str | None) -> None:
    """Remember why a stage ended early."""
    if error:
        record.errors[stage] = error


def speeds(record: Record) -> str:
    """What was timed, in one line."""
    if "time" in record.errors:
        return record.state
    ours = [result for result in record.results if result.implementation == OURS and result.tflops]
    return ", ".join(f"{result.row} {result.regime} {result.tflops:.0f} TFLOP/s" for result in ours)


@dataclass(frozen=True, slots=True)
class Report:
    """Where the report goes, and what it is about: the facts of `machine.py`, a spec file, what was typed."""

    folder: Path
    machine: dict[str, Any]  # JSON values
    spec: Path
    command: str
    records: Sequence[Record]

    def write(self) -> str:
        """Write both files as things stand; returns where they are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self.folder / f"report-{short_name(self.machine['gpu'])}"
        stem.with_suffix(".md").write_text(markdown(self), encoding="utf-8")
        stem.with_suffix(".json").write_text(
            json.dumps(document(self), indent=1) + "\n", encoding="utf-8"
        )
        return f"{stem}.md, {stem}.json"


def document(report: Report) -> dict[str, Any]:  # Any: JSON values
    """Everything, for programs."""
    return {
        "machine": report.machine,
        "command": f"python -m benchmarks.report {report.command}",
        "kernels": [
            {
                "name": record.name,
                "spec_hash": record.spec.hash,
                "state": record.state,
                "verified": record.is_verified,
                "errors": record.errors,
                "verdicts": [verdict.to_json() for verdict in record.verdicts],
                "timings": [asdict(result) for result in record.results],
                "predicted": {row: asdict(found) for row, found in record.predicted.items()},
            }
            for record in report.records
        ],
    }


def markdown(report: Report) -> str:
    """The report for people."""
    records, machine = report.records, report.machine
    verified = sum(record.is_verified for record in records)
    device = DEVICES[records[0].spec.arch]
    parts = [
        f"# {machine['gpu']}: {verified} of {len(records)} kernels verified",
        f"`python -m benchmarks.report {report.command}`",
        heading(machine),
        "## Verified",
        verify_table(records),
    ]
    if any(record.results for record in records):
        parts += [
            "## Timed",
            "Medians of CUDA-event times; *cool*: groups of at most 30 ms of work after 0.15 s of idle. FLOPs are 2 "
            "(qk + v) heads × visible pairs. *predicted*: by the cycle model, for a "
            f"{device.name} at {device.clock_ghz} GHz under load; where measured and predicted differ, look at the "
            "measured clock first. `× best peer`: speed relative to the fastest other implementation, same run.",
            speed_table(records),
        ]
    for record in records:
        parts += details(record, report.spec)
    return "\n\n".join(parts) + "\n"


def verify_table(records: Sequence[Record]) -> str:
    """A line a kernel."""
    lines = ["| kernel | state | problems | worst error / bound |", "|---|---|---:|---:|"]
    for record in records:
        errors = [
            error
            for verdict in record.verdicts
            for error in (verdict.out_error, verdict.lse_error)
            if error is not None
        ]
        worst = f"{max(errors):.2f}" if errors else ""
        state = record.state.replace("|", "/")
        lines.append(f"| `{record.name}` | {state} | {len(record.verdicts)} | {worst} |")
    return "\n".join(lines)


def speed_table(records: Sequence[Record]) -> str:
    """A line for each timed row of each kernel."""
    lines = [
        "| kernel | shape | regime | ms | TFLOP/s | predicted | measured / predicted | × best peer | SM MHz | W "
        "| relative L2 error |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for record in records:
        for result in record.results:
            if result.implementation != OURS or result.timing is None or result.tflops is None:
                continue
            predicted = record.predicted.get(result.row)
            cells = (
                f"`{record.name}`",
                predicted.shape if predicted else result.row,
                result.regime,
                f"{result.timing.median_ms:.3f}",
                f"{result.tflops:.0f}",
                f"{predicted.tflops:.0f}" if predicted else "",
                f"{result.tflops / predicted.tflops:.2f}" if predicted else "",
                f"{result.ratio:.2f}" if result.ratio else "",
                f"{result.timing.sm_clock_mhz:.0f}" if result.timing.sm_clock_mhz else "",
                f"{result.timing.power_w:.0f}" if result.timing.power_w else "",
                (f"{result.rel_l2:.2e}" if result.rel_l2 is not None else "not finite")
                + (" **wrong**" if result.is_wrong else ""),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def details(record: Record, spec: Path) -> list[str]:
    """What went wrong with a kernel, whole; nothing if nothing did."""
    if not record.failures and not record.errors:
        return []
    parts = [f"## `{record.name}`"]
    for verdict in record.failures:
        tail = "\n".join(verdict.complaints).splitlines()[:TAIL_LINES]
        parts.append("\n".join([f"{verdict.problem}:", "", "```", *tail, "```"]))
    for stage, error in record.errors.items():
        done = f", after {len(record.verdicts)} problems" if stage == "verify" else ""
        parts.append(
            "\n".join([f"{stage}{done}:", "", "```", *error.splitlines()[-TAIL_LINES:], "```"])
        )
    again = f"python -m mlagen verify {spec} -k {record.name} --backend"
    parts.append(f"Again: `{again} cuda`; what the simulator says of it: `{again} sim`.")
    return parts


if __name__ == "__main__":
    sys.exit(main())
