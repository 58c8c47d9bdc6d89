"""Small kernels of what a compiler makes of ordinary code: control flow, calls, local and constant memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output, scalar
from tests.hardware.values import patterns, raw

MODULE = "programs"
THREADS = 96

_TEXT = """
__constant__ u32 table[64] = {%(table)s};

extern "C" __global__ void specials(u32* out) {
  u32 v[16], thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  u32 cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  v[0] = threadIdx.x; v[1] = threadIdx.y; v[2] = threadIdx.z;
  v[3] = blockIdx.x; v[4] = blockIdx.y; v[5] = blockIdx.z;
  v[6] = blockDim.x; v[7] = blockDim.y; v[8] = blockDim.z;
  v[9] = gridDim.x; v[10] = gridDim.y; v[11] = gridDim.z;
  asm volatile("mov.u32 %%0, %%%%dynamic_smem_size;" : "=r"(v[12]));
  asm volatile("mov.u32 %%0, %%%%laneid;" : "=r"(v[13]));
  asm volatile("mov.u32 %%0, %%%%nclusterid.x;" : "=r"(v[14]));
  asm volatile("mov.u32 %%0, %%%%cluster_nctarank;" : "=r"(v[15]));
  u32 i = cta * blockDim.x * blockDim.y * blockDim.z + thread;
  for (u32 j = 0; j < 16; ++j) out[16 * i + j] = v[j];
}

// Trip counts that differ from lane to lane, a break, a continue, lanes that return early.
extern "C" __global__ void loops(const u32* values, u32* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = values[i], steps = 0;
  if (x %% 11 == 3) { out[i] = 77; return; }
  while (x != 1 && steps < 100) {
    x = x & 1 ? 3 * x + 1 : x / 2;
    ++steps;
    if (x %% 37 == 5) continue;
    if (x %% 97 == 13) break;
    steps += x & 1;
  }
  out[i] = steps;
}

__device__ __noinline__ u32 mix(u32 x, u32 y) { return x * 2654435761u ^ __funnelshift_l(y, x, 7); }
__device__ __noinline__ float horner(float x, int n) {
  float r = 1.f;
  for (int i = 0; i < n; ++i) r = r * x + mix(i, n) %% 5;
  return r;
}

extern "C" __global__ void calls(const u32* values, u32* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = values[i];
  u32 r = mix(x, i);
  if (x & 4) r ^= mix(r, x);
  out[2 * i] = r;
  out[2 * i + 1] = __float_as_uint(horner((x & 15) * .25f, x %% 7));
}

extern "C" __global__ void switches(const u32* values, u32* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = values[i], r = 0;
  for (u32 n = 0; n < 6; ++n) {
    switch ((x >> 4 * n) %% 12) {
      case 0: r += 3; break;
      case 1: r ^= x; break;
      case 2: r = r * 5 + 1;
      case 3: r = __brev(r); break;
      case 4: r -= __popc(x); break;
      case 5: r = __clz(r) + n; break;
      case 6: r |= 0x100; break;
      case 7: r = __byte_perm(r, x, 0x3517); break;
      case 8: r = r / (1 + (x & 31)); break;
      case 9: r %%= 1 + (x >> 20); break;
      default: r = ~r;
    }
  }
  out[i] = r;
}

extern "C" __global__ void locals(const u32* values, u32* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, x = values[i];
  u32 stack[24];
#pragma unroll 1
  for (u32 n = 0; n < 24; ++n) stack[(n * 7 + (x & 3) * 5) %% 24] = x + n * n;
  u32 sum = 0;
#pragma unroll 1
  for (u32 n = 0; n < 12; ++n) sum = sum * 3 + stack[(x >> n) %% 24] + table[(x >> n) & 63];
  u8* bytes = (u8*)stack;
  out[2 * i] = sum;
  out[2 * i + 1] = bytes[x %% 96] | bytes[(x >> 8) %% 96] << 8;
}

struct Large { u32 words[8]; u64 wide; u16 half; u8 byte; float scale; };

extern "C" __global__ void parameters(const Large large, u32* out, short negative, u8 small) {
  u32 i = threadIdx.x;
  out[i] = large.words[i %% 8] + (u32)(large.wide >> i %% 33) + large.half * small + large.byte + negative
      + __float_as_uint(large.scale);
}

// 64-bit and 128-bit arithmetic as compilers write it: carries, wide products, packing.
extern "C" __global__ void wide(const u64* a, const u64* b, u64* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  u64 x = a[i], y = b[i];
  out[6 * i] = __umul64hi(x, y);
  out[6 * i + 1] = x / (y >> (x & 63) | 1);
  out[6 * i + 2] = x %% (y >> (y & 63) | 1);
  out[6 * i + 3] = (x << (y & 63)) ^ (x >> (64 - (y & 63)));
  out[6 * i + 4] = (u64)((long long)x >> (y & 63)) + (u64)__popcll(y) + (u64)__clzll(x);
  u32 p, q;
  u64 r;
  asm volatile("mov.b64 {%%0, %%1}, %%3; mov.b64 %%2, {%%1, %%0};" : "=r"(p), "=r"(q), "=l"(r) : "l"(x));
  u16 s, t;
  u32 u;
  asm volatile("mov.b32 {%%0, %%1}, %%3; mov.b32 %%2, {%%1, %%0};" : "=h"(s), "=h"(t), "=r"(u) : "r"(p));
  out[6 * i + 5] = r ^ u ^ s;
}

// The last CTA to finish sums what all have left behind: a release and an acquire through global memory.
extern "C" __global__ void last_one(const u32* values, u32* partial, u32* ticket, u32* out) {
  __shared__ u32 is_last;
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  partial[i] = values[i] * 3;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %%0, [%%1], %%2;"
        : "=r"(before) : "l"(ticket), "r"(gridDim.x - 1) : "memory");
    is_last = before == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last) {
    u32 sum = 0;
    for (u32 c = 0; c < gridDim.x; ++c) sum += partial[c * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
  }
}
"""


def modules() -> dict[str, str]:
    """The one module."""
    table = ", ".join(str(value) for value in raw("table", 64).astype(np.uint32))
    return {MODULE: PRELUDE + _TEXT % {"table": table}}


def _case(name: str, *buffers: Buffer, grid: int = 2, threads: int = THREADS) -> Case:
    """A kernel whose parameters are its buffers."""
    parameters = tuple(Pointer(i) for i in range(len(buffers)))
    return Case(
        f"program/{name}",
        MODULE,
        name.replace("-", "_"),
        buffers,
        parameters,
        (grid, 1, 1),
        (threads, 1, 1),
    )


def cases() -> list[Case]:
    """One or two launches each."""
    count = 2 * THREADS
    found = []
    for shape, threads in (((2, 2, 2), (16, 4, 1)), ((3, 1, 1), (8, 3, 3))):
        case = _case("specials", output(16 * int(np.prod(shape) * np.prod(threads))))
        name = f"program/specials{threads[0]}"
        found.append(replace(case, name=name, grid=shape, block=threads, shared_bytes=640))
    for name, words in (("loops", 1), ("calls", 2), ("switches", 1), ("locals", 2)):
        values = raw(name, count)
        small = values % np.uint64(5000) + np.uint64(1) if name == "loops" else values
        found.append(_case(name, Buffer(small.astype(np.uint32)), output(words * count)))
    packed = raw("parameters", 6).tobytes()[:32] + bytes(range(1, 17))
    arguments = (packed, Pointer(0), scalar(-5, 2), scalar(200, 1))
    case = _case("parameters", output(64), grid=1, threads=64)
    found.append(replace(case, parameters=arguments))
    operands = (Buffer(patterns("u64", f"wide/{name}", count)) for name in "ab")
    found.append(_case("wide", *operands, output(6 * count, np.uint64)))
    shares = Buffer(raw("last-one", 5 * THREADS).astype(np.uint32))
    ticket = Buffer(np.zeros(1, np.uint32), is_output=True)
    found.append(_case("last-one", shares, output(5 * THREADS), ticket, output(THREADS), grid=5))
    return found
