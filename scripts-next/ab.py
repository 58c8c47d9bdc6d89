"""Time variants of the same kernels in turn, in one process, on the same tensors.

    python scripts-next/ab.py FOLDER FOLDER ... [--json FILE] [--rounds 2] [--rows WORD ...]

A folder holds one variant's kernels, as `mlagen build scripts-next/ab.yaml --out FOLDER` writes them in that variant's
tree. Its manifest says how much shared memory and which boxes a variant takes (the plan of this tree need not agree).
A row is timed with all variants forwards, then backwards: what one round measures of each variant is a group of calls
of about 20 ms behind some idle. The rows that decide come first, and --json is written after each. Outputs are held
against those of the first folder, of which some heads are held against float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from mlagen.bench.rows import Row, find_kernel, flops, parse_row  # noqa: E402
from mlagen.bench.timing import IDLE_S, _event_pair, _hold_the_queue, _rehearse  # noqa: E402
from mlagen.bench.workload import Exact, make_workload  # noqa: E402
from mlagen.compile.resources import Resources  # noqa: E402
from mlagen.kernel_compiler import BuiltKernel  # noqa: E402
from mlagen.plan import plan_kernel  # noqa: E402
from mlagen.plan.plan import Region  # noqa: E402
from mlagen.runtime.binaries import Binaries  # noqa: E402
from mlagen.runtime.kernel import Kernels  # noqa: E402
from mlagen.spec.model import KernelSpec  # noqa: E402

ROW_NAMES = (
    *(f"b1,s{n},h128,none" for n in (4096, 8192, 16384)),
    *(f"b1,s{n},h128,causal" for n in (8192, 16384, 4096, 2048, 1024)),
    "b1,s16384,h16,causal",
    "b1,s4096,h16,causal",
    "mix,h128,causal",
    "b1,s1024,k16384,h128,causal",
    "b8,s1024,h128,causal",
    "b32,s512,h16,causal",
    *(f"b1,s{n},h128,none" for n in (2048, 1024)),
)
GROUP_MS = 20.0


def open_variant(folder: Path) -> Kernels:
    """The kernels of a folder, whatever this tree's plan says of their shared memory."""
    built = []
    for record in json.loads((folder / "manifest.json").read_text())["kernels"]:
        spec = KernelSpec.model_validate_json(json.dumps(record["spec"]))
        plan = plan_kernel(spec)
        own = record["interface"]
        assert [argument.name for argument in plan.arguments] == [
            name for name, _ in own["arguments"]
        ]
        assert [one.name for one in plan.tensor_maps] == [one["name"] for one in own["tensor_maps"]]
        maps = tuple(
            replace(
                one,
                addressing=its["addressing"],
                box_rows=its["box_rows"],
                box_columns=its["box_columns"],
            )
            for one, its in zip(plan.tensor_maps, own["tensor_maps"], strict=True)
        )
        room = Region("all", "bytes", 1, (own["shared_memory_bytes"],), 0, "")
        plan = replace(plan, regions=(room,), tensor_maps=maps)
        cubin = (folder / record["cubin"]).read_bytes()
        resources = Resources(**record["resources"])
        built.append(
            BuiltKernel(plan, "", cubin, "", resources, record["key"], True, 0.0, record["lint"])
        )
    specs = tuple(kernel.plan.spec for kernel in built)
    binaries = Binaries(built=built, cache=None, jit="never", source=str(folder))
    return Kernels(specs, binaries=binaries, backend="cuda", source=str(folder))


def time_group(call: Any, sets: int) -> float:
    """Median ms of one group of calls behind some idle."""
    once_ms, host_s = _rehearse(call, sets)
    count = int(min(40, max(5, GROUP_MS / once_ms)))
    torch.cuda.synchronize()
    time.sleep(IDLE_S)
    events = [_event_pair() for _ in range(count)]
    _hold_the_queue(once_ms, host_s, count)
    for i, (start, end) in enumerate(events):
        start.record()
        call(i % sets)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def compare(row: Row, variants: dict[str, Kernels], rounds: int) -> dict[str, dict[str, Any]]:
    """TFLOP/s of each round, and what differs in the output."""
    names = list(variants)
    first = variants[names[0]]
    spec = find_kernel(first.specs, row)
    assert spec is not None, row.name
    workload = make_workload(spec, row.shape, for_peers=False)
    sets, options = workload.sets, workload.options
    count = len(sets)
    wanted = first.run(**sets[0], **options)
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        out = variants[name].run(**sets[0], **options)
        again = variants[name].run(**sets[0], **options)
        difference = (out.float() - wanted.float()).norm() / wanted.float().norm()
        found[name] = {
            "tflops": [],
            "relative_difference": float(difference),
            "repeatable": bool(torch.equal(out, again)),
            "finite": bool(out.isfinite().all()),
        }
    if max(row.shape.keys) <= 2048 and len(row.shape.keys) == 1:
        found[names[0]]["relative_l2"] = Exact(workload).error_of(wanted).relative_l2
    work = flops(spec, row.shape)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            kernels = variants[name]
            median = time_group(lambda i, kernels=kernels: kernels.run(**sets[i], **options), count)
            found[name]["tflops"].append(round(work / median / 1e9, 1))
    torch.cuda.empty_cache()
    return found


def table(results: dict[str, dict[str, dict[str, Any]]], names: list[str]) -> str:
    """TFLOP/s, means of the rounds, and percent over the first variant."""
    width = max(len(name) for name in names) + 9
    lines = [f"{'':30}" + "".join(f"{name:>{width}}" for name in names)]
    for label, found in results.items():
        means = {name: statistics.mean(found[name]["tflops"]) for name in names}
        base = means[names[0]]
        cells = (f"{means[name]:.0f} {100 * (means[name] / base - 1):+5.1f}%" for name in names)
        lines.append(f"{label:30}" + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Compare; the exit status is 1 if a variant computes something else."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--rows", nargs="*", default=[""], help="only rows whose name has one of these parts"
    )
    arguments = parser.parse_args()
    begin = time.perf_counter()
    variants = {folder.name: open_variant(folder) for folder in arguments.folders}
    results: dict[str, dict[str, dict[str, Any]]] = {}
    wrong = []
    with torch.inference_mode():
        for label in ROW_NAMES:
            if not any(word in label for word in arguments.rows):
                continue
            results[label] = compare(parse_row(label), variants, arguments.rounds)
            for name, found in results[label].items():
                good = (
                    found["finite"] and found["repeatable"] and found["relative_difference"] < 2e-3
                )
                if not good:
                    wrong.append(f"WRONG {label} {name}: {found}")
            line = {name: found["tflops"] for name, found in results[label].items()}
            print(f"{time.perf_counter() - begin:5.1f} s  {label}: {json.dumps(line)}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
    print(json.dumps(results))
    print(table(results, list(variants)))
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
