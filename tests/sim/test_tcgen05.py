"""`tcgen05.mma`, `cp`, `shift` and `commit`: exact products of small integers, and a seeded bug for each finding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mlagen.sim.simulate import Checks, SimulationResult
from tests.sim.tcgen05_bench import COLUMNS, IMAGE_BYTES, Form, Operation, run_bench

Array = NDArray[np.float64]

DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
}
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
K_OF_KIND = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
SWIZZLE_CODES = {0: 0, 128: 2, 64: 4, 32: 6}

# Where the images begin: shared memory starts behind the system's KiB.
BASE = 1024
B_OFFSET = 16 * 1024


def swizzled(offset: int, swizzle: int) -> int:
    """Where TMA puts a byte: the address bits 4 to 6 exclusive-or those from bit 7 on."""
    return offset ^ (offset >> 7 & (swizzle // 16 - 1)) << 4 if swizzle else offset


@dataclass(frozen=True)
class Placed:
    """An operand in shared memory, as TMA boxes of one swizzle width would write it.

    Attributes:
        swizzle: 128, 64, 32, or 0 for core matrices of 8 x 16 bytes.
        is_transposed: Rows contiguous instead of k.
        offset: Of its first byte; a multiple of 1024.
    """

    swizzle: int
    is_transposed: bool
    offset: int

    def write(self, image: NDArray[np.uint8], values: NDArray[np.generic]) -> None:
        """Put `[rows, k]` values into an image."""
        rows, depth = values.shape
        size = values.dtype.itemsize
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(rows, depth, size)
        for row, k in product(range(rows), range(depth)):
            outer, inner = (k, row) if self.is_transposed else (row, k)
            byte = inner * size
            width = self.swizzle or 16
            lines = depth if self.is_transposed else rows
            panel, inside = divmod(byte, width)
            at = panel * lines * width + outer * width + inside
            at = self.offset + swizzled(at, self.swizzle)
            image[at : at + size] = raw[row, k]

    def descriptor(self, rows: int, depth: int) -> int:
        """Its matrix descriptor (PTX ISA 9.7.16.4.1), for an image at the start of dynamic shared memory."""
        lines = depth if self.is_transposed else rows
        width = self.swizzle or 16
        eight_lines, panel = 8 * width, lines * width
        leading, stride = panel, eight_lines
        if not self.swizzle and self.is_transposed:
            leading, stride = eight_lines, panel
        return (
            (BASE + self.offset) >> 4
            | leading >> 4 << 16
            | stride >> 4 << 32
            | 1 << 46
            | SWIZZLE_CODES[self.swizzle] << 61
        )


@dataclass(frozen=True)
class Case:
    """One product."""

    kind: str = "f16"
    a_type: str = "bf16"
    b_type: str = "bf16"
    d_type: str = "f32"
    m: int = 128
    n: int = 64
    group: int = 1
    ws: bool = False
    ts: bool = False
    swizzle: int = 128
    a_transposed: bool = False
    b_transposed: bool = False
    negate_a: bool = False
    negate_b: bool = False
    added: bool = False
    scale: int = 0
    kept: tuple[int, ...] = ()

    @property
    def k(self) -> int:
        return K_OF_KIND[self.kind]

    @property
    def descriptor(self) -> int:
        d_code = {"f16": 0, "f32": 1, "s32": 2}[self.d_type]
        return (
            d_code << 4
            | CODES[self.a_type] << 7
            | CODES[self.b_type] << 10
            | self.negate_a << 13
            | self.negate_b << 14
            | self.a_transposed << 15
            | self.b_transposed << 16
            | self.n // 8 << 17
            | self.m // 16 << 24
        )

    @property
    def form(self) -> Form:
        ws = ".ws" if self.ws else ""
        opcode = f"tcgen05.mma{ws}.cta_group::{self.group}.kind::{self.kind}"
        tail = f", {self.scale}" if self.scale else ""
        return Form(opcode, self.ts, bool(self.kept), tail)


def places(case: Case) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    """Row and column of D -> the cells `(CTA, lane, column)`; and in the same lanes the row of A.

    By the figures of PTX ISA 9.7.16.10.5, warp by warp: which rows and which part of N each warp's lanes hold.
    """
    warps = {
        (256, 2, False): [
            (c, 32 * w, 32, 128 * c + 32 * w, 0, 1) for c in (0, 1) for w in range(4)
        ],
        (128, 2, False): [
            (c, 32 * w, 32, 64 * c + 32 * (w % 2), w // 2, 2) for c in (0, 1) for w in range(4)
        ],
        (128, 1, False): [(0, 32 * w, 32, 32 * w, 0, 1) for w in range(4)],
        (128, 1, True): [(0, 32 * w, 32, 32 * w, 0, 1) for w in range(4)],
        (64, 1, False): [(0, 32 * w, 16, 16 * w, 0, 1) for w in range(4)],
        (64, 1, True): [(0, 32 * w, 32, 32 * (w % 2), w // 2, 2) for w in range(4)],
        (32, 1, True): [(0, 32 * w, 32, 0, w, 4) for w in range(4)],
    }[case.m, case.group, case.ws]
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for cta, first_lane, height, first_row, part, parts in warps:
        width = case.n // parts
        for lane, column in product(range(height), range(width)):
            key = (first_row + lane, part * width + column)
            found.setdefault(key, []).append((cta, first_lane + lane, column))
    return found


def random_operand(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, int]) -> NDArray:
    """Small integers, so that every product and sum is exact."""
    low = 0 if dtype == np.uint8 else -4
    return rng.integers(low, 5, shape).astype(dtype)


A_COLUMN = 384


def run_case(case: Case) -> tuple[NDArray[np.uint32], NDArray[np.uint32], SimulationResult]:
    """Tensor memory found and expected, and the run."""
    rng = np.random.default_rng(case.m + case.n)
    a = random_operand(rng, DTYPES[case.a_type], (case.m, case.k))
    b = random_operand(rng, DTYPES[case.b_type], (case.n, case.k))
    a_place = Placed(case.swizzle, case.a_transposed, 0)
    b_place = Placed(case.swizzle, case.b_transposed, B_OFFSET)
    rows_a, rows_b = case.m // case.group, case.n // case.group
    images = []
    for cta in range(case.group):
        image = np.zeros(IMAGE_BYTES, np.uint8)
        a_place.write(image, a[cta * rows_a :][:rows_a])
        b_place.write(image, b[cta * rows_b :][:rows_b])
        images.append(image)
    initial = rng.integers(-50, 50, (case.group, 128, COLUMNS))
    words = initial.astype(np.float32).view(np.uint32)
    if case.d_type == "s32":
        words = initial.astype(np.int32).view(np.uint32)
    if case.d_type == "f16":
        words = initial.astype(np.float16).view(np.uint16).astype(np.uint32)
    cells = places(case)
    if case.ts:
        a_words = np.ascontiguousarray(a).view(np.uint32)
        for (row, _), somewhere in cells.items():
            for cta, lane, _ in somewhere:
                words[cta, lane, A_COLUMN : A_COLUMN + a_words.shape[1]] = a_words[row]
    operation = Operation(
        A_COLUMN if case.ts else a_place.descriptor(rows_a, case.k),
        b_place.descriptor(rows_b, case.k),
        0,
        case.descriptor,
        case.added,
        (*case.kept, *[0] * 8)[:8],
    )
    found, outcome = run_bench(case.form, [operation], images=images, initial=words)
    sign = (-1 if case.negate_a else 1) * (-1 if case.negate_b else 1)
    result = sign * (a.astype(np.float64) @ b.astype(np.float64).T)
    expected = words.copy()
    for (row, column), somewhere in cells.items():
        for cta, lane, at in somewhere:
            index = 128 * cta + lane
            if case.kept and case.kept[index // 32] >> (index % 32) & 1:
                continue
            old = float(initial[cta, lane, at]) * 2.0**-case.scale if case.added else 0.0
            expected[cta, lane, at] = encode(result[row, column] + old, case.d_type)
    return found, expected, outcome


def encode(value: float, d_type: str) -> int:
    """A cell of D."""
    if d_type == "f32":
        return int(np.float32(value).view(np.uint32))
    if d_type == "f16":
        return int(np.float16(value).view(np.uint16))
    return int(np.int32(value).view(np.uint32))


CASES = {
    "bf16": Case(),
    "f16": Case(a_type="f16", b_type="f16"),
    "f16 accumulator": Case(a_type="f16", b_type="f16", d_type="f16"),
    "f16 by bf16": Case(a_type="f16", b_type="bf16"),
    "n 8": Case(n=8),
    "n 256": Case(n=256),
    "m 64": Case(m=64, n=40),
    "accumulate": Case(added=True),
    "m 64 accumulate": Case(m=64, added=True),
    "scaled": Case(added=True, scale=3),
    "negate a": Case(negate_a=True),
    "negate b": Case(negate_b=True, added=True),
    "negate both": Case(negate_a=True, negate_b=True),
    "lanes kept": Case(added=True, kept=(0xFFFF0000, 0, 0x5, 0x80000000)),
    "lanes kept of m 64": Case(m=64, kept=(0x3, 0x8000, 0, 0)),
    "swizzle 64": Case(swizzle=64),
    "swizzle 32": Case(swizzle=32),
    "no swizzle": Case(swizzle=0),
    "b transposed": Case(b_transposed=True, n=128),
    "b transposed, swizzle 64": Case(b_transposed=True, swizzle=64),
    "b transposed, swizzle 32": Case(b_transposed=True, swizzle=32),
    "b transposed, no swizzle": Case(b_transposed=True, swizzle=0),
    "both transposed": Case(a_transposed=True, b_transposed=True),
    "a transposed, no swizzle": Case(a_transposed=True, swizzle=0, m=64),
    "tf32": Case("tf32", "tf32", "tf32"),
    "e4m3": Case("f8f6f4", "e4m3", "e4m3"),
    "e5m2 by e4m3": Case("f8f6f4", "e5m2", "e4m3", n=24),
    "e4m3, f16 accumulator": Case("f8f6f4", "e4m3", "e4m3", "f16", m=64),
    "e4m3, b transposed": Case("f8f6f4", "e4m3", "e4m3", b_transposed=True, n=128),
    "s8": Case("i8", "s8", "s8", "s32", added=True),
    "u8 by s8": Case("i8", "u8", "s8", "s32", n=32),
    "ts": Case(ts=True),
    "ts accumulate": Case(ts=True, added=True, b_transposed=True),
    "ts m 64": Case(ts=True, m=64),
    "ts e4m3": Case("f8f6f4", "e4m3", "e4m3", ts=True),
    "ts tf32": Case("tf32", "tf32", "tf32", ts=True),
    "ts s8": Case("i8", "s8", "s8", "s32", ts=True),
    "ws m 32": Case(ws=True, m=32),
    "ws m 64": Case(ws=True, m=64, n=128, added=True),
    "ws m 128": Case(ws=True, n=256),
    "ws m 32 ts": Case(ws=True, m=32, ts=True, n=128),
    "ws m 64 ts": Case(ws=True, m=64, ts=True),
    "pair": Case(m=256, group=2),
    "pair n 256": Case(m=256, n=256, group=2, added=True),
    "pair m 128": Case(m=128, n=32, group=2),
    "pair ts": Case(m=256, group=2, ts=True),
    "pair m 128 ts": Case(m=128, n=64, group=2, ts=True, added=True),
    "pair b transposed": Case(m=256, n=128, group=2, b_transposed=True),
    "pair e4m3": Case("f8f6f4", "e4m3", "e4m3", m=256, group=2),
    "pair lanes kept": Case(m=256, group=2, kept=(1, 2, 4, 8, 0xFFFFFFFF, 0, 0x10, 0x20)),
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_exact_and_touch_nothing_else(name: str) -> None:
    found, expected, outcome = run_case(CASES[name])
    assert outcome.findings == ()
    wrong = np.argwhere(found != expected)
    assert len(wrong) == 0, f"{len(wrong)} cells, first (CTA, lane, column) {wrong[0]}"
