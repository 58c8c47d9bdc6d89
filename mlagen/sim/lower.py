"""A parsed kernel to a `Program`: segments of register-only code, visible instructions, control flow."""

from __future__ import annotations

from dataclasses import dataclass

from mlagen.errors import PtxError, UnsupportedPtxError
from mlagen.sim.constants import with_constants
from mlagen.sim.fuse import Group, fuse
from mlagen.sim.inline import inline_calls
from mlagen.sim.operands import OperandBinder
from mlagen.sim.packing import halves
from mlagen.sim.program import Branch, Exit, Guard, IndexedBranch, Nothing, Program, Step, Visible
from mlagen.sim.ptx import (
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)
from mlagen.sim.rows import RowTable, SegmentRows
from mlagen.sim.segment import Segment, Touched
from mlagen.sim.translate import MicroOp, is_alu, translate
from mlagen.sim.units import NO_EFFECT, check_function, find_unit
from mlagen.sim.variables import Placement

_CONTROL = frozenset({"bra", "brx", "ret", "exit", "trap"})
_MALFORMED = "form of operands or modifiers"
# Whose first operand is a source although it is a register; but for `bar.red`.
_READS_ALL = ("bar", "barrier", "tcgen05.dealloc")


def lower(module: Module, kernel: str | None = None) -> Program:
    """Lower a kernel, once for all launches. NumPy warnings must be off where it runs (`np.errstate(all="ignore")`).

    Args:
        module: What `parse` gave.
        kernel: Name of the entry; may be left out if there is only one.

    Raises:
        UnsupportedPtxError: It lists every instruction that nobody can execute, with line and count.
    """
    function = inline_calls(module, _entry(module, kernel))
    check_function(function)
    return _Lowering(module, function).program()


def _entry(module: Module, kernel: str | None) -> Function:
    entries = [function for function in module.functions.values() if function.is_entry]
    chosen = [function for function in entries if kernel is None or function.name == kernel]
    if len(chosen) != 1:
        names = ", ".join(function.name for function in entries) or "none"
        raise PtxError(
            f"kernel {kernel or ''}: the PTX has the entries {names}\n  name one of them"
        )
    return chosen[0]


@dataclass(slots=True)
class _Stretch:
    """A segment while it is lowered: its range of pcs, and what it does."""

    start: int
    end: int
    operations: list[MicroOp]
    groups: list[Group]


class _Lowering:
    """Lowers one function."""

    def __init__(self, module: Module, function: Function) -> None:
        self._module = module
        self._function = function
        self._instructions = function.instructions
        self._errors: dict[str, tuple[int, int]] = {}
        self._placement = Placement(module, function)
        self._table = RowTable(self._placement.addresses)
        self._home: dict[
            Register, int
        ] = {}  # its only segment, by first pc; -1 if it has no single one

    def program(self) -> Program:
        """Do it all."""
        stretches = self._stretches()
        visible = [one for one in self._instructions if _is_visible(one)]
        elsewhere = [register for one in visible for register in _registers(one.operands)]
        operations = with_constants(
            [one.operations for one in stretches], elsewhere, self._placement.addresses
        )
        for stretch, rewritten in zip(stretches, operations, strict=True):
            stretch.operations = rewritten
        self._find_homes(stretches, visible)
        for stretch in stretches:
            stretch.groups = fuse(stretch.operations, self._is_local)
        self._place_rows(stretches, visible)
        steps: list[Step | None] = [None] * len(self._instructions)
        for instruction in self._instructions:
            if not is_alu(instruction):
                steps[instruction.index] = self._step(instruction)
        if self._errors:
            raise UnsupportedPtxError(self._complaint())
        self._resolve_all(stretches)
        scratch = dict.fromkeys(self._table.counts, 0)
        touched = [Touched(0, 0)] * len(self._instructions)
        for stretch in stretches:
            rows = SegmentRows(self._table, self._is_local)
            calls = tuple(rows.call(group) for group in stretch.groups)
            self._note_touched(stretch, touched)
            steps[stretch.start] = Segment(
                stretch.start,
                stretch.end,
                _joined(touched[stretch.start : stretch.end]),
                any(operation.alu.crosses_lanes for operation in stretch.operations),
                calls,
            )
            for kind, count in rows.counts.items():
                scratch[kind] = max(scratch[kind], count)
        for index, step in enumerate(steps):
            if isinstance(step, Visible):
                touched[index] = step.touched
        return self._assemble(steps, touched, scratch)

    def _assemble(
        self, steps: list[Step | None], touched: list[Touched], scratch: dict[str, int]
    ) -> Program:
        function = self._function
        last = Instruction(
            len(steps),
            "exit",
            (),
            None,
            (steps and self._instructions[-1].line) or 0,
            None,
            "exit;",
        )
        return Program(
            module=self._module,
            function=function,
            steps=(*steps, Exit(last, None, is_trap=False)),
            lines=tuple(instruction.line for instruction in (*self._instructions, last)),
            row_counts=dict(self._table.counts),
            scratch_counts=scratch,
            specials=tuple(self._table.specials),
            static_shared_bytes=self._placement.static_shared_bytes,
            dynamic_shared_base=self._placement.dynamic_shared_base,
            local_bytes=self._placement.local_bytes,
            shared_addresses=self._placement.shared_addresses,
            globals=tuple(
                name for name, one in self._module.variables.items() if one.space == "global"
            ),
            reads_writes=tuple(touched),
            rows=self._table.by_name(),
        )

    def _refuse(self, instruction: Instruction, what: str) -> None:
        text = what if instruction.opcode in what else f"{instruction.opcode}: {what}"
        line, count = self._errors.get(text, (instruction.line, 0))
        self._errors[text] = (line, count + 1)

    def _complaint(self) -> str:
        lines = [
            f"  line {line}, {count} times: {what}"
            for what, (line, count) in sorted(self._errors.items(), key=lambda item: item[1])
        ]
        return "\n".join(
            [
                f"{self._function.name}: the simulator cannot execute all of its PTX",
                *lines,
                "  add what is missing to mlagen/sim/isa.py, or to the unit that it belongs to",
            ]
        )

    # --- Segments

    def _stretches(self) -> list[_Stretch]:
        """Maximal runs of register-only instructions that nobody jumps into."""
        leaders = {
            label.index
            for instruction in self._instructions
            if instruction.opcode.startswith(("bra", "brx"))
            for label in _labels(instruction.operands)
        }
        stretches: list[_Stretch] = []
        current: _Stretch | None = None
        for instruction in self._instructions:
            if not is_alu(instruction):
                current = None
                continue
            if current is None or instruction.index in leaders:
                current = _Stretch(instruction.index, instruction.index, [], [])
                stretches.append(current)
            current.end = instruction.index + 1
            try:
                current.operations += translate(instruction)
            except UnsupportedPtxError as error:
                self._refuse(instruction, str(error))
            except (ValueError, AttributeError, KeyError, IndexError):
                self._refuse(instruction, _MALFORMED)
        return stretches

    def _find_homes(self, stretches: list[_Stretch], visible: list[Instruction]) -> None:
        """Find the registers that one segment writes first and nobody else knows."""
        home = self._home
        for instruction in visible:
            for register in (*_registers(instruction.operands), *_guard_register(instruction)):
                home[register] = -1
                if register.kind == "b128":
                    low, high = halves(register)
                    self._table.place_halves(register, low, high)
                    home[low] = home[high] = -1
        for stretch in stretches:
            for operation in stretch.operations:
                reads = [source for source in operation.sources if isinstance(source, Register)]
                if operation.guard is not None:
                    reads += [operation.guard[0], *operation.results]
                for register in reads:
                    if home.get(register) != stretch.start:
                        home[register] = -1
                for register in operation.results:
                    if home.setdefault(register, stretch.start) != stretch.start:
                        home[register] = -1

    def _is_local(self, register: Register) -> bool:
        return self._home.get(register, -1) != -1

    def _place_rows(self, stretches: list[_Stretch], visible: list[Instruction]) -> None:
        """Number the rows of registers that live across segments: fragments as they stand, results in groups' order."""
        for instruction in visible:
            for operand in instruction.operands:
                if isinstance(operand, Vector):
                    for register in _registers((operand,)):
                        self._table.row_of(register)
        for stretch in stretches:
            for group in stretch.groups:
                for place in range(len(group.operations[0].results)):
                    self._place([operation.results[place] for operation in group.operations])
        for stretch in stretches:
            for operation in stretch.operations:
                self._place(
                    [source for source in operation.sources if isinstance(source, Register)]
                )

    def _place(self, registers: list[Register]) -> None:
        for register in registers:
            if not self._is_local(register):
                self._table.row_of(register)

    def _resolve_all(self, stretches: list[_Stretch]) -> None:
        """Give special registers and guards their rows, before rows behind them are handed out."""
        for stretch in stretches:
            for operation in stretch.operations:
                if operation.guard is not None:
                    self._place([operation.guard[0]])
                for source, kind in zip(operation.sources, operation.alu.sources, strict=True):
                    if isinstance(source, Special | Symbol):
                        self._table.resolve(source, kind)

    def _note_touched(self, stretch: _Stretch, touched: list[Touched]) -> None:
        for operation in stretch.operations:
            index = operation.instruction.index
            before = touched[index]
            reads = [source for source in operation.sources if isinstance(source, Register)]
            touched[index] = Touched(
                before.reads | self._bits(reads),
                before.writes | self._bits(list(operation.results)),
            )

    def _bits(self, registers: list[Register]) -> int:
        bits = 0
        for register in registers:
            if register.kind == "b32" and self._table.has(register):
                bits |= 1 << self._table.row_of(register)
        return bits

    # --- Everything else

    def _step(self, instruction: Instruction) -> Step | None:
        try:
            if instruction.opcode.partition(".")[0] in _CONTROL:
                return self._control(instruction)
            if instruction.opcode.startswith(NO_EFFECT):
                return Nothing(instruction)
            return self._visible(instruction)
        except UnsupportedPtxError as error:
            self._refuse(instruction, str(error))
        except (ValueError, AttributeError, KeyError, IndexError):
            self._refuse(instruction, _MALFORMED)
        return None

    def _guard(self, instruction: Instruction) -> Guard | None:
        if instruction.guard is None:
            return None
        return Guard(self._table.row_of(instruction.guard[0]), instruction.guard[1])

    def _control(self, instruction: Instruction) -> Step:
        name = instruction.opcode.partition(".")[0]
        guard = self._guard(instruction)
        labels = _labels(instruction.operands)
        if name == "bra":
            return Branch(instruction, labels[0].index, guard, instruction.opcode.endswith(".uni"))
        if name == "brx":
            index = self._binder(instruction).reader(instruction.operands[0], "u32")
            return IndexedBranch(instruction, index, tuple(label.index for label in labels), guard)
        return Exit(instruction, guard, is_trap=name == "trap")

    def _binder(self, instruction: Instruction) -> OperandBinder:
        return OperandBinder(instruction, self._table.row_of, self._table.resolve)

    def _visible(self, instruction: Instruction) -> Visible:
        decode, aligned = find_unit(instruction.opcode)
        handler = decode(instruction, self._binder(instruction))
        first, *rest = instruction.operands or (None,)
        results = () if first is None or isinstance(first, Address) else _registers((first,))
        if instruction.opcode.startswith(_READS_ALL) and "red" not in instruction.parts:
            rest, results = [*instruction.operands], ()
        reads = self._bits(_registers((*rest, *([first] if isinstance(first, Address) else []))))
        writes = self._bits(list(results))
        if instruction.opcode.startswith("wgmma.mma"):
            reads |= writes
        return Visible(
            instruction, handler, aligned, self._guard(instruction), Touched(reads, writes)
        )


def _is_visible(instruction: Instruction) -> bool:
    return not is_alu(instruction)


def _labels(operands: tuple[Operand, ...]) -> list[Label]:
    labels: list[Label] = []
    for operand in operands:
        if isinstance(operand, Label):
            labels.append(operand)
        elif isinstance(operand, Vector):
            labels += _labels(operand.elements)
    return labels


def _registers(operands: tuple[Operand, ...]) -> list[Register]:
    """All registers in operands, in their order."""
    found: list[Register] = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand)
        elif isinstance(operand, Vector):
            found += _registers(operand.elements)
        elif isinstance(operand, Address):
            found += _registers((operand.base, *operand.coordinates))
        elif isinstance(operand, Pair):
            found += _registers((operand.first, operand.second))
        elif isinstance(operand, Negated):
            found.append(operand.operand)
    return found


def _guard_register(instruction: Instruction) -> tuple[Register, ...]:
    return () if instruction.guard is None else (instruction.guard[0],)


def _joined(touched: list[Touched]) -> Touched:
    reads = writes = 0
    for one in touched:
        reads |= one.reads
        writes |= one.writes
    return Touched(reads, writes)
