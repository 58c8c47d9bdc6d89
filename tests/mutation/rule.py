"""A rule: one kind of fault, and the mutants that come of it in one kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.mutation.source import Edit, Source, load

# One mutant each: the edits that plant the fault once.
Planting = Iterable[Sequence[Edit] | Edit]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel with one fault.

    Attributes:
        rule: Name of the rule.
        place: Where: the function and the line as rendered, numbered if the rule fits it more than once.
        line: Its number.
        source: The whole text, each line with the number that it had.
    """

    rule: str
    place: str
    line: int
    source: str = field(repr=False)

    @property
    def name(self) -> str:
        """Unique in a kernel."""
        return f"{self.rule} @ {self.place}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of fault.

    Attributes:
        name: In words joined by hyphens.
        description: What is wrong in a mutant.
        plant: The edits of every place of a kernel where the fault fits.
    """

    name: str
    description: str
    plant: Callable[[Source], Planting]

    def sites(self, text: str) -> list[Mutant]:
        """One mutant for every place where the fault fits."""
        source = load(text)
        found: list[Mutant] = []
        seen: Counter[str] = Counter()
        for planting in self.plant(source):
            edits = [planting] if isinstance(planting, Edit) else list(planting)
            mutated = source.apply(edits)
            if mutated == text:
                continue
            first = edits[0].start
            place = f"{source.function(first)}: {source.line_text(first).strip()}"
            seen[place] += 1
            if seen[place] > 1:
                place += f" #{seen[place]}"
            assert mutated.count("\n") == text.count("\n"), "lines keep their numbers"
            found.append(Mutant(self.name, place, source.line(first), mutated))
        return found
