"""Layouts against formulas written down a second time, element by element, and against each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlagen.sim.layout import (
    SWIZZLES,
    MatrixDescriptor,
    Swizzle,
    TileShape,
    box_chunks,
    decode_blackwell,
    decode_hopper,
    matrix_addresses,
    place_tile,
)
from mlagen.sim.wgmma_fragment import a_of_registers, d_of_registers, registers_of_d

SIZES = (1, 2, 4)
SPANS = (0, 32, 64, 128)
RNG = np.random.default_rng(5)


def cute_swizzle(bits: int, base: int, shift: int, address: int) -> int:
    """`Swizzle<bits, base, shift>` as CuTe defines it: a field of bits is xored with one that lies higher."""
    field = (1 << bits) - 1 << base
    return address ^ (address >> shift & field)


def cute_layout(coordinate: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Offset of a coordinate in one mode of a layout, first extent fastest."""
    offset = 0
    for extent, stride in zip(extents[:-1], strides[:-1], strict=True):
        offset += coordinate % extent * stride
        coordinate //= extent
    return offset + coordinate * strides[-1]


CUTE = {0: (0, 4, 3), 32: (1, 4, 3), 64: (2, 4, 3), 128: (3, 4, 3)}


def canonical(row: int, k: int, *, size: int, span: int, mn_major: bool, lbo: int, sbo: int) -> int:
    """Byte offset of an element by the tables of PTX ISA 9.7.15.5.1.2.1.3, before the swizzle; strides in bytes."""
    t = 16 // size
    w = span // 16
    if mn_major and span:
        # ((T, w, m), (8, k)) : ((1, T, LBO), (wT, SBO))
        return cute_layout(row, (t, w, 99), (size, 16, lbo)) + cute_layout(k, (8, 99), (span, sbo))
    if mn_major:
        # ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
        return cute_layout(row, (t, 1, 99), (size, 16, sbo)) + cute_layout(k, (8, 99), (16, lbo))
    if span:
        # ((8, m), (T, 2k)) : ((wT, SBO), (1, T))
        return cute_layout(row, (8, 99), (span, sbo)) + cute_layout(k, (t, 99), (size, 16))
    # ((8, m), (T, 2k)) : ((1T, SBO), (1, LBO))
    return cute_layout(row, (8, 99), (16, sbo)) + cute_layout(k, (t, 99), (size, lbo))


def test_the_swizzle_of_the_manual() -> None:
    swizzle = SWIZZLES[128]
    assert swizzle.apply(np.array([5 * 128 + 80])).tolist() == [640]
    rows = ["01234567", "10325476", "23016745", "32107654"]
    rows += ["45670123", "54761032", "67452301", "76543210"]
    for row, chunks in enumerate(rows):
        places = swizzle.apply(row * 128 + 16 * np.arange(8)) % 128 // 16
        assert "".join(map(str, places.tolist())) == chunks
    assert [one.repeat_bytes for one in SWIZZLES.values()] == [16, 256, 512, 1024]


@pytest.mark.parametrize("span", SPANS)
def test_a_swizzle_is_cutes_and_its_own_inverse(span: int) -> None:
    addresses = np.arange(0, 4096)
    swizzled = SWIZZLES[span].apply(addresses)
    assert swizzled.tolist() == [cute_swizzle(*CUTE[span], one) for one in addresses.tolist()]
    np.testing.assert_array_equal(SWIZZLES[span].apply(swizzled), addresses)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("mn_major", [False, True])
def test_tiles_are_canonical(size: int, span: int, mn_major: bool) -> None:
    """All N, at starts that are not multiples of the pattern, with strides that no dense tile has."""
    depth = 32 // size
    lbo, sbo = 3 * 1024 + 48, 5 * 1024 + 16
    for rows, start in itertools.product(range(8, 257, 8), (1024, 1024 + 32, 2048 + 384 + 16)):
        if mn_major and rows * size % 16:
            continue
        descriptor = MatrixDescriptor(start, lbo, sbo, SWIZZLES[span])
        addresses, cells = matrix_addresses(
            descriptor, rows, depth, element_bytes=size, mn_major=mn_major
        )
        assert addresses.shape == (rows, depth)
        chosen = {0, rows - 1, rows // 2, 7, int(RNG.integers(rows))}
        for row, k in itertools.product(sorted(chosen), range(depth)):
            offset = canonical(row, k, size=size, span=span, mn_major=mn_major, lbo=lbo, sbo=sbo)
            assert addresses[row, k] == cute_swizzle(*CUTE[span], start + offset)
        touched = (addresses[..., None] + np.arange(size)).ravel() // 4
        np.testing.assert_array_equal(cells, np.unique(touched))


def write_boxes(
    matrix: np.ndarray, memory: np.ndarray, start: int, swizzle: Swizzle, columns: int
) -> int:
    """Write `[lines, elements]` as boxes of some columns, one behind the other; returns the bytes of a box."""
    lines = len(matrix)
    row_bytes = columns * matrix.itemsize
    pitch = swizzle.span_bytes or row_bytes
    for number in range(matrix.shape[1] // columns):
        part = matrix[:, number * columns : (number + 1) * columns]
        address = start + number * lines * pitch
        chunks = box_chunks(lines, row_bytes, swizzle, address % 1024)
        data = np.ascontiguousarray(part).view(np.uint8)
        chunks.scatter(memory, address - address % 1024, data)
        np.testing.assert_array_equal(chunks.gather(memory, address - address % 1024), data)
    return lines * pitch


def integers(size: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 1 << 8 * size, shape).astype(f"u{size}")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("rows", [8, 64, 200])
def test_a_k_major_tile_is_what_a_copy_has_written(size: int, span: int, rows: int) -> None:
    """Boxes as wide as the swizzle; every step of 32 bytes in K, over two boxes."""
    depth = 32 // size
    swizzle = SWIZZLES[span]
    columns = (span or 16) // size
    k = max(2 * columns, 2 * depth)
    matrix = integers(size, rows, k)
    memory = np.zeros(1 << 17, np.uint8)
    box = write_boxes(matrix, memory, 2048, swizzle, columns)
    for step in range(k // depth):
        number, inside = divmod(step * depth, columns)
        start = 2048 + number * box + inside * size
        lbo, sbo = (0, 8 * span) if span else (box, 128)
        tile = place_tile(
            MatrixDescriptor(start, lbo, sbo, swizzle), TileShape(rows, depth, size, False)
        )
        expected = matrix[:, step * depth : (step + 1) * depth]
        np.testing.assert_array_equal(tile.gather(memory), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("rows", [128, 256])
def test_an_mn_major_tile_is_what_a_copy_has_written(size: int, span: int, rows: int) -> None:
    """Boxes of keys x a part of the columns; steps of K, panels by the leading offset."""
    depth = 32 // size
    swizzle = SWIZZLES[span]
    columns = (span or 16) // size
    matrix = integers(size, 2 * depth, rows)
    memory = np.zeros(1 << 17, np.uint8)
    box = write_boxes(matrix, memory, 1024, swizzle, columns)
    line = span or 16
    lbo, sbo = (box, 8 * line) if span else (8 * line, box)
    for step in range(2):
        start = 1024 + step * depth * line
        tile = place_tile(
            MatrixDescriptor(start, lbo, sbo, swizzle), TileShape(rows, depth, size, True)
        )
        expected = matrix[step * depth : (step + 1) * depth].T
        np.testing.assert_array_equal(tile.gather(memory), expected)


def test_rows_of_a_tile_have_their_own_cells() -> None:
    for size, span, mn_major in itertools.product(SIZES, SPANS, (False, True)):
        descriptor = MatrixDescriptor(2048, 8192, 1024, SWIZZLES[span])
        tile = place_tile(descriptor, TileShape(64, 32 // size, size, mn_major))
        for first in (0, 16, 48):
            mine = tile.addresses()[first : first + 16] // 4
            np.testing.assert_array_equal(np.unique(tile.cells_of_rows(first, 16)), np.unique(mine))


def test_a_box_narrower_than_its_swizzle_takes_whole_lines() -> None:
    chunks = box_chunks(4, 32, SWIZZLES[128], 0)
    assert chunks.index.tolist() == [[0, 1], [9, 8], [18, 19], [27, 26]]


@pytest.mark.parametrize(
    ("value", "span", "sbo"),
    [
        (0x40000040 << 32 | 0x80, 128, 1024),
        (0x80000020 << 32 | 0x80, 64, 512),
        (0xC0000010 << 32 | 0x80, 32, 256),
        (0x00000008 << 32 | 0x80, 0, 128),
    ],
)
def test_descriptors_of_hopper(value: int, span: int, sbo: int) -> None:
    descriptor, problems = decode_hopper(value | 0x123 << 16)
    assert problems == ()
    assert descriptor == MatrixDescriptor(2048, 0x1230, sbo, SWIZZLES[span])


@pytest.mark.parametrize(
    ("value", "span", "sbo"),
    [
        (0x40004040 << 32 | 0x80, 128, 1024),
        (0x80004020 << 32 | 0x80, 64, 512),
        (0xC0004010 << 32 | 0x80, 32, 256),
        (0x00004008 << 32 | 0x80, 0, 128),
    ],
)
def test_descriptors_of_blackwell(value: int, span: int, sbo: int) -> None:
    descriptor, problems = decode_blackwell(value | 0x123 << 16)
    assert problems == ()
    assert descriptor == MatrixDescriptor(2048, 0x1230, sbo, SWIZZLES[span])


def test_what_descriptors_must_not_hold() -> None:
    hopper, blackwell = 0x40000040 << 32, 0x40004040 << 32
    assert decode_hopper(blackwell)[1] == ("bits 46 to 48 are reserved and hold 0x1",)
    assert "bit 46 is 0" in decode_blackwell(hopper)[1][0]
    for bit in (14, 15, 30, 31, 46, 47, 48, 52, 55, 61):
        assert len(decode_hopper(hopper | 1 << bit)[1]) == 1, bit
    for bit in (14, 15, 30, 31, 47, 48, 52, 53, 60):
        assert len(decode_blackwell(blackwell | 1 << bit)[1]) == 1, bit
    for decode, value in ((decode_hopper, hopper), (decode_blackwell, blackwell)):
        assert decode(value | 3 << 49)[1][0].startswith("base offset 3")
    assert "atoms of 32 bytes" in decode_blackwell(1 << 46 | 1 << 61)[1][0]
    for code in (3, 5, 7):
        assert "swizzle" in decode_blackwell(1 << 46 | code << 61)[1][0]


def test_an_address_with_a_rank_reaches_into_other_fields() -> None:
    """Its bits above 18 change the leading offset, which MN-major tiles use."""
    masked, unmasked = 0x8400, 0x8400 | 2 << 24
    right, _ = decode_hopper(0x40000040 << 32 | masked >> 4)
    wrong, problems = decode_hopper(0x40000040 << 32 | unmasked >> 4)
    assert wrong.address == right.address == 0x8400
    assert (right.leading_bytes, wrong.leading_bytes) == (0, 2 << 8)
    assert problems == ()
    _, problems = decode_hopper(0x40000040 << 32 | (0x8400 | 1 << 18) >> 4)
    assert problems == (
        "bits 14 to 15 are reserved and hold 0x1; was the address masked to 18 bits?",
    )


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_fragments_of_d(n: int) -> None:
    values = RNG.integers(-1000, 1000, (64, n)).astype(np.float32)
    registers = registers_of_d(values, "f32").view(np.float32)
    assert registers.shape == (n // 2, 128)
    for thread, j in itertools.product(range(128), range(n // 2)):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * (j >> 1 & 1)
        column = 8 * (j >> 2) + 2 * (lane & 3) + (j & 1)
        assert registers[j, thread] == values[row, column]
    halves = registers_of_d(values, "f16").view(np.float16).reshape(n // 4, 128, 2)
    np.testing.assert_array_equal(halves[..., 0], registers[0::2])
    np.testing.assert_array_equal(halves[..., 1], registers[1::2])
    for d_type in ("f32", "f16", "s32"):
        given = values.astype(np.int32) if d_type == "s32" else values
        np.testing.assert_array_equal(d_of_registers(registers_of_d(given, d_type), d_type), given)


@pytest.mark.parametrize("size", SIZES)
def test_fragments_of_a(size: int) -> None:
    registers = RNG.integers(0, 1 << 32, (4, 128), dtype=np.uint32)
    matrix = a_of_registers(registers, size)
    places = 4 // size
    raw = registers.view(f"u{size}").reshape(4, 128, places)
    for thread, r, place in itertools.product(range(128), range(4), range(places)):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * (r & 1)
        k = 16 // size * (r >> 1) + places * (lane & 3) + place
        assert matrix[row, k] == raw[r, thread, place]
