from __future__ import annotations

import numpy as np
import pytest

from tests.sim.cuda import kinds, run

RANDOM = np.random.default_rng(26)


COPIES = """
extern "C" __global__ void kernel(const int* in, int* out, int bytes) {
  __shared__ alignas(16) int cells[2][128];
  unsigned to = __cvta_generic_to_shared(&cells[0][4 * threadIdx.x]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2; cp.async.commit_group;"
               :: "r"(to), "l"(in + 4 * threadIdx.x), "r"(bytes) : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8; cp.async.commit_group;"
               :: "r"(to + 512), "l"(in + 4 * threadIdx.x) : "memory");
  asm volatile("WAIT" ::: "memory");
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = cells[0][i * 32 + threadIdx.x];
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncwarp();
  out[128 + threadIdx.x] = cells[1][4 * threadIdx.x + 1];
}
"""


@pytest.mark.parametrize("size", [0, 4, 12, 16])
def test_asynchronous_copies_fill_up_with_zeros(size: int) -> None:
    given = RANDOM.integers(1, 1000, size=(32, 4), dtype=np.int32)
    out = np.zeros(160, dtype=np.int32)
    source = COPIES.replace("WAIT", "cp.async.wait_group 1;")
    assert kinds(run(source, given, out, np.int32(size))) == []
    expected = np.where(np.arange(4) < size // 4, given, 0)
    np.testing.assert_array_equal(out[:128].reshape(32, 4), expected)
    np.testing.assert_array_equal(out[128:], given[:, 1])


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 2;"])
def test_asynchronous_copies_must_be_waited_for(wait: str) -> None:
    given, out = np.ones(128, dtype=np.int32), np.zeros(160, dtype=np.int32)
    result = run(COPIES.replace("WAIT", wait), given, out, np.int32(16))
    assert "in-flight" in kinds(result)


def test_nobody_may_leave_asynchronous_copies_behind() -> None:
    given, out = np.ones(128, dtype=np.int32), np.zeros(160, dtype=np.int32)
    source = COPIES.replace("WAIT", "").replace("cp.async.wait_group 0;", "")
    assert "exit-in-flight" in kinds(run(source, given, out, np.int32(16)))


BULK = """
extern "C" __global__ void kernel(const int* in, int* out) {
  __shared__ alignas(16) int cells[128];
  unsigned from = __cvta_generic_to_shared(cells), to = from + 16 * threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16; ARRIVE"
               :: "r"(to), "l"(in + 4 * threadIdx.x) : "memory");
  asm volatile("FENCE" ::: "memory");
  __syncwarp();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;"
                 "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" :: "l"(out), "r"(from) : "memory");
}
"""


def test_bulk_copies_do_not_see_asynchronous_copies_without_a_fence() -> None:
    given = RANDOM.integers(1, 1000, size=128, dtype=np.int32)
    out = np.zeros_like(given)
    waits = BULK.replace("ARRIVE", "cp.async.wait_all;")
    assert kinds(run(waits.replace("FENCE", "fence.proxy.async;"), given, out)) == []
    np.testing.assert_array_equal(out, given)
    assert kinds(run(waits.replace("FENCE", ""), given, out)) == ["proxy-fence"]
    hurried = BULK.replace("ARRIVE", "").replace("FENCE", "fence.proxy.async;")
    assert {"race", "exit-in-flight"} <= set(kinds(run(hurried, given, out)))


DIVERGED = """
extern "C" __global__ void kernel(const int* in, int* out) {
  __shared__ alignas(16) int cells[64];
  unsigned to = __cvta_generic_to_shared(cells + threadIdx.x);
  for (int i = 0; i <= (int)threadIdx.x % 2; ++i)  // odd lanes have two groups, even ones have one
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group;"
                 :: "r"(to + 128 * i), "l"(in + threadIdx.x + 32 * i) : "memory");
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  if (threadIdx.x % 2) out[threadIdx.x] = cells[threadIdx.x];
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
"""


def test_every_lane_has_groups_of_its_own() -> None:
    given, out = np.arange(64, dtype=np.int32), np.zeros(32, dtype=np.int32)
    assert kinds(run(DIVERGED, given, out)) == []
    assert out.tolist() == [lane * (lane % 2) for lane in range(32)]
    assert "in-flight" in kinds(run(DIVERGED.replace("i <= (int)", "i < (int)"), given, out))


@pytest.mark.parametrize(
    "wait",
    [
        "cp.async.wait_all;",
        "cp.async.commit_group; cp.async.wait_group 0;",
        "cp.async.mbarrier.arrive.shared::cta.b64 [%2];",
    ],
)
def test_a_wait_of_one_lane_covers_its_own_copies_alone(wait: str) -> None:
    source = """
extern "C" __global__ void kernel(const int* in, int* out, int waiting) {
  __shared__ alignas(16) int cells[128];
  __shared__ alignas(8) long long barrier;
  unsigned to = __cvta_generic_to_shared(cells + 4 * threadIdx.x), at = __cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(at) : "memory");
  __syncwarp();
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + 4 * threadIdx.x) : "memory");
  if (threadIdx.x < waiting) asm volatile("WAIT" :: "r"(to), "l"(in), "r"(at) : "memory");
  __syncwarp();
}
"""
    given, out = np.ones(128, dtype=np.int32), np.zeros(1, dtype=np.int32)
    source = source.replace("WAIT", wait)
    assert kinds(run(source, given, out, np.int32(32))) == []
    result = run(source, given, out, np.int32(1))
    assert kinds(result) == ["exit-in-flight"]
    assert "lanes 0xfffffffe have not waited" in result.findings[0].message
