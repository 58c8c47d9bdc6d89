"""`ldmatrix` and `stmatrix`: 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import elements_of, lane_values, read_lanes, write_lanes
from mlagen.sim.hardware import ALL_LANES, LANES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site

ROWS = 8
ROW_BYTES = 16
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def fragments_of(rows: NDArray[np.uint8], *, transposed: bool) -> NDArray[np.uint32]:
    """Rows of matrices as the registers of a warp.

    Args:
        rows: `[8 * matrices, 16]` bytes.
        transposed: `.trans`.

    Returns:
        `[matrices, 32]`: lane l holds elements `(l // 4, 2 * (l % 4))` and the next in the row; of the transposed
        matrix with `.trans` (PTX ISA 9.7.14.5.15).
    """
    matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(-1, ROWS, ROWS)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    return np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, LANES)


def rows_of(fragments: NDArray[np.uint32], *, transposed: bool) -> NDArray[np.uint8]:
    """The inverse of `fragments_of`: `[8 * matrices, 16]` bytes (PTX ISA 9.7.14.5.16)."""
    matrices = np.ascontiguousarray(fragments).view(np.uint16).reshape(-1, ROWS, ROWS)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    return np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, ROW_BYTES)


def _form(instruction: Instruction) -> tuple[int, bool, str | None]:
    """Matrices, whether transposed, and state space."""
    parts = list(instruction.parts[1:])
    transposed = "trans" in parts
    if transposed:
        parts.remove("trans")
    match parts:
        case ["sync", "aligned", "m8n8", ("x1" | "x2" | "x4") as count, *space, "b16"] if space in (
            [],
            ["shared"],
            ["shared::cta"],
        ):
            return _COUNTS[count], transposed, "shared" if space else None
        case _:
            raise UnsupportedPtxError(instruction.opcode)


def _registers(instruction: Instruction, operand: Operand, count: int) -> tuple[Operand, ...]:
    """One register a matrix."""
    registers = tuple(elements_of(operand))
    if len(registers) != count:
        raise UnsupportedPtxError(
            f"{instruction.opcode}: {len(registers)} registers for {count} matrices"
        )
    return registers


def _lacks_lanes(path: Path, site: Site) -> bool:
    """Whether lanes of the warp have returned, after reporting it."""
    if path.mask == ALL_LANES:
        return False
    text = f"{site.opcode} takes 32 lanes, of this warp {len(path.lanes)} have not returned"
    path.warp.cta.simulation.findings.add("diverged-aligned", text, site)
    return True


def decode_ldmatrix(instruction: Instruction, bind: Binder) -> Handler:
    """`ldmatrix`: lanes 0 to 8n - 1 give the addresses of rows, all lanes receive."""
    count, transposed, space = _form(instruction)
    destination, source = instruction.operands
    address = bind.address(source)
    writers = [
        bind.writer(element, "u32") for element in _registers(instruction, destination, count)
    ]

    def load(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        if _lacks_lanes(path, site):
            return
        where = lane_values(address(path), path).view(np.int64)[: ROWS * count]
        fragments = fragments_of(
            read_lanes(path, space, where, ROW_BYTES, site), transposed=transposed
        )
        for write, values in zip(writers, fragments, strict=True):
            write(path, values)

    return load


def decode_stmatrix(instruction: Instruction, bind: Binder) -> Handler:
    """`stmatrix`: lanes 0 to 8n - 1 give the addresses of rows, all lanes give elements."""
    count, transposed, space = _form(instruction)
    destination, source = instruction.operands
    address = bind.address(destination)
    readers = [bind.reader(element, "u32") for element in _registers(instruction, source, count)]

    def store(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        if _lacks_lanes(path, site):
            return
        where = lane_values(address(path), path).view(np.int64)[: ROWS * count]
        fragments = np.stack([lane_values(read(path), path) for read in readers])
        write_lanes(path, space, where, rows_of(fragments, transposed=transposed), site)

    return store


DECODERS: dict[str, Decoder] = {"ldmatrix": decode_ldmatrix, "stmatrix": decode_stmatrix}
ALIGNED = frozenset({"ldmatrix", "stmatrix"})
