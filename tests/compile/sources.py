"""CUDA texts that compile in a moment."""

from __future__ import annotations

STORE = """
extern "C" __global__ void {name}(float* out) {{
  out[threadIdx.x] = {value}f;
}}
"""

# One loop of two wgmma groups, as the main loop of a kernel: 4 + 2 HGMMA and some exponentials.
# {between} stands between the products of the first group.
WGMMA = """
typedef unsigned int uint32;
typedef unsigned long long uint64;

__device__ __forceinline__ void multiply(float (&d)[4], uint64 a, uint64 b, int accumulate) {{
  asm volatile(
      "{{.reg .pred p; setp.ne.b32 p, %6, 0; "
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%0,%1,%2,%3}}, %4, %5, p, 1, 1, 0, 0;}}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(accumulate));
}}

extern "C" __global__ void __launch_bounds__(128, 1) {name}(float* out, int steps) {{
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 base = (uint32)__cvta_generic_to_shared(shared);
  float sum[4] = {{0, 0, 0, 0}};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {{
    uint64 tile = ((uint64)0x40000040 << 32) | ((base + (step & 1) * 8192) / 16 & 0x3fff);
    float score[4];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < 4; ++k) {{
      multiply(score, tile + 2 * k, tile + 512 + 2 * k, k);
      {between}
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) {{
      asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(score[i]));
      sum[i] += score[i];
    }}
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < 2; ++k) multiply(sum, tile + 128 * k, tile + 512 + 128 * k, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }}
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sum[i];
}}
"""

HGMMA_PER_STEP = 6

# An array that is indexed by a value known only at run time lies in local memory.
LOCAL_ARRAY = """
extern "C" __global__ void {name}(float* out, int index) {{
  float values[256];
#pragma unroll 1
  for (int i = 0; i < 256; ++i) values[(i * index) & 255] = out[i];
#pragma unroll 1
  for (int i = 0; i < 256; ++i) out[i] = values[(i + index) & 255];
}}
"""


def store_kernel(name: str, value: float = 1.0) -> str:
    """Return a kernel that stores a number."""
    return STORE.format(name=name, value=value)


def wgmma_kernel(name: str, *, between: str = "") -> str:
    """Return a kernel with `HGMMA_PER_STEP` tensor-core instructions a step."""
    return WGMMA.format(name=name, between=between)


def local_array_kernel(name: str) -> str:
    """Return a kernel with a stack frame."""
    return LOCAL_ARRAY.format(name=name)
