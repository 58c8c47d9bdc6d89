from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlagen.errors import ScheduleError
from mlagen.sim.schedule import (
    Eager,
    Lazy,
    Pct,
    Replay,
    decode_steps,
    encode_steps,
    parse_schedule,
)
from tests.sim.cuda import kinds, run

if TYPE_CHECKING:
    from pathlib import Path

# Every block and warp notes its turn, so the result depends on the schedule.
ORDER = """
extern "C" __global__ void kernel(int* next, int* turns) {
  for (int i = 0; i < 3; ++i)
    if (threadIdx.x % 32 == 0) turns[atomicAdd(next, 1)] = blockIdx.x * 100 + threadIdx.x / 32 * 10 + i;
}
"""


def turns(schedule: Eager | Lazy | Pct | Replay) -> tuple[list[int], str]:
    next_, noted = np.zeros(1, dtype=np.int32), np.zeros(36, dtype=np.int32)
    result = run(ORDER, next_, noted, grid=4, block=96, schedule=schedule)
    assert kinds(result) == []
    assert sorted(noted.tolist()) == sorted(
        100 * b + 10 * w + i for b in range(4) for w in range(3) for i in range(3)
    )
    return noted.tolist(), result.schedule


@pytest.mark.parametrize("schedule", [Eager(), Lazy(), Pct(7), Pct(8, 5)], ids=str)
def test_a_schedule_is_deterministic(schedule: Lazy) -> None:
    assert turns(schedule) == turns(schedule)


def test_seeds_differ() -> None:
    assert len({tuple(turns(Pct(seed))[0]) for seed in range(4)}) > 1
    assert len({tuple(turns(Pct(3, depth))[0]) for depth in (0, 20)}) > 1


@pytest.mark.parametrize("schedule", [Lazy(), Pct(11), Pct(12)], ids=str)
def test_a_recording_replays(schedule: Lazy) -> None:
    noted, recording = turns(schedule)
    assert turns(Replay(recording)) == (noted, recording)


def test_a_recording_of_another_run_is_refused() -> None:
    with pytest.raises(ScheduleError, match="does not fit this run"):
        turns(Replay(encode_steps([4711])))


def test_steps_survive_encoding() -> None:
    steps = [0, 0, 0, -1, 32, 32, -17, 0]
    assert decode_steps(encode_steps(steps)) == steps
    assert len(encode_steps([3] * 100_000)) < 60


def test_names_of_schedules(tmp_path: Path) -> None:
    recording = encode_steps([1, 2, 3])
    file = tmp_path / "run.txt"
    file.write_text(recording + "\n")
    assert parse_schedule("eager") == Eager()
    assert parse_schedule("lazy") == Lazy()
    assert parse_schedule("pct:12") == Pct(12)
    assert parse_schedule("pct:12:7") == Pct(12, 7)
    assert parse_schedule(f"replay:{file}") == Replay(recording)
    for schedule in (Eager(), Lazy(), Pct(12, 7)):
        assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["", "random", "pct", "pct:", "pct:x", "pct:1:", "pct:-1", "Lazy"])
def test_other_names_are_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ScheduleError, match="give eager, lazy, pct:SEED"):
        parse_schedule(text)


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="give the file that a run wrote"):
        parse_schedule(f"replay:{tmp_path / 'missing'}")
    file = tmp_path / "run.txt"
    file.write_text("replay1:nonsense")
    with pytest.raises(ScheduleError, match="not a recorded schedule"):
        parse_schedule(f"replay:{file}")


POLITE = """
extern "C" __global__ void kernel(int* flag, int* noise, int* out) {
  if (blockIdx.x == 0) { flag[0] = 1; return; }
  while (atomicAdd(noise + blockIdx.x, 1) >= 0)  // changes memory, so it looks like progress
    if (*(volatile int*)flag) break;
  out[blockIdx.x] = 1;
}
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_loop_that_polls_does_not_keep_others_waiting(seed: int) -> None:
    flag, noise, out = (np.zeros(size, dtype=np.int32) for size in (1, 3, 3))
    result = run(POLITE, flag, noise, out, grid=3, block=1, schedule=Pct(seed))
    assert set(kinds(result)) <= {"race"}  # the flag is an ordinary store
    assert out.tolist() == [0, 1, 1]
