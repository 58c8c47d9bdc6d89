"""A lowered kernel: what the machine executes, one step a program counter; and the registers that it runs on.

A *segment* is a maximal run of instructions inside a basic block that touch nothing but registers (and parameters): a
list of NumPy calls whose arguments are bound once per CTA and range of threads. All else is executed by the units'
handlers, or is control flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta, Handler, Path, Reader, Simulation, Warp
    from mlagen.sim.ptx import Function, Instruction, Module


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
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Touched:
    """32-bit rows that a step reads and writes, as bitsets (bit `row`), for the check of registers in flight."""

    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Instructions `start` to `end - 1`, which only touch registers. The next pc is `end`.

    Attributes:
        start: First pc.
        end: First pc behind it.
        touched: Rows it reads and writes.
        crosses_lanes: Whether it holds `shfl`, `vote`, ...: lanes of a warp that are elsewhere would be missed.
    """

    start: int
    end: int
    touched: Touched
    crosses_lanes: bool

    def run(self, cta: Cta, first_warp: int, last_warp: int) -> None:
        """Execute it in all lanes of warps `first_warp` to `last_warp - 1`, in one go."""
        raise NotImplementedError

    def run_path(self, path: Path) -> None:
        """Execute it in the lanes of a path, whatever they are."""
        raise NotImplementedError


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
        row_counts: Rows per kind of register.
        static_shared_bytes: Of `.shared` variables with a size, from `SHARED_BASE` on.
        dynamic_shared_base: Shared address of `extern .shared` arrays.
        local_bytes: Local memory of a thread.
        globals: Names of the module's `.global` variables, whose addresses `open_registers` wants.
    """

    module: Module
    function: Function
    steps: tuple[Step | None, ...]
    lines: tuple[int, ...]
    row_counts: dict[str, int]
    static_shared_bytes: int
    dynamic_shared_base: int
    local_bytes: int
    globals: tuple[str, ...]

    def open_registers(self, cta: Cta, symbols: dict[str, int]) -> None:
        """Give a CTA its registers, poisoned, and fill in its special registers.

        Sets `cta.registers`, which also holds typed views of the same memory (`u32 s32 f32 u64 s64 f64 u16 s16`).

        Args:
            cta: With `simulation`, `index`, `number`, `cluster`, `rank` set.
            symbols: Global address of every variable in `globals`.
        """
        raise NotImplementedError

    def close_registers(self, cta: Cta) -> None:
        """Take a CTA's registers back for the next CTA, with what has been bound to them."""
        raise NotImplementedError
