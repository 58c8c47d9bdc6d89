from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlagen.sim.memory import GlobalMemory
from tests.sim.cuda import kinds, run

RANDOM = np.random.default_rng(21)


def test_overlapping_arrays_share_addresses() -> None:
    memory = GlobalMemory()
    owner = np.zeros((8, 16), dtype=np.float32)
    whole = memory.add(owner, "whole")
    assert whole % 256 == 0
    assert memory.add(owner[2:, 4:], "part") == whole + 2 * 64 + 16
    assert memory.add(owner.T, "transposed") == whole
    assert memory.add(owner[::-1], "reversed") == whole + 7 * 64
    assert memory.add(np.zeros(4, dtype=np.int8), "other") > whole + owner.nbytes + 2**30


def test_a_view_brings_its_owner() -> None:
    memory = GlobalMemory()
    owner = np.arange(100, dtype=np.uint8)
    address = memory.add(owner[30:40:3], "view")
    assert address % 256 == 30
    found = memory.locate(address - 30, 100)
    assert found is not None
    buffer, offset = found
    assert offset == 0
    assert buffer.bytes.tolist() == list(range(100))
    assert memory.locate(address - 30, 101) is None
    buffer.bytes[5] = 200
    assert owner[5] == 200


def test_addresses_depend_on_the_order_of_arrays_alone() -> None:
    def addresses() -> list[int]:
        memory = GlobalMemory()
        return [memory.add(np.zeros(size), "a") for size in (1, 1000, 0, 7)] + [
            memory.reserve(64, "scratch")
        ]

    assert addresses() == addresses()
    assert len(set(addresses())) == 5


VECTORS = """
struct alignas(16) Four { float x, y, z, w; };
extern "C" __global__ void kernel(const Four* in, Four* out, const short* narrow, int* wide,
                                  const unsigned char* bytes, unsigned long long* sums) {
  __shared__ Four buffer[32];
  int i = threadIdx.x;
  buffer[31 - i] = in[i];
  __syncthreads();
  Four v = buffer[i];
  out[i] = {v.w, v.z, v.y, v.x};
  wide[i] = narrow[i];
  sums[i] = bytes[i] + 0x100000000ull * bytes[i + 1];
}
"""


def test_vectors_and_narrow_integers() -> None:
    given = RANDOM.normal(size=(32, 4)).astype(np.float32)
    out = np.zeros_like(given)
    narrow = RANDOM.integers(-(2**15), 2**15, size=32, dtype=np.int16)
    wide = np.zeros(32, dtype=np.int32)
    small = RANDOM.integers(0, 256, size=33, dtype=np.uint8)
    sums = np.zeros(32, dtype=np.uint64)
    assert kinds(run(VECTORS, given, out, narrow, wide, small, sums)) == []
    np.testing.assert_array_equal(out, given[::-1, ::-1])
    np.testing.assert_array_equal(wide, narrow)
    np.testing.assert_array_equal(sums, small[:32] + small[1:].astype(np.uint64) * 2**32)


GENERIC = """
__constant__ int table[4] = {5, 6, 7, 8};
__device__ int counter = 40;
extern "C" __global__ void kernel(int* out) {
  __shared__ int cell;
  int local[4] = {1, 2, 3, 4};
  if (threadIdx.x == 0) cell = 1000;
  __syncwarp();
  const volatile int* from[4] = {&cell, &local[out[threadIdx.x] & 3], &counter, &table[threadIdx.x & 3]};
  local[1] = 90 + threadIdx.x;
  out[threadIdx.x] = *from[threadIdx.x % 4];
}
"""


def test_a_generic_address_finds_its_space() -> None:
    out = np.arange(32, dtype=np.int32)
    assert kinds(run(GENERIC, out)) == []
    expected = []
    for i in range(32):
        local = [1, 90 + i, 3, 4]
        expected.append([1000, local[i & 3], 40, [5, 6, 7, 8][i & 3]][i % 4])
    assert out.tolist() == expected


ACCESS = """
extern "C" __global__ void kernel(int* out, int at) {
  extern __shared__ int cells[];
  CODE
}
"""


def access(code: str, at: int, *, size: int = 32, shared: int = 256, block: int = 32) -> list[str]:
    result = run(
        ACCESS.replace("CODE", code),
        np.zeros(size, dtype=np.int32),
        np.int32(at),
        shared=shared,
        block=block,
    )
    return [f"{finding.kind}: {finding.message}" for finding in result.findings]


def test_accesses_beyond_a_buffer_name_it() -> None:
    (text,) = access("out[threadIdx.x + at] = 1;", 1)
    assert text.startswith("out-of-bounds: 4 bytes at global address")
    assert text.endswith("0 bytes behind the end of argument 0")
    (text,) = access("out[0] = out[at];", -2)
    assert text.endswith("8 bytes before argument 0")
    assert access("out[threadIdx.x + at] = 1;", 0) == []


def test_accesses_beyond_shared_memory() -> None:
    (text,) = access("cells[at] = 1;", 64)
    assert text.startswith("out-of-bounds: 4 bytes at shared address 0x500")
    (text,) = access("cells[at] = 1;", -1)
    assert text.startswith("out-of-bounds: 4 bytes at shared address 0x3fc")
    assert access("cells[at] = 1;", 63) == []


def test_uninitialised_shared_memory() -> None:
    (text,) = access(
        "cells[threadIdx.x] = 1; __syncwarp(); out[threadIdx.x] = cells[threadIdx.x + at];", 1
    )
    assert text.startswith("uninitialised: nothing has been written at shared address 0x480")
    assert (
        access(
            "cells[threadIdx.x] = 1; __syncwarp(); out[threadIdx.x] = cells[31 - threadIdx.x];", 0
        )
        == []
    )


def test_misaligned_accesses() -> None:
    (text,) = access("*(int*)((char*)out + at) = 1;", 2)
    assert text.startswith("misaligned: 4 bytes at byte 2 of 128 of argument 0")
    (text,) = access("*(double*)((char*)cells + at) = 1;", 4)
    assert text.startswith("misaligned: shared address 0x404 is not a multiple of 8")


def test_a_null_pointer_is_no_buffer() -> None:
    (text,) = access("*(int*)(long long)at = 1;", 16)
    assert text.startswith(
        "out-of-bounds: 4 bytes at global address 0x10, which belongs to no buffer"
    )


def test_inputs_may_not_be_written() -> None:
    memory = GlobalMemory()
    given = np.zeros(32, dtype=np.int32)
    memory.add(given, "weights", read_only=True)
    result = run(ACCESS.replace("CODE", "out[threadIdx.x] = 1;"), given, np.int32(0), memory=memory)
    assert kinds(result) == []  # `run` maps the same array again, as an output
    memory = GlobalMemory()
    given[:] = 0
    given.flags.writeable = False
    result = run(ACCESS.replace("CODE", "out[threadIdx.x] = 1;"), given, np.int32(0), memory=memory)
    assert kinds(result) == ["read-only"]
    assert not given.any()


RACE = """
extern "C" __global__ void kernel(int* out) {
  __shared__ int cells[64];
  cells[threadIdx.x] = threadIdx.x;
  SYNC
  out[threadIdx.x] = cells[63 - threadIdx.x];
}
"""


def test_a_missing_barrier_is_a_race() -> None:
    out = np.zeros(64, dtype=np.int32)
    result = run(RACE.replace("SYNC", ""), out, block=64)
    assert "race" in kinds(result)
    assert set(kinds(result)) <= {"race", "uninitialised"}
    assert kinds(run(RACE.replace("SYNC", "__syncthreads();"), out, block=64)) == []
    np.testing.assert_array_equal(out, 63 - np.arange(64))


def test_blocks_that_share_a_buffer_race() -> None:
    source = 'extern "C" __global__ void kernel(int* out) { out[threadIdx.x STEP] = blockIdx.x; }'
    out = np.full(64, -1, dtype=np.int32)
    assert kinds(run(source.replace("STEP", ""), out, grid=2)) == ["race"]
    assert kinds(run(source.replace("STEP", "+ 32 * blockIdx.x"), out, grid=2)) == []


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


FLAG = """
extern "C" __global__ void kernel(int* data, int* flag, int* out) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    data[0] = 42;
    asm volatile("RELEASE [%0], 1;" :: "l"(flag) : "memory");
  } else {
    int seen;
    do asm volatile("ACQUIRE %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); while (!seen);
    out[0] = data[0];
  }
}
"""


@pytest.mark.parametrize(
    ("release", "acquire", "expected"),
    [
        ("st.release.gpu.global.s32", "ld.acquire.gpu.global.s32", []),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.s32", "ld.acquire.gpu.global.s32", []),
        ("membar.gl; st.volatile.global.s32", "ld.acquire.sys.global.s32", []),
        ("red.release.gpu.global.add.s32", "ld.acquire.gpu.global.s32", []),
        ("st.relaxed.gpu.global.s32", "ld.acquire.gpu.global.s32", ["race"]),
        ("st.release.gpu.global.s32", "ld.relaxed.gpu.global.s32", ["race"]),
        ("st.release.cta.global.s32", "ld.acquire.gpu.global.s32", ["race"]),
        ("st.release.gpu.global.s32", "ld.acquire.cta.global.s32", ["race"]),
    ],
)
def test_a_flag_needs_release_and_acquire(release: str, acquire: str, expected: list[str]) -> None:
    data, flag, out = (np.zeros(1, dtype=np.int32) for _ in range(3))
    source = FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire)
    result = run(source, data, flag, out, grid=2)
    assert kinds(result) == expected
    assert out[0] == 42


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    data, flag, out = (np.zeros(1, dtype=np.int32) for _ in range(3))
    source = FLAG.replace("RELEASE", "// ").replace("ACQUIRE", "ld.acquire.gpu.global.s32")
    result = run(source, data, flag, out, grid=2)
    assert kinds(result) == ["deadlock"]
    assert "a write to byte 0 of 4 of argument 1" in result.findings[0].message


MATRIX = """
extern "C" __global__ void kernel(const unsigned short* in, unsigned short* out, unsigned* seen) {
  __shared__ alignas(16) unsigned short a[256], b[256];
  int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) a[lane * 8 + i] = in[lane * 8 + i];
  __syncwarp();
  unsigned from = __cvta_generic_to_shared(a + 8 * lane), to = __cvta_generic_to_shared(b + 8 * lane);
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4LOADED.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
  for (int i = 0; i < 4; ++i) seen[i * 32 + lane] = r[i];
  asm volatile("stmatrix.sync.aligned.m8n8.x4STORED.shared.b16 [%4], {%0, %1, %2, %3};"
               :: "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(to) : "memory");
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = b[lane * 8 + i];
}
"""


@pytest.mark.parametrize("loaded", ["", ".trans"])
@pytest.mark.parametrize("stored", ["", ".trans"])
def test_matrices_of_a_warp(loaded: str, stored: str) -> None:
    given = RANDOM.integers(0, 2**16, size=(4, 8, 8), dtype=np.uint16)
    out = np.zeros_like(given)
    seen = np.zeros((4, 32), dtype=np.uint32)
    source = MATRIX.replace("LOADED", loaded).replace("STORED", stored)
    assert kinds(run(source, given, out, seen)) == []
    for matrix in range(4):
        for lane in range(32):
            row, column = lane // 4, 2 * (lane % 4)
            low, high = (
                (given[matrix, column, row], given[matrix, column + 1, row])
                if loaded
                else (given[matrix, row, column], given[matrix, row, column + 1])
            )
            assert seen[matrix, lane] == int(low) | int(high) << 16
    turned = given if loaded == stored else given.swapaxes(1, 2)
    np.testing.assert_array_equal(out, turned)


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
