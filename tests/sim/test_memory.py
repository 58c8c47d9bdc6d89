from __future__ import annotations

import numpy as np

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


WIDE = """
extern "C" __global__ void kernel(const ulonglong2* in, ulonglong2* out) {
  __shared__ alignas(16) ulonglong2 cells[32];
  unsigned at = __cvta_generic_to_shared(cells + threadIdx.x);
  unsigned turned = __cvta_generic_to_shared(cells + 31 - threadIdx.x);
  if (threadIdx.x != 7)
    asm volatile("{.reg .b128 v; ld.global.b128 v, [%0]; st.shared.b128 [%1], v;}"
                 :: "l"(in + threadIdx.x), "r"(at) : "memory");
  else cells[7] = {1, 2};
  __syncwarp();
  asm volatile("{.reg .b128 v; ld.shared.b128 v, [%1]; st.global.b128 [%0], v;}"
               :: "l"(out + threadIdx.x), "r"(turned) : "memory");
}
"""


def test_registers_of_128_bits() -> None:
    given = RANDOM.integers(0, 2**63, size=(32, 2), dtype=np.uint64)
    out = np.zeros_like(given)
    assert kinds(run(WIDE, given, out)) == []
    given[7] = [1, 2]
    np.testing.assert_array_equal(out, given[::-1])


def test_ordinary_accesses_leave_barriers_alone() -> None:
    code = """
    if (threadIdx.x) return;
    unsigned bar = (unsigned)__cvta_generic_to_shared(cells);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    cells[at] = 7;
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(bar) : "memory");
    cells[1] = 8;
    """
    assert access(code, 2) == []
    (text,) = access(code, 1)
    assert text.startswith("barrier-access: an ordinary access to shared address 0x404")
