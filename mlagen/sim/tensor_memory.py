"""Tensor memory of one CTA: its cells, who has allocated them, and the checks of every access.

PTX ISA 9.7.16.1, Tensor Memory, and 9.7.16.7, allocation. A CTA has its own 512 columns here: CTAs that share a
multiprocessor, and so wait for each other's columns, are not modelled (`.minnctapersm` times the columns of one CTA
is for the kernel's plan to check).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.hardware import Waitable
from mlagen.sim.order import Shadow
from mlagen.sim.tcgen05_layout import TENSOR_COLUMNS, TENSOR_LANES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta, Path
    from mlagen.sim.report import Site

    Index = NDArray[np.intp] | slice

_CELL_LANES = 16
POISON = np.uint32(0xFFFFFFFF)


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of a tensor-memory address (PTX ISA 9.7.16.1, Tensor Memory Addressing)."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


@functools.cache
def shadow_cells(groups: tuple[int, ...], first_column: int, columns: int) -> NDArray[np.int64]:
    """Shadow cells (16 lanes of one column each) of some groups of lanes and consecutive columns."""
    rows = np.array(groups, dtype=np.int64)[:, None] * TENSOR_COLUMNS
    return (rows + np.arange(first_column, first_column + columns)).ravel()


def lane_groups(lanes: NDArray[np.intp]) -> tuple[int, ...]:
    """The groups of 16 lanes that some lanes belong to, ascending."""
    return tuple(np.unique(lanes // _CELL_LANES).tolist())


def as_index(lanes: NDArray[np.intp]) -> Index:
    """Ascending lanes as a slice if they are consecutive: NumPy then needs no copy."""
    first, last = int(lanes[0]), int(lanes[-1])
    return slice(first, last + 1) if last - first + 1 == len(lanes) else lanes


class ColumnPool(Waitable):
    """Who holds which columns.

    Attributes:
        held: First column of each allocation -> its columns.
        relinquished: Whether the CTA has given up its right to allocate.
        last_size: Columns of the last allocation; sizes must not increase.
    """

    def __init__(self) -> None:
        """Every column is free."""
        super().__init__()
        self.held: dict[int, int] = {}
        self.relinquished = False
        self.last_size = TENSOR_COLUMNS

    def has_room(self, first: int, columns: int) -> bool:
        """Whether nobody holds any of these columns."""
        return all(
            first + columns <= other or other + size <= first for other, size in self.held.items()
        )

    def describe(self, path: Path) -> str:
        """The allocations in the way."""
        held = ", ".join(f"{first} to {first + size - 1}" for first, size in self.held.items())
        return f"free columns of tensor memory; held: {held}"


def place(pools: list[ColumnPool], columns: int) -> int | None:
    """The first multiple of `columns` that is free in every pool; None if there is none."""
    for first in range(0, TENSOR_COLUMNS - columns + 1, columns):
        if all(pool.has_room(first, columns) for pool in pools):
            return first
    return None


class TensorShadow(Shadow):
    """Who accessed each column of 16 lanes last: the finest that layouts divide."""

    __slots__ = ()

    def __init__(self) -> None:
        cells = TENSOR_LANES // _CELL_LANES * TENSOR_COLUMNS
        super().__init__(cells, _CELL_LANES * 4, "tensor memory")

    def place(self, cell: int, cells: int) -> str:
        """Lanes and column of the first cell."""
        group, column = divmod(cell, TENSOR_COLUMNS)
        lanes = f"lanes {group * _CELL_LANES} to {(group + 1) * _CELL_LANES - 1}"
        return f"tensor memory from {lanes}, column {column} on, {cells * self.cell_bytes} bytes"


class TensorMemory:
    """The cells of one CTA.

    Attributes:
        cta: Whose they are.
        words: `[lane, column]`; poison where nothing has been written.
        initialised: `[lane, column]`, whether anything has been written.
        allocated: Per column.
        pool: The allocations.
        shadow: Who wrote and read last.
    """

    def __init__(self, cta: Cta) -> None:
        """Nothing is allocated."""
        self.cta = cta
        self.words = np.full((TENSOR_LANES, TENSOR_COLUMNS), POISON, np.uint32)
        self.initialised = np.zeros((TENSOR_LANES, TENSOR_COLUMNS), np.bool_)
        self.allocated = np.zeros(TENSOR_COLUMNS, np.bool_)
        self.pool = ColumnPool()
        self.shadow = TensorShadow()

    def allocate(self, first: int, columns: int) -> None:
        """Hold columns that are free; what earlier owners left there is not defined.

        Who knows the address knows of the allocation, so earlier accesses are forgotten: `free` has checked them.
        """
        self.pool.held[first] = columns
        self.pool.last_size = columns
        self.allocated[first : first + columns] = True
        self.words[:, first : first + columns] = POISON
        self.initialised[:, first : first + columns] = False
        self.shadow.states.reshape(-1, TENSOR_COLUMNS)[:, first : first + columns] = 0

    def free(self, first: int) -> None:
        """Give an allocation back and let those who wait for columns look again."""
        columns = self.pool.held.pop(first)
        self.allocated[first : first + columns] = False
        self.pool.wake()

    def store(self, lanes: Index, columns: Index, values: NDArray[np.uint32]) -> None:
        """Write cells."""
        self.words[lanes, columns] = values
        self.initialised[lanes, columns] = True

    def check_columns(self, first: int, columns: int, what: str, site: Site) -> bool:
        """Whether columns exist and are allocated; False after reporting `tcgen05-address`."""
        if first + columns <= TENSOR_COLUMNS and self.allocated[first : first + columns].all():
            return True
        held = ", ".join(f"{base} to {base + size - 1}" for base, size in self.pool.held.items())
        self.cta.simulation.findings.add(
            "tcgen05-address",
            f"{what} in columns {first} to {first + columns - 1} of tensor memory; allocated: {held or 'none'}",
            site,
        )
        return False

    def check_initialised(self, lanes: Index, columns: Index, what: str, site: Site) -> None:
        """Report the first of some cells that nobody has written."""
        if self.initialised[lanes, columns].all():
            return
        wanted = np.zeros_like(self.initialised)
        wanted[lanes, columns] = True
        lane, column = np.argwhere(wanted & ~self.initialised)[0].tolist()
        self.cta.simulation.findings.add(
            "uninitialised",
            f"{what} reads lane {lane}, column {column} of tensor memory, which nothing has written",
            site,
        )


def memory_of(cta: Cta) -> TensorMemory:
    """The tensor memory of a CTA, which every CTA of sm_100a has."""
    assert cta.tensor_memory is not None
    return cta.tensor_memory
