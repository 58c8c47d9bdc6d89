"""Bulk copies: every element of boxes, clipping, multicast, reductions, groups; and every rule broken once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from mlagen.errors import UnsupportedPtxError
from mlagen.launch_record import TensorMapSpec
from mlagen.runtime.tensor_map import CLIPPED_OFFSETS, CLIPPED_ROWS, CLIPPED_WRAP_BYTES
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import Eager, Pct
from mlagen.sim.tensor_map import problems_of, region_of
from tests.sim.ptx_kernel import BASE, kinds, launch, only, prepare_barrier, wait_barrier

if TYPE_CHECKING:
    from tests.sim.ptx_kernel import Argument

RNG = np.random.default_rng(31)
BARRIER = BASE
TILE = 2048
COMMIT = "cp.async.bulk.commit_group;\n"
WAIT_READ = "cp.async.bulk.wait_group.read 0;\n"
WAIT = "cp.async.bulk.wait_group 0;\n"
LOAD = "cp.async.bulk.tensor.{0}d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{0}d.global.shared::cta.bulk_group"


def spec_of(
    address: int,
    array: np.ndarray,
    box: tuple[int, ...],
    *,
    swizzle: int = 0,
    element_type: str | None = None,
) -> TensorMapSpec:
    """A map of a whole array; the box innermost first."""
    return TensorMapSpec(
        address,
        element_type or array.dtype.name,
        array.shape[::-1],
        array.strides[-2::-1] if array.ndim > 1 else (),
        box,
        swizzle,
    )


def listed(coordinates: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, coordinates)) + "}"


def load_code(
    coordinates: tuple[int, ...], size: int, *, at: int = TILE, opcode: str = "", name: str = "map"
) -> str:
    """Announce and issue one load."""
    opcode = opcode or LOAD.format(len(coordinates))
    return (
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], {size};\n"
        f"{opcode} [{at}], [%x_{name}, {listed(coordinates)}], [{BARRIER}];\n"
    )


def copy_out(size: int, *, at: int = TILE) -> str:
    """All threads copy shared memory to the argument `out`, 4 bytes each."""
    return f"""
shl.b32 %r1, %r0, 2;
copy: setp.ge.u32 %p0, %r1, {size};
@%p0 bra copied;
ld.shared.u32 %r2, [%r1+{at}];
cvt.u64.u32 %x0, %r1;
add.u64 %x0, %x0, %x_out;
st.global.u32 [%x0], %r2;
add.u32 %r1, %r1, 128;
bra copy;
copied:
"""


def copy_in(size: int, *, at: int = TILE) -> str:
    """All threads copy the argument `given` to shared memory, visible to the async proxy."""
    return f"""
shl.b32 %r1, %r0, 2;
fill: setp.ge.u32 %p0, %r1, {size};
@%p0 bra filled;
cvt.u64.u32 %x0, %r1;
add.u64 %x0, %x0, %x_given;
ld.global.u32 %r2, [%x0];
st.shared.u32 [%r1+{at}], %r2;
add.u32 %r1, %r1, 128;
bra fill;
filled:
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def load(
    array: np.ndarray,
    box: tuple[int, ...],
    coordinates: tuple[int, ...],
    *,
    swizzle: int = 0,
    element_type: str | None = None,
    spec: TensorMapSpec | None = None,
    opcode: str = "",
    rows: int | None = None,
    **options: Any,
) -> tuple[np.ndarray, list[str]]:
    """One load of a box: what lies in shared memory then, `[rows, elements of a row]`, and findings."""
    memory = GlobalMemory()
    address = memory.add(array, "tensor", read_only=True)
    if spec is None:
        spec = spec_of(address, array, box, swizzle=swizzle, element_type=element_type)
    lines = rows or int(np.prod(box[1:]))
    pitch = swizzle or box[0] * array.itemsize
    out = np.zeros(lines * pitch, np.uint8)
    size = lines * box[0] * array.itemsize
    body = prepare_barrier(BARRIER) + only(0, load_code(coordinates, size, opcode=opcode))
    body += wait_barrier(BARRIER) + copy_out(out.nbytes)
    result = launch(body, {"map": spec, "out": out}, memory=memory, **options)
    return out.view(array.dtype).reshape(lines, -1), kinds(result)


def box_of(array: np.ndarray, box: tuple[int, ...], coordinates: tuple[int, ...]) -> np.ndarray:
    """A box, element by element; zeros outside of the array."""
    found = np.zeros(box[::-1], array.dtype)
    for place in itertools.product(*(range(extent) for extent in box[::-1])):
        index = tuple(start + step for start, step in zip(coordinates[::-1], place, strict=True))
        if all(0 <= one < extent for one, extent in zip(index, array.shape, strict=True)):
            found[place] = array[index]
    return found.reshape(-1, box[0])


def integers(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return RNG.integers(1, 100, shape).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "box", "coordinates"),
    [
        ((100,), (64,), (0,)),
        ((100,), (64,), (-8,)),
        ((100,), (64,), (72,)),
        ((20, 64), (64, 8), (0, 4)),
        ((20, 64), (32, 8), (48, 15)),
        ((20, 64), (32, 8), (-16, -3)),
        ((20, 64), (32, 8), (64, 0)),
        ((5, 7, 16), (16, 3, 2), (0, 5, -1)),
        ((3, 4, 5, 16), (16, 2, 3, 2), (8, 4, 2, 1)),
        ((2, 3, 4, 5, 8), (8, 4, 2, 2, 2), (0, 2, 3, -1, 1)),
    ],
)
def test_boxes_and_what_lies_outside(
    shape: tuple[int, ...], box: tuple[int, ...], coordinates: tuple[int, ...]
) -> None:
    # Rows of 16 more bytes than the tensor has, so that no stride is that of a dense array.
    array = integers(*shape[:-1], shape[-1] + 8)[..., : shape[-1]]
    found, findings = load(array, box, coordinates)
    assert findings == []
    np.testing.assert_array_equal(found, box_of(array, box, coordinates))


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.bfloat16, np.float32])
def test_swizzles(swizzle: int, dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    columns = swizzle // size
    array = integers(40, 3 * columns, dtype=dtype)
    found, findings = load(array, (columns, 16), (columns, 3), swizzle=swizzle)
    assert findings == []
    chunks = found.view(np.uint8).reshape(16, swizzle // 16, 16)
    expected = box_of(array, (columns, 16), (columns, 3)).view(np.uint8).reshape(chunks.shape)
    for row, chunk in np.ndindex(chunks.shape[:2]):
        line = row * swizzle // 128
        np.testing.assert_array_equal(
            chunks[row, chunk ^ line & swizzle // 16 - 1], expected[row, chunk]
        )


def test_order_of_dimensions_is_free() -> None:
    """Heads before tokens: a stride that is smaller than the one before."""
    array = integers(2, 30, 3, 16)  # [batch, token, head, column]
    moved = array.transpose(0, 2, 1, 3)
    found, findings = load(moved, (16, 8, 1, 1), (0, 25, 2, 1))
    assert findings == []
    np.testing.assert_array_equal(found, box_of(moved, (16, 8, 1, 1), (0, 25, 2, 1)))


def clipped(address: int, array: np.ndarray, rows: int) -> TensorMapSpec:
    """A map whose boxes end where a sequence does: `runtime.tensor_map`, addressing `clipped`."""
    row = array.strides[0]
    return TensorMapSpec(
        address,
        array.dtype.name,
        (array.shape[1], CLIPPED_ROWS, CLIPPED_OFFSETS, CLIPPED_OFFSETS),
        (row, CLIPPED_WRAP_BYTES - row, row),
        (array.shape[1], rows, 1, 1),
        128,
    )


def clipped_at(offset: int, length: int, row: int) -> tuple[int, ...]:
    return (0, CLIPPED_ROWS - length + row, CLIPPED_ROWS, offset + length)


@pytest.mark.parametrize(
    ("length", "row", "valid"), [(20, 0, 8), (20, 8, 8), (20, 16, 4), (20, 24, 0)]
)
def test_maps_that_clip_at_the_end_of_a_sequence(length: int, row: int, valid: int) -> None:
    """As on an H200: rows past a sequence are zeros on loads and untouched by stores, with all bytes signalled."""
    array = integers(100, 64, dtype=ml_dtypes.bfloat16)
    region = region_of(clipped(1 << 40, array, 8), clipped_at(37, length, row))
    if valid:
        assert region is not None
        assert region.address == (1 << 40) + (37 + row) * 128
        assert region.shape == (1, 1, valid, 128)
    else:
        assert region is None
    memory = GlobalMemory()
    address = memory.add(array, "tensor")
    before = array.copy()
    given = integers(8, 64, dtype=ml_dtypes.bfloat16)
    tile = np.zeros_like(given)
    for line, chunk in np.ndindex(8, 8):
        tile[line, 8 * (chunk ^ line) : 8 * (chunk ^ line) + 8] = given[line, 8 * chunk :][:8]
    store = f"{STORE.format(4)} [%x_map, {listed(clipped_at(37, length, row))}], [{TILE}];\n"
    body = copy_in(1024) + only(0, store + COMMIT + WAIT_READ)
    arguments: dict[str, Argument] = {
        "map": clipped(address, array, 8),
        "given": tile.view(np.uint16),
    }
    assert kinds(launch(body, arguments, memory=memory)) == []
    before[37 + row : 37 + row + valid] = given[:valid]
    np.testing.assert_array_equal(array, before)


def test_coordinates_of_no_page_give_zeros() -> None:
    array = integers(4, 16, 8)
    for page in (4, -1, 2**31 - 1, -(2**31)):
        found, findings = load(array, (8, 16, 1), (0, 0, page))
        assert findings == []
        assert not found.any()


@pytest.mark.parametrize("mask", [0b01, 0b10, 0b11])
def test_multicast(mask: int) -> None:
    """Rank 1 loads for the CTAs of a mask; each has announced the bytes and finds them at the same place."""
    array = integers(8, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8))
    out = np.zeros((2, 1024), np.uint8)
    opcode = LOAD.format(2) + ".multicast::cluster"
    body = (
        "mov.u32 %r9, %cluster_ctarank;\nmul.wide.u32 %x5, %r9, 1024;\nadd.u64 %x_out, %x_out, %x5;\n"
        + prepare_barrier(BARRIER)
        + f"shr.u32 %r8, {mask}, %r9;\nand.b32 %r8, %r8, 1;\n"
        + only(0, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], 1024;\n")
        + "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        + f"mov.b16 %h0, {mask};\nsetp.ne.u32 %p3, %r9, 1;\n@%p3 bra loaded;\n"
        + only(0, f"{opcode} [{TILE}], [%x_map, {{0, 0}}], [{BARRIER}], %h0;\n")
        + "loaded:\nsetp.eq.u32 %p4, %r8, 0;\n@%p4 bra done;\n"
        + wait_barrier(BARRIER)
        + copy_out(1024)
        + "done:\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
    )
    result = launch(body, {"map": spec, "out": out}, memory=memory, cluster=2)
    # A CTA that the mask leaves out has announced bytes that never come.
    assert kinds(result) == ["mbarrier-exit"] * (2 - mask.bit_count())
    for rank in range(2):
        chosen = mask >> rank & 1
        expected = array.view(np.uint8).ravel() if chosen else np.zeros(1024, np.uint8)
        np.testing.assert_array_equal(out[rank], expected)


def pair_body(opcode: str, mask: str) -> str:
    """Both CTAs of a pair load into their own memory and count on the barrier of rank 0."""
    return (
        "mov.u32 %r9, %cluster_ctarank;\nmul.wide.u32 %x5, %r9, 1024;\nadd.u64 %x_out, %x_out, %x5;\n"
        + prepare_barrier(BARRIER)
        + "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        + f"mapa.shared::cluster.u32 %r10, {BARRIER}, 0;\nmapa.shared::cluster.u32 %r11, {TILE}, %r9;\n"
        + "setp.ne.u32 %p5, %r9, 0;\n@%p5 bra announced;\n"
        + only(0, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], 2048;\n")
        + "announced:\nshl.b32 %r12, %r9, 3;\n"
        + mask
        + only(0, f"{opcode} [%r11], [%x_map, {{0, %r12}}], [%r10]{', %h0' if mask else ''};\n")
        + "issued:\nsetp.ne.u32 %p6, %r9, 0;\n@%p6 bra waited;\n"
        + wait_barrier(BARRIER)
        + "waited:\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        + copy_out(1024)
    )


def test_a_pair_counts_on_one_barrier() -> None:
    array = integers(16, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8))
    out = np.zeros((2, 1024), np.uint8)
    for opcode, mask in (
        (".cta_group::2", ""),
        (
            ".multicast::cluster.cta_group::2",
            "setp.ne.u32 %p7, %r9, 1;\n@%p7 bra issued;\nmov.b16 %h0, 3;\n",
        ),
    ):
        out[...] = 0
        result = launch(
            pair_body(LOAD.format(2) + opcode, mask),
            {"map": spec, "out": out},
            memory=memory,
            cluster=2,
            arch="sm_100a",
        )
        assert kinds(result) == []
        halves = array.view(np.uint8).reshape(2, 1024)
        np.testing.assert_array_equal(out, halves[[1, 1]] if mask else halves)
    # On Hopper a barrier must lie with the data.
    result = launch(
        pair_body(LOAD.format(2), ""), {"map": spec, "out": out}, memory=memory, cluster=2
    )
    assert "bulk-barrier" in kinds(result)


def test_gather_and_scatter_of_four_rows() -> None:
    array = integers(50, 64)
    rows = (7, -1, 49, 50)
    opcode = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    found, findings = load(array, (32, 1), (16, *rows), opcode=opcode, rows=4, arch="sm_100a")
    assert findings == []
    expected = np.zeros((4, 32), np.float16)
    expected[0], expected[2] = array[7, 16:48], array[49, 16:48]
    np.testing.assert_array_equal(found, expected)
    before = array.copy()
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor"), array, (32, 1))
    given = integers(4, 32)
    store = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    body = copy_in(256) + only(
        0, f"{store} [%x_map, {{16, 3, 60, 5, 4}}], [{TILE}];\n" + COMMIT + WAIT_READ
    )
    result = launch(body, {"map": spec, "given": given}, memory=memory, arch="sm_100a")
    assert kinds(result) == []
    before[[3, 5, 4], 16:48] = given[[0, 2, 3]]
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("coordinates", [(0, 0), (32, 4), (48, 18)])
def test_stores_write_what_lies_inside(coordinates: tuple[int, int]) -> None:
    array = integers(20, 64)
    given = integers(8, 32)
    expected = array.copy()
    part = expected[coordinates[1] : coordinates[1] + 8, coordinates[0] : coordinates[0] + 32]
    part[...] = given[: part.shape[0], : part.shape[1]]
    for schedule in (Eager(), Pct(1, 2)):
        copy = array.copy()
        memory = GlobalMemory()
        spec = spec_of(memory.add(copy, "tensor"), copy, (32, 8))
        store = f"{STORE.format(2)} [%x_map, {listed(coordinates)}], [{TILE}];\n"
        body = copy_in(512) + only(0, store + COMMIT + WAIT_READ)
        result = launch(body, {"map": spec, "given": given}, memory=memory, schedule=schedule)
        assert kinds(result) == []
        np.testing.assert_array_equal(copy, expected)


TENSOR_REDUCTIONS = [
    ("add", np.float32),
    ("add", np.float16),
    ("add", ml_dtypes.bfloat16),
    ("add", np.uint32),
    ("add", np.int64),
    ("min", np.float16),
    ("max", ml_dtypes.bfloat16),
    ("min", np.int32),
    ("max", np.uint64),
    ("and", np.uint32),
    ("or", np.int32),
    ("xor", np.uint64),
    ("inc", np.uint32),
    ("dec", np.uint32),
]


def combined(name: str, old: Any, new: Any) -> Any:
    """One element of a reduction, in Python."""
    if name == "add":
        return old + new
    if name in {"min", "max"}:
        return min(old, new) if name == "min" else max(old, new)
    if name == "inc":
        return 0 if old >= new else old + 1
    if name == "dec":
        return new if old == 0 or old > new else old - 1
    a, b = int(old), int(new)
    return a & b if name == "and" else a | b if name == "or" else a ^ b


@pytest.mark.parametrize(("name", "dtype"), TENSOR_REDUCTIONS)
def test_reductions_of_tensors(name: str, dtype: Any) -> None:
    array = RNG.integers(0, 50, (12, 16)).astype(dtype)
    given = RNG.integers(0, 50, (8, 16)).astype(dtype)
    expected = array.copy()
    for row, column in np.ndindex(4, 16):
        old, new = array[8 + row, column], given[row, column]
        expected[8 + row, column] = combined(name, old, new)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor"), array, (16, 8))
    opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.tile.bulk_group"
    code = f"{opcode} [%x_map, {{0, 8}}], [{TILE}];\n" + COMMIT + WAIT
    body = copy_in(given.nbytes) + only(0, code)
    result = launch(body, {"map": spec, "given": given.view(np.uint8)}, memory=memory)
    assert kinds(result) == []
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("suffix", "dtype"),
    [
        ("add.f32", np.float32),
        ("add.f64", np.float64),
        ("add.noftz.bf16", ml_dtypes.bfloat16),
        ("min.s32", np.int32),
        ("max.noftz.f16", np.float16),
        ("xor.b64", np.uint64),
        ("inc.u32", np.uint32),
        ("add.u64", np.uint64),
    ],
)
def test_reductions_of_bytes(suffix: str, dtype: Any) -> None:
    array = RNG.integers(0, 50, 64).astype(dtype)
    given = RNG.integers(0, 50, 32).astype(dtype)
    expected = array.copy()
    for number in range(32):
        old, new = array[16 + number], given[number]
        expected[16 + number] = combined(suffix.split(".")[0], old, new)
    size = given.nbytes
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{suffix}"
    code = f"add.u64 %x1, %x_array, {16 * given.itemsize};\n"
    code += f"{opcode} [%x1], [{TILE}], {size};\n" + COMMIT + WAIT
    body = copy_in(size) + only(0, code)
    result = launch(body, {"array": array.view(np.uint8), "given": given.view(np.uint8)})
    assert kinds(result) == []
    np.testing.assert_array_equal(array, expected)


def test_plain_copies() -> None:
    given = RNG.integers(0, 256, 512, dtype=np.uint8)
    out = np.zeros(512, np.uint8)
    load_it = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    body = prepare_barrier(BARRIER) + only(
        0,
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], 496;\n"
        f"mov.b64 %x4, 0;\n{load_it} [{TILE}], [%x_given], 496, [{BARRIER}], %x4;\n",
    )
    body += wait_barrier(BARRIER)
    body += only(
        0,
        f"cp.async.bulk.global.shared::cta.bulk_group [%x_out], [{TILE + 16}], 480;\n"
        + COMMIT
        + WAIT,
    )
    assert kinds(launch(body, {"given": given, "out": out})) == []
    np.testing.assert_array_equal(out[:480], given[16:496])
    assert not out[480:].any()


@pytest.mark.parametrize("reduces", [False, True])
def test_copies_to_a_peer(reduces: bool) -> None:
    """Rank 0 sends its numbers to rank 1, which waits on its own barrier."""
    given = np.arange(256, dtype=np.uint32)
    out = np.zeros((2, 256), np.uint32)
    name = "cp.reduce.async.bulk" if reduces else "cp.async.bulk"
    opcode = f"{name}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    opcode += ".add.u32" if reduces else ""
    there = TILE if reduces else 4 * TILE
    body = (
        "mov.u32 %r9, %cluster_ctarank;\nmul.wide.u32 %x5, %r9, 1024;\nadd.u64 %x_out, %x_out, %x5;\n"
        + prepare_barrier(BARRIER)
        + copy_in(1024)
        + only(0, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], 1024;\n")
        + "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        + f"mapa.shared::cluster.u32 %r10, {BARRIER}, 1;\nmapa.shared::cluster.u32 %r11, {there}, 1;\n"
        + "setp.ne.u32 %p3, %r9, 0;\n@%p3 bra sent;\n"
        + only(0, f"{opcode} [%r11], [{TILE}], 1024, [%r10];\n")
        + "bra done;\nsent:\n"
        + wait_barrier(BARRIER)
        + copy_out(1024, at=there)
        + "done:\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
    )
    result = launch(body, {"given": given, "out": out}, cluster=2, shared=65536)
    assert kinds(result) == ["mbarrier-exit"]  # rank 0 announced bytes that nobody sends
    np.testing.assert_array_equal(out[1], given * (2 if reduces else 1))


# Rules.


def one_load(
    coordinates: tuple[int, ...] = (0, 0), *, size: int = 1024, before: str = "", **options: Any
) -> list[str]:
    array = integers(8, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8))
    out = np.zeros(1024, np.uint8)
    at = options.pop("at", TILE)
    body = prepare_barrier(BARRIER) + before + only(0, load_code(coordinates, size, at=at))
    body += options.pop("wait", wait_barrier(BARRIER)) + options.pop("after", copy_out(1024))
    return kinds(launch(body, {"map": spec, "out": out}, memory=memory, **options))


def test_the_rules_kept() -> None:
    assert one_load() == []


def test_wrong_counts_of_bytes() -> None:
    assert one_load(size=2048) == ["deadlock"]
    assert "mbarrier-bytes" in one_load(size=512)


def test_reading_before_the_data_have_come() -> None:
    found = one_load(wait="")
    assert {"in-flight", "race"} <= set(found)
    assert "exit-in-flight" in found


def test_destinations_that_do_not_fit() -> None:
    assert one_load(at=TILE + 64)[0] == "misaligned"
    assert "out-of-bounds" in one_load(at=1024 + 32768 - 512)
    assert "out-of-bounds" in one_load(at=0)


def test_every_lane_that_issues_a_copy_issues_one() -> None:
    """Without an elected lane 32 copies come where one was announced: they race, and nobody waits for all."""
    array = integers(8, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8))
    body = prepare_barrier(BARRIER)
    body += only(0, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], 1024;\n")
    body += (
        f"bar.warp.sync 0xffffffff;\n{LOAD.format(2)} [{TILE}], [%x_map, {{0, 0}}], [{BARRIER}];\n"
    )
    found = launch(body + wait_barrier(BARRIER), {"map": spec}, memory=memory)
    assert found.counters.operations == 32
    assert {"race", "in-flight", "exit-in-flight"} <= set(kinds(found))


def test_a_box_that_begins_inside_its_pattern_is_noted() -> None:
    array = integers(32, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8), swizzle=128)
    out = np.zeros(1024, np.uint8)
    body = prepare_barrier(BARRIER) + only(0, load_code((0, 0), 1024, at=TILE + 128))
    body += wait_barrier(BARRIER) + copy_out(1024, at=TILE + 128)
    result = launch(body, {"map": spec, "out": out}, memory=memory)
    assert [(one.kind, one.severity) for one in result.findings] == [("misaligned", "note")]
    row = out.view(np.float16)[:64].reshape(8, 8)  # the second line of the pattern
    np.testing.assert_array_equal(row[[1, 0, 3, 2, 5, 4, 7, 6]].ravel(), array[0])


def test_a_tensor_that_is_not_there() -> None:
    """Rows of the map that are no memory are reported with the buffer's name."""
    array = integers(8, 64)
    memory = GlobalMemory()
    address = memory.add(array, "scores", read_only=True)
    spec = TensorMapSpec(address, "float16", (64, 9), (128,), (64, 8), 0)
    out = np.zeros(1024, np.uint8)
    body = prepare_barrier(BARRIER) + only(0, load_code((0, 1), 1024))
    body += wait_barrier(BARRIER) + copy_out(1024)
    (finding,) = launch(body, {"map": spec, "out": out}, memory=memory).findings
    assert finding.kind == "out-of-bounds"
    assert "128 of 1024 of scores" in finding.message
    assert (out == 0xFF).all()


def test_maps_that_no_encoder_accepts() -> None:
    right = TensorMapSpec(1 << 40, "bfloat16", (64, 8), (128,), (64, 8), 128)
    assert problems_of(right) == ()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"address": (1 << 40) + 8}, "address"),
        ({"element_type": "float4"}, "element type"),
        ({"dims": (64, 0)}, "dimension 1 has 0"),
        ({"dims": (64, 2**32 + 1)}, "dimension 1"),
        ({"strides_bytes": (120,)}, "stride 120"),
        ({"strides_bytes": (1 << 40,)}, "stride"),
        ({"strides_bytes": ()}, "0 strides"),
        ({"box": (64, 257)}, "257"),
        ({"box": (4, 8)}, "8 bytes"),
        ({"box": (64, 8, 1)}, "box of 3"),
        ({"swizzle_bytes": 64}, "its swizzle 64"),
        ({"swizzle_bytes": 96}, "swizzle of 96"),
        ({"dims": (1,) * 6, "strides_bytes": (16,) * 5, "box": (8,) * 6}, "6 dimensions"),
    ]
    for change, text in wrong:
        values = {name: getattr(right, name) for name in right.__slots__} | change
        (problem,) = problems_of(TensorMapSpec(**values))
        assert text in problem


def test_maps_that_do_not_fit_the_instruction() -> None:
    array = integers(8, 64)
    memory = GlobalMemory()
    spec = spec_of(memory.add(array, "tensor", read_only=True), array, (64, 8))
    copies = [
        load_code((0, 0, 0), 1024),  # three coordinates for two dimensions
        f"{LOAD.format(2)} [{TILE}], [%x_out, {{0, 0}}], [{BARRIER}];\n",  # no map
        f"add.u64 %x_map, %x_map, 64;\n{LOAD.format(2)} [{TILE}], [%x_map, {{0, 0}}], [{BARRIER}];\n",
    ]
    for code in copies:
        out = np.zeros(1024, np.uint8)
        body = prepare_barrier(BARRIER) + only(0, code)
        assert "tensor-map" in kinds(launch(body, {"map": spec, "out": out}, memory=memory))


def stores(code: str, *, level: str = "strict", **options: Any) -> list[str]:
    """Findings of code for thread 0 behind a published tile of 512 bytes."""
    array = integers(20, 64)
    memory = GlobalMemory()
    spec = spec_of(
        memory.add(array, "tensor", read_only=options.pop("read_only", False)), array, (32, 8)
    )
    arguments: dict[str, Argument] = {"map": spec, "given": integers(8, 32)}
    body = options.pop("begin", copy_in(512)) + only(0, code)
    return kinds(launch(body, arguments, memory=memory, level=level, **options))


ONE_STORE = f"{STORE.format(2)} [%x_map, {{0, 0}}], [{TILE}];\n"
WRITE = f"mov.u32 %r5, 1;\nst.shared.u32 [{TILE}], %r5;\n"


def test_groups_of_stores() -> None:
    assert stores(ONE_STORE + COMMIT + WAIT_READ) == []
    assert stores(ONE_STORE + COMMIT + WAIT) == []
    assert stores(ONE_STORE + COMMIT) == ["exit-in-flight"]
    assert stores(ONE_STORE + WAIT_READ) == ["exit-in-flight"]
    second = f"{STORE.format(2)} [%x_map, {{0, 8}}], [{TILE}];\n"
    two = ONE_STORE + COMMIT + second + COMMIT
    assert stores(two + "cp.async.bulk.wait_group.read 1;\n") == ["exit-in-flight"]
    assert stores(two + "cp.async.bulk.wait_group.read 1;\n" + WAIT_READ) == []


def test_the_source_is_overwritten_too_early() -> None:
    assert stores(ONE_STORE + COMMIT + WAIT_READ + WRITE) == []
    assert stores(ONE_STORE + COMMIT + WRITE + WAIT_READ) == ["race"]
    assert stores(ONE_STORE + COMMIT + "cp.async.bulk.wait_group.read 1;\n" + WRITE + WAIT) == [
        "race"
    ]


def test_only_a_full_wait_makes_written_memory_readable() -> None:
    read = "ld.global.u32 %r6, [%x_given];\n"
    store = f"cp.async.bulk.global.shared::cta.bulk_group [%x_given], [{TILE}], 512;\n" + COMMIT
    assert stores(store + WAIT + read) == []
    assert stores(store + WAIT_READ + read) == ["race"]


def test_the_source_is_not_visible() -> None:
    unfenced = copy_in(512).replace("fence.proxy.async.shared::cta;", "")
    assert stores(ONE_STORE + COMMIT + WAIT, begin=unfenced) == ["proxy-fence"]
    assert stores(ONE_STORE + COMMIT + WAIT, begin="") == ["uninitialised"]


def test_stores_that_may_not_be() -> None:
    assert stores(ONE_STORE + COMMIT + WAIT, read_only=True) == ["read-only"]
    negative = f"{STORE.format(2)} [%x_map, {{-8, 0}}], [{TILE}];\n" + COMMIT + WAIT
    assert stores(negative) == ["tensor-coordinates"]
    short = f"cp.async.bulk.global.shared::cta.bulk_group [%x_given], [{TILE}], 8;\n"
    assert stores(short) == ["bad-operand"]
    skewed = f"cp.async.bulk.global.shared::cta.bulk_group [%x_given+8], [{TILE}], 16;\n"
    assert stores(skewed + COMMIT + WAIT) == ["misaligned"]
    beyond = f"cp.async.bulk.global.shared::cta.bulk_group [%x_given+16], [{TILE}], 512;\n"
    assert stores(beyond + COMMIT + WAIT) == ["out-of-bounds"]


@pytest.mark.parametrize(
    "code",
    [
        f"{LOAD.format(3).replace('.mbarrier', '.im2col.mbarrier')} [0], [%x1, {{0, 0, 0}}], [0], {{0}};",
        "cp.async.bulk.tensor.2d.shared::cluster.global [0], [%x1, {0, 0}], [0];",
        "cp.async.bulk.tensor.2d.global.shared::cta.mbarrier::complete_tx::bytes [%x1, {0, 0}], [0];",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%x1], [0], 16, %h0;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%x1], [0], 16;",
        "cp.async.bulk.wait_group.write 0;",
    ],
)
def test_other_forms_are_refused(code: str) -> None:
    with pytest.raises(UnsupportedPtxError, match=code.split(" ")[0].split(".im2col")[0][:30]):
        launch(code, {})


@pytest.mark.parametrize(("column", "found"), [(8, []), (4, ["tensor-chunk"])])
def test_boxes_begin_at_multiples_of_16_bytes(column: int, found: list[str]) -> None:
    assert load(integers(8, 32), (16, 4), (column, 0))[1] == found
