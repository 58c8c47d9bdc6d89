from __future__ import annotations

import numpy as np
import pytest

from mlagen.sim.schedule import Eager, Lazy, Pct
from tests.sim.cuda import kinds, run

RANDOM = np.random.default_rng(22)

CLUSTER = """
using u32 = unsigned int;
__device__ u32 rank_of() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ u32 map(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ u32 address_of(const void* p) { return __cvta_generic_to_shared(p); }
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
"""

EXCHANGE = (
    CLUSTER
    + """
extern "C" __global__ void __cluster_dims__(4, 1, 1) kernel(const int* in, int* out) {
  __shared__ int mine[32], theirs[32];
  u32 rank = rank_of();
  mine[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
  arrive();
  wait();
  int value;
  asm volatile("ld.shared::cluster.s32 %0, [%1];"
               : "=r"(value) : "r"(map(address_of(&mine[threadIdx.x]), (rank + 1) % 4)) : "memory");
  asm volatile("st.shared::cluster.s32 [%0], %1;"
               :: "r"(map(address_of(&theirs[31 - threadIdx.x]), rank ^ 1)), "r"(value) : "memory");
  LAST
  out[blockIdx.x * 32 + threadIdx.x] = theirs[threadIdx.x];
}
"""
)


@pytest.mark.parametrize("schedule", [Lazy(), Pct(1), Pct(2)], ids=str)
def test_ctas_of_a_cluster_share_memory(schedule: Lazy) -> None:
    given = RANDOM.integers(0, 1000, size=(2, 4, 32), dtype=np.int32)
    out = np.zeros_like(given)
    source = EXCHANGE.replace("LAST", "arrive(); wait();")
    result = run(source, given, out, grid=8, schedule=schedule)
    assert kinds(result) == []
    ranks = np.arange(4)
    np.testing.assert_array_equal(out, given[:, ((ranks ^ 1) + 1) % 4, ::-1])


def test_remote_stores_need_the_cluster_barrier() -> None:
    given = RANDOM.integers(0, 1000, size=128, dtype=np.int32)
    result = run(EXCHANGE.replace("LAST", ""), given, np.zeros_like(given), grid=4)
    assert {"race", "uninitialised", "exited-cta"} & set(kinds(result))


def test_the_memory_of_an_ended_cta_is_gone() -> None:
    source = (
        CLUSTER
        + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(volatile int* go, int* out) {
  __shared__ int mine;
  mine = 3;
  arrive();
  wait();
  if (rank_of() == 1) { go[0] = 1; return; }
  while (!go[0]) {}
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(out[0]) : "r"(map(address_of(&mine), 1)) : "memory");
}
"""
    )
    go, out = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32)
    assert "exited-cta" in kinds(run(source, go, out, grid=2, block=1))


def test_a_rank_beyond_the_cluster_is_out_of_bounds() -> None:
    source = EXCHANGE.replace("(rank + 1) % 4", "rank + 1").replace("LAST", "arrive(); wait();")
    given = np.zeros(128, dtype=np.int32)
    assert "out-of-bounds" in kinds(run(source, given, given.copy(), grid=4))


REMOTE = (
    CLUSTER
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(const int* in, int* out) {
  __shared__ alignas(16) int cells[128];
  __shared__ unsigned long long bar;
  u32 other = rank_of() ^ 1;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                 :: "r"(address_of(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], BYTES;" :: "r"(address_of(&bar)) : "memory");
  }
  arrive();
  wait();
  int4 v = ((const int4*)in)[blockIdx.x * 32 + threadIdx.x];
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               :: "r"(map(address_of(&cells[4 * threadIdx.x]), other)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w),
                  "r"(map(address_of(&bar), other)) : "memory");
  WAIT
  for (int i = 0; i < 4; ++i) out[blockIdx.x * 128 + 32 * i + threadIdx.x] = cells[32 * i + threadIdx.x];
  arrive();
  wait();
}
"""
)
WAIT = (
    'asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @p bra D; bra W; D: }"'
    ' :: "r"(address_of(&bar)) : "memory");'
)


@pytest.mark.parametrize("schedule", [Eager(), Lazy(), Pct(3), Pct(4)], ids=str)
def test_remote_stores_count_their_bytes(schedule: Lazy) -> None:
    given = RANDOM.integers(0, 1000, size=(2, 128), dtype=np.int32)
    out = np.zeros_like(given)
    source = REMOTE.replace("WAIT", WAIT).replace("BYTES", "512")
    assert kinds(run(source, given, out, grid=2, schedule=schedule)) == []
    np.testing.assert_array_equal(out, given[::-1])


def test_remote_stores_must_be_waited_for() -> None:
    given = RANDOM.integers(0, 1000, size=(2, 128), dtype=np.int32)
    result = run(REMOTE.replace("WAIT", "").replace("BYTES", "512"), given, given.copy(), grid=2)
    assert "race" in kinds(result)
    assert "in-flight" in kinds(result)


def test_bytes_that_never_come_are_a_deadlock() -> None:
    given = RANDOM.integers(0, 1000, size=(2, 128), dtype=np.int32)
    source = REMOTE.replace("WAIT", WAIT).replace("BYTES", "516")
    result = run(source, given, given.copy(), grid=2)
    assert kinds(result) == ["deadlock"]
    assert "4 bytes" in result.findings[0].message
