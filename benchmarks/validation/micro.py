"""Micro-kernels: their machine code, the GPU's answers, the comparison with the simulator's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benchmarks.validation.place import facts
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from tests.hardware.modules import all_cases, module_texts
from tests.hardware.recorder import record
from tests.hardware.recordings import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.hardware.case import Case

ARCH = "sm_90a"
# Of a recording; a replay without a GPU takes fewer, which are the first of these.
ALU_ELEMENTS = 2048
APPROXIMATE_ELEMENTS = 65536
PARTS = ("exact", "approximate", "precision", "other")


def prepare(folder: Path) -> int:
    """Compile every module for the GPU; returns the bytes of machine code."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = module_texts()

    def build(name: str) -> int:
        built = compile_cuda(texts[name], name=name, arch=ARCH, options=KERNEL_OPTIONS)
        return (folder / f"{name}.cubin").write_bytes(built.cubin)

    with ThreadPoolExecutor() as threads:
        return sum(threads.map(build, texts))


def part_of(case: Case) -> str:
    """In which file of a recording a case is."""
    if case.is_approximate:
        return "approximate"
    if case.name.startswith("alu/"):
        return "exact"
    return "precision" if case.name.startswith("wgmma-precision/") else "other"


def recorded_cases() -> list[Case]:
    """All cases, as large as a GPU runs them."""
    return all_cases(ALU_ELEMENTS, APPROXIMATE_ELEMENTS)


def record_all(kernels: Path, out: Path, words: Sequence[str] = ()) -> int:
    """Ask the GPU; write `micro-PART.npz` into `out`. Returns the number of failures that are not expected."""
    start = time.monotonic()
    cases = [case for case in recorded_cases() if not words or any(w in case.name for w in words)]
    print(f"{len(cases)} cases made in {time.monotonic() - start:.0f} s", flush=True)

    def save(recording: Recording) -> None:
        for part in PARTS:
            names = {case.name for case in cases if part_of(case) == part}
            Recording(
                recording.facts,
                {name: data for name, data in recording.outputs.items() if name in names},
                {name: why for name, why in recording.failures.items() if name in names},
                [name for name in recording.unstable if name in names],
            ).save(out / f"micro-{part}.npz")

    recording = record(cases, lambda module: (kernels / f"{module}.cubin").read_bytes(), save)
    recording.facts = facts()
    save(recording)
    print(f"asked in {time.monotonic() - start:.0f} s", flush=True)
    for name in recording.unstable:
        print(f"{name}: two runs differ")
    print(f"{len(recording.outputs)} answers, {len(recording.failures)} failures")
    return sum(not name.startswith("fault/") for name in recording.failures)


def load_recording(folder: Path) -> Recording:
    """All parts in a folder and in its subfolders, a later run over an earlier one."""
    recording = Recording()
    for path in sorted(folder.glob("**/micro-*.npz")):
        recording.join(Recording.load(path))
    return recording
