"""`tcgen05.mma`, `cp`, `shift` and `commit`: exact products of small integers, and a seeded bug for each finding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from mlagen.sim.schedule import parse_schedule
from mlagen.sim.simulate import Checks, SimulationResult
from tests.sim.tcgen05_bench import COLUMNS, IMAGE_BYTES, Form, Operation, bench_ptx, run_bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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


def swizzled(offset: NDArray[np.intp], swizzle: int) -> NDArray[np.intp]:
    """Where TMA puts bytes: the address bits 4 to 6 exclusive-or those from bit 7 on."""
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
        row, k = np.meshgrid(np.arange(rows), np.arange(depth), indexing="ij")
        outer, inner = (k, row) if self.is_transposed else (row, k)
        width = self.swizzle or 16
        lines = depth if self.is_transposed else rows
        panel, inside = np.divmod(inner * size, width)
        at = self.offset + swizzled(panel * lines * width + outer * width + inside, self.swizzle)
        image[at[:, :, None] + np.arange(size)] = raw

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


@dataclass(frozen=True)
class Stretch:
    """Lanes of one warp of tensor memory, the rows of D (and of A) in them, and their part of N in columns 0 and up."""

    cta: int
    lanes: slice
    rows: slice
    part: int
    parts: int


def stretches(case: Case) -> list[Stretch]:
    """Where D lies, by the figures of PTX ISA 9.7.16.10.5, warp by warp."""
    # Rows of D that a CTA and that a warp holds, and how many warps hold all rows of a part of N.
    rows_of_cta, height, cycle = {
        (256, 2, False): (128, 32, 4),
        (128, 2, False): (64, 32, 2),
        (128, 1, False): (128, 32, 4),
        (128, 1, True): (128, 32, 4),
        (64, 1, False): (64, 16, 4),
        (64, 1, True): (64, 32, 2),
        (32, 1, True): (32, 32, 1),
    }[case.m, case.group, case.ws]
    found = []
    for cta, warp in product(range(case.group), range(4)):
        row = rows_of_cta * cta + height * (warp % cycle)
        lanes = slice(32 * warp, 32 * warp + height)
        rows = slice(row, row + height)
        found.append(Stretch(cta, lanes, rows, warp // cycle, 4 // cycle))
    return found


def random_operand(
    rng: np.random.Generator, dtype: np.dtype[np.generic], shape: tuple[int, int]
) -> NDArray[np.generic]:
    """Small integers, so that every product and sum is exact."""
    low = 0 if dtype == np.uint8 else -4
    return rng.integers(low, 5, shape).astype(dtype)


A_COLUMN = 192


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
        image = np.zeros(IMAGE_BYTES if case.n > 64 else B_OFFSET + 8192, np.uint8)
        a_place.write(image, a[cta * rows_a :][:rows_a])
        b_place.write(image, b[cta * rows_b :][:rows_b])
        images.append(image)
    columns = COLUMNS if case.ts or case.n > 64 else 96
    initial = rng.integers(-50, 50, (case.group, 128, columns))
    words = encode(initial, case.d_type)
    if case.ts:
        a_words = np.ascontiguousarray(a).view(np.uint32)
        for one in stretches(case):
            words[one.cta, one.lanes, A_COLUMN:][:, : a_words.shape[1]] = a_words[one.rows]
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
    result = sign * (a.astype(np.float64) @ b.astype(np.float64).T) + 0.0  # no negative zeros
    expected = words.copy()
    for one in stretches(case):
        width = case.n // one.parts
        new = result[one.rows, one.part * width :][:, :width]
        if case.added:
            new = new + initial[one.cta, one.lanes, :width] * 2.0**-case.scale
        expected[one.cta, one.lanes, :width] = encode(new, case.d_type)
    for number, word in enumerate(case.kept):
        cta, first = divmod(32 * number, 128)
        kept = [first + bit for bit in range(32) if word >> bit & 1]
        expected[cta, kept] = words[cta, kept]
    return found, expected, outcome


def encode(values: NDArray[np.generic], d_type: str) -> NDArray[np.uint32]:
    """Cells of D."""
    if d_type == "f32":
        return values.astype(np.float32).view(np.uint32)
    if d_type == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return values.astype(np.int32).view(np.uint32)


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


# Order of operations and seeded bugs. Everything below multiplies the same small tile.

SMALL = Case()
EVERY = 1000
A_PLACE, B_PLACE = Placed(128, False, 0), Placed(128, False, B_OFFSET)
BF16 = "tcgen05.mma.cta_group::1.kind::f16"
SS = Form(BF16)


def small_operation(
    *,
    a: int = A_PLACE.descriptor(128, 16),
    b: int = B_PLACE.descriptor(64, 16),
    d: int = 0,
    descriptor: int = SMALL.descriptor,
    added: bool = False,
) -> Operation:
    """A product of ones: every element of D is 16."""
    return Operation(a, b, d, descriptor, added)


def ones_image() -> NDArray[np.uint8]:
    image = np.zeros(IMAGE_BYTES, np.uint8)
    ones = np.ones((128, 16), ml_dtypes.bfloat16)
    A_PLACE.write(image, ones)
    B_PLACE.write(image, ones[:64])
    return image


def run_small(
    operations: list[Operation],
    *edits: tuple[str, str, int],
    form: Form = SS,
    checks: Checks | None = None,
    initial: NDArray[np.uint32] | None = None,
) -> tuple[NDArray[np.uint32], SimulationResult]:
    """Run products of ones in a kernel whose PTX has been edited: `(pattern, replacement, which match, or EVERY)`."""
    ptx = bench_ptx(form)
    for pattern, replacement, which in edits:
        matches = list(re.finditer(pattern, ptx))
        assert matches, pattern
        for match in reversed(matches if which == EVERY else [matches[which]]):
            ptx = ptx[: match.start()] + match.expand(replacement) + ptx[match.end() :]
    return run_bench(
        form, operations, images=[ones_image()], initial=initial, checks=checks, ptx=ptx
    )


def kinds(outcome: SimulationResult, severity: str = "error") -> set[str]:
    return {finding.kind for finding in outcome.findings if finding.severity == severity}


def floats(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    return words.view(np.float32)


AFTER = r"tcgen05\.fence::after_thread_sync;"
BEFORE = r"tcgen05\.fence::before_thread_sync;"
TRY_WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p, [^;]*;"
# The others go on behind it, together with the one that waits.
WAIT_OF_ONE_LANE = (
    r"{.reg .pred other; .reg .u32 lane; mov.u32 lane, %laneid; setp.ne.u32 other, lane, 0;"
    r"setp.ne.u32 p, lane, 0; @!other \g<0>}"
)

# What goes wrong -> how it is planted, and the finding that must name it.
SEEDED = {
    "no proxy fence": ((r"fence\.proxy\.async\.shared::cta;", "", 0), "proxy-fence"),
    "no wait for the commit": ((TRY_WAIT, "setp.eq.u32 p, 0, 0;", 0), "race"),
    "a wait of one lane": ((TRY_WAIT, WAIT_OF_ONE_LANE, 0), "race"),
    "no wait for the stores": ((r"tcgen05\.wait::st\.sync\.aligned;", "", 0), "race"),
    "no fence after the stores": ((BEFORE, "", 1), "race"),
    "no fence before the product": ((AFTER, "", 1), "tcgen05-fence"),
    "no fence before the loads": ((AFTER, "", 2), "tcgen05-fence"),
    "no wait for the loads": ((r"tcgen05\.wait::ld\.sync\.aligned;", "", EVERY), "race"),
    "no fence behind the loads": ((BEFORE, "", 2), "race"),
    "no barrier before dealloc": ((r"bar\.sync\s+0;", "", 2), "race"),
    "no wait before dealloc": ((TRY_WAIT, "setp.eq.u32 p, 0, 0;", 0), "tcgen05-alloc"),
    "no elect": ((r"elect\.sync _\|p, -1;", "setp.eq.u32 p, 0, 0;", 0), "tcgen05-issue"),
    "no store": ((r"tcgen05\.st\.sync[^;]*;", "", 0), "uninitialised"),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_bug_is_found(name: str) -> None:
    edit, kind = SEEDED[name]
    _, outcome = run_small([small_operation(added=True)], edit)
    assert kind in kinds(outcome)


def test_without_a_bug_nothing_is_found() -> None:
    found, outcome = run_small([small_operation(added=True)])
    assert outcome.findings == ()
    assert (floats(found[0])[:, :64] == 16).all()


def test_a_cta_that_ends_before_its_product_is_found() -> None:
    _, outcome = run_small(
        [small_operation()],
        (TRY_WAIT, "setp.eq.u32 p, 0, 0;", 0),
        (r"@?\S*\s*tcgen05\.dealloc[^;]*;", "", 0),
    )
    assert {"tcgen05-in-flight", "tcgen05-alloc"} <= kinds(outcome)


def test_generic_addresses_of_commit_and_alloc() -> None:
    generic = r"{.reg .b64 g; cvt.u64.u32 g, \2; cvta.shared.u64 g, g; \1 [g]"
    found, outcome = run_small(
        [small_operation()],
        (r"(tcgen05\.commit\S*)\.shared::cluster\.b64 \[(%r\d+)\]", generic, 0),
        (r"mbarrier::arrive::one \[g\];", "mbarrier::arrive::one.b64 [g];}", 0),
        (r"(tcgen05\.alloc\S*)\.shared::cta\.b32 \[(%r\d+)\]", generic, 0),
        (r"sync\.aligned \[g\], 512;", "sync.aligned.b32 [g], 512;}", 0),
    )
    assert outcome.findings == ()
    assert (floats(found[0])[:, :64] == 16).all()


@pytest.mark.parametrize("schedule", ["eager", "pct:1", "pct:2", "pct:3"])
def test_every_schedule_gives_the_same_result(schedule: str) -> None:
    operations = [small_operation(), *[small_operation(added=True)] * 3]
    found, outcome = run_bench(
        SS, operations, images=[ones_image()], schedule=parse_schedule(schedule)
    )
    assert outcome.findings == ()
    assert (floats(found[0])[:, :64] == 64).all()


def test_a_missing_fence_before_is_named_in_the_message() -> None:
    _, outcome = run_small([small_operation(added=True)], (BEFORE, "", 1))
    assert any("fence::before_thread_sync" in finding.message for finding in outcome.findings)


def test_in_practice_missing_fences_are_notes() -> None:
    edits = [(AFTER, "", 1), (BEFORE, "", 1), (AFTER, "", 1), (BEFORE, "", 1)]
    found, outcome = run_small([small_operation()], *edits, checks=Checks.practice())
    assert kinds(outcome) == set()
    assert kinds(outcome, "note") == {"tcgen05-fence"}
    assert (floats(found[0])[:, :64] == 16).all()


DESCRIPTORS = {
    "constant bits": (
        small_operation(a=A_PLACE.descriptor(128, 16) & ~(1 << 46)),
        "tcgen05-descriptor",
    ),
    "reserved bits": (
        small_operation(b=B_PLACE.descriptor(64, 16) | 1 << 55),
        "tcgen05-descriptor",
    ),
    "layout": (small_operation(b=B_PLACE.descriptor(64, 16) | 1 << 61), "tcgen05-descriptor"),
    "atoms of 32 bytes": (
        small_operation(b=B_PLACE.descriptor(64, 16) & ~(7 << 61) | 1 << 61),
        "tcgen05-descriptor",
    ),
    "base offset": (small_operation(b=B_PLACE.descriptor(64, 16) | 1 << 49), "tcgen05-descriptor"),
    "shape": (small_operation(descriptor=Case(m=96).descriptor), "tcgen05-descriptor"),
    "type": (small_operation(descriptor=SMALL.descriptor | 3 << 7), "tcgen05-descriptor"),
    "behind shared memory": (
        small_operation(b=B_PLACE.descriptor(64, 16) | 0x3FF0),
        "out-of-bounds",
    ),
    "lane": (small_operation(d=16 << 16), "tcgen05-address"),
    "column": (small_operation(d=480), "tcgen05-address"),
}


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_an_illegal_operand_is_found(name: str) -> None:
    operation, kind = DESCRIPTORS[name]
    _, outcome = run_small([operation])
    assert kinds(outcome) == {kind}


def test_half_of_the_lanes_may_start_at_lane_16() -> None:
    operation = small_operation(d=16 << 16, descriptor=Case(m=64).descriptor)
    found, outcome = run_small([operation])
    assert outcome.findings == ()
    lanes = [lane for lane in range(128) if (floats(found[0])[lane, :64] == 16).all()]
    assert lanes == [lane for lane in range(128) if lane % 32 >= 16]


def test_columns_that_are_not_allocated_are_found() -> None:
    edit = (r"(tcgen05\.alloc\S+ \[[^\]]*\]), 512;", r"\1, 256;", 0)
    _, outcome = run_small([small_operation(d=240)], edit)
    assert "tcgen05-address" in kinds(outcome)


TS = Form(BF16, a_in_tensor_memory=True)


def test_products_on_one_accumulator_run_in_order() -> None:
    found, outcome = run_small([small_operation(), *[small_operation(added=True)] * 3])
    assert outcome.findings == ()
    assert (floats(found[0])[:, :64] == 64).all()


def test_products_of_other_shapes_on_one_accumulator_race() -> None:
    other = small_operation(descriptor=Case(n=32).descriptor)
    _, outcome = run_small([small_operation(), other])
    assert kinds(outcome) == {"race"}
    _, outcome = run_small([small_operation(), other], checks=Checks.practice())
    assert kinds(outcome) == set()


def test_a_product_may_overwrite_a_of_an_earlier_one() -> None:
    """The rule that S(i+1) over P(i) needs: ISA 9.4, in one thread."""
    operations = [small_operation(a=128, d=0), small_operation(a=200, d=96)]
    ones = np.full((1, 128, COLUMNS), 0x3F803F80, np.uint32)  # pairs of 1.0 as bf16
    found, outcome = run_small(operations, form=TS, initial=ones)
    assert outcome.findings == ()
    assert (floats(found[0])[:, :64] == 16).all()
    assert (floats(found[0])[:, 96:160] == 16).all()


def test_a_product_must_not_read_what_an_earlier_one_writes_as_a() -> None:
    operations = [small_operation(a=128, d=0), small_operation(a=32, d=192)]
    ones = np.full((1, 128, COLUMNS), 0x3F803F80, np.uint32)
    _, outcome = run_small(operations, form=TS, initial=ones)
    assert kinds(outcome) == {"race"}


def test_a_and_d_of_half_the_lanes_start_at_the_same_lane() -> None:
    operation = small_operation(a=128, d=16 << 16, descriptor=Case(m=64).descriptor)
    _, outcome = run_small([operation], form=TS)
    assert kinds(outcome) == {"tcgen05-address"}


def test_narrow_n_with_a_in_tensor_memory_is_only_a_strict_finding() -> None:
    operation = small_operation(a=128, descriptor=Case(n=24).descriptor)
    _, outcome = run_small([operation], form=TS)
    assert kinds(outcome) == {"tcgen05-descriptor"}
    _, outcome = run_small([operation], form=TS, checks=Checks.practice())
    assert kinds(outcome) == set()


def test_integers_wrap_or_saturate() -> None:
    image = np.zeros(IMAGE_BYTES, np.uint8)
    hundred = np.full((128, 32), 100, np.int8)
    A_PLACE.write(image, hundred)
    B_PLACE.write(image, hundred[:64])
    descriptor = Case("i8", "s8", "s8", "s32").descriptor
    initial = np.full((1, 128, COLUMNS), 0x7FFFFFFF, np.uint32)
    operations = [
        small_operation(descriptor=descriptor, added=True, d=0),
        small_operation(descriptor=descriptor | 1 << 3, added=True, d=64),
    ]
    form = Form("tcgen05.mma.cta_group::1.kind::i8")
    found, outcome = run_bench(form, operations, images=[image], initial=initial)
    assert outcome.findings == ()
    assert (found[0, :, :64].view(np.int32) == 0x7FFFFFFF + 320000 - (1 << 32)).all()
    assert (found[0, :, 64:128].view(np.int32) == 0x7FFFFFFF).all()


def test_tf32_ignores_the_low_bits_of_a_float() -> None:
    image = np.zeros(IMAGE_BYTES, np.uint8)
    fine = np.full((128, 8), 1 + 2.0**-11, np.float32)
    A_PLACE.write(image, fine)
    B_PLACE.write(image, fine[:64])
    form = Form("tcgen05.mma.cta_group::1.kind::tf32")
    operation = small_operation(descriptor=Case("tf32", "tf32", "tf32").descriptor)
    found, _ = run_bench(form, [operation], images=[image])
    assert (floats(found[0])[:, :64] == 8).all()


COPIES: dict[str, tuple[int, int, Callable[[int], list[int]]]] = {
    "128x256b": (128, 8, lambda row: [row]),
    "128x128b": (128, 4, lambda row: [row]),
    "64x128b.warpx2::02_13": (64, 4, lambda row: [row, row + 64]),
    "64x128b.warpx2::01_23": (64, 4, lambda row: [row + row // 32 * 32, row + row // 32 * 32 + 32]),
    "32x128b.warpx4": (32, 4, lambda row: [row, row + 32, row + 64, row + 96]),
    "4x256b": (4, 8, lambda row: [32 * row]),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("swizzle", [0, 128])
def test_copies_reach_their_lanes(name: str, swizzle: int) -> None:
    rows, columns, lanes_of = COPIES[name]
    values = np.random.default_rng(5).integers(0, 256, (rows, 4 * columns)).astype(np.uint8)
    image = np.zeros(IMAGE_BYTES, np.uint8)
    place = Placed(swizzle, False, 0)
    place.write(image, values)
    form = Form(f"tcgen05.cp.cta_group::1.{name}")
    operation = Operation(place.descriptor(rows, 4 * columns), 0, 12)
    found, outcome = run_bench(form, [operation], images=[image])
    assert kinds(outcome) == set()
    assert kinds(outcome, "note") == ({"assumption"} if name == "4x256b" else set())
    expected = np.zeros((128, COLUMNS), np.uint32)
    for row in range(rows):
        for lane in lanes_of(row):
            expected[lane, 12 : 12 + columns] = values[row].view(np.uint32)
    np.testing.assert_array_equal(found[0], expected)


def test_a_pair_copies_into_both_tensor_memories() -> None:
    rng = np.random.default_rng(5)
    images = [rng.integers(0, 256, IMAGE_BYTES).astype(np.uint8) for _ in range(2)]
    form = Form("tcgen05.cp.cta_group::2.32x128b.warpx4")
    found, outcome = run_bench(
        form, [Operation(Placed(0, False, 0).descriptor(32, 16), 0)], images=images
    )
    assert outcome.findings == ()
    for image, words in zip(images, found, strict=True):
        np.testing.assert_array_equal(words[40:64, :4].ravel(), image[128:512].view(np.uint32))


def test_a_shift_moves_rows_of_one_warp_down() -> None:
    initial = np.arange(128 * COLUMNS, dtype=np.uint32).reshape(1, 128, COLUMNS)
    form = Form("tcgen05.shift.cta_group::1.down")
    found, outcome = run_bench(form, [Operation(0, 0, d=32 << 16 | 8)], initial=initial)
    assert kinds(outcome) == set()
    assert kinds(outcome, "note") == {"assumption"}
    expected = initial[0].copy()
    expected[33:64, 8:16] = initial[0, 32:63, 8:16]
    np.testing.assert_array_equal(found[0], expected)
    _, outcome = run_bench(form, [Operation(0, 0, d=16 << 16)], initial=initial)
    assert kinds(outcome) == {"tcgen05-address"}


def test_a_pair_needs_a_peer() -> None:
    ptx = bench_ptx(Case(m=256, group=2).form)
    lonely = re.sub(r"\.reqnctapercluster[^\n]*|\.explicitcluster", "", ptx)
    _, outcome = run_bench(
        Form(BF16), [small_operation(descriptor=Case(m=256).descriptor)], ptx=lonely
    )
    assert "tcgen05-issue" in kinds(outcome)


def test_a_commit_to_a_cta_that_the_cluster_does_not_have_is_found() -> None:
    form = Case(m=256, group=2).form
    ptx = re.sub(r"(mov\.b16\s+%rs\d+), 3;", r"\1, 7;", bench_ptx(form))
    operation = small_operation(descriptor=Case(m=256).descriptor)
    _, outcome = run_bench(form, [operation], images=[ones_image(), ones_image()], ptx=ptx)
    assert kinds(outcome) == {"tcgen05-issue"}
