"""What is remembered of each memory cell, and where events acted: the tables behind `order`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.report import Site

    Cells = slice | range | NDArray[np.int64]

# The event of everything before the launch, which everybody knows.
BEFORE = 1

# Tables of states are thinned out when they have grown to twice what was needed last time, but not below this.
_FEWEST_STATES = 4096
# Of how many events the single accesses are remembered; of older ones, where they first acted.
_DETAILED_EVENTS = 4096
# Up to here, turning an array into a Python set is cheaper than a search for its extremes.
_FEW_CELLS = 64


class State(NamedTuple):
    """What happened to a cell, as sets of events.

    Attributes:
        writers: The last ordinary write, and those that wrote the very same bytes since: whoever knows one of them
            knows the contents.
        readers: Ordinary reads since.
        strong_writers: Strong writes since.
        strong_readers: Strong reads since.
    """

    writers: int
    readers: int = 0
    strong_writers: int = 0
    strong_readers: int = 0


class Shadow:
    """A state for every cell of a memory.

    Attributes:
        name: Of the memory, for reports.
        cell_bytes: Bytes of a cell.
        states: Number of each cell's state in the run's `StateTable`.
        is_known: Whether the table knows that it is used here.
    """

    __slots__ = ("__weakref__", "cell_bytes", "is_known", "name", "states")

    def __init__(self, cells: int, cell_bytes: int, name: str) -> None:
        """Nobody has accessed anything."""
        self.name = name
        self.cell_bytes = cell_bytes
        self.states = np.zeros(cells, dtype=np.int32)
        self.is_known = False

    def place(self, cell: int, cells: int) -> str:
        """For reports: where some cells lie, of which this is the first."""
        return f"{self.name} at {cell * self.cell_bytes:#x}, {cells * self.cell_bytes} bytes"


class StateTable:
    """All states that cells are in, numbered; number 0 is that of memory before the launch."""

    def __init__(self) -> None:
        """Nobody has accessed anything."""
        self._states = [State(BEFORE)]
        self._numbers = {State(BEFORE): 0}
        self._most = _FEWEST_STATES
        self._shadows: weakref.WeakSet[Shadow] = weakref.WeakSet()
        # The state behind a read by an event: reads repeat, and what was in order stays so.
        self.after_read: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> State:
        """A state by its number."""
        return self._states[number]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._states)

    def number(self, state: State) -> int:
        """The number of a state."""
        known = self._numbers.setdefault(state, len(self._states))
        if known == len(self._states):
            self._states.append(state)
        return known

    def watch(self, shadow: Shadow) -> None:
        """Remember whose states are needed, and forget others if there are many."""
        if not shadow.is_known:
            shadow.is_known = True
            self._shadows.add(shadow)
        if len(self._states) > self._most:
            self._thin_out()

    def _thin_out(self) -> None:
        """Keep the states that cells are in."""
        used = np.zeros(len(self._states), dtype=np.bool_)
        used[0] = True
        for shadow in self._shadows:
            used[shadow.states] = True
        kept = np.flatnonzero(used)
        numbers = np.zeros(len(used), dtype=np.int32)
        numbers[kept] = np.arange(len(kept))
        for shadow in self._shadows:
            shadow.states[:] = numbers[shadow.states]
        self._states = [self._states[number] for number in kept.tolist()]
        self._numbers = {state: number for number, state in enumerate(self._states)}
        self._most = max(_FEWEST_STATES, 2 * len(self._states))
        self.after_read.clear()


class EventSites:
    """Where events acted: of a warp's stretch every instruction, with the first cells that it touched."""

    def __init__(self) -> None:
        """Only the event before the launch exists."""
        self._sites: list[Site | None] = [None]
        self._accesses: dict[int, dict[tuple[int, int], tuple[Cells, Site]]] = {}

    def begin(self, site: Site | None) -> int:
        """A new event's number."""
        event = len(self._sites)
        self._sites.append(site)
        old = self._accesses.get(event - _DETAILED_EVENTS)
        if old:
            old.clear()
        return event

    def first(self, event: int) -> Site | None:
        """Where an event acted first."""
        return self._sites[event]

    def acted(self, event: int) -> bool:
        """Whether there are accesses of an event."""
        return event in self._accesses

    def note(self, event: int, shadow: Shadow, cells: Cells, site: Site) -> None:
        """An event accesses cells."""
        accesses = self._accesses.get(event)
        if accesses is None:
            accesses = self._accesses[event] = {}
            self._sites[event] = site
        key = (id(shadow), site.ptx_line)
        if key not in accesses:
            accesses[key] = (cells, site)

    def find(self, event: int, shadow: Shadow, cell: int) -> Site | None:
        """Where an event accessed a cell; of a loop, where it ran first."""
        found = self._sites[event]
        for (memory, _), (cells, site) in self._accesses.get(event, {}).items():
            if memory == id(shadow):
                found = site
                if _holds(cells, cell):
                    break
        return found


def _holds(cells: Cells, cell: int) -> bool:
    if isinstance(cells, slice):
        return cell in range(cells.start, cells.stop, cells.step or 1)
    return cell in cells


def distinct(numbers: NDArray[np.int32]) -> list[int]:
    """The distinct values; nearly always one."""
    if numbers.size <= _FEW_CELLS:
        return list(set(numbers.ravel().tolist()))
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return [low]
    values: list[int] = np.unique(numbers).tolist()
    return values


def replace(
    shadow: Shadow, cells: Cells, numbers: NDArray[np.int32], before: list[int], after: list[int]
) -> None:
    """Give cells, whose states are `numbers`, those of `after` for those of `before`."""
    if before == after:
        return
    if len(after) == 1:
        shadow.states[cells] = after[0]
        return
    table = np.array([before, after], dtype=np.int32)
    table = table[:, table[0].argsort()]
    shadow.states[cells] = table[1][np.searchsorted(table[0], numbers)]
