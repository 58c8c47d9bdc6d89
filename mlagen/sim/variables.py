"""Where a kernel's variables lie, as far as that is known before a launch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlagen.sim.windows import SHARED_BASE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.ptx import Function, Module, Variable


class Placement:
    """Addresses of variables in their own state spaces.

    Attributes:
        static_shared_bytes: Of `.shared` variables with a size.
        dynamic_shared_base: Shared address of `extern .shared` arrays, behind those.
        local_bytes: Local memory of a thread.
        addresses: By name; `.global` variables get theirs at launch.
        shared_addresses: In a kernel of clusters, those of shared variables, which are not among `addresses`: every
            CTA's rank is part of them.
    """

    def __init__(self, module: Module, function: Function) -> None:
        """Place the module's variables and those of one function."""
        variables = [*module.variables.values(), *function.variables]
        shared = [one for one in variables if one.space == "shared"]
        self.static_shared_bytes = _end_of(one for one in shared if one.size)
        align = max([16, *(one.align for one in shared if not one.size)])
        end = SHARED_BASE + self.static_shared_bytes
        self.dynamic_shared_base = -(-end // align) * align
        self.local_bytes = _end_of(one for one in variables if one.space == "local")
        self.addresses = {
            one.name: one.offset
            for one in (*variables, *function.parameters)
            if one.space in ("const", "local", "param")
        }
        placed = {
            one.name: SHARED_BASE + one.offset if one.size else self.dynamic_shared_base
            for one in shared
        }
        self.shared_addresses: dict[str, int] = {}
        if math.prod(function.cluster or (1,)) > 1:
            self.shared_addresses = placed
        else:
            self.addresses |= placed


def _end_of(variables: Iterable[Variable]) -> int:
    return max((one.offset + one.size for one in variables), default=0)
