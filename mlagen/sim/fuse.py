"""Schedules a segment's operations into groups that one call computes.

Unrolled code repeats one operation on many registers. Operations of the same kind that do not depend on each other
are computed by one NumPy call on as many rows; a chain of additions or of maxima, each link the next one's source and
of no other use, is one reduction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.sim.ptx import Immediate, Register, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mlagen.sim.translate import MicroOp, Source

_SHORTEST_CHAIN = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Operations for one call.

    Attributes:
        operations: Independent of each other; or, in a chain, each the next one's source.
        is_chain: Whether it is a chain.
    """

    operations: tuple[MicroOp, ...]
    is_chain: bool = False

    @property
    def links(self) -> list[Register]:
        """What a chain combines: what its first link starts from, then what each link adds."""
        first, *rest = self.operations
        links = [source for source in reversed(first.sources) if isinstance(source, Register)]
        before = first.results[0]
        for operation in rest:
            a, b = operation.sources
            links += [
                source for source in (b if a == before else a,) if isinstance(source, Register)
            ]
            before = operation.results[0]
        return links


def fuse(operations: list[MicroOp], is_local: Callable[[Register], bool]) -> list[Group]:
    """Group operations; the groups' order keeps every dependence.

    Args:
        operations: In program order.
        is_local: Whether a register is used nowhere else.
    """
    units = _with_chains(_without_dead(operations, is_local), is_local)
    groups: dict[tuple[int, Hashable], list[MicroOp]] = {}
    chains: list[tuple[int, Group]] = []
    for level, unit in zip(_levels(units), units, strict=True):
        if unit.is_chain:
            chains.append((level, unit))
        else:
            operation = unit.operations[0]
            groups.setdefault((level, _signature(operation)), []).append(operation)
    scheduled = [(level, Group(tuple(members))) for (level, _), members in groups.items()]
    return [group for _, group in sorted(scheduled + chains, key=lambda item: item[0])]


def _without_dead(operations: list[MicroOp], is_local: Callable[[Register], bool]) -> list[MicroOp]:
    """Leave out operations whose results nobody reads."""
    read: set[Register] = set()
    kept: list[MicroOp] = []
    for operation in reversed(operations):
        if not operation.alu.context and all(
            is_local(result) and result not in read for result in operation.results
        ):
            continue
        kept.append(operation)
        read.update(_reads(operation))
    kept.reverse()
    return kept


def _reads(operation: MicroOp) -> list[Register]:
    """Registers whose old values an operation needs; where a guard is false, results keep theirs."""
    reads = [source for source in operation.sources if isinstance(source, Register)]
    if operation.guard is not None:
        reads += [operation.guard[0], *operation.results]
    return reads


def _signature(operation: MicroOp) -> Hashable:
    """Operations with equal signatures can be one call."""
    alu = operation.alu
    if alu.context:
        return id(operation)
    return (
        alu.call,
        alu.sources,
        alu.results,
        operation.guard,
        tuple(_class_of(source) for source in operation.sources),
    )


def _class_of(source: Source) -> str:
    if isinstance(source, Immediate):
        return "#"
    return source.name if isinstance(source, Symbol) else ""


def _levels(units: list[Group]) -> list[int]:
    """For every unit, in program order, the length of the longest path of dependences that leads to it."""
    written: dict[Register, int] = {}
    last_read: dict[Register, int] = {}
    levels = []
    for unit in units:
        reads = unit.links if unit.is_chain else _reads(unit.operations[0])
        writes = unit.operations[-1].results
        level = 0
        for register in reads:
            level = max(level, written.get(register, -1) + 1)
        for register in writes:
            level = max(level, written.get(register, -1) + 1, last_read.get(register, -1) + 1)
        for register in reads:
            last_read[register] = max(level, last_read.get(register, -1))
        for register in writes:
            written[register] = level
            last_read.pop(register, None)
        levels.append(level)
    return levels


# --- Chains


def _with_chains(operations: list[MicroOp], is_local: Callable[[Register], bool]) -> list[Group]:
    """Operations as groups of one, and chains where their last link stands."""
    uses = Counter(register for operation in operations for register in _reads(operation))
    writes: dict[Register, list[int]] = {}
    for index, operation in enumerate(operations):
        for register in operation.results:
            writes.setdefault(register, []).append(index)
    open_chains: dict[Register, list[int]] = {}  # by their last result
    chains: dict[int, list[int]] = {}  # by their last operation
    for index, operation in enumerate(operations):
        if not _may_be_linked(operation):
            continue
        sources = [source for source in operation.sources if isinstance(source, Register)]
        chain = next(
            (
                open_chains[one]
                for one in sources
                if _same_call(operations, open_chains.get(one), operation)
            ),
            None,
        )
        if chain is None:
            chain = []
        else:
            open_chains.pop(operations[chain[-1]].results[0])
            chains.pop(chain[-1])
        chain = [*chain, index]
        chains[index] = chain
        result = operation.results[0]
        if is_local(result) and uses[result] == 1 and len(writes[result]) == 1:
            open_chains[result] = chain
    return _arranged(
        operations, [chain for chain in chains.values() if _is_worth_it(operations, chain, writes)]
    )


def _may_be_linked(operation: MicroOp) -> bool:
    return (
        operation.alu.chain is not None
        and operation.guard is None
        and len(operation.sources) == 2
        and all(isinstance(source, Register) for source in operation.sources)
        and operation.sources[0] != operation.sources[1]
    )


def _same_call(operations: list[MicroOp], chain: list[int] | None, operation: MicroOp) -> bool:
    return chain is not None and operations[chain[-1]].alu == operation.alu


def _is_worth_it(
    operations: list[MicroOp], chain: list[int], writes: dict[Register, list[int]]
) -> bool:
    """Whether a chain is long, and nothing that it reads changes before its last link."""
    if len(chain) < _SHORTEST_CHAIN:
        return False
    last = chain[-1]
    own = {operations[index].results[0] for index in chain[:-1]}
    return not any(
        index < write < last
        for index in chain
        for source in operations[index].sources
        if isinstance(source, Register) and source not in own
        for write in writes.get(source, ())
    )


def _arranged(operations: list[MicroOp], chains: list[list[int]]) -> list[Group]:
    by_last = {chain[-1]: chain for chain in chains}
    linked = {index for chain in chains for index in chain}
    groups = []
    for index, operation in enumerate(operations):
        if index in by_last:
            members = tuple(operations[member] for member in by_last[index])
            groups.append(Group(members, is_chain=True))
        elif index not in linked:
            groups.append(Group((operation,)))
    return groups
