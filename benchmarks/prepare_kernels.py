"""Build the kernels of the GPU tests, the benchmarks and the examples into one folder.

So they can be compiled on one machine and run on another that has a GPU and no compiler:

    python -m benchmarks.prepare_kernels KERNELS          # here
    MLAGEN_KERNELS=KERNELS python -m benchmarks.device_run   # there, in the same checkout
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mlagen.artifacts import write_kernels
from mlagen.build import build_specs
from mlagen.spec.yaml import load_spec_file

ROOT = Path(__file__).parents[1]
SPECS = (
    *sorted((ROOT / "tests/gpu/specs").glob("*.yaml")),
    ROOT / "benchmarks/specs/prefill.yaml",
    ROOT / "specs/deepseek.yaml",
)


def main() -> None:
    """Build everything, print one line."""
    parser = argparse.ArgumentParser(description="Build all kernels that device_run.py runs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, help="kernels compiled at once (all cores)")
    arguments = parser.parse_args()
    found = (spec for path in SPECS for spec in load_spec_file(path).expand())
    specs = {spec.hash: spec for spec in found}
    built = build_specs(specs.values(), jobs=arguments.jobs, progress=None)
    write_kernels(arguments.folder, built)
    compiled = sum(not kernel.cached for kernel in built)
    size = sum(len(kernel.cubin) for kernel in built) / 2**20
    print(f"{arguments.folder}: {len(built)} kernels, {size:.1f} MiB, {compiled} compiled now")


if __name__ == "__main__":
    main()
