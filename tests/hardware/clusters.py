"""Micro-kernels of clusters of two and four CTAs: ranks, remote memory and arrives, multicast, the cluster barrier."""

from __future__ import annotations

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Map, Pointer, output, scalar
from tests.hardware.values import patterns, raw

MODULE = "clusters"
THREADS = 64

_COMMON = """
struct __align__(128) TensorMap { u64 opaque[16]; };

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ u32 remote(u32 address, u32 rank) {
  u32 found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
  return found;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_cluster(u32 barrier, u32 parity) {
  for (u32 tries = 0; tries < 10000; ++tries) {
    u32 done;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
  }
}
"""

_KERNELS = """
extern "C" __global__ void __cluster_dims__({size}, 1, 1) ranks{size}(u32* out) {{
  u32 v[8];
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(v[0]));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(v[1]));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[2]));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[3]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[4]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(v[5]));
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(v[6]));
  asm volatile("{{.reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p;}}" : "=r"(v[7]));
  for (u32 i = 0; i < 8; ++i) out[8 * (blockIdx.x * {threads} + threadIdx.x) + i] = v[i];
}}

// Every CTA reads its next one's words, adds to its last one's, and stores into every one's.
extern "C" __global__ void __cluster_dims__({size}, 1, 1) words{size}(const u32* values, u32* out) {{
  u32* words = (u32*)shared;
  u32 thread = threadIdx.x, rank = cluster_rank(), i = blockIdx.x * {threads} + thread;
  words[thread] = values[i];
  words[{threads} + thread] = thread;
  for (u32 r = 0; r < {size}; ++r) words[(2 + r) * {threads} + thread] = 0;
  cluster_sync();
  u32 next = (rank + 1) % {size}, last = (rank + {size} - 1) % {size}, read, generic;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
      : "=r"(read) : "r"(remote(shared_address(words + thread), next)) : "memory");
  u64 address;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(words + ({threads} - 1 - thread)), "r"(next));
  generic = *(volatile u32*)address;
  asm volatile("red.shared::cluster.add.u32 [%0], %1;"
      :: "r"(remote(shared_address(words + {threads} + thread), last)), "r"(values[i]) : "memory");
  for (u32 r = 0; r < {size}; ++r) {{
    u32 at = remote(shared_address(words + (2 + rank) * {threads} + thread), r);
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(at), "r"(values[i] ^ r) : "memory");
  }}
  cluster_sync();
  out[4 * i] = read;
  out[4 * i + 1] = generic;
  out[4 * i + 2] = words[{threads} + thread];
  u32 sum = 0;
  for (u32 r = 0; r < {size}; ++r) sum = sum * 7 + words[(2 + r) * {threads} + thread];
  out[4 * i + 3] = sum;
  cluster_sync();
}}

// CTA 0 waits on its own barrier for arrivals of everybody; each writes its word before it arrives.
extern "C" __global__ void __cluster_dims__({size}, 1, 1) arrives{size}(const u32* values, u32* out) {{
  __shared__ u64 object;
  u32* words = (u32*)shared;
  u32 thread = threadIdx.x, rank = cluster_rank(), barrier = shared_address(&object);
  u32 i = blockIdx.x * {threads} + thread, sum = 0;
  if (thread == 0) init_barrier(barrier, {size} * {threads});
  cluster_sync();
  u32 at = remote(shared_address(words + rank * {threads} + thread), 0);
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(at), "r"(values[i]) : "memory");
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(remote(barrier, 0)) : "memory");
  if (rank == 0) {{
    wait_cluster(barrier, 0);
    for (u32 r = 0; r < {size}; ++r) sum = sum * 11 + words[r * {threads} + (thread + r) % {threads}];
  }}
  out[i] = sum;
  cluster_sync();
}}

// st.async of 4, 8 and 16 bytes and a bulk copy between the CTAs' memories, all counted on the receiver's barrier.
extern "C" __global__ void __cluster_dims__({size}, 1, 1) sends{size}(const uint4* values, uint4* out) {{
  __shared__ u64 object;
  uint4* words = (uint4*)shared;
  u32 thread = threadIdx.x, rank = cluster_rank(), barrier = shared_address(&object);
  u32 i = blockIdx.x * {threads} + thread, next = (rank + 1) % {size};
  uint4 v = values[i];
  words[thread] = make_uint4(0, 0, 0, 0);
  words[{threads} + thread] = v;
  words[2 * {threads} + thread] = make_uint4(1, 2, 3, 4);
  if (thread == 0) init_barrier(barrier, 1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  cluster_sync();
  if (thread == 0) expect_bytes(barrier, {threads} / 4 * (16 + 4 + 8) + 16 * {threads});
  u32 at = remote(shared_address(words + thread), next), signal = remote(barrier, next);
  if (thread % 4 == 0) {{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {{%1,%2,%3,%4}}, [%5];"
        :: "r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(signal) : "memory");
  }} else if (thread % 4 == 1) {{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
        :: "r"(at + 4), "r"(v.x), "r"(signal) : "memory");
  }} else if (thread % 4 == 2) {{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {{%1,%2}}, [%3];"
        :: "r"(at + 8), "r"(v.x), "r"(v.y), "r"(signal) : "memory");
  }}
  if (thread == 0) {{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(remote(shared_address(words + 2 * {threads}), next)), "r"(shared_address(words + {threads})),
        "r"(16 * {threads}), "r"(signal) : "memory");
  }}
  wait_cluster(barrier, 0);
  out[2 * i] = words[thread];
  out[2 * i + 1] = words[2 * {threads} + thread];
  cluster_sync();
}}

// Each CTA loads its rows of a tile for all CTAs of the mask; plain bulk copies do the same behind it.
extern "C" __global__ void __cluster_dims__({size}, 1, 1) multicast{size}(const __grid_constant__ TensorMap map,
    const u8* plain, u32 mask, uint4* out) {{
  __shared__ u64 object;
  uint4* words = (uint4*)shared;
  u32 thread = threadIdx.x, rank = cluster_rank(), barrier = shared_address(&object);
  for (u32 i = thread; i < {size} * 128; i += {threads}) words[i] = make_uint4(5, 6, 7, 8);
  if (thread == 0) init_barrier(barrier, 1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  cluster_sync();
  if (thread == 0) {{
    if (mask >> rank & 1) expect_bytes(barrier, {size} * 2048);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {{%2,%3}}], [%4], %5;" :: "r"(shared_address(words + rank * 64)), "l"(&map), "r"(0),
        "r"((int)(blockIdx.x * 8)), "r"(barrier), "h"((u16)mask) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1], %2, [%3], %4;" :: "r"(shared_address(words + {size} * 64 + rank * 64)),
        "l"(plain + blockIdx.x * 1024), "r"(1024), "r"(barrier), "h"((u16)mask) : "memory");
  }}
  if (mask >> rank & 1) wait_cluster(barrier, 0);
  cluster_sync();
  for (u32 i = thread; i < {size} * 128; i += {threads}) out[blockIdx.x * {size} * 128 + i] = words[i];
}}
"""


def modules() -> dict[str, str]:
    """The one module."""
    kernels = "".join(_KERNELS.format(size=size, threads=THREADS) for size in (2, 4))
    return {MODULE: PRELUDE + _COMMON + kernels}


def _case(
    name: str, size: int, buffers: tuple[Buffer, ...], *parameters: bytes | Map | Pointer
) -> Case:
    return Case(
        f"cluster/{name}{size}",
        MODULE,
        f"{name.split('/')[0]}{size}",
        buffers,
        parameters or tuple(Pointer(i) for i in range(len(buffers))),
        grid=(2 * size, 1, 1),
        block=(THREADS, 1, 1),
        cluster=size,
        shared_bytes=size * 2048,
    )


def cases() -> list[Case]:
    """Two clusters of each size."""
    found = []
    for size in (2, 4):
        threads = 2 * size * THREADS
        values = Buffer(raw(f"cluster/{size}", threads).astype(np.uint32))
        vectors = Buffer(patterns("b32", f"cluster/{size}/vectors", 4 * threads))
        found.append(_case("ranks", size, (output(8 * threads),)))
        found.append(_case("words", size, (values, output(4 * threads))))
        found.append(_case("arrives", size, (values, output(threads))))
        found.append(_case("sends", size, (vectors, output(8 * threads))))
        for mask in (2**size - 1, 1, 2**size - 2):
            tile = Buffer(patterns("b16", f"multicast/{size}", 2 * size * 8 * 64))
            plain = Buffer(patterns("b32", f"multicast/{size}/plain", 2 * size * 256))
            described = Map(0, "bfloat16", (64, 2 * size * 8), (128,), (64, 8), 128)
            result = output(2 * size * size * 2048, np.uint8)
            buffers, name = (tile, plain, result), f"multicast/{mask}.of"
            found.append(
                _case(name, size, buffers, described, Pointer(1), scalar(mask), Pointer(2))
            )
    return found
