"""Host time of one `run` after the first: what a serving loop pays for every call.

    python -m benchmarks.host_overhead

A small shape, so that the device is never behind; 1,000 calls one by one, the queue emptied every 50. The first call of
its form (checks, tensor maps) stays outside. *Moved*: on two sets of tensors in turn, like the layers of a model.
`torch zero_` is one launch through torch, for scale.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import mlagen
from benchmarks.prefill import SPEC
from mlagen.bench.document import heading
from mlagen.bench.machine import facts
from mlagen.bench.rows import find_kernel, parse_row
from mlagen.bench.workload import make_workload
from mlagen.cli.machine import archs_of_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS = 1000
EMPTY_EVERY = 50
GOAL_US = 10.0
SHAPE = "b2,s64,k128,h16,causal"
FORMS = {
    "fused": SHAPE,
    "ragged": f"{SHAPE},ragged",
    "rope paged by 64": f"{SHAPE},rope_paged64",
    "lse": f"{SHAPE},lse",
}


def main() -> int:
    """Measure every form; the exit status is 1 if one takes longer than the goal."""
    parser = argparse.ArgumentParser(description="Measure the host time of a warm run().")
    parser.add_argument("--json", type=Path, help="file to write results to")
    arguments = parser.parse_args()
    found = facts()
    print(heading(found))
    kernels = mlagen.load(SPEC)
    specs = [spec for spec in kernels.specs if spec.arch in (archs_of_gpu() or ())]
    microseconds: dict[str, float] = {}
    with torch.inference_mode():
        zeros = torch.zeros(1024, device="cuda")
        microseconds["torch zero_"] = host_time(itertools.repeat(zeros.zero_))
        for form, row_name in FORMS.items():
            row = parse_row(row_name)
            spec = find_kernel(specs, row)
            assert spec is not None, f"{SPEC}: no kernel for {row.name}"
            workload = make_workload(spec, row.shape, for_peers=False)
            tensors, options = workload.sets[0], workload.options
            out = kernels.run(tensors, **options)
            given = {**tensors, **({"out": out[0], "lse": out[1]} if spec.lse else {"out": out})}
            moved = {name: tensor.clone() for name, tensor in given.items()}
            for name, sets in (
                (form, [tensors]),
                (f"{form}, out given", [given]),
                (f"{form}, out given, moved", [given, moved]),
            ):
                calls = [functools.partial(kernels.run, one, **options) for one in sets]
                microseconds[name] = host_time(itertools.cycle(calls))
    for name, median in microseconds.items():
        print(f"{name:30} {median:6.1f} us")
    reached = all(
        median <= GOAL_US for name, median in microseconds.items() if name != "torch zero_"
    )
    if arguments.json:
        result = {
            "machine": found,
            "goal_us": GOAL_US,
            "reached": reached,
            "median_us": microseconds,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(not reached)


def host_time(calls: Iterator[Callable[[], object]]) -> float:
    """Median host time of a call in microseconds."""
    for call in itertools.islice(calls, EMPTY_EVERY):
        call()
    times = []
    for i, call in enumerate(itertools.islice(calls, CALLS)):
        if i % EMPTY_EVERY == 0:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    sys.exit(main())
