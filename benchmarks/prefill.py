"""The project's own figures: `mlagen bench` on a committed spec, with what some rows have to reach.

    python -m benchmarks.prefill                       # the rows of README.md, cool
    python -m benchmarks.prefill --rows speed operands masks --regime cool hot
    python -m benchmarks.prefill --peers torch_cudnn flex fa4 flashinfer --json prefill.json

The exit status is 1 if a goal was missed or an output of ours was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlagen.bench.document import grouped, heading, make_document, markdown_table, refusals
from mlagen.bench.installed import OURS, PEER_NAMES
from mlagen.bench.machine import current_card, facts
from mlagen.bench.measure import Measurement, time_row
from mlagen.bench.rows import SETS, names_of, parse_row
from mlagen.cli.machine import archs_of_gpu
from mlagen.errors import MissingDependencyError, MlagenError
from mlagen.spec.yaml import load_spec_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.bench.measure import Result

    Document = dict[str, Any]  # Any: JSON values

SPEC = Path(__file__).parent / "specs/prefill.yaml"
# Row -> least speed relative to torch's cuDNN attention in the same run, in short bursts.
GOALS = {
    **dict.fromkeys((f"b1,s{n},h128,causal" for n in (2048, 4096, 8192)), 1.15),
    "b1,s8192,h128,none": 1.08,
}


def main() -> int:
    """Time what was asked for."""
    try:
        return run(parse_arguments())
    except MlagenError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def run(arguments: argparse.Namespace) -> int:
    """Time the rows; what was measured is written after each, so that an interrupted run leaves what it has.

    Raises:
        MissingDependencyError: There is no GPU that kernels can be generated for.
    """
    archs = archs_of_gpu()
    if archs is None:
        raise MissingDependencyError(
            "no GPU here that kernels can be generated for\n  see: mlagen doctor"
        )
    specs = [spec for spec in load_spec_file(SPEC).expand() if spec.arch in archs]
    found = facts()
    print(heading(found), flush=True)
    how = Measurement(arguments.peers, arguments.regime, arguments.budget_ms, current_card())
    results: list[Result] = []
    for name in names_of(arguments.rows):
        timed = time_row(specs, parse_row(name), how)
        for result in timed:
            print(line(result), flush=True)
        results += timed
        if arguments.json:
            document = make_document(found, "python -m benchmarks.prefill", results)
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    rows = make_document(found, "", results)["results"]
    print(markdown_table(rows))
    for reason in refusals(rows):
        print(f"not timed: {reason}")
    complaints = [
        f"WRONG: {line(one)}" for one in results if one.is_wrong and one.implementation == OURS
    ]
    complaints += missed_goals(rows)
    print("\n".join(complaints) or "all outputs are right, no goal was missed")
    return int(bool(complaints))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time MLA prefill beside other attention.")
    parser.add_argument("--rows", nargs="+", choices=list(SETS), default=["figures"])
    parser.add_argument("--peers", nargs="*", choices=list(PEER_NAMES), default=["torch_cudnn"])
    parser.add_argument("--regime", nargs="+", choices=["cool", "hot"], default=["cool"])
    parser.add_argument("--budget-ms", type=float, default=250.0, help="device time a measurement")
    parser.add_argument("--json", type=Path, help="file to write results to")
    return parser.parse_args()


def line(result: Result) -> str:
    """One result as text."""
    start = f"{result.row:36} {result.regime:4} {result.implementation:12}"
    if result.timing is None or result.tflops is None:
        return f"{start} not timed: {result.refused}"
    ratio = f"  {result.ratio:.3f} x {result.best_peer}" if result.ratio else ""
    speed = f"{result.timing.median_ms:8.3f} ms {result.tflops:6.0f} TFLOP/s"
    return f"{start} {speed}  rel L2 {result.rel_l2 or float('inf'):.2e}{ratio}"


def missed_goals(results: Sequence[Document]) -> list[str]:
    """Rows that are slower, relative to cuDNN, than they have to be."""
    missed = []
    for (row, regime), found in grouped(results).items():
        ours, cudnn = found.get(OURS), found.get("torch_cudnn")
        if regime != "cool" or row not in GOALS or not ours or not cudnn:
            continue
        if not ours["tflops"] or not cudnn["tflops"]:
            continue
        ratio = ours["tflops"] / cudnn["tflops"]
        if ratio < GOALS[row]:
            missed.append(f"MISSED: {row} is {ratio:.3f} times as fast as cuDNN, goal {GOALS[row]}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
