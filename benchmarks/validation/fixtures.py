"""Fixtures from recordings: as much of a GPU's answers as a replay without one needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.validation.micro import ALU_ELEMENTS, APPROXIMATE_ELEMENTS, load_recording, part_of
from tests.hardware import modules
from tests.hardware.compare import canonical
from tests.hardware.recordings import FIXTURES, Kept, keep, save_fixture

if TYPE_CHECKING:
    from pathlib import Path


def write_fixtures(recordings: Path) -> int:
    """Write `tests/hardware/fixtures/*.npz`; returns their size."""
    recording = load_recording(recordings)
    kept: dict[str, dict[str, tuple[Kept, ...]]] = {"exact": {}, "approximate": {}}
    for case in modules.all_cases():
        if case.name not in recording.outputs:
            continue
        kinds = [buffer.kind for buffer in case.buffers if buffer.is_output]
        asked = APPROXIMATE_ELEMENTS if case.is_approximate else ALU_ELEMENTS
        is_alu = part_of(case) in ("exact", "approximate")
        parts = []
        for data, kind in zip(recording.outputs[case.name], kinds, strict=True):
            size = len(data) * modules.ALU_ELEMENTS // asked if is_alu else len(data)
            answer = canonical(data[:size], kind)
            parts.append(keep(answer, size if case.is_approximate else 0))
        kept["approximate" if case.is_approximate else "exact"][case.name] = tuple(parts)
    FIXTURES.mkdir(exist_ok=True)
    for name, cases in kept.items():
        save_fixture(FIXTURES / f"{name}.npz", recording.facts, cases)
    return sum(path.stat().st_size for path in FIXTURES.glob("*.npz"))
