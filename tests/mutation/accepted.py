"""Mutants that nobody can catch, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mutation.bench import Outcome


@dataclass(frozen=True, slots=True)
class Accepted:
    """Why the mutants of a rule at places that a pattern matches are no faults.

    Attributes:
        rule: Name of the rule.
        place: Pattern of the places, searched for in `Outcome.place`.
        reason: Why.
        kernels: Pattern of the kernels; all if empty.
    """

    rule: str
    place: str
    reason: str
    kernels: str = ""


ACCEPTED: tuple[Accepted, ...] = ()


def reason(outcome: Outcome) -> str:
    """Why a survivor is accepted; empty if it is not."""
    for one in ACCEPTED:
        if (
            one.rule == outcome.rule
            and re.search(one.place, outcome.place)
            and re.search(one.kernels, outcome.kernel)
        ):
            return one.reason
    return ""
