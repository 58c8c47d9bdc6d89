"""Micro-kernels of loads, stores and atomics: every width and vector, global, shared, local and constant memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output
from tests.hardware.values import UNSIGNED, patterns, raw, width

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODULE = "memory_access"
THREADS = 64
SCALARS = ("u8", "s8", "b16", "u16", "s16", "b32", "u32", "f32", "b64", "s64")
VECTORS = (
    ("v2", "u8"),
    ("v4", "u8"),
    ("v2", "b16"),
    ("v4", "u16"),
    ("v2", "b32"),
    ("v4", "b32"),
    ("v4", "f32"),
    ("v2", "b64"),
)
LOADS = (
    "ld.global",
    "ld.global.nc",
    "ld.shared",
    "ld",
    "ld.relaxed.gpu.global",
    "ld.volatile.shared",
    "ld.acquire.gpu.global",
)
STORES = (
    "st.global",
    "st.shared",
    "st",
    "st.relaxed.gpu.global",
    "st.release.gpu.global",
    "st.volatile.shared",
)
_REGISTERS = {16: ("h", "u16"), 32: ("r", "u32"), 64: ("l", "u64")}

# Memory is `from`, or its copy in shared memory; every thread moves one (vector) element of a permutation.
_MOVE = """
extern "C" __global__ void {name}(const u8* from, const u32* order, {kind}* values, u8* to) {{
  u32 thread = threadIdx.x;
  for (u32 i = thread; i < {bytes}; i += {threads}) shared[i] = from[i];
  __syncthreads();
  u8* memory = {memory};
  u64 at = (u64)(memory + {size} * order[thread]);
  {address}
  {kind} x[{count}];
  for (u32 i = 0; i < {count}; ++i) x[i] = values[thread * {count} + i];
  {statement}
  for (u32 i = 0; i < {count}; ++i) values[thread * {count} + i] = x[i];
  __syncthreads();
  if ({dumps}) for (u32 i = thread; i < {bytes}; i += {threads}) to[i] = shared[i];
}}
"""


def _held(kind: str) -> tuple[str, str]:
    return _REGISTERS[max(16, width("b" + kind[1:]))]


def _move_kernel(opcode: str, vector: str, kind: str) -> tuple[str, str]:
    """Name and text of a load or store."""
    count = int(vector[1:]) if vector else 1
    letter, register = _held(kind)
    full = ".".join(part for part in (opcode, vector, kind) if part)
    is_shared, is_load = "shared" in opcode, opcode.startswith("ld")
    size = count * width("b" + kind[1:]) // 8
    first = 0 if is_load else 1
    words = ",".join(f"%{i + first}" for i in range(count))
    group = f"{{{words}}}" if vector else words
    address = f'"{"r" if is_shared else "l"}"({"offset" if is_shared else "at"})'
    if is_load:
        results = ", ".join(f'"={letter}"(x[{i}])' for i in range(count))
        statement = (
            f'asm volatile("{full} {group}, [%{count}];" : {results} : {address} : "memory");'
        )
    else:
        operands = ", ".join(f'"{letter}"(x[{i}])' for i in range(count))
        statement = f'asm volatile("{full} [%0], {group};" :: {address}, {operands} : "memory");'
    name = full.replace(".", "_")
    # A generic address goes to shared memory here, so that both windows are used.
    memory = "(u8*)from" if "global" in opcode else "shared"
    text = _MOVE.format(
        name=name,
        kind=register,
        bytes=size * THREADS,
        threads=THREADS,
        memory=memory,
        size=size,
        address="u32 offset = (u32)__cvta_generic_to_shared((u8*)at);" if is_shared else "",
        count=count,
        statement=statement,
        dumps=int("global" not in opcode),
    )
    return name, text


def _moves() -> list[tuple[str, str, str]]:
    """Opcode, vector and element type of all loads and stores."""
    found = []
    for opcode in (*LOADS, *STORES):
        is_strong = any(word in opcode for word in ("relaxed", "volatile", "acquire", "release"))
        found += [(opcode, "", kind) for kind in (SCALARS[4:] if is_strong else SCALARS)]
        found += [] if is_strong else [(opcode, vector, kind) for vector, kind in VECTORS]
    return found


ATOMICS = {
    "add": (
        "u32",
        "s32",
        "u64",
        "f32",
        "f64",
        "noftz.f16",
        "noftz.bf16",
        "noftz.f16x2",
        "noftz.bf16x2",
    ),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
}
_ATOMIC = """
extern "C" __global__ void {name}(u8* memory, const u32* order, const {kind}* values, const {kind}* others,
    {kind}* old, u8* to) {{
  u32 thread = threadIdx.x;
  {kind} x = values[thread], y = others[thread], d = 0;
  if ({is_shared}) {{
    for (u32 i = thread; i < {bytes}; i += {threads}) shared[i] = memory[i];
    __syncthreads();
  }}
  u64 at = (u64)(({is_shared} ? shared : memory) + {size} * order[thread]);
  {address}
  {statement}
  old[thread] = d;
  __syncthreads();
  if ({is_shared}) for (u32 i = thread; i < {bytes}; i += {threads}) memory[i] = shared[i];
}}
"""


def _atomic_kernel(instruction: str, space: str, operation: str, ending: str) -> tuple[str, str]:
    """Name and text; each thread has an element of its own, so that the order of threads does not matter."""
    kind = ending.split(".")[-1]
    letter, register = _held(kind) if not kind.endswith("x2") else ("r", "u32")
    size = width(kind) // 8
    opcode = ".".join(part for part in (instruction, space, operation, ending) if part)
    address = '"r"(offset)' if space == "shared" else '"l"(at)'
    words = ", %3" if operation == "cas" else ""
    more = f', "{letter}"(y)' if operation == "cas" else ""
    if instruction.startswith("atom"):
        statement = (
            f'asm volatile("{opcode} %0, [%1], %2{words};"'
            f' : "={letter}"(d) : {address}, "{letter}"(x){more} : "memory");'
        )
    else:
        statement = f'asm volatile("{opcode} [%0], %1;" :: {address}, "{letter}"(x) : "memory");'
    name = opcode.replace(".", "_")
    text = _ATOMIC.format(
        name=name,
        kind=register,
        threads=THREADS,
        bytes=size * THREADS,
        size=size,
        is_shared=int(space == "shared"),
        address="u32 offset = (u32)__cvta_generic_to_shared((u8*)at);" if space == "shared" else "",
        statement=statement,
    )
    return name, text


def _atomics() -> list[tuple[str, str, str, str]]:
    found = []
    for (operation, endings), space in itertools.product(ATOMICS.items(), ("global", "shared", "")):
        found += [("atom", space, operation, ending) for ending in endings]
        if operation not in ("exch", "cas"):
            found += [("red", space, operation, ending) for ending in endings if space]
    for order in ("relaxed.gpu", "acq_rel.gpu", "release.gpu"):
        found.append(
            (f"red.{order}" if order != "acq_rel.gpu" else f"atom.{order}", "global", "add", "u32")
        )
    return found


# What many threads add to the same elements: only the sum is defined, and the set of old values.
_CONTENDED = """
extern "C" __global__ void contended(u32* counters, u32* seen) {
  u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
  u32 ticket = atomicInc(&counters[0], 0x7fffffff);
  seen[ticket] = 1;
  atomicAdd(&counters[1 + thread % 3], thread);
  atomicMax(&counters[4], thread * 7 % 1000);
  atomicMin(&counters[5], 5000 - thread);
  atomicOr(&counters[6], 1u << thread % 32);
  atomicXor(&counters[7], thread);
}
"""


def modules() -> dict[str, str]:
    """Two modules: loads and stores, atomics."""
    moves = "".join(_move_kernel(*move)[1] for move in _moves())
    atomics = "".join(_atomic_kernel(*atomic)[1] for atomic in _atomics())
    return {MODULE: PRELUDE + moves, "atomics": PRELUDE + _CONTENDED + atomics}


def _order(name: str) -> NDArray[np.uint32]:
    """Which element each thread has: those of a warp lie together, since the simulator orders words, not bytes."""
    hashes = raw(f"{name}/order", THREADS).reshape(-1, 32)
    return (
        (np.argsort(hashes, axis=1) + np.arange(0, THREADS, 32)[:, None]).astype(np.uint32).ravel()
    )


def _move_case(opcode: str, vector: str, kind: str) -> Case:
    name, _ = _move_kernel(opcode, vector, kind)
    count = int(vector[1:]) if vector else 1
    size = count * width("b" + kind[1:]) // 8 * THREADS
    held = UNSIGNED[max(16, width("b" + kind[1:]))]
    writes_global = opcode.startswith("st") and "global" in opcode
    buffers = (
        Buffer(raw(f"{name}/memory", size // 8).view(np.uint8).copy(), writes_global),
        Buffer(_order(name)),
        Buffer(raw(f"{name}/values", THREADS * count).astype(held), True),
        output(size, np.uint8),
    )
    parameters = tuple(Pointer(i) for i in range(4))
    return Case(
        f"memory/{'.'.join(part for part in (opcode, vector, kind) if part)}",
        MODULE,
        name,
        buffers,
        parameters,
        block=(THREADS, 1, 1),
        shared_bytes=size,
    )


def _atomic_case(instruction: str, space: str, operation: str, ending: str) -> Case:
    name, _ = _atomic_kernel(instruction, space, operation, ending)
    kind = ending.split(".")[-1]
    memory = patterns(kind, f"{name}/memory", THREADS)
    order = _order(name)
    values = patterns(kind, f"{name}/values", THREADS)
    if operation == "cas":  # every other comparison succeeds
        values = np.where(np.arange(THREADS) % 2, memory[order], values)
    buffers = (
        Buffer(memory, True, kind if kind[0] in "fb" and "f" in kind else ""),
        Buffer(order),
        Buffer(values),
        Buffer(patterns(kind, f"{name}/others", THREADS)),
        output(THREADS, UNSIGNED[width(kind)]),
        output(THREADS, np.uint8),
    )
    return Case(
        f"atomic/{'.'.join(part for part in (instruction, space, operation, ending) if part)}",
        "atomics",
        name,
        buffers,
        tuple(Pointer(i) for i in range(6)),
        block=(THREADS, 1, 1),
        shared_bytes=memory.nbytes,
    )


def cases() -> list[Case]:
    """All of them."""
    found = [_move_case(*move) for move in _moves()]
    found += [_atomic_case(*atomic) for atomic in _atomics()]
    counters = Buffer(np.array([0, 1, 2, 3, 4, 4000, 0, 9], np.uint32), True)
    contended = (counters, output(4 * THREADS, fill=0))
    found.append(
        Case(
            "atomic/contended",
            "atomics",
            "contended",
            contended,
            (Pointer(0), Pointer(1)),
            grid=(4, 1, 1),
            block=(THREADS, 1, 1),
        )
    )
    return found
