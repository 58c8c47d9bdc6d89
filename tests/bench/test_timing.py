"""Timing on a fake device whose clock is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mlagen.bench import timing
from mlagen.bench.timing import HEAT_MS, IDLE_S, time_calls

if TYPE_CHECKING:
    from mlagen.bench.timing import Regime


@dataclass
class Device:
    """A device and a host with one clock: work takes as long as it says, pauses too.

    Attributes:
        hertz: Cycles of a spin a second.
        watts: While it works; 100 W less while it idles.
        now_ms: The time.
        joules: Used so far.
        worked_ms: Time of the calls, oldest first.
    """

    hertz: float = 1.5e9
    watts: float = 600.0
    now_ms: float = 0.0
    joules: float = 0.0
    worked_ms: list[float] = field(default_factory=list)

    def pass_time(self, milliseconds: float, *, watts: float) -> None:
        self.now_ms += milliseconds
        self.joules += watts * milliseconds / 1e3

    def work(self, milliseconds: float) -> None:
        self.pass_time(milliseconds, watts=self.watts)
        self.worked_ms.append(milliseconds)

    def spin(self, cycles: int) -> None:
        self.pass_time(cycles / self.hertz * 1e3, watts=self.watts)

    def idle(self, seconds: float) -> None:
        self.pass_time(seconds * 1e3, watts=self.watts - 100)

    def energy_j(self) -> float:
        return self.joules


class Event:
    """Of the fake device."""

    device: Device

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self.device.now_ms

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(Event, "device", made, raising=False)
    cuda = SimpleNamespace(Event=Event, synchronize=lambda: None, _sleep=made.spin)
    monkeypatch.setattr(timing, "torch", SimpleNamespace(cuda=cuda))
    clock = SimpleNamespace(perf_counter=lambda: made.now_ms / 1e3, sleep=made.idle)
    monkeypatch.setattr(timing, "time", clock)
    return made


def test_the_distribution_is_that_of_the_calls(device: Device) -> None:
    took = iter([*[9.0] * 6, *([4.0] * 12 + [2.0] * 8) * 2])  # to warm up, and for an estimate
    found = time_calls(lambda _: device.work(next(took)), sets=2, regime="cool", budget_ms=180)
    assert found.calls == 20
    assert (found.median_ms, found.least_ms, found.p90_ms) == pytest.approx((4.0, 2.0, 4.0))


def test_the_clock_is_counted(device: Device) -> None:
    found = time_calls(lambda _: device.work(1.0), sets=1, regime="cool")
    assert found.sm_clock_mhz == pytest.approx(1500)


def test_cool_groups_are_short_and_rested(device: Device) -> None:
    gaps: list[float] = []
    last = device.now_ms

    def call(_: int) -> None:
        nonlocal last
        gaps.append(device.now_ms - last)
        device.work(12.0)
        last = device.now_ms

    time_calls(call, sets=1, regime="cool")
    rests = [index for index, gap in enumerate(gaps) if gap >= IDLE_S * 1e3]
    assert {after - before for before, after in itertools.pairwise(rests)} == {2}


def test_hot_is_after_half_a_second_of_the_same_work(device: Device) -> None:
    found = time_calls(lambda _: device.work(2.0), sets=3, regime="hot")
    assert sum(device.worked_ms[: -found.calls]) >= HEAT_MS
    assert found.median_ms == pytest.approx(2.0)


@pytest.mark.parametrize(("regime", "least", "most"), [("hot", 599.9, 600.1), ("cool", 500, 540)])
def test_power_is_energy_over_time(
    device: Device, regime: Regime, least: float, most: float
) -> None:
    found = time_calls(
        lambda _: device.work(2.0),
        sets=1,
        regime=regime,
        card=device,  # type: ignore[arg-type]  # it counts energy
    )
    assert found.power_w is not None
    assert least <= found.power_w <= most


def test_without_a_card_there_is_no_power(device: Device) -> None:
    assert time_calls(lambda _: device.work(1.0), sets=1, regime="hot").power_w is None
