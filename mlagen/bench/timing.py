"""Device time of a call, by CUDA events, in one of two regimes.

A matrix kernel at full load takes a GPU to its power limit, and the clock follows: the same kernel
reads 10 to 20 % slower after half a second of itself (measured on an H200, 2026-12-01). So a time
belongs to a regime, and only times of one regime are compared:

    cool   groups of at most 30 ms of work, 0.15 s of idle before each
    hot    half a second of the same work first

The SM clock is measured, not asked for (in short runs, what the driver says is not what the SMs do): behind each group,
a kernel counts cycles for a fraction of a millisecond, too short for the clock to change.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.bench.card import Card

Regime = Literal["cool", "hot"]

GROUP_MS = 30.0
IDLE_S = 0.15
HEAT_MS = 500.0
# Cycles a second by which a spin kernel's length is set; it need not be exact.
SPIN_HERTZ = 1.9e9
CLOCK_CYCLES = 500_000


@dataclass(frozen=True, slots=True)
class Timing:
    """What one measurement says.

    Attributes:
        median_ms: Median over calls; the figure to report.
        least_ms: The fastest call.
        p90_ms: Nine calls of ten are not slower.
        calls: How many were timed.
        regime: See the module.
        sm_clock_mhz: Right behind the work; of several groups the median.
        power_w: Mean over the timed calls, and over the pauses between them (cool) or the heating before them (hot);
            None if the driver does not count energy.
    """

    median_ms: float
    least_ms: float
    p90_ms: float
    calls: int
    regime: Regime
    sm_clock_mhz: float | None = None
    power_w: float | None = None


def time_calls(
    call: Callable[[int], object],
    *,
    sets: int,
    regime: Regime,
    budget_ms: float = 250.0,
    card: Card | None = None,
) -> Timing:
    """Time `call(i)`, each call by events of its own, and return the distribution.

    Args:
        call: Enqueues the work on input set `i`.
        sets: Number of input sets, taken in turn so that the L2 holds no answer.
        regime: See the module.
        budget_ms: Device time to aim for, within 20 to 60 calls (10 for calls over 10 ms).
        card: Counts the energy; None for no power.
    """
    once_ms, host_s = _rehearse(call, sets)
    calls = int(min(60, max(20 if once_ms < 10 else 10, budget_ms / once_ms)))
    group = int(max(1, min(calls, GROUP_MS / once_ms))) if regime == "cool" else calls
    torch.cuda.synchronize()
    energy, begin = card.energy_j() if card else None, time.perf_counter()
    if regime == "hot":
        _heat(call, sets, once_ms)
    events = [_event_pair() for _ in range(calls)]
    spins = []
    for first in range(0, calls, group):
        if regime == "cool":
            torch.cuda.synchronize()
            time.sleep(IDLE_S)
        _hold_the_queue(once_ms, host_s, min(group, calls - first))
        for i in range(first, min(first + group, calls)):
            events[i][0].record()
            call(i % sets)
            events[i][1].record()
        spins.append(_event_pair())
        spins[-1][0].record()
        torch.cuda._sleep(CLOCK_CYCLES)
        spins[-1][1].record()
    torch.cuda.synchronize()
    seconds, used = time.perf_counter() - begin, card.energy_j() if card else None
    spin_ms = statistics.median(start.elapsed_time(end) for start, end in spins)
    times = sorted(start.elapsed_time(end) for start, end in events)
    return Timing(
        median_ms=statistics.median(times),
        least_ms=times[0],
        p90_ms=times[int(0.9 * (calls - 1))],
        calls=calls,
        regime=regime,
        sm_clock_mhz=CLOCK_CYCLES / spin_ms / 1e3,
        power_w=None if used is None or energy is None else (used - energy) / seconds,
    )


def _rehearse(call: Callable[[int], object], sets: int) -> tuple[float, float]:
    """Warm up; return an estimate of one call's device time in ms and host time in s."""
    for i in range(max(3, sets)):
        call(i % sets)
    torch.cuda.synchronize()
    start, end = _event_pair()
    begin = time.perf_counter()
    start.record()
    for i in range(3):
        call(i % sets)
    end.record()
    host_s = (time.perf_counter() - begin) / 3
    torch.cuda.synchronize()
    return max(start.elapsed_time(end) / 3, 1e-3), host_s


def _heat(call: Callable[[int], object], sets: int, once_ms: float) -> None:
    for i in range(int(min(20_000, HEAT_MS / once_ms))):
        call(i % sets)
        if i % 64 == 63:  # keeps the queue short of its limit
            torch.cuda.synchronize()


def _hold_the_queue(once_ms: float, host_s: float, calls: int) -> None:
    """Spin on the device until the host is ahead, so that no event waits for the host."""
    per_call_s = host_s + 15e-6  # two event records
    host_bound = once_ms < 3e3 * per_call_s
    lead_s = min(0.2, 1.5 * calls * per_call_s) if host_bound else 2e-4
    torch.cuda._sleep(int(lead_s * SPIN_HERTZ))


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
