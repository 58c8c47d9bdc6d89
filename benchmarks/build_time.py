"""Time a cold build of one kernel and a warm load of it; needs NVRTC, but no GPU.

    python -m benchmarks.build_time

Cold: render, NVRTC, checks of the machine code and the store into an empty cache, on one core. Warm: `mlagen.load` of a
spec file and its machine code from the cache. Each runs in processes of their own that have imported all modules. The
first warm load of a process also compiles the templates, once; it is shown, the goal holds for the later ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SPEC = """\
spec: 1
name: build-time
geometry: {num_heads: [128], qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: [sm_90a]
kernels:
  - {op: prefill, mask: causal, lse: true}
"""
GOALS_S = {"cold": 4.0, "first": None, "warm": 0.02}

COLD = """
import sys, time
from pathlib import Path
from mlagen.build import build_specs
from mlagen.cache import KernelCache
from mlagen.compile.nvrtc import nvrtc_identity
from mlagen.spec.yaml import load_spec_file
nvrtc_identity()
begin = time.perf_counter()
(built,) = build_specs(load_spec_file(Path(sys.argv[1])).expand(), jobs=1)
assert not built.cached
print(time.perf_counter() - begin)
"""
WARM = """
import sys, time
import mlagen, mlagen.build, mlagen.cache, mlagen.runtime.kernel, mlagen.spec.yaml
from mlagen.compile.nvrtc import nvrtc_identity
nvrtc_identity()
for _ in range(2):
    begin = time.perf_counter()
    kernels = mlagen.load(sys.argv[1], jit="never")
    kernels.warmup()
    print(time.perf_counter() - begin)
"""


def main() -> int:
    """Measure both; the exit status is 1 if a median is above its goal."""
    parser = argparse.ArgumentParser(description="Time a cold build and a warm load of one kernel.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file to write results to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(SPEC)
        runs = range(arguments.repeats)
        cold = [seconds(COLD, spec, Path(folder) / f"cache{i}")[0] for i in runs]
        first, warm = zip(
            *(seconds(WARM, spec, Path(folder) / "cache0") for _ in runs), strict=True
        )
    medians = {
        "cold": statistics.median(cold),
        "first": statistics.median(first),
        "warm": statistics.median(warm),
    }
    for name, median in medians.items():
        goal = f", goal {GOALS_S[name]} s" if GOALS_S[name] else ""
        print(f"{name}: median {median:.4f} s of {arguments.repeats}{goal}")
    reached = all(medians[name] <= goal for name, goal in GOALS_S.items() if goal)
    if arguments.json:
        times = {"cold_s": cold, "first_warm_s": first, "warm_s": warm}
        result = {**times, "median_s": medians, "goals_s": GOALS_S, "reached": reached}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(not reached)


def seconds(program: str, spec: Path, cache: Path) -> list[float]:
    """What a program prints, run alone on one core with a cache folder of its own."""
    environment = {**os.environ, "MLAGEN_CACHE_DIR": str(cache)}
    environment.pop("MLAGEN_KERNELS", None)
    command = [sys.executable, "-c", program, str(spec)]

    def one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    root = Path(__file__).parents[1]
    done = subprocess.run(  # noqa: S603 (this interpreter, on the programs above)
        command,
        cwd=root,
        env=environment,
        preexec_fn=one_core,
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(line) for line in done.stdout.split()]


if __name__ == "__main__":
    sys.exit(main())
