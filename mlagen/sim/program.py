"""A lowered kernel: what the machine executes, one step a program counter; and the registers that it runs on.

A *segment* is a maximal run of instructions inside a basic block that touch nothing but registers (and parameters): a
list of NumPy calls whose arguments are bound once per CTA and range of threads. All else is executed by the units'
handlers, or is control flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.hardware import LANES
from mlagen.sim.registers import RegisterFile, special_value
from mlagen.sim.segment import Segment, Touched
from mlagen.sim.windows import own_address

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta, Handler, Path, Reader
    from mlagen.sim.ptx import Function, Instruction, Module, RegisterKind

__all__ = [
    "Branch",
    "Exit",
    "Guard",
    "IndexedBranch",
    "Nothing",
    "Program",
    "Segment",
    "Step",
    "Touched",
    "Visible",
]


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p`.

    Attributes:
        row: Of the predicate, in `registers["pred"]`.
        negated: Whether lanes with a false predicate execute.
    """

    row: int
    negated: bool

    def lanes(self, path: Path) -> int:
        """The lanes of a path that execute, a bit for each."""
        first = path.warp.first_thread
        values = path.warp.cta.registers["pred"][self.row, first : first + LANES]
        bits = int.from_bytes(np.packbits(values, bitorder="little").tobytes(), "little")
        return path.mask & (~bits if self.negated else bits)


@dataclass(frozen=True, slots=True)
class Visible:
    """An instruction that others can notice: a unit executes it. The next pc is one further when it returns None.

    Attributes:
        instruction: What was written.
        handler: Executes it for a path that holds only lanes whose guard is true; nothing to do if there are none.
        aligned: Whether all live lanes of the warp must execute it together.
        guard: None if it has none.
        touched: Rows it reads and writes (a product: when it is issued).
    """

    instruction: Instruction
    handler: Handler
    aligned: bool
    guard: Guard | None
    touched: Touched


@dataclass(frozen=True, slots=True)
class Branch:
    """`bra`: lanes whose guard is true go to `target`, the others one further.

    Attributes:
        instruction: What was written.
        target: pc.
        guard: None if all lanes go.
        uniform: `bra.uni`: lanes that disagree are a finding.
    """

    instruction: Instruction
    target: int
    guard: Guard | None
    uniform: bool


@dataclass(frozen=True, slots=True)
class IndexedBranch:
    """`brx.idx`: every lane goes to the target of its index.

    Attributes:
        instruction: What was written.
        index: Reads the index.
        targets: pcs.
        guard: None if all lanes go.
    """

    instruction: Instruction
    index: Reader
    targets: tuple[int, ...]
    guard: Guard | None


@dataclass(frozen=True, slots=True)
class Exit:
    """`ret` and `exit`: lanes whose guard is true are no more. `trap`: the kernel has failed.

    Attributes:
        instruction: What was written.
        guard: None if all lanes end.
        is_trap: Whether it is `trap`, a finding.
    """

    instruction: Instruction
    guard: Guard | None
    is_trap: bool


@dataclass(frozen=True, slots=True)
class Nothing:
    """An instruction without effect here (`nanosleep`, `prefetch`, `griddepcontrol`). The next pc is one further."""

    instruction: Instruction


Step = Segment | Visible | Branch | IndexedBranch | Exit | Nothing


@dataclass(slots=True)
class Program:
    """A kernel, ready to run, as often as one likes.

    Attributes:
        module: What it came from.
        function: The kernel. Rows of its visible instructions' registers are those of the register file.
        steps: One per pc; None inside a segment (nothing jumps there). One more pc than instructions: the last is
            an `Exit` for kernels that fall off their end.
        lines: PTX line per pc, for coverage.
        row_counts: Rows per kind of register that keep their values between steps.
        scratch_counts: Rows per kind behind them, which segments use for values of their own.
        specials: Special registers and addresses of global variables: name, kind of register, row.
        static_shared_bytes: Of `.shared` variables with a size, from `SHARED_BASE` on.
        dynamic_shared_base: Shared address of `extern .shared` arrays.
        local_bytes: Local memory of a thread.
        globals: Names of the module's `.global` variables, whose addresses `open_registers` wants.
        reads_writes: Of every instruction, those of segments too.
        rows: Kind and row of the registers that keep their values between steps, by name, for debugging and tests.
        shared_addresses: Of `.shared` variables, where a CTA's rank is part of them: in clusters.
    """

    module: Module
    function: Function
    steps: tuple[Step | None, ...]
    lines: tuple[int, ...]
    row_counts: dict[str, int]
    scratch_counts: dict[str, int]
    specials: tuple[tuple[str, RegisterKind, int], ...]
    static_shared_bytes: int
    dynamic_shared_base: int
    local_bytes: int
    globals: tuple[str, ...]
    reads_writes: tuple[Touched, ...]
    rows: dict[str, tuple[RegisterKind, int]]
    shared_addresses: dict[str, int] = field(default_factory=dict)
    _spare: list[RegisterFile] = field(default_factory=list)

    def open_registers(self, cta: Cta, symbols: dict[str, int]) -> None:
        """Give a CTA its registers, poisoned, and fill in its special registers.

        Sets `cta.registers`, which also holds typed views of the same memory (`u32 s32 f32 u64 s64 f64 u16 s16`).

        Args:
            cta: With `simulation`, `index`, `number`, `cluster`, `rank`, `warps` and `shared` set.
            symbols: Global address of every variable in `globals`.
        """
        threads = LANES * len(cta.warps)
        file = next(
            (spare for spare in self._spare if spare.arrays["pred"].shape[1] == threads), None
        )
        if file is None:
            rows = {
                kind: count + self.scratch_counts[kind] for kind, count in self.row_counts.items()
            }
            file = RegisterFile(cta, rows, threads)
        else:
            self._spare.remove(file)
            file.cta = cta
        file.poison(self.row_counts)
        cta.registers = file.arrays
        cta.units["registers"] = file
        for name, kind, row in self.specials:
            value = self._special(name, cta, symbols)
            array = file.arrays[kind]
            array[row] = np.asarray(value, np.uint64).astype(array.dtype)

    def _special(self, name: str, cta: Cta, symbols: dict[str, int]) -> NDArray[np.uint64] | int:
        """The value of a special register, or the address of a variable."""
        if name in symbols:
            return symbols[name]
        if name in self.shared_addresses:
            return own_address(cta, self.shared_addresses[name])
        return special_value(name, cta, self.dynamic_shared_base)

    def close_registers(self, cta: Cta) -> None:
        """Take a CTA's registers back for the next CTA, with what has been bound to them."""
        self._spare.append(cta.units.pop("registers"))
