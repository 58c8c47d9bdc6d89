"""Constants of a kernel: registers that get one value in one place, found before it runs.

Compilers move numbers into registers before they use them, and add them up to addresses. What depends on nothing but
such registers is computed once, here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.operands import constant
from mlagen.sim.ptx import Immediate, Register, Symbol
from mlagen.sim.registers import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.translate import MicroOp, Source


def with_constants(
    stretches: Iterable[list[MicroOp]],
    written_elsewhere: Iterable[Register],
    addresses: dict[str, int],
) -> list[list[MicroOp]]:
    """Operations whose sources are numbers wherever these are known.

    Args:
        stretches: All of a kernel's operations, in program order.
        written_elsewhere: Registers that other instructions may write.
        addresses: Of variables whose address is known before the launch.
    """
    before = list(stretches)
    writes = Counter(register for stretch in before for one in stretch for register in one.results)
    writes.update(written_elsewhere)
    known: dict[Register, Immediate] = {}
    after = []
    for stretch in before:
        rewritten = []
        for operation in stretch:
            new = _substituted(operation, known, addresses)
            rewritten.append(new)
            value = _value(new)
            if value is not None and writes[new.results[0]] == 1:
                known[new.results[0]] = value
        after.append(rewritten)
    return after


def _substituted(
    operation: MicroOp, known: dict[Register, Immediate], addresses: dict[str, int]
) -> MicroOp:
    sources = tuple(
        _source(source, kind, known, addresses)
        for source, kind in zip(operation.sources, operation.alu.sources, strict=True)
    )
    return operation if sources == operation.sources else replace(operation, sources=sources)


def _source(
    source: Source, kind: str, known: dict[Register, Immediate], addresses: dict[str, int]
) -> Source:
    if isinstance(source, Symbol) and source.name in addresses:
        return Immediate(addresses[source.name])
    if (
        isinstance(source, Register)
        and source in known
        and VIEWS[kind].file == source.kind
        and kind not in ("f16", "bf16")
    ):
        return known[source]
    return source


def _value(operation: MicroOp) -> Immediate | None:
    """The result of an operation on numbers, as the bits of its register."""
    alu = operation.alu
    if (
        alu.context
        or operation.guard is not None
        or len(operation.results) != 1
        or not operation.sources
        or not all(isinstance(source, Immediate) for source in operation.sources)
    ):
        return None
    sources = []
    for source, kind in zip(operation.sources, alu.sources, strict=True):
        assert isinstance(source, Immediate)
        sources.append(np.array([constant(source, kind)]).view(VIEWS[kind].dtype))
    view = VIEWS[alu.results[0]]
    file = VIEWS[view.file]
    out = np.zeros(1, file.dtype)
    with np.errstate(all="ignore"):
        alu.call(*sources, out.view(view.dtype))
    bits = int(out[0])
    if view.file in ("pred", "b16"):
        return Immediate(bits)
    return Immediate(bits, is_float=True, is_double=view.file == "b64")
