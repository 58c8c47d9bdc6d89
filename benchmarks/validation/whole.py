"""Whole kernels: the shipped machine code on a GPU and the same source's PTX in the simulator, on the same problems."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import mlagen
from benchmarks.prepare_kernels import SPECS
from mlagen.errors import MlagenError
from mlagen.plan.name import kernel_name
from mlagen.runtime.kernel import Kernels
from mlagen.runtime.simulator import Simulator
from mlagen.spec.yaml import load_spec_file
from mlagen.trials import Outputs
from mlagen.verify.problems import make_problem, problem_names, problems
from tests.hardware.compare import ulp_distances
from tests.hardware.recordings import Recording, digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mlagen.sim.products import Accumulation
    from mlagen.spec.model import KernelSpec
    from mlagen.verify.problems import Problem

ROWS_KEPT = 20  # of an output, whole; of all others a digest of four bytes
PART_BYTES = 14 << 20  # of a file of a recording; values hardly compress
LARGEST_ULP = 2
LSE_ABSOLUTE, LSE_RELATIVE = 1e-5, 2e-6


@functools.cache
def specs() -> dict[str, KernelSpec]:
    """Every kernel by its name."""
    found = (spec for path in SPECS for spec in load_spec_file(path).expand())
    return {kernel_name(spec): spec for spec in found}


def kept_rows(rows: int) -> NDArray[np.intp]:
    """Which rows of an output are kept whole: first, last, and evenly between."""
    return np.unique(np.linspace(0, rows - 1, min(rows, ROWS_KEPT)).astype(np.intp))


def input_digest(problem: Problem) -> bytes:
    """Of every value that the kernel is given."""
    whole = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(problem.tensors.items()):
        whole.update(f"{name} {tensor.shape} {tensor.strides}".encode())
        whole.update(np.ascontiguousarray(tensor).tobytes())
    whole.update(repr(sorted(problem.options.items())).encode())
    return whole.digest()


@dataclass(frozen=True, slots=True)
class Answer:
    """What is kept of one call.

    Attributes:
        inputs: Digest of its inputs.
        row_digests: `[rows]`, of the output's rows.
        rows: `[kept rows, v_head_dim]`, bits.
        lse: `[rows]`; empty if the kernel writes none.
    """

    inputs: bytes
    row_digests: NDArray[np.uint32]
    rows: NDArray[np.uint16]
    lse: NDArray[np.float32]

    @classmethod
    def of(cls, spec: KernelSpec, problem: Problem, outputs: Outputs) -> Answer:
        """From what a call has written."""
        width = spec.geometry.v_head_dim
        out = np.ascontiguousarray(outputs.out.view[outputs.out.written]).view(np.uint16)
        out = out.reshape(-1, width)
        digests = [int.from_bytes(digest(row.tobytes())[:4], "little") for row in out]
        lse = np.zeros(0, np.float32)
        if outputs.lse is not None:
            lse = np.ascontiguousarray(outputs.lse.view[outputs.lse.written]).reshape(-1)
        return cls(
            input_digest(problem), np.array(digests, np.uint32), out[kept_rows(len(out))], lse
        )

    def parts(self) -> tuple[bytes, ...]:
        """For a recording."""
        return (self.inputs, *(x.tobytes() for x in (self.row_digests, self.rows, self.lse)))

    @classmethod
    def from_parts(cls, parts: Sequence[bytes], width: int) -> Answer:
        """From a recording."""
        digests = np.frombuffer(parts[1], np.uint32)
        rows = np.frombuffer(parts[2], np.uint16).reshape(-1, width)
        return cls(parts[0], digests, rows, np.frombuffer(parts[3], np.float32))


def key(kernel: str, problem: str) -> str:
    """Of a call in a recording."""
    return f"{kernel}: {problem}"


def record_all(out: Path, words: Sequence[str] = ()) -> int:
    """Run everything on the GPU, from the folder that MLAGEN_KERNELS names; write `whole-N.npz`. Returns failures."""
    from benchmarks.validation.place import facts

    found, start = facts(), time.monotonic()
    binaries = mlagen.load(list(specs().values()))._binaries
    recording, size, number, failures = Recording(found), 0, 0, 0
    for name, spec in specs().items():
        if words and not any(word in name for word in words):
            continue
        kernels = Kernels((spec,), binaries=binaries, backend="cuda", source=name)
        for problem in problems(spec):
            try:
                parts = _run_on_gpu(kernels, spec, problem).parts()
            except MlagenError as error:
                recording.failures[key(name, problem.name)] = str(error).splitlines()[0]
                failures += 1
                continue
            recording.outputs[key(name, problem.name)] = parts
            size += sum(map(len, parts))
        if size > PART_BYTES:
            recording.save(out / f"whole-{number}.npz")
            print(f"{name}, {time.monotonic() - start:.0f} s", flush=True)
            recording, size, number = Recording(found), 0, number + 1
    recording.save(out / f"whole-{number}.npz")
    print(f"{number + 1} files in {time.monotonic() - start:.0f} s, {failures} failures")
    return failures


def _run_on_gpu(kernels: Kernels, spec: KernelSpec, problem: Problem) -> Answer:
    from mlagen.verify.device_copies import DeviceCopies

    outputs, copies = Outputs.of(spec, problem), DeviceCopies("cuda")
    arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
    kernels.most_blocks = problem.ctas
    kernels.run(
        {
            name: copies.copy(value) if isinstance(value, np.ndarray) else value
            for name, value in arguments.items()
        }
    )
    copies.bring_back()
    return Answer.of(spec, problem, outputs)


def simulated(
    spec: KernelSpec, problem: Problem, kernels: Kernels, accumulation: Accumulation
) -> tuple[Answer, list[str]]:
    """The simulator's answer, and its findings."""
    outputs = Outputs.of(spec, problem)
    arguments = {**problem.tensors, **problem.options, **outputs.arguments()}
    result = kernels.simulate(
        arguments, simulator=Simulator(ctas=problem.ctas, accumulation=accumulation)
    ).result
    findings = [finding.kind for finding in result.findings] if result else []
    return Answer.of(spec, problem, outputs), findings


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two answers to one call; plain values, for JSON.

    Attributes:
        kernel: Its name.
        problem: Its name.
        dtype: Of the output.
        elements: Compared one by one.
        ulps: How many of them differ by 0, 1, 2, ... ulps; the last entry counts everything beyond `LARGEST_ULP`.
        rows: Of the whole output.
        equal_rows: Those equal bit for bit.
        lse_ratio: Largest error of the LSE in units of what is allowed; None without LSE.
        findings: Of the simulator.
        seconds: Of the simulator's run.
    """

    kernel: str
    problem: str
    dtype: str
    elements: int
    ulps: tuple[int, ...]
    rows: int
    equal_rows: int
    lse_ratio: float | None
    findings: tuple[str, ...]
    seconds: float


def compare_answers(gpu: Answer, simulator: Answer, dtype: str) -> dict[str, Any]:
    """The fields of `Comparison` that come from the outputs.

    Raises:
        ValueError: The two had different inputs.
    """
    if gpu.inputs != simulator.inputs:
        raise ValueError("the GPU had other inputs")
    kind = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    distances = ulp_distances(gpu.rows.reshape(-1), simulator.rows.reshape(-1), kind)
    histogram = [int((distances == ulp).sum()) for ulp in range(LARGEST_ULP + 1)]
    ratio = None
    if len(gpu.lse):
        ratio = _lse_ratio(gpu.lse.astype(np.float64), simulator.lse.astype(np.float64))
    return {
        "elements": distances.size,
        "ulps": (*histogram, int(distances.size - sum(histogram))),
        "rows": len(gpu.row_digests),
        "equal_rows": int((gpu.row_digests == simulator.row_digests).sum()),
        "lse_ratio": ratio,
    }


def _lse_ratio(gpu: NDArray[np.float64], simulator: NDArray[np.float64]) -> float:
    """Largest difference in units of what is allowed; infinities and NaN must be the same."""
    finite = np.isfinite(gpu)
    same = np.array_equal(np.where(finite, 0, gpu), np.where(finite, 0, simulator), equal_nan=True)
    if not same:
        return float("inf")
    allowed = np.maximum(LSE_ABSOLUTE, LSE_RELATIVE * np.abs(gpu[finite]))
    return float(np.max(np.abs(gpu[finite] - simulator[finite]) / allowed, initial=0.0))


def compare_kernel(
    kernel: str, answers: dict[str, tuple[bytes, ...]], accumulation: Accumulation
) -> list[Comparison]:
    """Run a kernel's problems in the simulator; `answers` are the GPU's, by problem."""
    spec = specs()[kernel]
    kernels = mlagen.load(spec, backend="sim")
    found = []
    for name, parts in answers.items():
        problem = make_problem(spec, name)
        begin = time.perf_counter()
        answer, findings = simulated(spec, problem, kernels, accumulation)
        seconds = time.perf_counter() - begin
        gpu = Answer.from_parts(parts, spec.geometry.v_head_dim)
        fields = compare_answers(gpu, answer, spec.dtype)
        found.append(
            Comparison(
                kernel, name, spec.dtype, findings=tuple(findings), seconds=seconds, **fields
            )
        )
    return found


def compare_all(
    recording: Path,
    results: Path,
    *,
    jobs: int,
    words: Sequence[str] = (),
    most: int | None = None,
    accumulation: Accumulation = "fast",
) -> int:
    """Compare every recorded call, append to `results` (a line each) and leave out what is there. Returns failures."""
    done = {key(line["kernel"], line["problem"]) for line in map(json.loads, _lines(results))}
    work: dict[str, dict[str, tuple[bytes, ...]]] = {}
    for path in sorted(recording.glob("whole-*.npz")):
        for name, parts in Recording.load(path).outputs.items():
            kernel, problem = name.split(": ", 1)
            if name not in done and (not words or any(word in name for word in words)):
                work.setdefault(kernel, {})[problem] = parts
    print(f"{sum(map(len, work.values()))} calls of {len(work)} kernels, {len(done)} done before")
    with results.open("a") as stream, ProcessPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(compare_kernel, kernel, _some(calls, most), accumulation)
            for kernel, calls in work.items()
        ]
        for count, future in enumerate(as_completed(futures), start=1):
            for comparison in future.result():
                stream.write(json.dumps(asdict(comparison)) + "\n")
            stream.flush()
            print(f"{count} of {len(futures)}", flush=True)
    return sum(not is_good(line) for line in map(json.loads, _lines(results)))


def _some(calls: dict[str, tuple[bytes, ...]], most: int | None) -> dict[str, tuple[bytes, ...]]:
    """So many of a kernel's calls: evenly among those ordered by size of the answer."""
    if most is None or most >= len(calls):
        return calls
    names = sorted(calls, key=lambda name: (sum(map(len, calls[name])), name))
    chosen = np.linspace(0, len(names) - 1, most + 2).astype(int)[1:-1]
    return {names[i]: calls[names[i]] for i in chosen}


def is_good(line: dict[str, Any]) -> bool:
    """Whether a comparison keeps the criteria; the bit-equal rate holds of all calls together."""
    close = line["ulps"][-1] == 0
    return close and not line["findings"] and (line["lse_ratio"] or 0) <= 1


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text().splitlines()


def names_of_problems() -> dict[str, list[str]]:
    """The problems of every kernel, for a dry run."""
    return {name: problem_names(spec) for name, spec in specs().items()}
