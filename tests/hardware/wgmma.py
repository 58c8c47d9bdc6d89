"""Micro-kernels of `wgmma.mma_async`: any bytes in shared memory, any descriptor, fragments in and out as registers.

The kernel knows no layout: it copies an image into shared memory, adds the image's address to the descriptors and
issues the instruction. Which byte is which element is the hardware's answer, and the simulator's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output, scalar
from tests.hardware.values import UNSIGNED, integers, raw, width

if TYPE_CHECKING:
    from numpy.typing import NDArray

THREADS = 128
FORMS_OF_MODULE = 24
A_AT, B_AT = 0, 24 * 1024  # of the image
IMAGE_BYTES = 64 * 1024
_SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True, slots=True)
class Form:
    """An instruction.

    Attributes:
        n: Columns.
        d: Type of the accumulator: f32, f16 or s32.
        a: Type of A.
        b: Type of B.
        a_in_registers: RS, not SS.
        trans_a: A is MN-major.
        trans_b: B is MN-major.
        scale_a: 1 or -1.
        scale_b: 1 or -1.
    """

    n: int
    d: str
    a: str
    b: str
    a_in_registers: bool = False
    trans_a: bool = False
    trans_b: bool = False
    scale_a: int = 1
    scale_b: int = 1

    @property
    def k(self) -> int:
        """Elements of the inner dimension."""
        return 256 // width(self.a)

    @property
    def accumulators(self) -> int:
        """32-bit registers of the accumulator."""
        return self.n // 4 if self.d == "f16" else self.n // 2

    @property
    def name(self) -> str:
        """Its opcode and operands in a word, fit for a kernel's name."""
        word = f"n{self.n}_{self.d}_{self.a}_{self.b}_{'rs' if self.a_in_registers else 'ss'}"
        word += "_ta" * self.trans_a + "_tb" * self.trans_b
        return word + "_na" * (self.scale_a < 0) + "_nb" * (self.scale_b < 0)


@dataclass(frozen=True, slots=True)
class Tile:
    """A matrix descriptor.

    Attributes:
        swizzle: Bytes, 0 for none.
        leading: LBO in bytes.
        stride: SBO in bytes.
        offset: Bytes from the start of the operand's part of the image.
        base_offset: Bits 49 to 51.
    """

    swizzle: int
    leading: int
    stride: int
    offset: int = 0
    base_offset: int = 0

    def descriptor(self, at: int) -> int:
        """Its 64 bits for an image at address 0."""
        low = (at + self.offset) >> 4 | (self.leading >> 4) << 16
        high = self.stride >> 4 | self.base_offset << 17 | _SWIZZLE_CODES[self.swizzle] << 30
        return high << 32 | low


def kernel(form: Form) -> str:
    """CUDA text of the form's kernel."""
    registers, letter, kind = form.accumulators, "f" if form.d == "f32" else "r", "u32"
    if form.d == "f32":
        kind = "float"
    accumulators = ",".join(f"%{i}" for i in range(registers))
    at = registers
    a = f"{{%{at},%{at + 1},%{at + 2},%{at + 3}}}" if form.a_in_registers else f"%{at}"
    at += 4 if form.a_in_registers else 1
    b, accumulate = f"%{at}", f"%{at + 1}"
    words = [f"{{{accumulators}}}", a, b, "p"]
    if form.d != "s32":
        words += [str(form.scale_a), str(form.scale_b)]
    if width(form.a) == 16:
        words += ([] if form.a_in_registers else [str(int(form.trans_a))]) + [
            str(int(form.trans_b))
        ]
    opcode = f"wgmma.mma_async.sync.aligned.m64n{form.n}k{form.k}.{form.d}.{form.a}.{form.b}"
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(registers))
    a_inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) if form.a_in_registers else '"l"(da)'
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS}, 1) {form.name}(
    const uint4* image, const uint4* fragments, const {kind}* before, {kind}* after, u64 a_descriptor,
    u64 b_descriptor, u32 image_vectors, u32 accumulate, u32 steps, u32 a_step, u32 b_step) {{
  u32 thread = blockIdx.x * {THREADS} + threadIdx.x;
  for (u32 i = threadIdx.x; i < image_vectors; i += {THREADS}) {{
    ((uint4*)shared)[i] = image[blockIdx.x * image_vectors + i];
  }}
  {kind} d[{registers}];
#pragma unroll
  for (int i = 0; i < {registers}; ++i) d[i] = before[thread * {registers} + i];
  uint4 fragment = fragments[thread];
  u32 a[4] = {{fragment.x, fragment.y, fragment.z, fragment.w}};
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  u64 base = (shared_address(shared) & 0x3ffff) >> 4;
  u64 da = a_descriptor + base, db = b_descriptor + base;
#pragma unroll 1
  for (u32 step = 0; step < steps; ++step) {{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{.reg .pred p; setp.ne.b32 p, {accumulate}, 0; {opcode} {", ".join(words)};}}"
        : {outputs} : {a_inputs}, "l"(db), "r"(accumulate));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    da += a_step;
    db += b_step;
  }}
#pragma unroll
  for (int i = 0; i < {registers}; ++i) after[thread * {registers} + i] = d[i];
}}
"""


SIZES = (8, 16, 24, 40, 64, 72, 96, 128, 176, 192, 256)
HALVES = (("f32", "bf16"), ("f32", "f16"), ("f16", "f16"))
BYTES = (
    ("f32", "e4m3", "e4m3"),
    ("f32", "e5m2", "e4m3"),
    ("f32", "e4m3", "e5m2"),
    ("f16", "e4m3", "e4m3"),
)


@functools.cache
def forms() -> tuple[Form, ...]:
    """Every combination of types, sources and majors at N = 64, and every N sample for those that attention uses."""
    found = []
    for d, kind in HALVES:
        found += [
            Form(64, d, kind, kind, trans_a=a, trans_b=b)
            for a in (False, True)
            for b in (False, True)
        ]
        found += [Form(64, d, kind, kind, True, trans_b=b) for b in (False, True)]
    found += [Form(64, *kinds, registers) for kinds in BYTES for registers in (False, True)]
    found += [Form(64, "f32", "tf32", "tf32", registers) for registers in (False, True)]
    found += [
        Form(64, "s32", "s8", "s8"),
        Form(64, "s32", "u8", "s8"),
        Form(64, "s32", "s8", "u8", True),
    ]
    found += [
        Form(64, "f32", "bf16", "bf16", scale_a=-1),
        Form(64, "f32", "bf16", "bf16", scale_b=-1),
    ]
    found += [
        Form(64, "f32", "e4m3", "e4m3", scale_a=-1),
        Form(64, "f32", "f16", "f16", True, scale_b=-1),
    ]
    for n in SIZES:
        found += [
            Form(n, "f32", "bf16", "bf16"),
            Form(n, "f32", "bf16", "bf16", True, trans_b=True),
        ]
        found += [Form(n, "f32", "f16", "f16"), Form(n, "f32", "f16", "f16", True, trans_b=True)]
        found += [Form(n, "f32", "e4m3", "e4m3"), Form(n, "f32", "e4m3", "e4m3", True)]
    found += [Form(n, "f16", "f16", "f16") for n in (8, 128, 256)]
    found += [Form(8, "f16", "e4m3", "e4m3"), Form(8, "f32", "tf32", "tf32")]
    return tuple(dict.fromkeys(found))


@functools.cache
def _module_of() -> dict[str, str]:
    return {form.name: f"wgmma{i // FORMS_OF_MODULE}" for i, form in enumerate(forms())}


def modules() -> dict[str, str]:
    """Texts of the modules by name."""
    texts: dict[str, str] = {}
    for form in forms():
        module = _module_of()[form.name]
        texts[module] = texts.get(module, PRELUDE) + kernel(form)
    return texts


def k_major_tiles(rows: int) -> list[Tile]:
    """Layouts of a K-major operand: dense, padded, inside an atom; without swizzle the two strides both ways round."""
    groups = rows // 8
    return [
        Tile(0, 128, 256),
        Tile(0, groups * 128, 128),
        Tile(0, 144, 304, offset=48),
        Tile(32, 0, 256),
        Tile(32, 16, 512, offset=256),
        Tile(64, 0, 512),
        Tile(64, 16, 512, offset=32),
        Tile(128, 0, 1024),
        Tile(128, 16, 1024, offset=32),
        Tile(128, 0, 1024, offset=64),
        Tile(128, 1024, 1024, offset=96),
    ]


def mn_major_tiles(rows: int) -> list[Tile]:
    """Layouts of an MN-major operand of 16-bit elements: panels of 64, 32 or 16 rows, or pieces of 8."""
    found = [
        Tile(0, rows * 16, 128),
        Tile(0, 128, 256),
        Tile(0, 144, 304, offset=16),
    ]
    for swizzle in (32, 64, 128):
        atom = 8 * swizzle
        found += [
            Tile(swizzle, 2 * atom, atom),
            Tile(swizzle, atom, -(-rows * 2 // swizzle) * atom),
        ]
    return found


def _reach(form: Form, tile: Tile, rows: int, trans: bool) -> int:
    """Bytes of the image that a tile may touch, from its start; a generous bound."""
    if trans:
        across = -(-rows * 2 // max(tile.swizzle, 16))
        panel, group = tile.leading, tile.stride
        if not tile.swizzle:  # the two change roles
            panel, group = group, panel
        extent = (across - 1) * panel + group
    else:
        extent = (rows // 8 - 1) * tile.stride + (tile.leading if not tile.swizzle else 0)
    return tile.offset + extent + 8 * max(tile.swizzle, 16) + 128


def image(form: Form, seed: str, size: int, largest: int) -> NDArray[np.uint8]:
    """`size` bytes of whole numbers of the operands' types: the first part is A's, the rest B's."""
    parts = []
    for kind, start, end in ((form.a, A_AT, min(B_AT, size)), (form.b, B_AT, size)):
        bits = width(kind)
        count = max(end - start, 0) * 8 // bits
        values = integers(kind, raw(f"{seed}/{start}", count), largest)
        parts.append(values.astype(UNSIGNED[bits]).view(np.uint8))
    return np.concatenate(parts)


def _bytes_of(values: NDArray[np.uint64], kind: str) -> NDArray[np.uint8]:
    return values.astype(UNSIGNED[width(kind)]).view(np.uint8)


def fragments(form: Form, seed: str, count: int, largest: int) -> NDArray[np.uint32]:
    """A in registers: four words a thread."""
    values = integers(form.a, raw(f"{seed}/fragment", count * 16 * 8 // width(form.a)), largest)
    return _bytes_of(values, form.a).view(np.uint32)


def accumulators(form: Form, seed: str, count: int) -> NDArray[np.uint32]:
    """Whole numbers up to 100 in the accumulator's type."""
    words = count * form.accumulators * (2 if form.d == "f16" else 1)
    return _bytes_of(integers(form.d, raw(f"{seed}/accumulator", words), 100), form.d).view(
        np.uint32
    )


def largest_integer(form: Form) -> int:
    """Operands up to here keep every sum exact in the accumulator, also in those of few bits."""
    if form.d == "s32":
        return 100
    return 4 if width(form.a) == 8 or form.d == "f16" else 8


def layout_case(form: Form, a: Tile, b: Tile, *, accumulate: int = 1) -> Case:
    """One product of whole numbers."""
    tiles = (f"{tile.swizzle}.{tile.leading}.{tile.stride}.{tile.offset}" for tile in (a, b))
    name = f"wgmma/{form.name}/{'-'.join(tiles)}" + ("" if accumulate else "/overwrite")
    size = B_AT + _reach(form, b, form.n, form.trans_b)
    assert form.a_in_registers or _reach(form, a, 64, form.trans_a) <= B_AT, name
    size = min(-(-size // (16 * THREADS)) * 16 * THREADS, IMAGE_BYTES)
    largest = largest_integer(form)
    buffers = (
        Buffer(image(form, name, size, largest)),
        Buffer(fragments(form, name, THREADS, largest)),
        Buffer(accumulators(form, name, THREADS)),
        output(THREADS * form.accumulators),
    )
    return launch(form, name, buffers, a, b, size, accumulate=accumulate)


def launch(
    form: Form,
    name: str,
    buffers: tuple[Buffer, ...],
    a: Tile,
    b: Tile,
    image_bytes: int,
    *,
    accumulate: int = 1,
    ctas: int = 1,
    steps: int = 1,
    step_bytes: tuple[int, int] = (0, 0),
    b_at: int = B_AT,
) -> Case:
    """A launch of the form's kernel; `step_bytes` are what A's and B's addresses grow by."""
    return Case(
        name,
        _module_of()[form.name],
        form.name,
        buffers,
        (
            *(Pointer(i) for i in range(4)),
            scalar(a.descriptor(A_AT), 8),
            scalar(b.descriptor(b_at), 8),
            scalar(image_bytes // 16),
            scalar(accumulate),
            scalar(steps),
            *(scalar(step >> 4) for step in step_bytes),
        ),
        grid=(ctas, 1, 1),
        block=(THREADS, 1, 1),
        shared_bytes=image_bytes,
    )


def layout_cases() -> list[Case]:
    """Every form with every layout of each operand, the other operand in its first one."""
    found = []
    for form in forms():
        a_tiles = mn_major_tiles(64) if form.trans_a else k_major_tiles(64)
        b_tiles = mn_major_tiles(form.n) if form.trans_b else k_major_tiles(form.n)
        if form.n != 64:  # N matters to B alone
            a_tiles = a_tiles[:1]
        pairs = [(a_tiles[0], b) for b in b_tiles]
        if not form.a_in_registers:
            pairs += [(a, b_tiles[-1]) for a in a_tiles[1:]]
        limit = IMAGE_BYTES - B_AT
        found += [
            layout_case(form, a, b)
            for a, b in pairs
            if _reach(form, b, form.n, form.trans_b) <= limit
        ]
        found.append(layout_case(form, *pairs[0], accumulate=0))
    return found
