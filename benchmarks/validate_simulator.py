"""The simulator against a GPU: the same PTX on both, from single instructions to whole kernels.

    python -m benchmarks.validate_simulator prepare .carry                       # here: machine code
    python -m benchmarks.validate_simulator record micro .carry                  # on the GPU, into $OUT
    python -m benchmarks.validate_simulator compare micro RECORDING RESULTS.json # here, no GPU
    python -m benchmarks.validate_simulator fixtures RECORDING                   # into tests/hardware/fixtures
    python -m benchmarks.validate_simulator publish RESULTS.json ...             # docs/validation.md
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
    step.add_argument("folder", type=Path)
    step = steps.add_parser("record", help="run on the GPU; answers go to $OUT")
    step.add_argument("part", choices=("micro",))
    step.add_argument("folder", type=Path, help="what `prepare` wrote")
    arguments = parser.parse_args()
    return globals()[f"_{arguments.step}"](arguments)


def _out() -> Path:
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _prepare(arguments: argparse.Namespace) -> int:
    from benchmarks.validation import micro

    size = micro.prepare(arguments.folder / "micro")
    print(f"{arguments.folder / 'micro'}: {size / 2**20:.1f} MiB")
    return 0


def _record(arguments: argparse.Namespace) -> int:
    from benchmarks.validation import micro

    return int(micro.record_all(arguments.folder / "micro", _out()) > 0)


if __name__ == "__main__":
    sys.exit(main())
