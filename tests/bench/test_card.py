"""What is asked of the driver's library, and what becomes of its answers; a fake stands for it."""

from __future__ import annotations

import ctypes

import pytest

from mlagen.bench.card import Card

NOT_SUPPORTED = 3


class FakeNvml:
    """One GPU, as far as it is asked for; pointers come as `byref` objects."""

    def __init__(self, *, knows_energy: bool = True) -> None:
        self.knows_energy = knows_energy
        self.names: list[bytes] = []

    def nvmlInit_v2(self) -> int:  # noqa: N802  # NVML's names, as below
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: object) -> int:  # noqa: N802
        del handle
        self.names.append(name)
        return 0 if name == b"GPU-1234-ab" else NOT_SUPPORTED

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object, value: object) -> int:  # noqa: N802
        del handle
        return _give(value, 5_500) if self.knows_energy else NOT_SUPPORTED

    def nvmlDeviceGetMaxClockInfo(self, handle: object, clock: int, value: object) -> int:  # noqa: N802
        del handle
        return _give(value, 1980) if clock == 1 else NOT_SUPPORTED

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object, value: object) -> int:  # noqa: N802
        del handle
        return _give(value, 700_000)

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int, value: object) -> int:  # noqa: N802
        del handle, value
        assert sensor == 0
        return NOT_SUPPORTED


def _give(reference: object, value: int) -> int:
    reference._obj.value = value  # type: ignore[attr-defined]  # of ctypes.byref
    return 0


@pytest.mark.parametrize("uuid", ["1234-ab", "GPU-1234-ab"])
def test_a_gpu_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    library = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert Card.of_uuid(uuid) is not None
    assert library.names == [b"GPU-1234-ab"]
    assert Card.of_uuid("5678") is None


def test_without_the_library_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", fail)
    assert Card.of_uuid("1234-ab") is None


def test_answers_are_in_the_units_of_their_names() -> None:
    card = Card(FakeNvml(), ctypes.c_void_p())  # type: ignore[arg-type]  # a fake
    assert card.energy_j() == 5.5
    assert card.limits() == {"max_sm_clock_mhz": 1980, "power_limit_w": 700.0}


def test_what_is_not_known_is_none() -> None:
    card = Card(FakeNvml(knows_energy=False), ctypes.c_void_p())  # type: ignore[arg-type]
    assert card.energy_j() is None
