from __future__ import annotations

import numpy as np
import pytest

from mlagen.sim.schedule import Eager, Lazy, Pct
from tests.sim.cuda import kinds, run
from tests.sim.ptx_kernel import launch

RANDOM = np.random.default_rng(20)

COPY = """
extern "C" __global__ void kernel(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2.0f * in[i] + 1.0f;
}
"""


@pytest.mark.parametrize("size", [1, 31, 32, 33, 200, 256])
def test_guarded_copy_writes_exactly_its_elements(size: int) -> None:
    given = RANDOM.normal(size=size).astype(np.float32)
    out = np.full(300, -7, dtype=np.float32)
    result = run(COPY, given, out, np.int32(size), grid=2, block=128)
    assert kinds(result) == []
    np.testing.assert_array_equal(out[:size], 2 * given + 1)
    np.testing.assert_array_equal(out[size:], -7)


def test_a_block_need_not_fill_its_last_warp() -> None:
    given = RANDOM.normal(size=50).astype(np.float32)
    out = np.zeros(50, dtype=np.float32)
    assert kinds(run(COPY, given, out, np.int32(50), grid=1, block=50)) == []
    np.testing.assert_array_equal(out, 2 * given + 1)


REDUCE = """
extern "C" __global__ void kernel(const int* in, int* out, int n) {
  __shared__ int partial[8];
  int sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[i];
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    int v = threadIdx.x < 8 ? partial[threadIdx.x] : 0;
    for (int d = 4; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x == 0) *out = v;
  }
}
"""


@pytest.mark.parametrize("schedule", [Eager(), Lazy(), Pct(1), Pct(2), Pct(3)], ids=str)
@pytest.mark.parametrize("size", [0, 5, 256, 1000])
def test_block_reduction(size: int, schedule: Lazy) -> None:
    given = RANDOM.integers(-1000, 1000, size=max(size, 1), dtype=np.int32)
    out = np.zeros(1, dtype=np.int32)
    result = run(REDUCE, given, out, np.int32(size), block=256, schedule=schedule)
    assert kinds(result) == []
    assert out[0] == given[:size].sum()


DIVERGENT = """
extern "C" __global__ void kernel(const int* in, int* out) {
  int x = in[threadIdx.x], steps = 0;
  if (x < 0) { out[threadIdx.x] = -1; return; }
  while (x != 1) {
    if (x & 1) { x = 3 * x + 1; if (x % 5 == 0) steps += 100; }
    else x /= 2;
    ++steps;
  }
  switch (steps & 7) {
    case 0: steps += 1000; break;
    case 1: steps *= 3; break;
    case 2: steps -= 17;
    case 3: steps ^= 0x55; break;
    case 4: steps = in[steps & 31]; break;
    case 5: steps |= 0x4000; break;
    case 6: steps = -steps; break;
    default: steps += 7;
  }
  out[threadIdx.x] = steps;
}
"""


def _collatz(values: list[int], x: int) -> int:
    if x < 0:
        return -1
    steps = 0
    while x != 1:
        if x & 1:
            x = 3 * x + 1
            steps += 100 if x % 5 == 0 else 0
        else:
            x //= 2
        steps += 1
    match steps & 7:
        case 0:
            return steps + 1000
        case 1:
            return steps * 3
        case 2:
            return (steps - 17) ^ 0x55
        case 3:
            return steps ^ 0x55
        case 4:
            return values[steps & 31]
        case 5:
            return steps | 0x4000
        case 6:
            return -steps
        case _:
            return steps + 7


def test_every_lane_may_take_its_own_way() -> None:
    given = RANDOM.integers(1, 500, size=64, dtype=np.int32)
    given[[3, 7, 40]] = -5
    out = np.zeros(64, dtype=np.int32)
    assert kinds(run(DIVERGENT, given, out, block=64)) == []
    values = given.tolist()
    assert out.tolist() == [_collatz(values, x) for x in values]


RECONVERGES = """
extern "C" __global__ void kernel(int* out) {
  int lane = threadIdx.x, v = lane;
  if (lane % 3 == 0) { for (int i = 0; i < lane; ++i) v += out[32 + i]; }
  else if (lane % 3 == 1) { v = 1000 - v; if (v % 2) v += out[40]; }
  __syncwarp();
  out[lane] = v + __shfl_sync(0xffffffffu, v, 31 - lane);
}
"""


def test_lanes_meet_again_before_they_work_together() -> None:
    out = np.arange(64, dtype=np.int32)
    v = np.arange(32)
    for lane in range(32):
        if lane % 3 == 0:
            v[lane] = lane + sum(range(32, 32 + lane))
        elif lane % 3 == 1:
            v[lane] = 1000 - lane + (40 if (1000 - lane) % 2 else 0)
    assert kinds(run(RECONVERGES, out)) == []
    np.testing.assert_array_equal(out[:32], v + v[::-1])


SUBSET = """
extern "C" __global__ void kernel(int* out) {
  int lane = threadIdx.x, v = lane * lane;
  if (lane < 16) v = __shfl_xor_sync(0x0000ffffu, v, 1); else v = __shfl_xor_sync(0xffff0000u, v, 2) + out[32];
  out[lane] = v;
}
"""


def test_a_part_of_a_warp_may_shuffle() -> None:
    out = np.zeros(33, dtype=np.int32)
    assert kinds(run(SUBSET, out)) == []
    lanes = np.arange(32)
    np.testing.assert_array_equal(
        out[:32], np.where(lanes < 16, (lanes ^ 1) ** 2, (lanes ^ 2) ** 2)
    )


LOCAL = """
extern "C" __global__ void kernel(const int* in, int* out) {
  int a[16];
  for (int i = 0; i < 16; ++i) a[i] = in[threadIdx.x] * i;
  int sum = 0;
  for (int i = 0; i < 8; ++i) sum += a[in[32 + (threadIdx.x + i) % 32] & 15];
  out[threadIdx.x] = sum;
}
"""


def test_local_arrays_belong_to_their_thread() -> None:
    given = RANDOM.integers(0, 100, size=64, dtype=np.int32)
    out = np.zeros(32, dtype=np.int32)
    assert kinds(run(LOCAL, given, out)) == []
    lanes = np.arange(32)
    picked = sum(given[32 + (lanes + i) % 32] & 15 for i in range(8))
    np.testing.assert_array_equal(out, given[:32] * picked)


SHAPE = """
extern "C" __global__ void kernel(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 10000 * block + thread;
}
"""


def test_grids_and_blocks_have_three_dimensions() -> None:
    out = np.zeros(12 * 48, dtype=np.int32)
    assert kinds(run(SHAPE, out, grid=(2, 3, 2), block=(6, 4, 2))) == []
    expected = 10000 * np.arange(12)[:, None] + np.arange(48)
    np.testing.assert_array_equal(out.reshape(12, 48), expected)


LAST = """
__device__ unsigned int arrived;
extern "C" __global__ void kernel(const float* in, float* partial, float* out) {
  __shared__ bool last;
  float v = in[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = v;
    FENCE
    last = atomicAdd(&arrived, 1u) == gridDim.x - 1;
    FENCE
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
    *out = sum;
    arrived = 0;
  }
}
"""


@pytest.mark.parametrize("schedule", [Lazy(), Pct(4), Pct(5)], ids=str)
def test_the_last_block_sees_what_the_others_wrote(schedule: Lazy) -> None:
    given = RANDOM.integers(-9, 9, size=320).astype(np.float32)
    out, partial = np.zeros(1, dtype=np.float32), np.zeros(10, dtype=np.float32)
    source = LAST.replace("FENCE", "__threadfence();")
    assert kinds(run(source, given, partial, out, grid=10, schedule=schedule)) == []
    assert out[0] == given.sum()


def test_the_last_block_needs_fences() -> None:
    given = np.ones(320, dtype=np.float32)
    out, partial = np.zeros(1, dtype=np.float32), np.zeros(10, dtype=np.float32)
    result = run(LAST.replace("FENCE", ""), given, partial, out, grid=10)
    assert set(kinds(result)) == {"race"}
    assert "argument 1" in result.findings[0].message


def test_a_loop_of_volatile_loads_is_no_poll() -> None:
    source = """
    extern "C" __global__ void kernel(const volatile int* in, int* out) {
      int sum = 0;
      #pragma unroll 1
      for (int i = 0; i < 3000; ++i) sum += in[i];
      out[0] = sum;
    }
    """
    given, out = RANDOM.integers(0, 9, size=3000, dtype=np.int32), np.zeros(1, dtype=np.int32)
    assert kinds(run(source, given, out, block=1)) == []
    assert out[0] == given.sum()


def findings_of(body: str) -> list[str]:
    result = launch(body, {"out": np.zeros(32, dtype=np.uint32)})
    return [f"{finding.kind}: {finding.message}" for finding in result.findings]


def test_lanes_agree_about_a_uniform_branch() -> None:
    body = "setp.lt.u32 %p1, %r0, LIMIT; @%p1 bra.uni END; mov.u32 %r1, 1; END: mov.u32 %r2, 2;"
    assert findings_of(body.replace("LIMIT", "40")) == []
    (text,) = findings_of(body.replace("LIMIT", "4"))
    assert text == "diverged-uniform: bra.uni: lanes 0xf of 0xffffffff jump, the others do not"


def test_lanes_agree_about_a_collective_instruction() -> None:
    body = "setp.lt.u32 %p1, %r0, LIMIT; @%p1 bar.sync 0;"
    assert findings_of(body.replace("LIMIT", "40")) == []
    assert findings_of(body.replace("LIMIT", "0")) == []
    (text,) = findings_of(body.replace("LIMIT", "4"))
    assert text.startswith("diverged-aligned: bar.sync is executed by lanes 0xf of 0xffffffff")


@pytest.mark.parametrize("count", [1, 3, 31, 32])
def test_a_guarded_store_writes_for_its_lanes(count: int) -> None:
    out = np.zeros(32, dtype=np.uint32)
    body = """
    setp.lt.u32 %p1, %r0, COUNT;
    mul.wide.u32 %x10, %r0, 4;
    add.u64 %x11, %x_out, %x10;
    add.u32 %r1, %r0, 5;
    @%p1 st.u32 [%x11], %r1;
    @!%p1 st.u32 [%x11], %r0;
    """
    assert launch(body.replace("COUNT", str(count)), {"out": out}).findings == ()
    np.testing.assert_array_equal(out, np.arange(32) + 5 * (np.arange(32) < count))


def test_an_index_beyond_its_targets_is_reported() -> None:
    body = "TABLE: .branchtargets A, B; brx.idx %r1, TABLE; A: mov.u32 %r2, 1; B: mov.u32 %r2, 2;"
    assert findings_of("and.b32 %r1, %r0, 1; " + body) == []
    (text,) = findings_of("and.b32 %r1, %r0, 3; " + body)
    assert text.startswith("out-of-bounds: brx.idx: index")
