"""Puts the bodies of `.func` functions where they are called, so that a kernel is one sequence of instructions.

Arguments and results, which PTX passes through parameter variables, are passed in registers. `vprintf` prints nothing,
and `__assertfail` traps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.ptx import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    RegisterKind,
    Symbol,
    Variable,
    Vector,
)

if TYPE_CHECKING:
    from mlagen.sim.ptx import Module

_KIND_OF_BITS: dict[int, RegisterKind] = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}


def inline_calls(module: Module, kernel: Function) -> Function:
    """The kernel without calls.

    Raises:
        UnsupportedPtxError: A call cannot be put in place: of a function that calls itself, that the module does not
            define, or whose parameters are addressed.
    """
    if not any(one.opcode.startswith("call") for one in kernel.instructions):
        return kernel
    inlining = _Inlining(module)
    inlining.add_body(kernel, _Frame(0, (kernel.name,), _parameter_variables(kernel), {}))
    variables = (*kernel.variables, *inlining.variables)
    return replace(kernel, instructions=tuple(inlining.finish()), variables=variables)


def _parameter_variables(function: Function) -> frozenset[str]:
    """Variables that a function declares to pass something to those that it calls."""
    return frozenset(one.name for one in function.variables if one.space == "param")


@dataclass(frozen=True, slots=True)
class _Frame:
    """One activation of a function.

    Attributes:
        number: 0 is the kernel.
        callers: Its name, behind those of its callers.
        own: Its parameter variables.
        passed: Its parameters and results -> the caller's number and variable.
    """

    number: int
    callers: tuple[str, ...]
    own: frozenset[str]
    passed: dict[str, tuple[int, str]]


class _Inlining:
    """Collects the instructions of a kernel and of all that it calls.

    Attributes:
        variables: Of the functions that are called.
    """

    def __init__(self, module: Module) -> None:
        self.variables: list[Variable] = []
        self._module = module
        self._instructions: list[tuple[Instruction, int]] = []  # with their frames
        self._places: dict[tuple[int, int], int] = {}  # of a frame's instructions
        # Frame, variable, byte and bits of what is passed -> the register that it is in.
        self._slots: dict[tuple[int, str, int, int], Register] = {}
        self._frames = 1

    def add_body(self, function: Function, frame: _Frame) -> None:
        """Append a function's instructions."""
        end = Label("end", len(function.instructions))
        for one in function.instructions:
            self._places[frame.number, one.index] = len(self._instructions)
            name = one.opcode.partition(".")[0]
            if name == "call":
                self._add_call(one, frame)
            elif name == "ret" and frame.number:
                self._add(replace(one, opcode="bra", operands=(end,)), frame)
            elif one.opcode.startswith(("ld.param", "st.param")) and self._passes(one, frame):
                self._add_pass(one, frame)
            else:
                self._add(one, frame)
        self._places[frame.number, end.index] = len(self._instructions)

    def finish(self) -> list[Instruction]:
        """All instructions, numbered, with their branches' targets."""
        return [
            replace(
                one, index=index, operands=tuple(self._placed(each, frame) for each in one.operands)
            )
            for index, (one, frame) in enumerate(self._instructions)
        ]

    def _placed(self, operand: Operand, frame: int) -> Operand:
        if isinstance(operand, Label):
            return Label(operand.name, self._places[frame, operand.index])
        if isinstance(operand, Vector) and any(isinstance(one, Label) for one in operand.elements):
            return Vector(tuple(self._placed(one, frame) for one in operand.elements))
        return operand

    def _add(self, one: Instruction, frame: _Frame) -> None:
        guard = None if one.guard is None else (_renamed(one.guard[0], frame), one.guard[1])
        operands = tuple(_operand_of(each, frame) for each in one.operands)
        self._instructions.append((replace(one, guard=guard, operands=operands), frame.number))

    # --- Calls

    def _add_call(self, one: Instruction, frame: _Frame) -> None:
        results, name, arguments = _call_of(one)
        if one.guard is not None:  # branch around the body
            behind = Label("behind", one.index + 1)
            around = replace(
                one, opcode="bra", operands=(behind,), guard=(one.guard[0], not one.guard[1])
            )
            self._add(around, frame)
        if name == "__assertfail":
            self._add(replace(one, opcode="trap", operands=(), guard=None), frame)
        elif name == "vprintf":
            for result in results:
                slot = self._new_slot(frame.number, result, 0, 32)
                self._move(one, slot, Immediate(0), "mov.b32", frame)
        else:
            self._add_function(one, name, (*results, *arguments), frame)

    def _add_function(
        self, one: Instruction, name: str, passed: tuple[str, ...], frame: _Frame
    ) -> None:
        function = self._module.functions.get(name)
        if function is None:
            raise UnsupportedPtxError(
                f"line {one.line}: call of {name}, which the PTX does not define"
            )
        if name in frame.callers:
            raise UnsupportedPtxError(f"line {one.line}: {name} calls itself")
        formal = (*function.results, *function.parameters)
        callee = _Frame(
            self._frames,
            (*frame.callers, name),
            _parameter_variables(function),
            {each.name: _owner(actual, frame) for each, actual in zip(formal, passed, strict=True)},
        )
        self._frames += 1
        self.variables += [each for each in function.variables if each not in self.variables]
        self.add_body(function, callee)

    # --- What is passed

    def _passes(self, one: Instruction, frame: _Frame) -> bool:
        """Whether an access of the parameter space is one of a variable that passes something."""
        address = next(each for each in one.operands if isinstance(each, Address))
        return isinstance(address.base, Symbol) and (
            address.base.name in frame.own or address.base.name in frame.passed
        )

    def _add_pass(self, one: Instruction, frame: _Frame) -> None:
        """Move to or from the registers that stand for a parameter variable."""
        is_store = one.opcode.startswith("st")
        address, value = one.operands if is_store else one.operands[::-1]
        assert isinstance(address, Address)
        assert isinstance(address.base, Symbol)
        number, name = _owner(address.base.name, frame)
        type_name = one.parts[-1]
        bits = int("".join(letter for letter in type_name if letter.isdigit()))
        elements = value.elements if isinstance(value, Vector) else (value,)
        integer = type_name.replace("b", "u").replace("f", "u")
        for index, element in enumerate(elements):
            offset = address.offset + index * bits // 8
            other = _operand_of(element, frame)
            to: Operand
            source: Operand
            if is_store:
                to, source = self._new_slot(number, name, offset, bits), other
            else:
                to, source = other, self._slot_at(number, name, offset, bits)
            is_narrow = bits == 8 or (
                isinstance(source, Register) and source.kind != _KIND_OF_BITS[bits]
            )
            self._move(
                one, to, source, f"cvt.{integer}.{integer}" if is_narrow else f"mov.b{bits}", frame
            )

    def _slot_at(self, number: int, name: str, offset: int, bits: int) -> Register:
        """What was stored at an offset, or what begins with the bits that are read."""
        for width in (bits, 2 * bits, 4 * bits, 8 * bits):
            if (number, name, offset, width) in self._slots:
                return self._slots[number, name, offset, width]
        raise UnsupportedPtxError(f"parameter {name} is not read as it was written")

    def _new_slot(self, number: int, name: str, offset: int, bits: int) -> Register:
        register = Register(f"{number}:{name}+{offset}", _KIND_OF_BITS[bits], -1)
        self._slots[number, name, offset, bits] = register
        return register

    def _move(
        self, one: Instruction, to: Operand, source: Operand, opcode: str, frame: _Frame
    ) -> None:
        guard = None
        if one.guard is not None and not one.opcode.startswith(
            "call"
        ):  # a call has been branched around
            guard = (_renamed(one.guard[0], frame), one.guard[1])
        moved = replace(one, opcode=opcode, operands=(to, source), guard=guard)
        self._instructions.append((moved, frame.number))


def _call_of(one: Instruction) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Results, function and arguments: `call.uni (retval0), name, (param0, param1);`, both lists may be left out."""
    operands = list(one.operands)
    results = _names(operands.pop(0)) if isinstance(operands[0], Vector) else ()
    function = operands.pop(0)
    arguments = _names(operands.pop(0)) if operands else ()
    if not isinstance(function, Symbol) or operands:
        raise UnsupportedPtxError(
            f"line {one.line}: call of a function that is known at run time only"
        )
    return results, function.name, arguments


def _names(operand: Operand) -> tuple[str, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    names = tuple(one.name for one in elements if isinstance(one, Symbol))
    if len(names) != len(elements):
        raise UnsupportedPtxError("a call that passes something else than parameter variables")
    return names


def _owner(name: str, frame: _Frame) -> tuple[int, str]:
    """Who declared a parameter variable, and its name there."""
    return frame.passed.get(name, (frame.number, name))


def _renamed(register: Register, frame: _Frame) -> Register:
    """A register of an activation: the kernel's keep their names."""
    if not frame.number:
        return register
    return Register(f"{frame.number}:{register.name}", register.kind, register.row)


def _operand_of(operand: Operand, frame: _Frame) -> Operand:
    """An operand with the registers of an activation."""
    match operand:
        case Register():
            return _renamed(operand, frame)
        case Negated():
            return Negated(_renamed(operand.operand, frame))
        case Vector():
            return Vector(tuple(_operand_of(one, frame) for one in operand.elements))
        case Pair():
            return Pair(_operand_of(operand.first, frame), _operand_of(operand.second, frame))
        case Address():
            base = _operand_of(operand.base, frame)
            coordinates = tuple(_operand_of(one, frame) for one in operand.coordinates)
            return Address(base, operand.offset, coordinates)
        case Symbol() if operand.name in frame.own or operand.name in frame.passed:
            raise UnsupportedPtxError(f"the address of parameter {operand.name}")
    return operand
