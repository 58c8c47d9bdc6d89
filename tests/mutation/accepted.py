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
    """

    rule: str
    place: str
    reason: str

    def fits(self, rule: str, place: str) -> bool:
        """Whether it is about this mutant."""
        return self.rule == rule and re.search(self.place, place) is not None


ACCEPTED: tuple[Accepted, ...] = ()


def reason(outcome: Outcome) -> str:
    """Why a survivor is accepted; empty if it is not."""
    return next((one.reason for one in ACCEPTED if one.fits(outcome.rule, outcome.place)), "")
