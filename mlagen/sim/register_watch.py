"""Registers of operations in flight: who touches them before he may."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.hardware import Path
    from mlagen.sim.program import Program, Touched
    from mlagen.sim.report import Severity

_ISSUERS = ("wgmma", "tcgen05.ld")


class RegisterWatch:
    """Compares what every step touches with the rows that operations of its warp own."""

    def __init__(self, program: Program) -> None:
        """Watch over the registers of a kernel."""
        self._program = program

    @staticmethod
    def is_needed(program: Program) -> bool:
        """Whether a kernel has operations that own registers."""
        return any(one.opcode.startswith(_ISSUERS) for one in program.function.instructions)

    def touch(self, path: Path, touched: Touched) -> None:
        """Note what the step at a path's pc touches, and report it if it may not."""
        warp = path.warp
        accessed = touched.reads | touched.writes
        warp.rows_dirty |= accessed
        if warp.rows_pending or warp.rows_lent:
            wrong = accessed & warp.rows_pending | touched.writes & warp.rows_lent
            if wrong:
                self._report(path, wrong)

    def _report(self, path: Path, rows: int) -> None:
        """The first instruction of the step that touches the rows."""
        program, simulation = self._program, path.warp.cta.simulation
        instructions = program.function.instructions
        of_tensor_memory = simulation.target.startswith("sm_10")
        pc = path.pc
        while pc + 1 < len(instructions):
            touched = program.reads_writes[pc]
            if (touched.writes if of_tensor_memory else touched.reads | touched.writes) & rows:
                break
            pc += 1
        instruction = instructions[pc]
        kind = "wgmma-reg"
        text = "touches registers of a wgmma in flight; wgmma.wait_group comes first"
        severity: Severity = "error"
        if of_tensor_memory:
            # Reading them is fine: a true dependency is honoured (PTX ISA 9.7.16.6.4.5), others are not.
            kind = "tcgen05-register"
            severity = "error" if simulation.strict else "note"
            text = "writes registers of a tcgen05.ld in flight; tcgen05.wait::ld comes first"
        site = simulation.findings.site(path, instruction)
        simulation.findings.add(kind, f"{instruction.text}: {text}", site, severity=severity)
