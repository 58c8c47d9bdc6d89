"""Schedules: who goes next, a warp or an asynchronous operation. Each is deterministic and can be replayed.

A warp's step ends with one instruction that others can notice, or with a wait; an operation's step is its completion.
Under `Eager` and `Lazy` the machine itself walks over the warps, those of a warpgroup side by side, which is the
fastest; under the others it asks before every step.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from dataclasses import dataclass
from pathlib import Path as FilePath
from random import Random
from typing import TYPE_CHECKING, Protocol

from mlagen.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mlagen.sim.hardware import AsyncOperation, Warp

DEFAULT_DEPTH = 3
# Priorities change at steps up to this one; most change points fall early, as most runs are short.
_MOST_STEPS_LOG2 = 15
# Whoever takes so many steps in a row drops as well: a loop that polls could keep all others waiting.
_MOST_IN_A_ROW = 5000
_REPLAY_PREFIX = "replay1:"
_KINDS = "eager, lazy, pct:SEED, pct:SEED:DEPTH or replay:FILE"


class Choice(Protocol):
    """What an asking schedule keeps during one run."""

    def pick(
        self, warps: Sequence[Warp], operations: Sequence[AsyncOperation]
    ) -> Warp | AsyncOperation:
        """Who goes next.

        Args:
            warps: Those that can run.
            operations: Those that may complete, in order of submission. One of the two is not empty.
        """


@dataclass(frozen=True, slots=True)
class Eager:
    """Operations complete as soon as they are submitted: the least asynchronous machine there is."""

    def __str__(self) -> str:
        return "eager"


@dataclass(frozen=True, slots=True)
class Lazy:
    """Operations complete only when no warp can run, the oldest first."""

    def __str__(self) -> str:
        return "lazy"


@dataclass(frozen=True, slots=True)
class Pct:
    """Random strict priorities over warps and operations, some of which drop during the run.

    Attributes:
        seed: Of the random numbers.
        depth: How often whoever is running drops below all others.

    Source: probabilistic concurrency testing, Burckhardt et al., ASPLOS 2010.
    """

    seed: int
    depth: int = DEFAULT_DEPTH

    def __str__(self) -> str:
        return f"pct:{self.seed}:{self.depth}"

    def start(self) -> Choice:
        """The state at the start of a run."""
        return _PctChoice(self.seed, self.depth)


@dataclass(frozen=True, slots=True)
class Replay:
    """The steps of an earlier run, from its `SimulationResult.schedule`."""

    text: str

    def __str__(self) -> str:
        return self.text

    def start(self) -> Choice:
        """The state at the start of a run."""
        return _ReplayChoice(decode_steps(self.text))


Schedule = Eager | Lazy | Pct | Replay


class _PctChoice:
    """Priorities are drawn when somebody is first seen; a drop gives one below all given before."""

    def __init__(self, seed: int, depth: int) -> None:
        self._random = Random(seed)  # noqa: S311 (not for secrets)
        self._priorities: dict[Warp | AsyncOperation, float] = {}
        self._drops = sorted(
            int(2 ** self._random.uniform(0, _MOST_STEPS_LOG2)) for _ in range(depth)
        )
        self._lowest = 0.0
        self._steps = 0
        self._last: Warp | AsyncOperation | None = None
        self._in_a_row = 0

    def pick(
        self, warps: Sequence[Warp], operations: Sequence[AsyncOperation]
    ) -> Warp | AsyncOperation:
        best = self._highest(warps, operations)
        self._steps += 1
        self._in_a_row = self._in_a_row + 1 if best is self._last else 0
        if self._in_a_row > _MOST_IN_A_ROW:
            self._drops.insert(0, self._steps)
        while self._drops and self._drops[0] <= self._steps:
            del self._drops[0]
            self._lowest -= 1.0
            self._priorities[best] = self._lowest
            best = self._highest(warps, operations)
        if best is not self._last:
            self._last, self._in_a_row = best, 0
        return best

    def _highest(
        self, warps: Iterable[Warp], operations: Iterable[AsyncOperation]
    ) -> Warp | AsyncOperation:
        """Whoever has the highest priority."""
        priorities = self._priorities
        best: Warp | AsyncOperation | None = None
        highest = float("-inf")
        for group in (warps, operations):
            for one in group:
                priority = priorities.get(one)
                if priority is None:
                    priority = priorities[one] = self._random.random()
                if priority > highest:
                    best, highest = one, priority
        assert best is not None
        return best


class _ReplayChoice:
    """Walks through recorded steps; behind their end the oldest goes first."""

    def __init__(self, steps: list[int]) -> None:
        self._steps: Iterator[int] = iter(steps)

    def pick(
        self, warps: Sequence[Warp], operations: Sequence[AsyncOperation]
    ) -> Warp | AsyncOperation:
        step = next(self._steps, None)
        if step is None:
            return warps[0] if warps else operations[0]
        everybody: tuple[Warp | AsyncOperation, ...] = (*warps, *operations)
        for one in everybody:
            if one.number == step:
                return one
        msg = "the recording does not fit this run: it is of another kernel, launch or version"
        raise ScheduleError(msg)


def encode_steps(steps: Sequence[int]) -> str:
    """A recording as one word: runs of equal numbers, packed."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and runs[-1][0] == step:
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
    plain = " ".join(f"{step}*{count}" if count > 1 else str(step) for step, count in runs)
    return _REPLAY_PREFIX + base64.b85encode(zlib.compress(plain.encode(), 9)).decode()


def decode_steps(text: str) -> list[int]:
    """The steps of a recording.

    Raises:
        ScheduleError: The text is no recording.
    """
    text = text.strip()
    try:
        if not text.startswith(_REPLAY_PREFIX):
            raise ValueError(text[:20])  # noqa: TRY301 (one message for every way to be wrong)
        plain = zlib.decompress(base64.b85decode(text.removeprefix(_REPLAY_PREFIX))).decode()
        steps: list[int] = []
        for run in plain.split():
            step, _, count = run.partition("*")
            steps += [int(step)] * int(count or 1)
    except (ValueError, zlib.error, binascii.Error) as error:
        msg = f"not a recorded schedule: {text[:20]!r}\n  it is one word that begins with {_REPLAY_PREFIX}"
        raise ScheduleError(msg) from error
    return steps


def parse_schedule(text: str) -> Schedule:
    """A schedule from its name: `eager`, `lazy`, `pct:SEED`, `pct:SEED:DEPTH`, `replay:FILE`.

    Raises:
        ScheduleError: It is none of these, or the file cannot be read.
    """
    if text == "eager":
        return Eager()
    if text == "lazy":
        return Lazy()
    if found := re.fullmatch(r"pct:(\d+)(?::(\d+))?", text):
        return Pct(int(found[1]), int(found[2] or DEFAULT_DEPTH))
    if text.startswith("replay:"):
        file = FilePath(text.removeprefix("replay:"))
        try:
            recording = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not ASCII"
            raise ScheduleError(
                f"schedule {text!r}: {reason}\n  give the file that a run wrote"
            ) from error
        decode_steps(recording)
        return Replay(recording)
    raise ScheduleError(f"schedule {text!r}: not a schedule\n  give {_KINDS}")
