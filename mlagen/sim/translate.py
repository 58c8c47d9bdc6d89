"""Instructions that touch nothing but registers and parameters, as operations on rows of registers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import carries, choices, integers, lanes, windows
from mlagen.sim.isa import Alu, bits_of, find, kind_of, names
from mlagen.sim.numerics import flush_to_zero
from mlagen.sim.packing import halves, natural_kind, packer, read_clock, unpacker
from mlagen.sim.ptx import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    RegisterKind,
    Sink,
    Special,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# What a source of an operation may be.
Source = Register | Immediate | Special | Symbol

CLOCKS = frozenset(
    {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
)
# Stands for the condition code register, which has no name in PTX.
_CARRY = Register("%cc", "pred", -1)
_FILE_OF_BITS: dict[int, RegisterKind] = {1: "pred", 8: "b16", 16: "b16", 32: "b32", 64: "b64"}


@dataclass(frozen=True, slots=True)
class MicroOp:
    """One call on rows.

    Attributes:
        alu: What is computed.
        sources: Operands, as many as `alu.sources`.
        results: Registers, as many as `alu.results`.
        guard: Lanes that are written: a predicate and whether it is negated.
        instruction: Where it comes from.
    """

    alu: Alu
    sources: tuple[Source, ...]
    results: tuple[Register, ...]
    guard: tuple[Register, bool] | None
    instruction: Instruction


def is_alu(instruction: Instruction) -> bool:
    """Whether an instruction touches nothing but registers and parameters."""
    return _is_alu(instruction.opcode)


@functools.cache
def _is_alu(opcode: str) -> bool:
    name = opcode.partition(".")[0]
    return name in _SPECIAL_FORMS or name in names() or opcode.startswith("ld.param")


def translate(instruction: Instruction) -> list[MicroOp]:
    """The operations of an instruction for which `is_alu` holds.

    Raises:
        UnsupportedPtxError: Its opcode, a modifier or an operand is not known.
    """
    return _Translation(instruction).run()


class _Translation:
    """Collects the operations of one instruction."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._operations: list[MicroOp] = []

    def run(self) -> list[MicroOp]:
        instruction = self._instruction
        name = instruction.opcode.partition(".")[0]
        special = _SPECIAL_FORMS.get(name)
        if "cc" in instruction.parts[1:]:
            special = _Translation._extended
        if instruction.opcode.startswith("ld.param"):
            self._load_parameter()
        elif special is not None:
            special(self)
        else:
            first, *sources = instruction.operands
            self._emit(find(instruction.opcode, len(sources)), sources, _flat(first))
        return self._operations

    def _emit(self, alu: Alu, sources: list[Operand], results: tuple[Operand, ...]) -> None:
        """Add an operation; sinks and missing results get registers that nobody reads."""
        plain = tuple(self._source(operand) for operand in sources)
        targets = [self._result(operand) for operand in results]
        targets += [self._temporary(kind) for kind in alu.results[len(targets) :]]
        targets = [
            self._temporary(kind) if target is None else target
            for target, kind in zip(targets, alu.results, strict=True)
        ]
        registers = tuple(target for target in targets if target is not None)
        self._operations.append(
            MicroOp(alu, plain, registers, self._instruction.guard, self._instruction)
        )

    def _temporary(self, kind: str) -> Register:
        name = f"{self._instruction.index}#{len(self._operations)}{kind}"
        return Register(name, _FILE_OF_BITS[bits_of(kind)] if kind != "pred" else "pred", -1)

    def _source(self, operand: Operand) -> Source:
        if isinstance(operand, Negated):
            inverse = self._temporary("pred")
            invert = find("not.pred", 1)
            self._operations.append(
                MicroOp(invert, (operand.operand,), (inverse,), None, self._instruction)
            )
            return inverse
        if isinstance(operand, Register | Immediate | Special | Symbol):
            return operand
        raise UnsupportedPtxError(f"operand of {self._instruction.opcode}")

    def _result(self, operand: Operand) -> Register | None:
        if isinstance(operand, Register):
            return operand
        if isinstance(operand, Sink):
            return None
        raise UnsupportedPtxError(f"result of {self._instruction.opcode}")

    def _type(self) -> str:
        return self._instruction.parts[-1]

    # --- Opcodes that need more than a row of the table

    def _move(self) -> None:
        result, source = self._instruction.operands
        type_name = self._type()
        if isinstance(source, Special) and source.name in CLOCKS:
            alu = Alu(
                functools.partial(read_clock, source.name), (), (kind_of(type_name),), context=True
            )
            self._emit(alu, [], (result,))
        elif isinstance(source, Vector):
            self._pack(result, source)
        elif isinstance(result, Vector):
            self._unpack(result, source)
        elif type_name == "b128":
            self._copy_wide(result, source)
        else:
            self._emit(find(self._instruction.opcode, 1), [source], (result,))

    def _copy_wide(self, result: Operand, source: Operand) -> None:
        if not isinstance(result, Register) or not isinstance(source, Register):
            raise UnsupportedPtxError("operands of mov.b128")
        for target, origin in zip(halves(result), halves(source), strict=True):
            self._emit(find("mov.b64", 1), [origin], (target,))

    def _pack(self, result: Operand, source: Vector) -> None:
        bits, count = bits_of(self._type()), len(source.elements)
        if bits == 128 and count == 2 and isinstance(result, Register):
            for target, origin in zip(halves(result), source.elements, strict=True):
                self._emit(find("mov.b64", 1), [origin], (target,))
            return
        if bits == 128 or count not in (2, 4):
            raise UnsupportedPtxError(f"vector of {count} in {self._instruction.opcode}")
        part = f"u{bits // count}"
        self._emit(
            Alu(packer(bits // count), (part,) * count, (f"u{bits}",)),
            list(source.elements),
            (result,),
        )

    def _unpack(self, result: Vector, source: Operand) -> None:
        bits, count = bits_of(self._type()), len(result.elements)
        if bits == 128 and count == 2 and isinstance(source, Register):
            for target, origin in zip(result.elements, halves(source), strict=True):
                self._emit(find("mov.b64", 1), [origin], (target,))
            return
        if bits == 128 or count not in (2, 4):
            raise UnsupportedPtxError(f"vector of {count} in {self._instruction.opcode}")
        part = f"u{bits // count}"
        self._emit(
            Alu(unpacker(bits // count), (f"u{bits}",), (part,) * count), [source], result.elements
        )

    def _convert(self) -> None:
        result, *sources = self._instruction.operands
        alu = find(self._instruction.opcode, len(sources))
        # Registers may be wider than the type; then all of the register is handed over, and all of it is written.
        kinds = tuple(
            natural_kind(kind, operand) for kind, operand in zip(alu.sources, sources, strict=True)
        )
        results = tuple(natural_kind(kind, result) for kind in alu.results)
        self._emit(Alu(alu.call, kinds, results), sources, (result,))

    def _convert_address(self) -> None:
        """`cvta`: to or from the generic address of a window."""
        result, source = self._instruction.operands
        parts = self._instruction.parts
        to_space = parts[1] == "to"
        space = parts[2 if to_space else 1].partition("::")[0]
        if space not in windows.SPACES:
            raise UnsupportedPtxError(f"state space {space}")
        base = windows.SPACES.index(space) << windows.WINDOW_SHIFT
        if self._type() == "u32" or base == 0:
            self._emit(find(f"mov.{self._type()}", 1), [source], (result,))
        else:
            opcode = "sub.u64" if to_space else "add.u64"
            self._emit(find(opcode, 2), [source, Immediate(base)], (result,))

    def _is_in_space(self) -> None:
        result, source = self._instruction.operands
        space = self._instruction.parts[1].partition("::")[0]
        if space not in windows.SPACES:
            raise UnsupportedPtxError(f"state space {space}")
        shift = Immediate(windows.WINDOW_SHIFT)
        window = self._temporary("u64")
        self._operations.append(
            MicroOp(
                find("shr.u64", 2),
                (self._source(source), shift),
                (window,),
                None,
                self._instruction,
            )
        )
        number = windows.SPACES.index(space)
        self._emit(find("setp.eq.u64", 2), [window, Immediate(number)], (result,))

    def _set_predicate(self) -> None:
        """`setp.CmpOp{.BoolOp}{.ftz}.type p{|q}, a, b{, {!}c}`: PTX ISA 9.7.6.2."""
        results = _flat(self._instruction.operands[0])
        sources = list(self._instruction.operands[1:])
        name, compare, *flags, type_name = self._instruction.parts
        boolean = next((flag for flag in flags if flag in choices.BOOLEANS), "")
        rest = [flag for flag in flags if flag != boolean]
        base = find(".".join([name, compare, *rest, type_name]), 2)
        if not boolean and len(results) == 1:
            self._emit(base, sources, results)
            return
        kinds = (*base.sources, "pred") if boolean else base.sources
        compared = choices.pair_comparison if type_name.endswith("x2") else choices.comparison
        call = compared(base.call, boolean, len(results) == 2)
        self._emit(Alu(call, kinds, ("pred",) * len(results)), sources, results)

    def _set(self) -> None:
        """`set.CmpOp{.BoolOp}{.ftz}.dtype.stype d, a, b{, {!}c}`: all ones, or 1.0, where the comparison holds."""
        result, *sources = self._instruction.operands
        _, compare, *flags, result_type, type_name = self._instruction.parts
        boolean = next((flag for flag in flags if flag in choices.BOOLEANS), "")
        rest = [flag for flag in flags if flag != boolean]
        base = find(".".join(["setp", compare, *rest, type_name]), 2)
        kinds = (*base.sources, "pred") if boolean else base.sources
        call = choices.comparison_value(base.call, boolean)
        self._emit(Alu(call, kinds, (kind_of(result_type),)), sources, (result,))

    def _select_by_sign(self) -> None:
        """`slct.dtype{.ftz}.ctype d, a, b, c`."""
        result, *sources = self._instruction.operands
        _, *flags, type_name, chooser = self._instruction.parts
        if chooser not in ("s32", "f32"):
            raise UnsupportedPtxError(f"slct by {chooser}")
        kind = f"u{bits_of(type_name)}"
        call = choices.select_by_sign
        if "ftz" in flags:
            call = flush_to_zero(call)
        self._emit(Alu(call, (kind, kind, chooser), (kind,)), sources, (result,))

    def _elect(self) -> None:
        results, members = self._instruction.operands
        alu = Alu(lanes.elect, ("u32",), ("u32", "pred"), context=True, crosses_lanes=True)
        self._emit(alu, [members], _flat(results))

    def _create_policy(self) -> None:
        """Cache policies have no effect; the value is any."""
        self._emit(find("mov.b64", 1), [Immediate(0)], (self._instruction.operands[0],))

    def _dot(self) -> None:
        result, *sources = self._instruction.operands
        name, *middle, a_kind, b_kind = self._instruction.parts
        half = middle[0] if middle else ""
        if (name == "dp2a") != (half in ("lo", "hi")):
            raise UnsupportedPtxError(f"opcode {self._instruction.opcode}")
        call = integers.dot_product(a_kind, b_kind, half)
        self._emit(Alu(call, ("u32", "u32", "u32"), ("u32",)), sources, (result,))

    def _extended(self) -> None:
        """`add.cc`, `addc`, ...: extended precision, with the carry in a predicate of the function (9.7.2)."""
        result, *sources = self._instruction.operands
        name, *flags, type_name = self._instruction.parts
        base, half = name.removesuffix("c"), next((one for one in flags if one in ("lo", "hi")), "")
        if set(flags) - {"cc", "lo", "hi"} or type_name not in ("u32", "s32", "u64", "s64"):
            raise UnsupportedPtxError(f"opcode {self._instruction.opcode}")
        kind, takes, gives = kind_of(type_name), name != base, "cc" in flags
        kinds = (kind,) * (3 if base == "mad" else 2) + ("pred",) * takes
        call = carries.extended(base, half, takes=takes, gives=gives)
        alu = Alu(call, kinds, (kind,) + ("pred",) * gives)
        self._emit(alu, [*sources, *[_CARRY] * takes], (result, *[_CARRY] * gives))

    def _load_parameter(self) -> None:
        result, address = self._instruction.operands
        flags = [part for part in self._instruction.parts[2:-1] if part not in ("v2", "v4")]
        if not isinstance(address, Address) or flags:
            raise UnsupportedPtxError(f"opcode {self._instruction.opcode}")
        base = self._source(address.base)
        kind = "u32" if isinstance(base, Register) and base.kind == "b32" else "u64"
        targets = result.elements if isinstance(result, Vector) else (result,)
        kinds = tuple(natural_kind(kind_of(self._type()), target) for target in targets)
        call = functools.partial(lanes.load_parameters, kind_of(self._type()))
        alu = Alu(call, (kind, "u64"), kinds, context=True)
        self._emit(alu, [base, Immediate(address.offset)], targets)


_SPECIAL_FORMS: dict[str, Callable[[_Translation], None]] = {
    "mov": _Translation._move,
    "cvt": _Translation._convert,
    "cvta": _Translation._convert_address,
    "isspacep": _Translation._is_in_space,
    "setp": _Translation._set_predicate,
    "set": _Translation._set,
    "slct": _Translation._select_by_sign,
    "elect": _Translation._elect,
    "createpolicy": _Translation._create_policy,
    "addc": _Translation._extended,
    "subc": _Translation._extended,
    "madc": _Translation._extended,
    "dp4a": _Translation._dot,
    "dp2a": _Translation._dot,
}


def _flat(operand: Operand) -> tuple[Operand, ...]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
