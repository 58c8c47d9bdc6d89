"""What a check of compiled code found, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that a compiled kernel breaks.

    Attributes:
        rule: Short name of the rule.
        message: What is wrong, with the numbers found and expected.
        evidence: Lines of the compiler's log or of the SASS that show it.
    """

    rule: str
    message: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the rule, the message and the evidence, one line each."""
        return "\n".join([f"{self.rule}: {self.message}", *(f"    {e}" for e in self.evidence)])
