"""What a kernel's machine code must show: a plan says it, the lint of compiled kernels checks it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SassLoop:
    """A loop of the machine code, all of whose rounds do the same.

    Attributes:
        role: Whose it is.
        counts: How many of some instructions a round has, by their names with the modifiers that matter: `LDTM.x32`.
    """

    role: str
    counts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        """Return it as messages show it."""
        return f"{self.role}: {', '.join(f'{count} {name}' for name, count in self.counts)}"


@dataclass(frozen=True, slots=True)
class SassFacts:
    """What the machine code of a kernel must show, which the lint checks.

    Attributes:
        loops: The loop of each role that computes.
        registers: What setmaxnreg asks for, once each, in the order of roles.
    """

    loops: tuple[SassLoop, ...] = ()
    registers: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return all of it on one line."""
        return f"{'; '.join(map(str, self.loops))}; registers {self.registers}"
