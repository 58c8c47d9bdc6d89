from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from mlagen.errors import SimulationError
from mlagen.launch_record import LaunchRecord
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.report import Names
from mlagen.sim.schedule import Lazy, Pct
from mlagen.sim.simulate import Checks, simulate
from tests.sim.cuda import kinds, program, run

COPY = """
extern "C" __global__ void kernel(const int* in, int* out) {
  int i = threadIdx.x;
  if (in[i] > 1000)
    out[i] = 1;
  else
    out[i] = 2 * in[i];
}
"""


def test_counters_and_coverage() -> None:
    given, out = np.arange(64, dtype=np.int32), np.zeros(64, dtype=np.int32)
    result = run(COPY, given, out, block=64)
    assert result.findings == ()
    assert result.counters.operations == 0
    # a load and a store by each warp, besides what only registers see
    assert result.counters.visible == 4
    assert result.counters.instructions > 2 * 8
    lines = COPY.splitlines()
    covered = {lines[line - 1].strip() for line in result.covered_lines}
    assert "out[i] = 2 * in[i];" in covered
    everything = run(COPY, given + 970, out, block=64)
    assert everything.covered_pcs >= result.covered_pcs


def test_a_run_leaves_nothing_behind_for_the_next() -> None:
    given, out = np.arange(64, dtype=np.int32), np.zeros(64, dtype=np.int32)
    memory = GlobalMemory()
    first = run(COPY, given, out, block=64, memory=memory)
    second = run(COPY, given, out, block=64, memory=memory)
    assert first == second


def test_many_blocks_share_few_residents() -> None:
    source = 'extern "C" __global__ void kernel(int* out) { atomicAdd(out + blockIdx.x % 5, blockIdx.x); }'
    out = np.zeros(5, dtype=np.int32)
    for resident in (1, 3):
        out[:] = 0
        assert kinds(run(source, out, grid=23, block=1, resident=resident)) == []
        assert out.tolist() == [sum(range(start, 23, 5)) for start in range(5)]


def test_a_trace_has_every_visible_step() -> None:
    given, out = np.arange(64, dtype=np.int32), np.zeros(64, dtype=np.int32)
    result = run(COPY, given, out, block=64, trace=True)
    labels = [(event.warp, event.label.split(".")[0], event.kind) for event in result.trace]
    assert sorted(labels) == [
        (0, "ld", "run"),
        (0, "st", "run"),
        (1, "ld", "run"),
        (1, "st", "run"),
    ]
    assert [event.step for event in result.trace] == [1, 2, 3, 4]
    assert run(COPY, given, out, block=64).trace == ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"parameters": (bytes(8),)}, "takes 2 parameters, got 1"),
        ({"parameters": (bytes(8), bytes(4))}, "has 8 bytes, got 4"),
        ({"block": (32, 64, 1)}, "2048 threads"),
        ({"grid": (0, 1, 1)}, "is empty"),
        ({"kernel": "other"}, "the PTX holds kernel"),
        ({"shared_memory_bytes": 300_000}, "232448 available"),
        ({"shared_memory_bytes": -1}, "232448 available"),
        ({"cluster": (2, 1, 1)}, "no multiple of the cluster"),
        ({"cluster": (0, 1, 1)}, "1 to 16 CTAs"),
        ({"grid": (32, 1, 1), "cluster": (32, 1, 1)}, "1 to 16 CTAs"),
        ({"grid": (1, 65536, 1)}, "at most"),
        ({"block": (1, 1, 128)}, "at most"),
    ],
)
def test_a_record_must_fit_the_kernel(change: dict[str, object], text: str) -> None:
    values: dict[str, object] = {
        "kernel": "kernel",
        "grid": (1, 1, 1),
        "block": (32, 1, 1),
        "shared_memory_bytes": 0,
        "parameters": (bytes(8), bytes(8)),
    } | change
    record = LaunchRecord(**values)  # type: ignore[arg-type] # of what types is the test's affair
    with pytest.raises(SimulationError, match=text):
        simulate(program(COPY), record, GlobalMemory())


ENDLESS = 'extern "C" __global__ void kernel(volatile int* out) { while (true) { out[0] = 1; } }'


def test_a_grid_is_not_laid_out_before_it_runs() -> None:
    # 2^31 - 1 CTAs in a list would be tens of GiB; only the first ones get a turn here.
    tracemalloc.start()
    result = run(ENDLESS, np.zeros(1, dtype=np.int32), grid=2**31 - 1, block=1, most_steps=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "step-budget" in kinds(result)
    assert peak < 64 << 20


def test_a_loop_without_end_spends_the_budget() -> None:
    result = run(ENDLESS, np.zeros(1, dtype=np.int32), block=1, most_steps=1000)
    assert kinds(result) == ["step-budget"]
    assert result.findings[0].site is not None


TRAP = 'extern "C" __global__ void kernel(int* out) { if (out[0]) __trap(); out[1] = 5; }'


def test_trap_ends_the_run() -> None:
    out = np.array([0, 0], dtype=np.int32)
    assert kinds(run(TRAP, out, block=1)) == []
    assert out[1] == 5
    out = np.array([1, 0], dtype=np.int32)
    assert kinds(run(TRAP, out, block=1)) == ["trap"]
    assert out[1] == 0


MISSING = """
extern "C" __global__ void kernel(int* out) {
  if (threadIdx.x / 32 != 1) asm volatile("bar.sync 1, 128;" ::: "memory");
  else asm volatile("bar.sync 2, 64;" ::: "memory");
  out[threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize("schedule", [Lazy(), Pct(1)], ids=str)
def test_a_deadlock_lists_who_waits_for_what(schedule: Lazy) -> None:
    names = Names(roles={0: "load warp", 1: "math warps"}, named_barriers={1: "turn", 2: "ready"})
    out = np.zeros(128, dtype=np.int32)
    result = run(MISSING, out, block=128, names=names, schedule=schedule)
    assert kinds(result) == ["deadlock"]
    text = result.findings[0].message
    assert "cta 0, warp 0 (load warp), at line 3" in text
    assert "warp 1 (math warps), at line 4" in text
    assert "warps 2-3 (math warps), at line 3" in text
    assert "turn" in text
    assert "ready" in text
    assert not out.any()


COLLECTIVE = """
extern "C" __global__ void kernel(int* out) {
  if (threadIdx.x == 5) { asm volatile("bar.sync 1, 32;" ::: "memory"); out[0] = 1; }
  else { asm volatile("bar.sync 2, 32;" ::: "memory"); out[1] = 2; }
}
"""


def test_collective_instructions_need_the_whole_warp() -> None:
    result = run(COLLECTIVE, np.zeros(2, dtype=np.int32))
    assert kinds(result)[0] == "diverged-aligned"
    assert "lanes 0x20 at bar.sync" in result.findings[0].message
    assert "lanes 0xffffffdf at bar.sync" in result.findings[0].message


POOL = """
extern "C" __global__ void __launch_bounds__(384, 1) kernel(int* out) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 DOWN;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 UP;");
  out[threadIdx.x] = 1;
}
"""


@pytest.mark.parametrize("schedule", [Lazy(), Pct(1), Pct(2)], ids=str)
def test_registers_move_between_warpgroups(schedule: Lazy) -> None:
    # 65536 / 384 threads, in units of 8: 168 registers each; 168 x 3 = 24 + 240 x 2
    out = np.zeros(384, dtype=np.int32)
    source = POOL.replace("DOWN", "24").replace("UP", "240")
    assert kinds(run(source, out, block=384, schedule=schedule)) == []
    assert out.all()


def test_more_registers_than_there_are_deadlock() -> None:
    out = np.zeros(384, dtype=np.int32)
    result = run(POOL.replace("DOWN", "32").replace("UP", "240"), out, block=384)
    assert kinds(result) == ["deadlock"]
    text = result.findings[0].message
    assert "registers: its warpgroup has 168 a thread, the pool has 8192" in text
    assert out.sum() == 256


@pytest.mark.parametrize(
    ("bounds", "launch"),
    [("__launch_bounds__(384, 2)", 80), ("__maxnreg__(128)", 128)],
    ids=["two CTAs on an SM", "maxnreg"],
)
def test_a_cta_starts_with_the_registers_that_its_kernel_asks_for(bounds: str, launch: int) -> None:
    # 24 + 2 x 240 fit into 65536 registers, but not into what these kernels are given.
    source = (
        POOL.replace("DOWN", "24").replace("UP", "240").replace("__launch_bounds__(384, 1)", bounds)
    )
    result = run(source, np.zeros(384, dtype=np.int32), block=384)
    assert kinds(result) == ["deadlock"]
    assert f"registers: its warpgroup has {launch} a thread" in result.findings[0].message


def test_registers_change_in_the_direction_that_is_said() -> None:
    out = np.zeros(384, dtype=np.int32)
    source = POOL.replace("DOWN", "24").replace("UP", "160")
    result = run(source, out, block=384)
    assert kinds(result) == ["register-pool"]
    assert "inc to 160 registers a thread, the warpgroup has 168" in result.findings[0].message


def test_order_need_not_be_checked() -> None:
    source = 'extern "C" __global__ void kernel(int* out) { out[threadIdx.x] = blockIdx.x; }'
    out = np.full(32, -1, dtype=np.int32)
    assert kinds(run(source, out, grid=2)) == ["race"]
    assert kinds(run(source, out, grid=2, checks=Checks(order=False))) == []
