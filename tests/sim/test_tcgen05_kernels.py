"""Whole sm_100a kernels, as one would write them: TMA, tcgen05, mbarriers. Integer inputs, so results are exact."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import parse_schedule
from mlagen.sim.simulate import SimulationResult, simulate
from tests.sim.tcgen05_bench import LOAD_32, PRELUDE, STORE_32

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEDULES = ("lazy", "eager", "pct:1", "pct:2")
BF16 = np.dtype(ml_dtypes.bfloat16)

COMMON = (
    (
        PRELUDE
        + """
struct __align__(128) TensorMap { char opaque[128]; };
__device__ __forceinline__ void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void load(u32 to, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ __forceinline__ u64 k_major(u32 address) {  // 128-byte swizzle, rows of 128 bytes
  return (u64)0x40004040 << 32 | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ u64 mn_major(u32 address, u32 panel_bytes) {
  return (u64)0x40004040 << 32 | panel_bytes >> 4 << 16 | (address & 0x3ffff) >> 4;
}
template <int kGroup> __device__ __forceinline__ void multiply(u32 d, u64 a, u64 b, u32 descriptor, u32 added) {
  if (kGroup == 1)
    asm volatile("{.reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;}"
                 :: "r"(d), "l"(a), "l"(b), "r"(descriptor), "r"(added) : "memory");
  else
    asm volatile("{.reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;}"
                 :: "r"(d), "l"(a), "l"(b), "r"(descriptor), "r"(added) : "memory");
}
__device__ __forceinline__ void multiply_ts(u32 d, u32 a, u64 b, u32 descriptor, u32 added) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;}"
               :: "r"(d), "r"(a), "l"(b), "r"(descriptor), "r"(added) : "memory");
}
__device__ __forceinline__ void commit(u32 bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ u32 allocate(u32 slot) {  // one warp
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" :: "r"(slot) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  return 0;
}
__device__ __forceinline__ u32 read_slot(u32 slot) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(slot) : "memory");
  return value;
}
__device__ __forceinline__ void deallocate(u32 tensor) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" :: "r"(tensor));
}
__device__ __forceinline__ void load_32(u32 address, u32 (&v)[32]) { LOAD_32 }
__device__ __forceinline__ void store_32(u32 address, const u32 (&v)[32]) { STORE_32 }
__device__ __forceinline__ void write_out(float* out, u32 tensor, u32 row, int columns) {
  for (int c = 0; c < columns; c += 32) {
    u32 v[32];
    load_32(tensor + (row / 32 << 21) + c, v);
    wait_loads();
    for (int i = 0; i < 32; ++i) out[row * columns + c + i] = __uint_as_float(v[i]);
  }
}
extern __shared__ __align__(1024) unsigned char raw[];
"""
    )
    .replace("LOAD_32", LOAD_32)
    .replace("STORE_32", STORE_32)
)

# A (128 x K) times B' (128 x K), panels of 64 through two stages.
GEMM = """
extern "C" __global__ void __launch_bounds__(256, 1)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* out, int panels) {
  u32 a = shared_address(raw), b = a + 32768, bars = b + 32768;
  u32 full = bars, empty = bars + 16, done = bars + 32, slot = bars + 40;
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == 0 && elect()) {
    for (int s = 0; s < 2; ++s) { init(full + 8 * s, 1); init(empty + 8 * s, 1); }
    init(done, 1);
    fence_init();
  }
  if (warp == 1) allocate(slot);
  before(); __syncthreads(); after();
  u32 tensor = read_slot(slot);
  if (warp == 0) {
    if (elect()) for (int p = 0; p < panels; ++p) {
      int s = p % 2;
      wait(empty + 8 * s, (p / 2 + 1) & 1);
      expect(full + 8 * s, 32768);
      load(a + 16384 * s, &a_map, 64 * p, 0, full + 8 * s);
      load(b + 16384 * s, &b_map, 64 * p, 0, full + 8 * s);
    }
  } else if (warp == 1) {
    if (elect()) {
      for (int p = 0; p < panels; ++p) {
        int s = p % 2;
        wait(full + 8 * s, p / 2 & 1);
        after();
        for (int step = 0; step < 4; ++step)
          multiply<1>(tensor, k_major(a + 16384 * s) + 2 * step, k_major(b + 16384 * s) + 2 * step, 0x8200490,
                      p | step);
        commit(empty + 8 * s);
      }
      commit(done);
    }
  } else if (warp >= 4) {
    wait(done, 0);
    after();
    write_out(out, tensor, threadIdx.x - 128, 128);
    before();
  }
  __syncthreads();
  if (warp == 1) { after(); deallocate(tensor); }
}
"""

# O = sum over tiles of (Q K_i') V_i, 128 queries, 128 keys a tile, 64 columns: S in columns 0 to 127, P as bf16 over
# its second half (64 to 127), O in columns 128 to 191. S of the next tile overwrites P: products of one thread run in
# that order.
CHAIN = """
extern "C" __global__ void __launch_bounds__(192, 1)
chain(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
      const __grid_constant__ TensorMap v_map, float* out, int tiles) {
  u32 q = shared_address(raw), k = q + 16384, v = k + 32768, bars = v + 32768;
  u32 q_full = bars, full = bars + 8, empty = bars + 24, s_full = bars + 40, p_ready = bars + 48, o_full = bars + 56;
  u32 slot = bars + 64;
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == 4 && elect()) {
    init(q_full, 1); init(s_full, 1); init(p_ready, 4); init(o_full, 1);
    for (int s = 0; s < 2; ++s) { init(full + 8 * s, 1); init(empty + 8 * s, 1); }
    fence_init();
  }
  if (warp == 5) allocate(slot);
  before(); __syncthreads(); after();
  u32 tensor = read_slot(slot);
  if (warp == 4) {
    if (elect()) {
      expect(q_full, 16384);
      load(q, &q_map, 0, 0, q_full);
      for (int t = 0; t < tiles; ++t) {
        int s = t % 2;
        wait(empty + 8 * s, (t / 2 + 1) & 1);
        expect(full + 8 * s, 32768);
        load(k + 16384 * s, &k_map, 0, 128 * t, full + 8 * s);
        load(v + 16384 * s, &v_map, 0, 128 * t, full + 8 * s);
      }
    }
  } else if (warp == 5) {
    if (elect()) {
      wait(q_full, 0);
      for (int t = 0; t < tiles; ++t) {
        int s = t % 2;
        wait(full + 8 * s, t / 2 & 1);
        after();
        for (int step = 0; step < 4; ++step)
          multiply<1>(tensor, k_major(q) + 2 * step, k_major(k + 16384 * s) + 2 * step, 0x8200490, step);
        commit(s_full);
        wait(p_ready, t & 1);
        after();
        for (int step = 0; step < 8; ++step)
          multiply_ts(tensor + 128, tensor + 64 + 8 * step, mn_major(v + 16384 * s, 16384) + 128 * step, 0x8110490,
                      t | step);
        commit(empty + 8 * s);
      }
      commit(o_full);
    }
  } else {
    u32 lanes = tensor + (warp << 21);
    for (int t = 0; t < tiles; ++t) {
      wait(s_full, t & 1);
      after();
      u32 packed[2][32];
      for (int c = 0; c < 4; ++c) {
        u32 s[32];
        load_32(lanes + 32 * c, s);
        wait_loads();
        for (int i = 0; i < 16; ++i)
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed[c / 2][c % 2 * 16 + i])
              : "f"(__uint_as_float(s[2 * i + 1])), "f"(__uint_as_float(s[2 * i])));
      }
      store_32(lanes + 64, packed[0]);
      store_32(lanes + 96, packed[1]);
      wait_stores();
      before();
      __syncwarp();
      if (elect()) arrive(p_ready);
    }
    wait(o_full, 0);
    after();
    write_out(out, tensor + 128, threadIdx.x, 64);
    before();
  }
  __syncthreads();
  if (warp == 5) { after(); deallocate(tensor); }
}
"""

# A pair: 256 rows of A, each CTA its 128; 128 rows of B, each CTA its 64. The even CTA issues.
PAIR = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
pair(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* out, int panels) {
  u32 a = shared_address(raw), b = a + 16384, bars = b + 8192, full = bars, empty = bars + 8, done = bars + 16;
  u32 slot = bars + 24, rank, leader_full;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(leader_full) : "r"(full));
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == 0 && elect()) { init(full, 1); init(empty, 1); init(done, 1); fence_init(); }
  if (warp == 1) {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 128;" :: "r"(slot) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
  }
  before();
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
  after();
  u32 tensor = read_slot(slot);
  if (warp == 0) {
    if (elect()) for (int p = 0; p < panels; ++p) {
      wait(empty, (p + 1) & 1);
      if (rank == 0) expect(full, 49152);
      load_pair(a, &a_map, 64 * p, 128 * rank, leader_full);
      load_pair(b, &b_map, 64 * p, 64 * rank, leader_full);
    }
  } else if (warp == 1 && rank == 0) {
    if (elect()) {
      for (int p = 0; p < panels; ++p) {
        wait(full, p & 1);
        after();
        for (int step = 0; step < 4; ++step)
          multiply<2>(tensor, k_major(a) + 2 * step, k_major(b) + 2 * step, 0x10200490, p | step);
        commit_pair(empty);
      }
      commit_pair(done);
    }
  }
  __syncwarp();
  wait(done, 0);
  after();
  write_out(out + rank * 128 * 128, tensor, threadIdx.x, 128);
  before();
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
  after();
  if (warp == 1) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 128;" :: "r"(tensor));
}
"""
PAIR_FUNCTIONS = """
__device__ __forceinline__ void load_pair(u32 to, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2"
               " [%0], [%1, {%2, %3}], [%4];" :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ __forceinline__ void commit_pair(u32 bar) {
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
               :: "r"(bar), "h"((u16)3) : "memory");
}
"""

# Two CTAs with rows of A of their own and the same B: each loads half of B for both, and frees a stage in both.
MULTICAST = """
__device__ __forceinline__ void load_both(u32 to, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((u16)3)
               : "memory");
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
multicast(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* out, int panels) {
  u32 a = shared_address(raw), b = a + 16384, bars = b + 16384, full = bars, empty = bars + 8, done = bars + 16;
  u32 slot = bars + 24, rank;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp == 0 && elect()) { init(full, 1); init(empty, 2); init(done, 1); fence_init(); }
  if (warp == 1) allocate(slot);
  before();
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
  after();
  u32 tensor = read_slot(slot);
  if (warp == 0) {
    if (elect()) for (int p = 0; p < panels; ++p) {
      wait(empty, (p + 1) & 1);
      expect(full, 32768);
      load(a, &a_map, 64 * p, 128 * rank, full);
      load_both(b + 8192 * rank, &b_map, 64 * p, 64 * rank, full);
    }
  } else if (warp == 1) {
    if (elect()) {
      for (int p = 0; p < panels; ++p) {
        wait(full, p & 1);
        after();
        for (int step = 0; step < 4; ++step)
          multiply<1>(tensor, k_major(a) + 2 * step, k_major(b) + 2 * step, 0x8200490, p | step);
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
                     " [%0], %1;" :: "r"(empty), "h"((u16)3) : "memory");
      }
      commit(done);
    }
  }
  __syncwarp();
  wait(done, 0);
  after();
  write_out(out + rank * 128 * 128, tensor, threadIdx.x, 128);
  before();
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
  after();
  if (warp == 1) deallocate(tensor);
}
"""


@functools.cache
def ptx_of(source: str) -> str:
    return compile_cuda(COMMON + source, name="kernel", arch="sm_100a", options=KERNEL_OPTIONS).ptx


def launch(
    source: str,
    name: str,
    matrices: list[tuple[NDArray[np.generic], int]],
    out: NDArray[np.float32],
    count: int,
    *,
    threads: int,
    ctas: int = 1,
    schedule: str = "lazy",
    ptx: str | None = None,
) -> SimulationResult:
    """Run a kernel on matrices given with the rows of their TMA boxes."""
    memory = GlobalMemory()
    maps = []
    for number, (matrix, rows) in enumerate(matrices):
        height, width = matrix.shape
        maps.append(
            TensorMapSpec(
                address=memory.add(matrix, f"matrix {number}"),
                element_type="bfloat16",
                dims=(width, height),
                strides_bytes=(2 * width,),
                box=(64, rows),
            )
        )
    record = LaunchRecord(
        kernel=name,
        grid=(ctas, 1, 1),
        block=(threads, 1, 1),
        cluster=(ctas, 1, 1),
        shared_memory_bytes=112 * 1024,
        parameters=(
            *maps,
            struct.pack("<Q", memory.add(out, "out")),
            struct.pack("<i", count),
        ),
    )
    return simulate(ptx or ptx_of(source), record, memory, schedule=parse_schedule(schedule))


def integers(seed: int, shape: tuple[int, int], least: int = -2) -> NDArray[np.generic]:
    return np.random.default_rng(seed).integers(least, -least + 1, shape).astype(BF16)


def exact(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float32]:
    product: NDArray[np.float32] = a.astype(np.float32) @ b.astype(np.float32)
    return product


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipelined_product(schedule: str) -> None:
    a, b = integers(1, (128, 320)), integers(2, (128, 320))
    out = np.zeros((128, 128), np.float32)
    outcome = launch(GEMM, "gemm", [(a, 128), (b, 128)], out, 5, threads=256, schedule=schedule)
    assert outcome.findings == ()
    np.testing.assert_array_equal(out, exact(a, b.T))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_chain_of_products_through_tensor_memory(schedule: str) -> None:
    tiles = 3
    q, k = integers(1, (128, 64), -1), integers(2, (128 * tiles, 64), -1)
    v = integers(3, (128 * tiles, 64))
    out = np.zeros((128, 64), np.float32)
    outcome = launch(
        CHAIN, "chain", [(q, 128), (k, 128), (v, 128)], out, tiles, threads=192, schedule=schedule
    )
    assert outcome.findings == ()
    np.testing.assert_array_equal(out, exact(exact(q, k.T), v))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_product_of_a_pair(schedule: str) -> None:
    a, b = integers(1, (256, 192)), integers(2, (128, 192))
    out = np.zeros((256, 128), np.float32)
    outcome = launch(
        PAIR_FUNCTIONS + PAIR,
        "pair",
        [(a, 128), (b, 64)],
        out,
        3,
        threads=128,
        ctas=2,
        schedule=schedule,
    )
    assert outcome.findings == ()
    np.testing.assert_array_equal(out, exact(a, b.T))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_products_that_share_b_by_multicast(schedule: str) -> None:
    a, b = integers(1, (256, 192)), integers(2, (128, 192))
    out = np.zeros((256, 128), np.float32)
    outcome = launch(
        MULTICAST, "multicast", [(a, 128), (b, 64)], out, 3, threads=128, ctas=2, schedule=schedule
    )
    assert outcome.findings == ()
    np.testing.assert_array_equal(out, exact(a, b.T))
