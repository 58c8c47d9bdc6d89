"""Which row of the register file every register gets: its own if it lives across segments, else one of a segment's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.operands import constant
from mlagen.sim.ptx import Immediate, Register, Special, Symbol
from mlagen.sim.registers import VIEWS
from mlagen.sim.segment import Call, Constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.fuse import Group
    from mlagen.sim.ptx import RegisterKind
    from mlagen.sim.segment import Rows
    from mlagen.sim.translate import Source

FILES = ("pred", "b16", "b32", "b64")


class RowTable:
    """Rows of the registers that live across segments, of special registers and of addresses of variables.

    Attributes:
        counts: Rows per kind.
        specials: Name, kind and row of special registers and global variables.
    """

    def __init__(self, addresses: dict[str, int]) -> None:
        """No rows yet.

        Args:
            addresses: Of variables whose address is known before the launch.
        """
        self.counts: dict[str, int] = dict.fromkeys(FILES, 0)
        self.specials: list[tuple[str, RegisterKind, int]] = []
        self._rows: dict[Register, int] = {}
        self._addresses = addresses

    def row_of(self, register: Register) -> int:
        """The row of a register, a new one at first sight."""
        row = self._rows.get(register)
        if row is None:
            file = "b64" if register.kind == "b128" else register.kind
            row = self._rows[register] = self.counts[file]
            self.counts[file] += 2 if register.kind == "b128" else 1
        return row

    def has(self, register: Register) -> bool:
        """Whether a register has a row here."""
        return register in self._rows

    def by_name(self) -> dict[str, tuple[RegisterKind, int]]:
        """Kind and row of all registers; of several with one name, in different scopes, the last."""
        return {register.name: (register.kind, row) for register, row in self._rows.items()}

    def place_halves(self, whole: Register, low: Register, high: Register) -> None:
        """Let the halves of a `b128` register, which others name by themselves, be its rows."""
        self._rows[low] = self.row_of(whole)
        self._rows[high] = self._rows[low] + 1

    def resolve(self, operand: Special | Symbol, kind: str) -> Register | Immediate:
        """A special register, or a variable's address, as a number or as a row that is filled when a CTA starts."""
        if isinstance(operand, Symbol) and operand.name in self._addresses:
            return Immediate(self._addresses[operand.name])
        register = Register(operand.name, VIEWS[kind].file, -1)
        if register not in self._rows:
            self.specials.append((operand.name, register.kind, self.row_of(register)))
        return register


class SegmentRows:
    """The calls of one segment, whose own registers get rows behind all of the table's.

    Attributes:
        counts: Rows of its own, per kind.
    """

    def __init__(self, table: RowTable, is_local: Callable[[Register], bool]) -> None:
        """Nothing is called yet; the table is complete."""
        self.counts: dict[str, int] = dict.fromkeys(FILES, 0)
        self._table = table
        self._is_local = is_local
        self._rows: dict[Register, int] = {}

    def call(self, group: Group) -> Call:
        """A group as a call on rows."""
        operations = group.operations
        first = operations[0]
        guard = None
        if first.guard is not None:
            guard = (self._row(first.guard[0]), first.guard[1])
        if group.is_chain:
            sources: list[Rows | Constant] = [
                _sequence([self._row(register) for register in group.links])
            ]
            alu = replace(first.alu, sources=first.alu.sources[:1])
            results = (self._row(operations[-1].results[0]),)
            return Call(
                alu,
                tuple(sources),
                results,
                len(operations),
                guard,
                first.instruction,
                is_chain=True,
            )
        alone = len(operations) == 1
        sources = [
            self._operands([one.sources[place] for one in operations], kind, alone=alone)
            for place, kind in enumerate(first.alu.sources)
        ]
        targets = [
            [self._row(one.results[place]) for one in operations]
            for place in range(len(first.alu.results))
        ]
        rows = tuple(target[0] if alone else _sequence(target) for target in targets)
        return Call(
            first.alu,
            tuple(sources),
            rows,
            0 if alone else len(operations),
            guard,
            first.instruction,
        )

    def _row(self, register: Register) -> int:
        if not self._is_local(register):
            return self._table.row_of(register)
        row = self._rows.get(register)
        if row is None:
            row = self._rows[register] = (
                self._table.counts[register.kind] + self.counts[register.kind]
            )
            self.counts[register.kind] += 1
        return row

    def _operands(self, operands: list[Source], kind: str, *, alone: bool) -> Rows | Constant:
        """One operand of each operation of a group."""
        plain = [
            self._table.resolve(operand, kind) if isinstance(operand, Special | Symbol) else operand
            for operand in operands
        ]
        numbers = [operand for operand in plain if isinstance(operand, Immediate)]
        if numbers:
            assert len(numbers) == len(plain), "a group's operands are all numbers, or none is"
            if alone or all(number == numbers[0] for number in numbers):
                return Constant(constant(numbers[0], kind))
            return Constant(np.array([constant(number, kind) for number in numbers])[:, None])
        rows = [self._row(operand) for operand in plain if isinstance(operand, Register)]
        return rows[0] if alone else _sequence(rows)


def _sequence(rows: list[int]) -> Rows:
    """Rows as a slice if their distance is the same everywhere."""
    step = rows[1] - rows[0]
    if any(after - before != step for before, after in itertools.pairwise(rows)):
        return tuple(rows)
    if step == 0:
        return slice(rows[0], rows[0] + 1)
    stop = rows[-1] + (1 if step > 0 else -1)
    return slice(rows[0], stop if stop >= 0 else None, step)
