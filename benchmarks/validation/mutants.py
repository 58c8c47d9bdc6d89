"""Faulty kernels on a GPU: those that the simulator calls deadlocks must time out there, clean ones never.

Every job runs in a child process. Its wait loops trap at a clock limit (a debug render), so that nothing hangs the
GPU; a child that does not come back all the same is killed.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation.whole import specs
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.compile.resources import parse_resources
from mlagen.kernel_compiler import BuiltKernel
from mlagen.plan import plan_kernel
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.kernel import Kernels
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import make_problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

INDEX = "index.json"
LIMIT_S = 40.0


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel text to be run.

    Attributes:
        name: Unique.
        kernel: Whose plan and problems it has.
        problem: Which one.
        group: `deadlock`, `clean` or `lucky`.
        source: CUDA text.
        launches: How often.
        ctas: Blocks; None for as many as the problem says.
    """

    name: str
    kernel: str
    problem: str
    group: str
    source: str
    launches: int = 1
    ctas: int | None = None


def write_jobs(folder: Path, jobs: Sequence[Job]) -> int:
    """Compile jobs into a folder, equal texts once; returns the bytes of machine code."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    index, size = [], 0
    for job in jobs:
        if job.source not in files:
            name = f"{len(files)}.cubin"
            arch = specs()[job.kernel].arch
            built = compile_cuda(job.source, name=job.kernel, arch=arch, options=KERNEL_OPTIONS)
            size += (folder / name).write_bytes(built.cubin)
            (folder / f"{len(files)}.log").write_text(built.log)
            files[job.source] = name
        entry = {name: value for name, value in asdict(job).items() if name != "source"}
        index.append(entry | {"file": files[job.source]})
    (folder / INDEX).write_text(json.dumps(index, indent=1))
    return size


def record_all(folder: Path, out: Path, *, groups: Sequence[str] = ()) -> int:
    """Run the jobs of a folder; write `mutants.json` into `out`. Returns the number of surprises."""
    context = multiprocessing.get_context("fork")  # nothing here has touched CUDA
    results: list[dict[str, Any]] = []  # Any: JSON values
    for entry in json.loads((folder / INDEX).read_text()):
        if groups and entry["group"] not in groups:
            continue
        receiver, sender = context.Pipe(duplex=False)
        begin = time.monotonic()
        child = context.Process(target=_run, args=(entry, folder, sender))
        child.start()
        sender.close()
        try:
            answer = receiver.recv() if receiver.poll(LIMIT_S) else {"outcome": "hung"}
        except EOFError:
            answer = {"outcome": "died"}
        child.kill()
        child.join()
        results.append(entry | answer | {"seconds": round(time.monotonic() - begin, 2)})
        (out / "mutants.json").write_text(json.dumps(results, indent=1))
        print(f"{entry['group']}: {entry['name']}: {results[-1]['outcome']}", flush=True)
    surprises = [one for one in results if not as_expected(one)]
    for one in surprises:
        print(f"unexpected: {one['group']}: {one['name']}: {one['outcome']}")
    return len(surprises)


def as_expected(result: dict[str, Any]) -> bool:
    """Whether a deadlock did not finish and a clean kernel was right; a lucky mutant may do either."""
    if result["group"] == "lucky":
        return True
    return bool((result["outcome"] == "right") == (result["group"] == "clean"))


def _run(entry: dict[str, Any], folder: Path, sender: Connection) -> None:
    """In the child: launch as often as asked, and say what came of it."""
    try:
        sender.send(_launches(entry, folder))
    except Exception as error:
        sender.send({"outcome": "trapped", "error": str(error).splitlines()[0]})


def _launches(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    from mlagen.verify.device_copies import DeviceCopies

    spec = specs()[entry["kernel"]]
    kernels = _kernels(entry, folder)
    problem = make_problem(spec, entry["problem"])
    wanted, trial = expected(spec, problem), Trial(spec, problem.name)
    kernels.most_blocks = entry["ctas"] or problem.ctas
    verdicts: dict[bytes, bool] = {}
    wrong, complaint = 0, ""
    for _ in range(entry["launches"]):
        outputs, copies = Outputs.of(spec, problem), DeviceCopies("cuda")
        arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
        kernels.run(
            {
                name: copies.copy(value) if isinstance(value, np.ndarray) else value
                for name, value in arguments.items()
            }
        )
        copies.bring_back()
        bits = outputs.out.buffer.tobytes() + (outputs.lse.buffer.tobytes() if outputs.lse else b"")
        if bits not in verdicts:
            verdict = judge(trial, outputs, wanted, simulated=None, seconds=0)
            verdicts[bits] = verdict.passed
            complaint = complaint or "; ".join(verdict.complaints)
        wrong += not verdicts[bits]
    return {
        "outcome": "wrong" if wrong else "right",
        "wrong": wrong,
        "distinct": len(verdicts),
        "complaint": complaint[:300],
    }


def _kernels(entry: dict[str, Any], folder: Path) -> Kernels:
    """The kernel of a job, in place of the one that its plan would give."""
    spec = specs()[entry["kernel"]]
    file = folder / entry["file"]
    built = BuiltKernel(
        plan=plan_kernel(spec),
        source="",
        cubin=file.read_bytes(),
        ptx="",
        resources=parse_resources(file.with_suffix(".log").read_text()),
        key="",
        cached=False,
        seconds=0.0,
        lint="skipped",
    )
    binaries = Binaries(built=[built], cache=None, jit="never", source=entry["name"])
    return Kernels((spec,), binaries=binaries, backend="cuda", source=entry["name"])
