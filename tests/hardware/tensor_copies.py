"""Micro-kernels of tensor copies: every rank, swizzle and element size, boxes that hang over every edge, reductions.

A load's result is a window of shared memory, a store's the whole tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Map, Pointer, output, scalar
from tests.hardware.values import patterns, raw, width

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODULE = "tensor_copies"
THREADS = 128
WINDOW_STEP = 16 * THREADS  # the kernels copy windows in steps of this many bytes
ELEMENT_BYTES = {
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
# The values that a tensor of each type is filled with.
_KINDS = {
    "uint8": "b8",
    "uint16": "u16",
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
REDUCTIONS = {
    "add": ("uint32", "int32", "uint64", "float16", "bfloat16", "float32"),
    "min": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
    "max": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
    "inc": ("uint32",),
    "dec": ("uint32",),
    "and": ("uint32", "uint64"),
    "or": ("uint32", "uint64"),
    "xor": ("uint32", "uint64"),
}

_COMMON = """
struct __align__(128) TensorMap { u64 opaque[16]; };
struct Coordinates { int at[5]; };
"""

_LOAD = """
extern "C" __global__ void load_{rank}d(const __grid_constant__ TensorMap map, Coordinates c, u32 bytes, u32 offset,
    const uint4* before, u32 vectors, uint4* after) {{
  __shared__ u64 full;
  u32 barrier = shared_address(&full);
  fill(before, vectors);
  if (threadIdx.x == 0) init_barrier(barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {{
    expect_bytes(barrier, bytes);
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::{space}.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {{{coordinates}}}], [%{last}];"
        :: "r"(shared_address(shared) + offset), "l"(&map), {values}, "r"(barrier) : "memory");
  }}
  wait(barrier, 0);
  dump(after, vectors);
}}
"""

_STORE = """
extern "C" __global__ void {name}_{rank}d(const __grid_constant__ TensorMap map, Coordinates c, u32 offset,
    const uint4* before, u32 vectors) {{
  fill(before, vectors);
  __syncthreads();
  if (threadIdx.x == 0) {{
    asm volatile("{opcode} [%0, {{{coordinates}}}], [%{last}];"
        :: "l"(&map), {values}, "r"(shared_address(shared) + offset) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}
}}
"""


def _load_kernel(rank: int) -> str:
    return _LOAD.format(
        rank=rank,
        space="cta" if rank % 2 else "cluster",
        coordinates=",".join(f"%{i + 2}" for i in range(rank)),
        last=rank + 2,
        values=", ".join(f'"r"(c.at[{i}])' for i in range(rank)),
    )


def _store_kernel(rank: int, reduction: str = "") -> str:
    direction = f"{rank}d.global.shared::cta"
    opcode = f"cp.async.bulk.tensor.{direction}.tile.bulk_group"
    if reduction:
        opcode = f"cp.reduce.async.bulk.tensor.{direction}.{reduction}.tile.bulk_group"
    return _STORE.format(
        name=f"reduce_{reduction}" if reduction else "store",
        opcode=opcode,
        rank=rank,
        coordinates=",".join(f"%{i + 1}" for i in range(rank)),
        last=rank + 1,
        values=", ".join(f'"r"(c.at[{i}])' for i in range(rank)),
    )


def modules() -> dict[str, str]:
    """The one module."""
    kernels = [_load_kernel(rank) for rank in range(1, 6)]
    kernels += [_store_kernel(rank) for rank in range(1, 6)]
    kernels += [_store_kernel(2, reduction) for reduction in REDUCTIONS]
    kernels += [_store_kernel(rank, "add") for rank in (1, 3, 4, 5)]
    return {MODULE: PRELUDE + _COMMON + "".join(kernels)}


@dataclass(frozen=True, slots=True)
class Copy:
    """A box of a tensor.

    Attributes:
        element_type: As tensor maps call it.
        dims: Of the tensor.
        box: Of a copy.
        at: Coordinates.
        swizzle: Bytes.
        offset: Of the box in shared memory.
        padding: Elements between the rows of the tensor, in units of 16 bytes.
    """

    element_type: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: int = 0
    offset: int = 0
    padding: int = 1

    @property
    def name(self) -> str:
        """Everything about it."""
        sizes = "-".join(".".join(map(str, part)) for part in (self.dims, self.box, self.at))
        return f"{self.element_type}/{sizes}/swizzle{self.swizzle}+{self.offset}"

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes; rows are padded, further dimensions dense."""
        row = -(-self.dims[0] * ELEMENT_BYTES[self.element_type] // 16) * 16 + 16 * self.padding
        return tuple(
            row * int(np.prod(self.dims[1:i], dtype=int)) for i in range(1, len(self.dims))
        )

    @property
    def tensor_bytes(self) -> int:
        """Of the whole tensor, row padding included."""
        if len(self.dims) == 1:
            return -(-self.dims[0] * ELEMENT_BYTES[self.element_type] // 16) * 16
        return self.strides[-1] * self.dims[-1]

    @property
    def box_bytes(self) -> int:
        """Of a box in shared memory."""
        return int(np.prod(self.box)) * ELEMENT_BYTES[self.element_type]

    @property
    def window_bytes(self) -> int:
        """Of shared memory that a kernel fills; rows narrower than the swizzle may be spread to its width."""
        row = self.box[0] * ELEMENT_BYTES[self.element_type]
        spread = self.box_bytes // row * max(row, self.swizzle)
        return -(-(self.offset + spread) // WINDOW_STEP) * WINDOW_STEP

    @property
    def map(self) -> Map:
        """Over buffer 0."""
        return Map(0, self.element_type, self.dims, self.strides, self.box, self.swizzle)

    @property
    def coordinates(self) -> bytes:
        """The struct that the kernels take."""
        return struct.pack("<5i", *self.at, *[0] * (5 - len(self.at)))

    def tensor(self) -> Buffer:
        """Values of the type, in padding too."""
        kind = _KINDS[self.element_type]
        return Buffer(_values(kind, f"tensor/{self.name}", self.tensor_bytes))

    def window(self) -> Buffer:
        """Values of the type for shared memory."""
        return Buffer(_values(_KINDS[self.element_type], f"window/{self.name}", self.window_bytes))


def _values(kind: str, seed: str, size: int) -> NDArray[np.uint8]:
    if kind == "b8":
        return raw(seed, -(-size // 8)).view(np.uint8)[:size].copy()
    return patterns(kind, seed, -(-size * 8 // width(kind))).view(np.uint8)[:size].copy()


def load_case(copy: Copy) -> Case:
    """The window after a load."""
    after = output(copy.window_bytes, np.uint8)
    return Case(
        f"tma-load/{copy.name}",
        MODULE,
        f"load_{len(copy.dims)}d",
        (copy.tensor(), copy.window(), after),
        (
            copy.map,
            copy.coordinates,
            scalar(copy.box_bytes),
            scalar(copy.offset),
            Pointer(1),
            scalar(copy.window_bytes // 16),
            Pointer(2),
        ),
        shared_bytes=copy.window_bytes,
    )


def store_case(copy: Copy, reduction: str = "") -> Case:
    """The tensor after a store or a reduction."""
    family = f"tma-reduce/{reduction}" if reduction else "tma-store"
    return Case(
        f"{family}/{copy.name}",
        MODULE,
        f"{'reduce_' + reduction if reduction else 'store'}_{len(copy.dims)}d",
        (replace(copy.tensor(), is_output=True), copy.window()),
        (
            copy.map,
            copy.coordinates,
            scalar(copy.offset),
            Pointer(1),
            scalar(copy.window_bytes // 16),
        ),
        shared_bytes=copy.window_bytes,
    )


def _ranks() -> list[Copy]:
    """Every rank: a box inside, and boxes over the far and the near edge of every dimension at once."""
    dims = (40, 7, 5, 4, 3)
    box = (24, 3, 2, 2, 2)
    found = []
    for rank in range(1, 6):
        spots = ((8, 2, 1, 1, 1), (24, 6, 4, 3, 2), (32, 5, 4, 3, 2), (0, 0, 0, 0, 0))
        found += [Copy("bfloat16", dims[:rank], box[:rank], at[:rank]) for at in spots]
    return found


def _near_edges() -> list[Copy]:
    """Boxes with negative coordinates, and boxes wholly outside."""
    dims, box = (40, 9, 5), (24, 4, 2)
    spots: tuple[tuple[int, int, int], ...] = (
        (-8, 1, 1),
        (8, -2, 1),
        (8, 1, -1),
        (-16, -3, -1),
        (40, 0, 0),
        (0, 9, 0),
        (-24, 0, 0),
    )
    spots += ((0, 2**31 - 1, 0), (-(2**31), 0, 0), (8, 7, 4))
    return [Copy("float16", dims, box, at) for at in spots]


def _element_sizes() -> list[Copy]:
    found = []
    for element_type, size in ELEMENT_BYTES.items():
        columns = 48 // size
        found += [
            Copy(element_type, (columns * 2, 6), (columns, 4), at)
            for at in ((0, 0), (16 // size, 3), (80 // size, 5))
        ]
    return found


def _swizzles() -> list[Copy]:
    """Full and narrow rows, odd numbers of rows, boxes that begin inside a pattern."""
    found = []
    for swizzle in (32, 64, 128):
        for size, element_type in ((1, "uint8"), (2, "bfloat16"), (4, "float32"), (8, "uint64")):
            dims, at = (160 // size, 21), (16 // size, 1)
            found += [
                Copy(element_type, dims, (row // size, 19), at, swizzle)
                for row in (swizzle, swizzle // 2)
            ]
        found += [
            Copy("bfloat16", (160, 21), (swizzle // 2, 9), (8, 3), swizzle, offset)
            for offset in (128, 256, 512, 1024, 896)
        ]
        found.append(Copy("bfloat16", (160, 5, 6), (swizzle // 2, 3, 4), (24, 1, 1), swizzle))
        found.append(Copy("bfloat16", (64, 5, 6), (swizzle // 2, 4, 4), (40, 3, 4), swizzle))
        found.append(
            Copy("float16", (64, 3, 3, 4), (swizzle // 2, 2, 2, 3), (40, 2, 1, 2), swizzle)
        )
    return found


def clipped_cases() -> list[Case]:
    """Maps whose rows end where a sequence ends, by a stride that wraps around the address space."""
    row_bytes, rows, big, wrap = 160, 37, 2**31 - 1, 2**34
    found = []
    for first, length, row in ((0, 11, 0), (11, 9, 4), (20, 17, 12), (11, 9, 8), (5, 3, 8)):
        for swizzle in (0, 128):
            copy = Copy(
                "bfloat16",
                (64, 2**30, big, big),
                (64, 8, 1, 1),
                (0, 2**30 - length + row, 2**30, first + length),
                swizzle,
            )
            base = Map(
                0,
                "bfloat16",
                copy.dims,
                (row_bytes, wrap - row_bytes, row_bytes),
                copy.box,
                swizzle,
            )
            tensor = Buffer(_values("bf16", f"clipped/{first}", rows * row_bytes))
            for made in (load_case, store_case):
                case = made(replace(copy, dims=(64, 8, 1, 1)))  # the size of the buffers alone
                buffers = (replace(tensor, is_output=made is store_case), *case.buffers[1:])
                name = f"{case.name.split('/')[0]}/clipped/{first}.{length}.{row}/swizzle{swizzle}"
                found.append(
                    replace(
                        case, name=name, buffers=buffers, parameters=(base, *case.parameters[1:])
                    )
                )
    return found


def faults() -> list[Case]:
    """Boxes that begin between multiples of 16 bytes, which an H200 answers with an illegal instruction."""
    found = [
        Copy("bfloat16", (64, 6), (columns, 4), (at, 1), swizzle)
        for columns, at, swizzle in (
            (32, 4, 0),
            (16, 8, 32),
            (16, 4, 32),
            (64, 1, 128),
            (64, 12, 128),
        )
    ]
    found += [Copy("uint8", (96, 6), (16, 1), (1, 0)), Copy("float32", (64, 6), (4, 2), (2, 1))]
    made = [load_case(copy) for copy in found] + [store_case(copy) for copy in found]
    return [replace(case, name=f"fault/{case.name}") for case in made]


def cases() -> list[Case]:
    """All of them that a GPU answers."""
    loads = _ranks() + _near_edges() + _element_sizes() + _swizzles()
    stores = [copy for copy in loads if min(copy.at) >= 0]  # PTX asks this of stores
    found = [load_case(copy) for copy in loads] + [store_case(copy) for copy in stores]
    for reduction, types in REDUCTIONS.items():
        for element_type in types:
            columns = 64 // ELEMENT_BYTES[element_type]
            copy = Copy(
                element_type, (columns + 8, 9), (columns, 6), (16 // ELEMENT_BYTES[element_type], 4)
            )
            found.append(store_case(copy, reduction))
    box, at = (24, 3, 2, 2, 2), (24, 5, 1, 1, 1)
    found += [
        store_case(Copy("float32", (40, 7, 5, 4, 3)[:rank], box[:rank], at[:rank]), "add")
        for rank in (1, 3, 4, 5)
    ]
    return found + clipped_cases()
