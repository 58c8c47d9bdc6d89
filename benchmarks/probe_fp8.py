"""Rates of one SM of an H200 on which fp8 kernels depend: conversions, products, exponentials; no clock is set.

    python benchmarks/probe_fp8.py             # needs torch, cuda-python and a GPU of compute capability 9.0
    python benchmarks/probe_fp8.py --compile   # only compiles

Each line is cycles of one instruction of one warp (of one warpgroup for wgmma) when as many warps as a kernel has
issue nothing else: 8 warps, two on each quarter of the SM.
"""

from __future__ import annotations

import argparse
import ctypes

from mlagen.compile.nvrtc import compile_cuda

ROUNDS = 256
HEAD = """
typedef unsigned int uint32; typedef unsigned long long uint64;
extern "C" __global__ void __launch_bounds__(256, 1) probe(long long* cycles, float* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32 base = (uint32)__cvta_generic_to_shared(shared);
  for (int i = threadIdx.x; i < 65536; i += 256) shared[i] = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  float x[64]; uint32 a[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i] = out[i] + threadIdx.x;
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    BODY
  }
  __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - start;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += x[i];
  out[64 + threadIdx.x] = sum + a[0];
}
"""
# Independent chains of 16; what each line counts, and how many of it a round of a warp has.
PLAIN = {
    "cvt of four fp32 to e4m3 (two F2FP)": (
        16,
        """asm volatile("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %1, %0; cvt.rn.satfinite.e4m3x2.f32 h, %3, %2;"
           " mov.b32 %0, {l, h};}" : "+f"(x[4 * i]) : "f"(x[4 * i + 1]), "f"(x[4 * i + 2]), "f"(x[4 * i + 3]));""",
    ),
    "cvt of two fp32 to bf16 (one F2FP)": (
        16,
        """asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<uint32&>(x[4 * i])) : "f"(x[4 * i + 1]), "f"(x[4 * i]));""",
    ),
    "ex2": (16, """asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[4 * i]));"""),
    "max": (16, """asm volatile("max.f32 %0, %0, %1;" : "+f"(x[4 * i]) : "f"(x[4 * i + 1]));"""),
    "fma": (16, """asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[4 * i]) : "f"(x[4 * i + 1]), "f"(x[4 * i + 2]));"""),
    "prmt": (
        16,
        """asm volatile("prmt.b32 %0, %0, %1, 0x6420;" : "+r"(reinterpret_cast<uint32&>(x[4 * i])) : "r"(reinterpret_cast<uint32&>(x[4 * i + 1])));""",
    ),
}
PRODUCTS = 8


def product(columns: int, *, span: int, in_registers: bool) -> str:
    """A round of PRODUCTS wgmma of 32 e4m3 columns on one accumulator, then a wait."""
    high = {128: "0x40000040", 64: "0x80000020"}[span]
    registers = ", ".join(f"%{i}" for i in range(columns // 2))
    results = ", ".join(f'"+f"(x[{i}])' for i in range(columns // 2))
    first = columns // 2
    a = "{" + ", ".join(f"%{first + i}" for i in range(4)) + "}" if in_registers else f"%{first}"
    b = first + (4 if in_registers else 1)
    given = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if in_registers else '"l"(q)'
    return f"""
    const uint64 high = (uint64){high} << 32;
    const uint64 q = high | (base + threadIdx.x / 128 * 8192) >> 4, k = high | (base + 32768) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < {PRODUCTS}; ++i) {{
      asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.e4m3.e4m3 {{{registers}}}, {a}, %{b}, 1, 1, 1;"
                   : {results} : {given}, "l"(k + i % 2 * 2));
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
"""


def probes() -> dict[str, tuple[int, int, str]]:
    """Name -> instructions of a round, and those that share a unit on a quarter; the body of a round."""
    found = {}
    for name, (count, text) in PLAIN.items():
        body = f"\n#pragma unroll\n    for (int i = 0; i < {count}; ++i) {{ {text} }}"
        found[name] = (count, 2, body)
    for columns in (128, 64):
        for span in (64, 128):
            for in_registers in (False, True):
                where = "registers" if in_registers else "shared memory"
                name = f"wgmma m64n{columns}k32 e4m3, A in {where}, {span}-byte swizzle"
                found[name] = (PRODUCTS, 2, product(columns, span=span, in_registers=in_registers))
    return found


def main() -> None:
    """Compile, and run unless told otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    only_compile = parser.parse_args().compile
    for name, (count, sharing, body) in probes().items():
        source = HEAD.replace("BODY", body).replace("ROUNDS", str(ROUNDS))
        built = compile_cuda(source, name="probe", arch="sm_90a")
        assert "C75" not in built.log, built.log
        if not only_compile:
            cycles = run(built.cubin) / (ROUNDS * count * sharing)
            print(f"{name:64} {cycles:8.2f} cycles")


def run(cubin: bytes) -> int:
    """Cycles of the loop, the least of five launches of one block."""
    import torch

    from mlagen.runtime.driver import system_driver

    cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
    out = torch.zeros(64 + 256, device="cuda")
    driver = system_driver()
    function = driver.load_function(cubin, "probe")
    driver.allow_shared_memory(function, 65536)
    values = [ctypes.c_void_p(cycles.data_ptr()), ctypes.c_void_p(out.data_ptr())]
    pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
    launch = driver.prepare_launch(
        function,
        grid=1,
        block=256,
        cluster=1,
        shared_memory_bytes=65536,
        parameters=ctypes.addressof(pointers),
    )
    best = []
    for _ in range(5):
        launch(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        best.append(int(cycles.item()))
    return min(best)


if __name__ == "__main__":
    main()
