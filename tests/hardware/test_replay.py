"""What an H200 answered, replayed in the simulator without one: equal to the last bit, but for approximations.

CI replays a sample of each family that is the same every time; `python -m benchmarks.validate_simulator compare micro`
replays all of it.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlagen.errors import MlagenError, UnsupportedPtxError
from tests.hardware.compare import canonical, ulp_distances
from tests.hardware.known import DIFFERENT, LARGEST_ERROR, LARGEST_ULP, REFUSED
from tests.hardware.modules import all_cases
from tests.hardware.recordings import FIXTURES, Kept, digest, load_fixture
from tests.hardware.replay import replay

if TYPE_CHECKING:
    from tests.hardware.case import Case

SAMPLE = {"alu": 30, "wgmma": 6, "wgmma-precision": 4}
SAMPLE_OF_OTHERS = 2


@functools.cache
def _kept(name: str) -> dict[str, tuple[Kept, ...]]:
    return load_fixture(FIXTURES / f"{name}.npz")[1]


@functools.cache
def _cases() -> dict[str, Case]:
    return {case.name: case for case in all_cases()}


def _sample() -> list[str]:
    """Names of each family, those first whose digest is smallest: all modules get their turn as cases come and go."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in _kept("exact"):
        if name not in REFUSED and name not in DIFFERENT:
            families[name.split("/")[0]].append(name)
    chosen = []
    for family, names in families.items():
        names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        chosen += names[: SAMPLE.get(family, SAMPLE_OF_OTHERS)]
    return sorted(chosen)


def _answers(case: Case) -> list[bytes]:
    kinds = [buffer.kind for buffer in case.buffers if buffer.is_output]
    return [canonical(*pair) for pair in zip(replay(case).outputs, kinds, strict=True)]


def test_every_recorded_case_is_still_the_same() -> None:
    assert set(_kept("exact")) | set(_kept("approximate")) <= set(_cases())


@pytest.mark.parametrize("name", _sample())
def test_bit_for_bit(name: str) -> None:
    found = [(len(part), digest(part)) for part in _answers(_cases()[name])]
    assert found == [(part.size, part.digest) for part in _kept("exact")[name]]


@pytest.mark.parametrize("name", sorted(set(_kept("approximate")) - set(LARGEST_ERROR)))
def test_approximations(name: str) -> None:
    case = _cases()[name]
    (kind,) = (buffer.kind for buffer in case.buffers if buffer.is_output)
    (mine,), (gpu,) = _answers(case), _kept("approximate")[name]
    assert ulp_distances(gpu.head, mine, kind).max() <= LARGEST_ULP.get(name, 0)


def test_limits_are_those_of_approximations() -> None:
    assert set(LARGEST_ULP) | set(LARGEST_ERROR) <= set(_kept("approximate"))


@pytest.mark.parametrize("name", sorted(LARGEST_ERROR))
def test_approximations_near_zero(name: str) -> None:
    case = _cases()[name]
    x = case.buffers[0].data.view(np.float32)
    mine, gpu = (
        np.frombuffer(data, np.float32).astype(np.float64)
        for data in (_answers(case)[0], _kept("approximate")[name][0].head)
    )
    assert np.array_equal(np.isnan(mine), np.isnan(gpu))
    counts = np.isfinite(x) & np.isfinite(mine)
    if "lg2" not in name:
        counts &= np.abs(x) <= np.pi
    errors = np.abs(mine[counts] - gpu[counts]) / np.maximum(1, np.abs(mine[counts]))
    assert counts.sum() > 100
    assert errors.max() <= LARGEST_ERROR[name]


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_known_differences_are_still_there(name: str) -> None:
    found = [digest(part) for part in _answers(_cases()[name])]
    assert found != [part.digest for part in _kept("exact")[name]]


@pytest.mark.parametrize("name", sorted(REFUSED)[::6])
def test_refused_cases_are_refused(name: str) -> None:
    with pytest.raises((UnsupportedPtxError, MlagenError)):
        replay(_cases()[name])
