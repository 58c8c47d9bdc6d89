"""Build the kernels of the GPU tests, the benchmarks and the examples into one folder.

So they can be compiled on one machine and run on another that has a GPU and no compiler:

    python -m benchmarks.prepare_kernels KERNELS          # here
    MLAGEN_KERNELS=KERNELS python -m benchmarks.device_run   # there, in the same checkout
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mlagen.artifacts import write_kernels
from mlagen.build import build_plans, plan_specs
from mlagen.kernel_compiler import BuiltKernel, FailedKernel
from mlagen.spec.yaml import load_spec_file

ROOT = Path(__file__).parents[1]
SPECS = (
    *sorted((ROOT / "tests/gpu/specs").glob("*.yaml")),
    ROOT / "benchmarks/specs/prefill.yaml",
    ROOT / "specs/deepseek.yaml",
)


def main() -> int:
    """Build everything that can be built; the exit status is 1 if some kernels failed."""
    parser = argparse.ArgumentParser(description="Build all kernels that device_run.py runs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, help="kernels compiled at once (all cores)")
    arguments = parser.parse_args()
    found = (spec for path in SPECS for spec in load_spec_file(path).expand())
    specs = {spec.hash: spec for spec in found}
    outcomes = build_plans(plan_specs(specs.values()), jobs=arguments.jobs)
    built = [outcome for outcome in outcomes if isinstance(outcome, BuiltKernel)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedKernel)]
    write_kernels(arguments.folder, built)
    for failure in failed:
        print(failure.error)
    compiled = sum(not kernel.cached for kernel in built)
    size = sum(len(kernel.cubin) for kernel in built) / 2**20
    print(
        f"{arguments.folder}: {len(built)} kernels, {size:.1f} MiB, {compiled} compiled now, {len(failed)} failed"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
