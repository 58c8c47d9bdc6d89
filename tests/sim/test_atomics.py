from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.sim.cuda import kinds, run

RANDOM = np.random.default_rng(23)


ATOMICS = """
template <class T> __device__ T apply(T* p, T v, int how) {
  switch (how) {
    case 0: return atomicAdd(p, v);
    case 1: return atomicMin(p, v);
    case 2: return atomicMax(p, v);
    case 3: return atomicExch(p, v);
    default: return atomicCAS(p, T(7), v);
  }
}
extern "C" __global__ void kernel(TYPE* cells, TYPE* old, const TYPE* values, int how) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  SHARED
  old[i] = apply(p + i % 3, values[i], how);
  DONE
}
"""
SHARED = "__shared__ TYPE p[3]; if (threadIdx.x < 3) p[threadIdx.x] = cells[threadIdx.x]; __syncthreads();"
DONE = "__syncthreads(); if (threadIdx.x < 3) cells[threadIdx.x] = p[threadIdx.x];"


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("how", range(5), ids=["add", "min", "max", "exch", "cas"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("int", "i4"), ("unsigned", "u4"), ("unsigned long long", "u8")]
)
def test_integer_atomics(name: str, dtype: str, how: int, space: str) -> None:
    source = ATOMICS.replace("SHARED", SHARED if space == "shared" else "TYPE* p = cells;")
    source = source.replace("DONE", DONE if space == "shared" else "").replace("TYPE", name)
    cells = np.array([7, 100, 3], dtype=dtype)
    values = RANDOM.integers(0 if dtype[0] == "u" else -50, 200, size=64).astype(dtype)
    old = np.zeros(64, dtype=dtype)
    blocks, block = (1, 64) if space == "shared" else (2, 32)
    before = cells.tolist()
    result = run(source, cells, old, values, np.int32(how), grid=blocks, block=block)
    assert kinds(result) == []
    given = values.tolist()
    match how:
        case 0:
            expected = [before[c] + sum(given[c::3]) for c in range(3)]
        case 1:
            expected = [min(before[c], *given[c::3]) for c in range(3)]
        case 2:
            expected = [max(before[c], *given[c::3]) for c in range(3)]
        case _:
            expected = cells.tolist()
    assert cells.tolist() == expected
    for cell in range(3):  # values are handed from one to the next, none is lost
        chain = sorted([*old[cell::3].tolist(), cells.tolist()[cell]])
        if how == 3:
            assert chain == sorted([before[cell], *given[cell::3]])
        if how == 4 and before[cell] != 7:
            assert set(chain) == {before[cell]}
    if how == 4:
        assert cells[0] in given[0::3]


PACKED = """
extern "C" __global__ void kernel(float* f, double* d, unsigned* h, unsigned* b, unsigned* wrap, float* v) {
  int i = threadIdx.x;
  asm volatile("red.global.add.f32 [%0], %1;" :: "l"(f), "f"(0.5f * i) : "memory");
  asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" :: "l"(d), "d"(0.25 * i) : "memory");
  asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(h), "r"(0x3c004000) : "memory");
  asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" :: "l"(b), "r"(0x3f804000) : "memory");
  asm volatile("red.global.inc.u32 [%0], 9;" :: "l"(wrap) : "memory");
  asm volatile("red.global.dec.u32 [%0], 9;" :: "l"(wrap + 1) : "memory");
  asm volatile("red.global.or.b32 [%0], %1;" :: "l"(wrap + 2), "r"(1 << i) : "memory");
  asm volatile("red.global.xor.b32 [%0], %1;" :: "l"(wrap + 3), "r"(i) : "memory");
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(v), "f"(1.0f), "f"(2.0f * i), "f"(-1.0f), "f"(0.0f) : "memory");
}
"""


def test_other_atomics() -> None:
    f, d = np.ones(1, dtype=np.float32), np.ones(1)
    h, b = np.zeros(2, dtype=np.float16), np.zeros(2, dtype=ml_dtypes.bfloat16)
    wrap = np.array([3, 2, 0, 0], dtype=np.uint32)
    v = np.zeros(4, dtype=np.float32)
    assert kinds(run(PACKED, f, d, h, b, wrap, v)) == []
    assert f[0] == 1 + 0.5 * 496
    assert d[0] == 1 + 0.25 * 496
    assert h.tolist() == [64, 32]
    assert b.astype(float).tolist() == [64, 32]
    assert wrap.tolist() == [(3 + 32) % 10, (2 - 32) % 10, 2**32 - 1, 0]
    assert v.tolist() == [32, 2 * 496, -32, 0]
