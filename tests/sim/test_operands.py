"""Operands of instructions that units execute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import Path
from mlagen.sim.operands import OperandBinder, constant
from mlagen.sim.ptx import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from mlagen.sim.registers import RegisterFile
from tests.sim.alu import THREADS, make_cta, reported

if TYPE_CHECKING:
    from mlagen.sim.hardware import Cta

_ROWS = {"pred": 2, "b16": 2, "b32": 4, "b64": 4}
_R1, _R2 = Register("%r1", "b32", 1), Register("%r2", "b32", 2)
_D1 = Register("%d1", "b64", 1)
_P1 = Register("%p1", "pred", 1)
_Q = Register("%q", "b128", 2)
_INSTRUCTION = Instruction(0, "st.shared.b32", (), None, 7, None, "st.shared.b32 ...;")


def _resolve(operand: Special | Symbol, kind: str) -> Register | Immediate:
    return Immediate(4096) if isinstance(operand, Symbol) else _R2


_BINDER = OperandBinder(_INSTRUCTION, lambda register: register.row, _resolve)


@pytest.fixture
def cta() -> Cta:
    made = make_cta()
    made.registers = RegisterFile(made, _ROWS, THREADS).arrays
    for kind in ("b16", "b32", "b64"):
        for row in range(_ROWS[kind]):
            made.registers[kind][row] = np.arange(THREADS) + 1000 * row
    made.registers["pred"][1] = np.arange(THREADS) % 2 == 0
    return made


def _path(cta: Cta, mask: int = 0xFFFF_FFFF) -> Path:
    return Path(cta.warps[1], 0, mask)


@pytest.mark.parametrize(
    ("operand", "kind", "expected"),
    [
        (_R1, "u32", np.arange(32, 64) + 1000),
        (_D1, "u64", np.arange(32, 64) + 1000),
        (_R1, "u16", np.arange(32, 64) + 1000),
        (_P1, "pred", np.arange(32, 64) % 2 == 0),
        (Negated(_P1), "pred", np.arange(32, 64) % 2 == 1),
        (Immediate(-1), "u32", 0xFFFF_FFFF),
        (Immediate(-1), "s64", -1),
        (Immediate(0x3FC0_0000, is_float=True), "f32", 1.5),
        (Special("%laneid"), "u32", np.arange(32, 64) + 2000),
        (Symbol("table"), "u32", 4096),
    ],
)
def test_values(cta: Cta, operand: Operand, kind: str, expected: Any) -> None:
    values = _BINDER.reader(operand, kind)(_path(cta))
    assert values.shape in ((), (32,))
    assert np.array_equal(values, expected)


def test_a_register_of_128_bits_is_two_rows(cta: Cta) -> None:
    low, high = _BINDER.reader(_Q, "b128")(_path(cta))
    assert (low == np.arange(32, 64) + 2000).all()
    assert (high == np.arange(32, 64) + 3000).all()


@pytest.mark.parametrize("mask", [0xFFFF_FFFF, 0x8000_0F01])
def test_results_reach_the_lanes_of_a_path_only(cta: Cta, mask: int) -> None:
    before = cta.registers["b32"][1].copy()
    _BINDER.writer(_R1, "s32")(_path(cta, mask), np.arange(32, dtype=np.int32) - 5)
    _BINDER.writer(_R2, "u32")(_path(cta, mask), 77)
    _BINDER.writer(Sink(), "u32")(_path(cta, mask), 77)
    inside = np.zeros(THREADS, np.bool_)
    inside[32:64] = [mask >> lane & 1 for lane in range(32)]
    written = np.tile((np.arange(32) - 5).astype(np.uint32), THREADS // 32)
    assert (cta.registers["b32"][1] == np.where(inside, written, before)).all()
    assert (cta.registers["b32"][2][inside] == 77).all()
    assert (cta.registers["b32"][2][~inside] != 77).all()


def test_a_narrow_result_fills_a_wider_register(cta: Cta) -> None:
    _BINDER.writer(_R1, "u16")(_path(cta), np.full(32, 9, np.uint16))
    assert (cta.registers["b32"][1][32:64] == 9).all()


def test_addresses(cta: Cta) -> None:
    path = _path(cta)
    assert (_BINDER.address(Address(_D1, -8))(path) == np.arange(32, 64) + 992).all()
    assert _BINDER.address(Address(Symbol("table"), 4))(path) == 4100
    assert _BINDER.address(Address(Immediate(1024)))(path) == 1024
    cta.registers["b32"][1] = 4
    # A 32-bit address stays one.
    assert (_BINDER.address(Address(_R1, -8))(path) == 0xFFFF_FFFC).all()


def test_uniform_operands(cta: Cta) -> None:
    path = _path(cta, 0xF0)
    cta.registers["b32"][1, 36:40] = 5
    assert _BINDER.uniform(_R1, "u32")(path) == 5
    assert _BINDER.uniform(Immediate(3), "u32")(path) == 3
    assert _BINDER.uniform_address(Address(_R1, 4))(path) == 9
    assert reported(cta) == []
    cta.registers["b32"][1, 38] = 6
    assert _BINDER.uniform(_R1, "u32")(path) == 5
    assert reported(cta) == ["operand-not-uniform"]


def test_rows_of_a_fragment() -> None:
    assert _BINDER.rows(Vector((_R2, _R1))) == (2, 1)
    with pytest.raises(UnsupportedPtxError, match="32-bit"):
        _BINDER.rows(Vector((_D1,)))


@pytest.mark.parametrize(
    ("operand", "kind", "expected"),
    [
        (Immediate(0x3FF8 << 48, is_float=True, is_double=True), "f32", 1.5),
        (Immediate(0x3FC0_0000, is_float=True), "f64", 1.5),
        (Immediate(0x3FC0_0000, is_float=True), "u32", 0x3FC0_0000),
        (Immediate(0x3FC0_0000, is_float=True), "u64", 0x3FF8 << 48),
        (Immediate(0x3FF8 << 48, is_float=True, is_double=True), "u32", 0x3FC0_0000),
        (Immediate(2), "f16", 2.0),
        (Immediate(1), "pred", True),
        (Immediate(-2), "s16", -2),
        (Immediate(0x3C00_4000), "f16x2", 0x3C00_4000),
    ],
)
def test_numbers_as_every_kind(operand: Immediate, kind: str, expected: Any) -> None:
    assert constant(operand, kind) == expected


@pytest.mark.parametrize("operand", [Vector((_R1,)), Sink()])
def test_what_is_no_value_is_refused(operand: Operand) -> None:
    with pytest.raises(UnsupportedPtxError, match="where a value is wanted"):
        _BINDER.reader(operand, "u32")
