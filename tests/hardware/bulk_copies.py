"""Micro-kernels of plain bulk copies, their reductions, and `cp.async`."""

from __future__ import annotations

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output, scalar
from tests.hardware.values import FLOATS, patterns, raw, width

MODULE = "bulk_copies"
WINDOW_BYTES = 2048
REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f64", "f32", "noftz.f16", "noftz.bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
CACHES = (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16))

_COPIES = """
extern "C" __global__ void bulk_load(const u8* from, u32 offset, u32 bytes, const uint4* before, u32 vectors,
    uint4* after) {
  __shared__ u64 full;
  u32 barrier = shared_address(&full);
  fill(before, vectors);
  if (threadIdx.x == 0) init_barrier(barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect_bytes(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(shared_address(shared) + offset), "l"(from), "r"(bytes), "r"(barrier) : "memory");
  }
  wait(barrier, 0);
  dump(after, vectors);
}

extern "C" __global__ void bulk_store(u8* to, u32 offset, u32 bytes, const uint4* before, u32 vectors) {
  fill(before, vectors);
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(to), "r"(shared_address(shared) + offset), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""

_REDUCE = """
extern "C" __global__ void {name}(u8* to, u32 offset, u32 bytes, const uint4* before, u32 vectors) {{
  fill(before, vectors);
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{opcode} [%0], [%1], %2;"
        :: "l"(to), "r"(shared_address(shared) + offset), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}
}}
"""

# Every thread copies a piece of {size} bytes, of which as many come from memory as the list says; the rest is zero.
# Two groups, then the barrier that the copies arrive at.
_ASYNC = """
extern "C" __global__ void {name}(const u8* from, const u32* valid_bytes, const u32* slots, const uint4* before,
    u32 vectors, uint4* after) {{
  fill(before, vectors);
  __syncthreads();
  u32 at = shared_address(shared) + {size} * slots[threadIdx.x];
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
      :: "r"(at), "l"(from + {size} * threadIdx.x), "r"(valid_bytes[threadIdx.x]) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};"
      :: "r"(at + {size} * blockDim.x), "l"(from + {size} * (threadIdx.x + blockDim.x)) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  dump(after, vectors);
}}

extern "C" __global__ void {name}_barrier(const u8* from, const u32* valid_bytes, const u32* slots,
    const uint4* before, u32 vectors, uint4* after) {{
  __shared__ u64 full[2];
  u32 barrier = shared_address(full);
  fill(before, vectors);
  if (threadIdx.x == 0) {{
    init_barrier(barrier, blockDim.x);
    init_barrier(barrier + 8, blockDim.x);
  }}
  __syncthreads();
  u32 at = shared_address(shared) + {size} * slots[threadIdx.x];
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
      :: "r"(at), "l"(from + {size} * threadIdx.x), "r"(valid_bytes[threadIdx.x]) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};"
      :: "r"(at + {size} * blockDim.x), "l"(from + {size} * (threadIdx.x + blockDim.x)) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" :: "r"(barrier + 8) : "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier + 8) : "memory");
  wait(barrier, 0);
  wait(barrier + 8, 0);
  dump(after, vectors);
}}
"""


def _reductions() -> list[tuple[str, str]]:
    """Kernel name and opcode's end."""
    pairs = [f"{operation}.{kind}" for operation, kinds in REDUCTIONS.items() for kind in kinds]
    return [(f"bulk_reduce_{opcode.replace('.', '_')}", opcode) for opcode in pairs]


def modules() -> dict[str, str]:
    """The one module."""
    text = PRELUDE + _COPIES
    text += "".join(_REDUCE.format(name=name, opcode=opcode) for name, opcode in _reductions())
    for cache, size in CACHES:
        text += _ASYNC.format(name=f"cp_async_{cache}{size}", cache=cache, size=size)
    return {MODULE: text}


def _bytes(kind: str, seed: str, size: int) -> Buffer:
    return Buffer(patterns(kind, seed, size * 8 // width(kind)).view(np.uint8).copy())


def _plain_cases() -> list[Case]:
    found = []
    for at, offset, size in (
        (0, 0, 16),
        (16, 32, 496),
        (48, 16, 1024),
        (0, 1008, 1040),
        (160, 128, 256),
    ):
        name = f"{at}.{offset}.{size}"
        vectors = scalar(WINDOW_BYTES // 16)
        window = _bytes("b32", f"window/{name}", WINDOW_BYTES)
        memory = _bytes("b32", f"memory/{name}", 4096)
        begin, length = scalar(offset), scalar(size)
        found.append(
            Case(
                f"bulk/load/{name}",
                MODULE,
                "bulk_load",
                (memory, window, output(WINDOW_BYTES, np.uint8)),
                (Pointer(0, at), begin, length, Pointer(1), vectors, Pointer(2)),
                shared_bytes=WINDOW_BYTES,
            )
        )
        found.append(
            Case(
                f"bulk/store/{name}",
                MODULE,
                "bulk_store",
                (Buffer(memory.data, True), window),
                (Pointer(0, at), begin, length, Pointer(1), vectors),
                shared_bytes=WINDOW_BYTES,
            )
        )
    return found


def _reduction_cases() -> list[Case]:
    found = []
    for kernel, opcode in _reductions():
        kind = opcode.split(".")[-1]
        buffers = (
            Buffer(
                _bytes(kind, f"memory/{opcode}", WINDOW_BYTES).data,
                True,
                kind if kind in FLOATS else "",
            ),
            _bytes(kind, f"window/{opcode}", WINDOW_BYTES),
        )
        parameters = (
            Pointer(0, 32),
            scalar(16),
            scalar(1520),
            Pointer(1),
            scalar(WINDOW_BYTES // 16),
        )
        found.append(
            Case(
                f"bulk/reduce.{opcode}",
                MODULE,
                kernel,
                buffers,
                parameters,
                shared_bytes=WINDOW_BYTES,
            )
        )
    return found


def _async_cases() -> list[Case]:
    threads, found = 128, []
    for cache, size in CACHES:
        for suffix in ("", "_barrier"):
            name = f"cp_async_{cache}{size}{suffix}"
            order = np.argsort(raw(f"{name}/slots", threads)).astype(np.uint32)
            valid = (raw(f"{name}/valid", threads) % np.uint64(size + 1)).astype(np.uint32)
            window = 2 * size * threads
            buffers = (
                _bytes("b32", f"{name}/from", window),
                Buffer(np.where(order % 3 == 0, np.uint32(size), valid)),
                Buffer(order),
                _bytes("b32", f"{name}/before", window),
                output(window, np.uint8),
            )
            parameters: list[Pointer | bytes] = [Pointer(i) for i in range(5)]
            parameters.insert(4, scalar(window // 16))
            found.append(
                Case(
                    f"cp-async/{name[9:]}",
                    MODULE,
                    name,
                    buffers,
                    tuple(parameters),
                    shared_bytes=window,
                )
            )
    return found


def cases() -> list[Case]:
    """All of them."""
    return _plain_cases() + _reduction_cases() + _async_cases()
