"""Schedules a segment's operations into groups that one call computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.ptx import Register
    from mlagen.sim.translate import MicroOp


@dataclass(frozen=True, slots=True)
class Group:
    """Operations for one call.

    Attributes:
        operations: Independent of each other; or, in a chain, each the next one's source.
        is_chain: Whether it is a chain.
    """

    operations: tuple[MicroOp, ...]
    is_chain: bool = False


def fuse(operations: list[MicroOp], is_local: Callable[[Register], bool]) -> list[Group]:
    """Group operations; the groups' order keeps every dependence.

    Args:
        operations: In program order.
        is_local: Whether a register is used nowhere else.
    """
    return [Group((operation,)) for operation in operations]
