"""Register-only code: calls on rows of registers, bound once to a register file and a range of threads.

A call computes one operation for one or many rows at a time. Where only some lanes execute, or a guard decides, its
result goes to a buffer first and from there into the lanes that are meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.hardware import LANES
from mlagen.sim.lanes import Executing
from mlagen.sim.registers import VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta, Path
    from mlagen.sim.isa import Alu
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.registers import RegisterFile

    Array = NDArray[Any]  # Any: of whatever type the view has
    BoundCall = tuple[Callable[..., Any], tuple[Any, ...]]  # Any: a NumPy ufunc and its arrays

# Rows of a register file: one, an arithmetic sequence of them, or any.
Rows = int | slice | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A source that is no register: one value, or one per row, `[row, 1]`."""

    values: Array


@dataclass(frozen=True, slots=True)
class Call:
    """One operation, on one register of each operand or on `count` of each.

    Attributes:
        alu: What is computed.
        sources: Rows or constants.
        results: Rows.
        count: Operations that this call stands for; 0 for one on plain rows.
        guard: Row of a predicate, and whether it is negated.
        instruction: The first of those it comes from.
        is_chain: Whether it is a chain: the one source has a row per link, the result is one row.
    """

    alu: Alu
    sources: tuple[Rows | Constant, ...]
    results: tuple[Rows, ...]
    count: int
    guard: tuple[int, bool] | None
    instruction: Instruction
    is_chain: bool = False


@dataclass(frozen=True, slots=True)
class Touched:
    """32-bit rows that a step reads and writes, as bitsets (bit `row`), for the check of registers in flight."""

    reads: int
    writes: int


@dataclass(slots=True)
class _Bound:
    """A segment's calls for a range of threads.

    Attributes:
        calls: Functions with their arguments.
        mask: To be filled with the executing lanes before the calls; None if all execute.
    """

    calls: list[BoundCall]
    mask: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Instructions `start` to `end - 1`, which only touch registers and parameters. The next pc is `end`.

    Attributes:
        start: First pc.
        end: First pc behind it.
        touched: Rows it reads and writes.
        crosses_lanes: Whether it holds `shfl`, `vote`, ...: lanes of a warp that are elsewhere would be missed.
        calls: What it does.
    """

    start: int
    end: int
    touched: Touched
    crosses_lanes: bool
    calls: tuple[Call, ...]

    def run(self, cta: Cta, first_warp: int, last_warp: int) -> None:
        """Execute it in all lanes of warps `first_warp` to `last_warp - 1`, in one go."""
        file: RegisterFile = cta.units["registers"]
        key = (self.start, LANES * first_warp, LANES * last_warp)
        bound = file.bound.get(key)
        if bound is None:
            bound = file.bound[key] = _bind(self.calls, file, key[1], key[2], None)
        for call, arguments in bound.calls:
            call(*arguments)

    def run_path(self, path: Path) -> None:
        """Execute it in the lanes of a path, whatever they are."""
        warp = path.warp
        file: RegisterFile = warp.cta.units["registers"]
        first, count = warp.first_thread, LANES
        mask = path.mask
        if mask & (mask - 1) == 0 and not self.crosses_lanes:  # a lone lane is a range of its own
            first, count, mask = first + mask.bit_length() - 1, 1, 0
        # The sign of a range's end tells bindings with a mask from those without.
        key = (self.start, first, -(first + count) if mask else first + count)
        bound = file.bound.get(key)
        if bound is None:
            lanes = np.zeros(count, np.bool_) if mask else None
            bound = file.bound[key] = _bind(self.calls, file, first, first + count, lanes)
        if bound.mask is not None:
            octets = np.frombuffer(mask.to_bytes(LANES // 8, "little"), np.uint8)
            bound.mask[:] = np.unpackbits(octets, bitorder="little")
        for call, arguments in bound.calls:
            call(*arguments)


def _bind(
    calls: tuple[Call, ...],
    file: RegisterFile,
    first: int,
    last: int,
    mask: NDArray[np.bool_] | None,
) -> _Bound:
    binding = _Binding(file, first, last, mask)
    for call in calls:
        binding.add(call)
    return _Bound(binding.calls, mask)


class _Binding:
    """Turns the rows of calls into views of a register file."""

    def __init__(
        self, file: RegisterFile, first: int, last: int, mask: NDArray[np.bool_] | None
    ) -> None:
        self.calls: list[BoundCall] = []
        self._file = file
        self._first = first
        self._last = last
        self._mask = mask

    def add(self, call: Call) -> None:
        """Bind one call, with what has to be done before and after it."""
        alu = call.alu
        sources = [
            self._source(rows, kind) for rows, kind in zip(call.sources, alu.sources, strict=True)
        ]
        if sources and all(isinstance(source, Constant) for source in call.sources):
            kind, values = alu.sources[0], sources[0]
            threads = (self._last - self._first) * VIEWS[kind].count
            sources[0] = np.array(np.broadcast_to(values, (*values.shape[:-1], threads)))
        where = self._where(call.guard)
        outs, afterwards = [], []
        for rows, kind in zip(call.results, alu.results, strict=True):
            out, after = self._result(rows, kind, where)
            outs.append(out)
            afterwards += after
        function = alu.call
        if call.is_chain:
            assert alu.chain is not None
            function = alu.chain
        context: tuple[Any, ...] = ()
        if alu.context:
            threads = self._last - self._first
            context = (Executing(self._file, self._first, threads, self._mask, call.instruction),)
        self.calls.append((function, (*context, *sources, *outs)))
        self.calls += afterwards

    def _view(self, rows: int | slice, kind: str) -> Array:
        count = VIEWS[kind].count
        view: Array = self._file.arrays[kind][rows, self._first * count : self._last * count]
        return view

    def _source(self, rows: Rows | Constant, kind: str) -> Array:
        if isinstance(rows, Constant):
            return self._constant(rows.values, kind)
        if not isinstance(rows, tuple):
            return self._view(rows, kind)
        # Rows in no order are gathered into a buffer before the call.
        everything = self._view(slice(None), kind)
        buffer = np.empty((len(rows), everything.shape[1]), everything.dtype)
        self.calls.append((_gather, (everything, np.array(rows), buffer)))
        return buffer

    def _constant(self, values: Array, kind: str) -> Array:
        count = VIEWS[kind].count
        if count == 1:
            return values
        # A packed constant is repeated in every thread, so that it can be viewed as its elements.
        repeated = np.broadcast_to(values, (*values.shape[:-1], self._last - self._first))
        return np.ascontiguousarray(repeated).view(VIEWS[kind].dtype)

    def _where(self, guard: tuple[int, bool] | None) -> Array | None:
        """Lanes that are written; None if all are."""
        if guard is None:
            return self._mask
        row, negated = guard
        predicate = self._view(row, "pred")
        if not negated and self._mask is None:
            # The operation may overwrite its own guard.
            chosen = np.empty_like(predicate)
            self.calls.append((np.copyto, (chosen, predicate)))
            return chosen
        chosen = np.empty_like(predicate)
        if negated:
            self.calls.append((np.logical_not, (predicate, chosen)))
            predicate = chosen
        if self._mask is not None:
            self.calls.append((np.logical_and, (predicate, self._mask, chosen)))
        return chosen

    def _result(self, rows: Rows, kind: str, where: Array | None) -> tuple[Array, list[BoundCall]]:
        """What a call writes to, and what brings that into the registers."""
        if where is None and not isinstance(rows, tuple):
            return self._view(rows, kind), []
        view = VIEWS[kind]
        threads = self._last - self._first
        shape: tuple[int, ...] = (threads,)
        if isinstance(rows, tuple):
            shape = (len(rows), threads)
        elif isinstance(rows, slice):
            shape = (len(range(*rows.indices(1 << 30))), threads)
        base = view.file
        buffer = np.empty(shape, self._file.arrays[base].dtype)
        if not isinstance(rows, tuple):
            after: BoundCall = (_merge, (self._view(rows, base), buffer, where))
        elif where is None:
            after = (_scatter, (self._view(slice(None), base), np.array(rows), buffer))
        else:
            after = (_scatter_where, (self._view(slice(None), base), np.array(rows), buffer, where))
        return buffer.view(view.dtype), [after]


def _gather(registers: Array, rows: Array, out: Array) -> None:
    out[...] = registers[rows]


def _merge(registers: Array, values: Array, where: Array) -> None:
    np.copyto(registers, values, where=where)


def _scatter(registers: Array, rows: Array, values: Array) -> None:
    registers[rows] = values


def _scatter_where(registers: Array, rows: Array, values: Array, where: Array) -> None:
    registers[rows] = np.where(where, values, registers[rows])
