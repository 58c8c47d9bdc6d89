"""Micro-kernels: the simulator's answers against the recorded ones."""

from __future__ import annotations

import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.validation.micro import load_recording, recorded_cases
from mlagen.errors import MlagenError
from tests.hardware.compare import canonical, ulp_distances
from tests.hardware.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.hardware.case import Case

CASES_OF_A_TASK = 12


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two answers to one case; plain values, for JSON.

    Attributes:
        name: Of the case.
        outcome: `equal`, `different`, or `refused` if the simulator cannot run it.
        elements: Of the outputs that are floats, else bytes.
        different: How many of them differ.
        largest_ulp: Largest distance between floats; -1 for outputs that are not, and between a number and a NaN.
        findings: Of the simulator, or why it refused.
        seconds: Of the simulator's run.
    """

    name: str
    outcome: str
    elements: int
    different: int
    largest_ulp: int
    findings: tuple[str, ...]
    seconds: float


def compare_case(case: Case, answer: Sequence[bytes]) -> Comparison:
    """Run a case in the simulator."""
    start = time.perf_counter()
    try:
        replayed = replay(case)
    except (MlagenError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        return Comparison(case.name, "refused", 0, 0, 0, (f"{type(error).__name__}: {why}",), 0.0)
    kinds = [buffer.kind for buffer in case.buffers if buffer.is_output]
    elements = different = largest = 0
    for gpu, simulated, kind in zip(answer, replayed.outputs, kinds, strict=True):
        mine, its = canonical(simulated, kind), canonical(gpu, kind)
        assert len(mine) == len(its), f"{case.name} is not the case that was recorded"
        if kind:
            distances = ulp_distances(its, mine, kind)
            elements += distances.size
            different += int((distances != 0).sum())
            ulp = int(distances.max(initial=0))
            largest = -1 if largest < 0 or ulp == np.iinfo(np.int64).max else max(largest, ulp)
        else:
            wrong = np.frombuffer(mine, np.uint8) != np.frombuffer(its, np.uint8)
            elements += wrong.size
            different += int(wrong.sum())
            largest = -1 if wrong.any() else largest
    # Zeros of either sign are no distance apart, but not the same.
    same = all(
        canonical(gpu, kind) == canonical(simulated, kind)
        for gpu, simulated, kind in zip(answer, replayed.outputs, kinds, strict=True)
    )
    findings = tuple(sorted({f"{one.kind}: {one.message}"[:160] for one in replayed.findings}))
    outcome = "equal" if same else "different"
    seconds = time.perf_counter() - start
    return Comparison(case.name, outcome, elements, different, largest, findings, seconds)


def compare_all(recordings: Path, results: Path, *, jobs: int, words: Sequence[str] = ()) -> int:
    """Compare every recorded case, append to `results` (a line each), leave out what is there. Returns failures."""
    done = {line["name"] for line in lines(results)}
    answers = load_recording(recordings).outputs
    found = [case for case in recorded_cases() if case.name in answers and case.name not in done]
    if words:
        found = [case for case in found if any(word in case.name for word in words)]
    tasks = [found[at : at + CASES_OF_A_TASK] for at in range(0, len(found), CASES_OF_A_TASK)]
    print(f"{len(found)} cases, {len(done)} done before", flush=True)
    with results.open("a") as stream, ProcessPoolExecutor(jobs) as pool:
        work = [(task, [answers[case.name] for case in task]) for task in tasks]
        for comparisons in pool.map(_compare_some, work):
            for one in comparisons:
                stream.write(json.dumps(asdict(one)) + "\n")
            stream.flush()
    return sum(line["outcome"] != "equal" for line in lines(results))


def _compare_some(work: tuple[list[Case], list[tuple[bytes, ...]]]) -> list[Comparison]:
    return [compare_case(case, answer) for case, answer in zip(*work, strict=True)]


def lines(path: Path) -> Iterator[dict[str, object]]:
    """A file of results, by line."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())
