"""Few rows of choices, one value an axis, that have all pairs of values which can stand together.

Knows nothing of what the axes mean. Every rule of who can stand with whom joins two choices.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

Choice = tuple[str, str]  # axis, value
Row = dict[str, str]
Pair = frozenset[Choice]


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """The pairs that one row covers."""
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


@dataclass(frozen=True, eq=False)
class Axes:
    """What can be chosen.

    Attributes:
        values: The values of each axis; the first is the base: what stands where nothing else is asked for.
        is_allowed: Whether two choices can stand in one row.
    """

    values: Mapping[str, tuple[str, ...]]
    is_allowed: Callable[[Choice, Choice], bool]

    @functools.cached_property
    def base(self) -> Row:
        """The first value of each axis."""
        return {axis: values[0] for axis, values in self.values.items()}

    @functools.cached_property
    def valid_pairs(self) -> frozenset[Pair]:
        """Every pair of choices on two axes that some row can have."""
        return frozenset(
            frozenset({(a, x), (b, y)})
            for a, b in itertools.combinations(self.values, 2)
            for x, y in itertools.product(self.values[a], self.values[b])
            if self._complete({a: x, b: y}) is not None
        )

    def covering_rows(self, *, first_alone: bool = False) -> tuple[Row, ...]:
        """Rows with all valid pairs; `first_alone`, behind rows with each choice alone.

        Greedy, one uncovered pair at a time in a fixed order, each axis taking the value that covers
        most new pairs, then the one used least so far; so the same axes always give the same rows
        (compare AETG, Cohen et al., IEEE TSE 23(7), 1997). In the end those go whose pairs the others have, unless they
        may be there for a choice alone.
        """
        rows: list[Row] = []
        uncovered = set(self.valid_pairs)
        used: Counter[Choice] = Counter()

        def add(row: Row) -> None:
            rows.append(row)
            used.update(row.items())
            uncovered.difference_update(pairs_of(row))

        if first_alone:
            for alone in self._rows_alone():
                if alone not in rows:
                    add(alone)
            used.clear()  # the rows above sit at the base on purpose
        for pair in sorted(uncovered, key=sorted):
            if pair in uncovered:
                row = self._complete(dict(pair), uncovered, used)
                assert row is not None
                add(row)
        return tuple(rows if first_alone else _without_superfluous(rows))

    def _rows_alone(self) -> Iterator[Row]:
        """Each choice with all else at its base where it can be."""
        for axis, values in self.values.items():
            for value in values:
                row = self._complete({axis: value})
                if row is not None:
                    yield row

    def _complete(
        self,
        partial: Row,
        uncovered: Collection[Pair] = (),
        used: Mapping[Choice, int] | None = None,
    ) -> Row | None:
        """`partial` with the other axes filled in, or None if nothing fits.

        A value is preferred if it covers more of `uncovered`, then if it was `used` less, then if it
        is listed earlier.
        """
        order = list(self.values)
        missing = [axis for axis in order if axis not in partial]
        pairs = itertools.combinations(partial.items(), 2)
        if any(not self.is_allowed(a, b) for a, b in pairs):
            return None
        if not missing:
            return {axis: partial[axis] for axis in order}
        # An axis with one value left is filled first, so that a dead end shows early.
        choices = {axis: list(self._fitting(axis, partial)) for axis in missing}
        axis = min(missing, key=lambda name: (len(choices[name]) > 1, order.index(name)))

        def rank(value: str) -> tuple[int, int, int]:
            new = sum(frozenset({(axis, value), other}) in uncovered for other in partial.items())
            times = used.get((axis, value), 0) if used else 0
            return -new, times, self.values[axis].index(value)

        for value in sorted(choices[axis], key=rank):
            row = self._complete({**partial, axis: value}, uncovered, used)
            if row is not None:
                return row
        return None

    def _fitting(self, axis: str, partial: Row) -> Iterator[str]:
        """Values of an axis that can stand beside all that is chosen."""
        for value in self.values[axis]:
            if all(self.is_allowed((axis, value), other) for other in partial.items()):
                yield value


def _without_superfluous(rows: list[Row]) -> list[Row]:
    """The rows without those whose pairs all are in others that stay."""
    times = Counter(pair for row in rows for pair in pairs_of(row))
    kept = []
    for row in rows:
        pairs = pairs_of(row)
        if all(times[pair] > 1 for pair in pairs):
            times.subtract(pairs)
        else:
            kept.append(row)
    return kept
