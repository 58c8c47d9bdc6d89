"""The closed formulas of `tcgen05_layout` against a second derivation of each: strides of bits, and tables by warp."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mlagen.sim.tcgen05_descriptor import (
    MmaForm,
    decode_instruction_descriptor,
    stricter_shape_problem,
)
from mlagen.sim.tcgen05_layout import (
    accumulator_blocks,
    copy_shape,
    register_count,
    register_fragment,
)

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)

# Shape -> what each bit of the thread number, and each bit of the register number, adds to (lane, column). Read off
# the figures of PTX ISA 9.7.16.2.3.1; the bits of the register number that are not listed go on doubling the column.
BITS = {
    "32x32b": ([(1, 0), (2, 0), (4, 0), (8, 0), (16, 0)], [(0, 1)]),
    "16x64b": ([(8, 0), (0, 1), (1, 0), (2, 0), (4, 0)], [(0, 2)]),
    "16x128b": ([(0, 1), (0, 2), (1, 0), (2, 0), (4, 0)], [(8, 0), (0, 4)]),
    "16x256b": ([(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)], [(0, 1), (8, 0), (0, 8)]),
}


def by_bits(shape: str, thread: int, register: int) -> tuple[int, int]:
    """Lane and column from the table above."""
    thread_bits, register_bits = BITS[shape]
    lane = column = 0
    for bit, (lanes, columns) in enumerate(thread_bits):
        lane += lanes * (thread >> bit & 1)
        column += columns * (thread >> bit & 1)
    last = len(register_bits) - 1
    for bit, (lanes, columns) in enumerate(register_bits):
        value = register >> bit if bit == last else register >> bit & 1
        lane += lanes * value
        column += columns * value
    return lane, column


@pytest.mark.parametrize("shape", BITS)
@pytest.mark.parametrize("count", COUNTS)
def test_fragments_equal_the_figures(shape: str, count: int) -> None:
    registers = register_count(shape, count)
    if registers is None:
        return
    fragment = register_fragment(shape, count)
    assert fragment.lanes.shape == (registers, 32)
    for register, thread in product(range(registers), range(32)):
        found = (fragment.lanes[register, thread], fragment.columns[register, thread])
        assert found == by_bits(shape, thread, register), (register, thread)


@pytest.mark.parametrize("shape", BITS)
@pytest.mark.parametrize("count", COUNTS)
def test_fragments_name_every_cell_once(shape: str, count: int) -> None:
    registers = register_count(shape, count)
    if registers is None:
        return
    height, bits = (int(part.rstrip("b")) for part in shape.split("x"))
    fragment = register_fragment(shape, count)
    cells = set(
        zip(fragment.lanes.ravel().tolist(), fragment.columns.ravel().tolist(), strict=True)
    )
    assert cells == set(product(range(height), range(bits * count // 32)))


def test_vector_sizes_are_those_of_the_table_in_the_manual() -> None:
    assert [register_count("32x32b", n) for n in COUNTS] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [register_count("16x64b", n) for n in COUNTS] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [register_count("16x128b", n) for n in COUNTS] == [2, 4, 8, 16, 32, 64, 128, None]
    assert [register_count("16x256b", n) for n in COUNTS] == [4, 8, 16, 32, 64, 128, None, None]
    assert [register_count("16x32bx2", n) for n in COUNTS] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert register_count("32x32b", 3) is None
    assert register_count("32x64b", 1) is None


def test_the_second_half_of_a_split_fragment_lies_behind_the_split() -> None:
    fragment = register_fragment("16x32bx2", 4, split=16)
    for register, thread in product(range(4), range(32)):
        lane, column = fragment.lanes[register, thread], fragment.columns[register, thread]
        assert (lane, column) == (thread % 16, register + (16 if thread >= 16 else 0))


@pytest.mark.parametrize("shape", BITS)
def test_a_packed_register_holds_two_neighbouring_columns(shape: str) -> None:
    packed, plain = register_fragment(shape, 4, packed=True), register_fragment(shape, 4)
    np.testing.assert_array_equal(packed.columns, 2 * plain.columns)
    np.testing.assert_array_equal(packed.lanes, plain.lanes)


# Layout -> for each CTA, the warps of tensor memory: (lanes within the warp's 32, first row, part of N). From the
# figures "Layout organization" of PTX ISA 9.7.16.10.5.
LAYOUTS = {
    "A": ((256, 2, False), 1, [[(32, 128 * c + 32 * w, 0) for w in range(4)] for c in (0, 1)]),
    "B": (
        (128, 2, False),
        2,
        [[(32, 64 * c + 32 * (w % 2), w // 2) for w in range(4)] for c in (0, 1)],
    ),
    "D": ((128, 1, False), 1, [[(32, 32 * w, 0) for w in range(4)]]),
    "D.ws": ((128, 1, True), 1, [[(32, 32 * w, 0) for w in range(4)]]),
    "E": ((64, 1, True), 2, [[(32, 32 * (w % 2), w // 2) for w in range(4)]]),
    "F": ((64, 1, False), 1, [[(16, 16 * w, 0) for w in range(4)]]),
    "G": ((32, 1, True), 4, [[(32, 0, w) for w in range(4)]]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_accumulators_lie_where_the_figures_show(name: str) -> None:
    (m, group, stationary), parts, ctas = LAYOUTS[name]
    n = 64
    expected = {}
    for cta, warps in enumerate(ctas):
        for warp, (height, first_row, part) in enumerate(warps):
            for lane, column in product(range(height), range(n // parts)):
                expected[cta, 32 * warp + lane, column] = (
                    first_row + lane,
                    part * n // parts + column,
                )
    blocks = accumulator_blocks(m, cta_group=group, weight_stationary=stationary)
    assert blocks is not None
    found = {}
    for block in blocks:
        columns = block.columns_of(n)
        for row, lane in zip(range(m)[block.rows], block.lanes.tolist(), strict=True):
            for offset, column in enumerate(range(n)[columns]):
                found[block.cta, lane, offset] = (row, column)
    assert found == expected
    assert sorted(found.values()) == sorted(product(range(m), range(n)))


def test_there_is_no_accumulator_of_other_shapes() -> None:
    assert accumulator_blocks(32, cta_group=1, weight_stationary=False) is None
    assert accumulator_blocks(64, cta_group=2, weight_stationary=False) is None
    assert accumulator_blocks(256, cta_group=1, weight_stationary=False) is None


def test_copies_reach_the_warps_of_their_pairs() -> None:
    """PTX ISA 9.7.16.9.2: `.warpx2::02_13` pairs warps 0 and 2, 1 and 3; `.warpx2::01_23` warps 0 and 1, 2 and 3."""
    pairs = {"warpx2::02_13": [(0, 2), (1, 3)], "warpx2::01_23": [(0, 1), (2, 3)]}
    for multicast, warps in pairs.items():
        shape = copy_shape("64x128b", multicast)
        assert shape is not None
        for row in range(64):
            lanes = {32 * warp + row % 32 for warp in warps[row // 32]}
            assert set(shape.lanes[:, row].tolist()) == lanes
    shape = copy_shape("32x128b", "warpx4")
    assert shape is not None
    assert [set(shape.lanes[:, row].tolist()) for row in range(32)] == [
        {row, row + 32, row + 64, row + 96} for row in range(32)
    ]
    assert copy_shape("64x128b", None) is None
    assert copy_shape("32x128b", "warpx2::02_13") is None
    assert copy_shape("128x256b", "warpx4") is None


def encode(a: int, b: int, m: int, n: int, d: int = 1, *, tb: int = 0) -> int:
    """An instruction descriptor, field by field."""
    return d << 4 | a << 7 | b << 10 | tb << 16 | n // 8 << 17 | m // 16 << 24


SS = MmaForm("f16", 1, weight_stationary=False, a_in_tensor_memory=False)
PAIR = MmaForm("f16", 2, weight_stationary=False, a_in_tensor_memory=False)


@pytest.mark.parametrize(
    ("value", "form", "expected"),
    [
        (0x08100490, SS, ("bf16", 128, 64, False)),
        (0x08200490, SS, ("bf16", 128, 128, False)),
        (0x08400490, SS, ("bf16", 128, 256, False)),
        (0x04200490, SS, ("bf16", 64, 128, False)),
        (0x08210490, SS, ("bf16", 128, 128, True)),
        (0x10400490, PAIR, ("bf16", 256, 256, False)),
        (0x08200010, SS, ("f16", 128, 128, False)),
        (
            0x08200010,
            MmaForm("f8f6f4", 1, weight_stationary=False, a_in_tensor_memory=False),
            ("e4m3", 128, 128, False),
        ),
    ],
)
def test_known_instruction_descriptors(
    value: int, form: MmaForm, expected: tuple[str, int, int, bool]
) -> None:
    descriptor, problems = decode_instruction_descriptor(value, form)
    assert problems == ()
    assert descriptor is not None
    found = (descriptor.a_type, descriptor.m, descriptor.n, descriptor.transpose_b)
    assert found == expected
    assert descriptor.d_type == "f32"


GOOD = encode(1, 1, 128, 128)


@pytest.mark.parametrize(
    ("value", "form", "words"),
    [
        pytest.param(GOOD | 1 << 6, SS, "bit 6", id="reserved-6"),
        pytest.param(GOOD | 1 << 23, SS, "bit 23", id="reserved-23"),
        pytest.param(GOOD | 1 << 29, SS, "bit 29", id="reserved-29"),
        pytest.param(GOOD | 4, SS, "sparsity", id="sparse"),
        pytest.param(GOOD | 1 << 30, SS, "maximum shift", id="max-shift"),
        pytest.param(GOOD | 8, SS, "saturation", id="saturate-floats"),
        pytest.param(encode(1, 1, 128, 128, 2), SS, "D type 2", id="d-type"),
        pytest.param(encode(2, 1, 128, 128), SS, "A type 2", id="a-type"),
        pytest.param(encode(1, 5, 128, 128), SS, "B type 5", id="b-type"),
        pytest.param(encode(1, 1, 128, 128, 0), SS, "D of f16 needs", id="bf16-to-f16"),
        pytest.param(encode(1, 1, 96, 128), SS, "M = 96", id="m"),
        pytest.param(encode(1, 1, 256, 128), SS, "M = 256", id="m-256-of-one-cta"),
        pytest.param(encode(1, 1, 64, 128), PAIR, "M = 64", id="m-64-of-a-pair"),
        pytest.param(encode(1, 1, 128, 0), SS, "N = 0", id="n-0"),
        pytest.param(encode(1, 1, 128, 264), SS, "N = 264", id="n-264"),
        pytest.param(encode(1, 1, 128, 24), PAIR, "N = 24", id="n-24-of-a-pair"),
        pytest.param(encode(1, 1, 64, 96), MmaForm("f16", 1, True, False), "N = 96", id="n-96-ws"),
        pytest.param(
            GOOD | 1 << 15, MmaForm("f16", 1, False, True), "transposed", id="ts-transposed"
        ),
        pytest.param(
            encode(0, 0, 128, 24, tb=1),
            MmaForm("f8f6f4", 1, False, False),
            "multiple of 16",
            id="fp8-n-major",
        ),
        pytest.param(
            encode(3, 0, 128, 32), MmaForm("f8f6f4", 1, False, False), "e2m3", id="narrow"
        ),
        pytest.param(encode(1, 1, 128, 40, 2), MmaForm("i8", 1, False, False), "N = 40", id="i8-n"),
        pytest.param(
            encode(1, 1, 128, 32, 2) | 1 << 13,
            MmaForm("i8", 1, False, False),
            "negate",
            id="i8-negate",
        ),
    ],
)
def test_every_illegal_field_is_named(value: int, form: MmaForm, words: str) -> None:
    descriptor, problems = decode_instruction_descriptor(value, form)
    assert descriptor is None
    assert len(problems) == 1
    assert words in problems[0]


def test_stricter_shapes_of_products_with_a_in_tensor_memory() -> None:
    form = MmaForm("f16", 1, weight_stationary=False, a_in_tensor_memory=True)
    narrow, _ = decode_instruction_descriptor(encode(1, 1, 128, 24), form)
    wide, _ = decode_instruction_descriptor(encode(1, 1, 128, 32), form)
    assert narrow is not None
    assert wide is not None
    assert "multiple of 16" in (stricter_shape_problem(narrow, form) or "")
    assert stricter_shape_problem(wide, form) is None
    assert stricter_shape_problem(narrow, SS) is None
