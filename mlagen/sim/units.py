"""Which unit executes an instruction that others can notice."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import barrier, memory, tcgen05, tma, wgmma

if TYPE_CHECKING:
    from types import ModuleType

    from mlagen.sim.hardware import Decoder
    from mlagen.sim.ptx import Function

# Opcodes that change nothing that a kernel can see.
NO_EFFECT = (
    "prefetch",
    "prefetchu",
    "nanosleep",
    "griddepcontrol",
    "discard",
    "applypriority",
    "cp.async.bulk.prefetch",
    "pmevent",
    "brkpt",
)


_UNITS: tuple[ModuleType, ...] = (memory, barrier, tma, wgmma, tcgen05)


@functools.cache
def find_unit(opcode: str) -> tuple[Decoder, bool]:
    """Who executes an opcode that others can notice, and whether all live lanes must do so together.

    Raises:
        UnsupportedPtxError: Nobody does.
    """
    parts = opcode.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    for prefix in prefixes:
        for unit in _UNITS:
            if prefix in unit.DECODERS:
                return unit.DECODERS[prefix], not unit.ALIGNED.isdisjoint(prefixes)
    raise UnsupportedPtxError("no unit executes it")


def check_function(function: Function) -> None:
    """Ask the units about a kernel as a whole.

    Raises:
        UnsupportedPtxError: Instructions that are known do not go together.
    """
    for unit in _UNITS:
        if hasattr(unit, "check_function"):
            unit.check_function(function)
