"""What instructions on mbarriers share: their modifiers, and the barrier that each lane names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import lane_values
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.hardware import Binder, Cta, Path
    from mlagen.sim.ptx import Instruction, Operand

_SPACES = frozenset({"shared", "shared::cta", "shared::cluster"})
SCOPES = frozenset({"cta", "cluster"})


def modifiers(instruction: Instruction, known: frozenset[str], *, skip: int) -> list[str]:
    """The modifiers behind the first `skip` words, without state spaces.

    Raises:
        UnsupportedPtxError: One of them is not known.
    """
    words = [word for word in instruction.parts[skip:] if word not in _SPACES]
    for word in words:
        if word not in known:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{word}")
    return words


def addressed(bind: Binder, operand: Operand) -> Callable[[Path], list[tuple[Cta, int]]]:
    """`(CTA, shared::cta address)` of the barrier that each lane of a path names."""
    read = bind.address(operand)

    def find(path: Path) -> list[tuple[Cta, int]]:
        cta = path.warp.cta
        values = lane_values(read(path), path).tolist()
        located = {value: locate_shared(cta, value) for value in set(values)}
        return [located[value] for value in values]

    return find
