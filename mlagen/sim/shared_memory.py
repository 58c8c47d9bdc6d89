"""Shared memory of one CTA: bytes, what is known of them, and the checks of an access by lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.order import Shadow
from mlagen.sim.windows import SHARED_BASE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Actor, Cta
    from mlagen.sim.report import Site

CELL_BYTES = 4
_CELL_SHIFT = 2

# What memory holds before anybody writes it, and while an asynchronous write is on its way: a NaN in every float type.
POISON = 0xFF

# Changes memory at offsets, for the numbered lanes of an access in turn.
Update = Callable[["NDArray[np.uint8]", "NDArray[np.int64]", "NDArray[np.intp]"], None]


def gather(memory: NDArray[np.uint8], offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """`[n, size]`: the bytes at each of n offsets."""
    if len(offsets) == 1:
        first = int(offsets[0])
        return memory[first : first + size].reshape(1, size).copy()
    taken: NDArray[np.uint8] = memory[offsets[:, None] + np.arange(size)]
    return taken


def scatter(memory: NDArray[np.uint8], offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Write `[n, size]` bytes at n offsets; the last lane wins where they overlap."""
    size = data.shape[1]
    if len(offsets) == 1:
        first = int(offsets[0])
        memory[first : first + size] = data[0]
        return
    memory[offsets[:, None] + np.arange(size)] = data


def cells_of(
    offsets: NDArray[np.int64], size: int, shift: int = _CELL_SHIFT
) -> NDArray[np.int64] | slice:
    """Cells of `2**shift` bytes that lanes touch with aligned accesses; may repeat."""
    cells = offsets >> shift
    if size > 1 << shift:
        cells = (cells[:, None] + np.arange(-(-size >> shift))).ravel()
    if len(cells) == 1:
        return slice(int(cells[0]), int(cells[0]) + 1)
    return cells


class SharedMemory:
    """Indexed by `shared::cta` address, so the first `SHARED_BASE` bytes are off limits.

    Attributes:
        cta: Whose it is.
        size: The first address behind it.
        bytes: The contents; `POISON` where nothing has been written.
        initialised: Per 4 bytes, whether anything has been written.
        in_flight: Per 4 bytes, whether an asynchronous write is on its way there.
        shadow: Per 4 bytes, who wrote and read last.
    """

    def __init__(self, cta: Cta, size: int) -> None:
        """Nothing is written yet.

        Args:
            cta: Whose it is.
            size: The first address behind the CTA's static and dynamic shared memory.
        """
        self.cta = cta
        self.size = size
        cells = -(-size // CELL_BYTES)
        self.bytes = np.full(cells * CELL_BYTES, POISON, dtype=np.uint8)
        self.initialised = np.zeros(cells, dtype=np.bool_)
        self.in_flight = np.zeros(cells, dtype=np.bool_)
        self.shadow = Shadow(cells, CELL_BYTES, "shared memory")

    def cells(self, address: int, size: int) -> slice:
        """The cells of a contiguous range."""
        return slice(address >> _CELL_SHIFT, (address + size + CELL_BYTES - 1) >> _CELL_SHIFT)

    def check_range(self, address: int, size: int, site: Site | None) -> bool:
        """Whether a range lies inside; False after reporting `out-of-bounds`."""
        if address >= SHARED_BASE and address + size <= self.size:
            return True
        self.cta.simulation.findings.add(
            "out-of-bounds",
            f"{size} bytes at shared address {address:#x}: shared memory of the CTA is"
            f" {SHARED_BASE:#x} to {self.size:#x}",
            site,
        )
        return False

    def check_aligned(self, address: int, alignment: int, site: Site | None) -> bool:
        """Whether an address is a multiple of `alignment`; False after reporting `misaligned`."""
        if address % alignment == 0:
            return True
        self.cta.simulation.findings.add(
            "misaligned",
            f"shared address {address:#x} is not a multiple of {alignment}",
            site,
            region=self._region(address),
        )
        return False

    def begin_async_write(self, cells: slice | NDArray[np.int64]) -> None:
        """Poison cells whose new contents are on their way."""
        self.bytes.view(np.uint32)[cells] = 0xFFFFFFFF
        self.in_flight[cells] = True

    def end_async_write(self, cells: slice | NDArray[np.int64]) -> None:
        """Mark cells as written, after the bytes have been."""
        self.in_flight[cells] = False
        self.initialised[cells] = True

    def read(
        self,
        addresses: NDArray[np.int64],
        size: int,
        actor: Actor,
        site: Site,
        *,
        is_strong: bool = False,
    ) -> NDArray[np.uint8]:
        """What lanes read: `[n, size]` bytes; poison where they may not.

        Args:
            addresses: `shared::cta` addresses, one a lane.
            size: Bytes a lane, a power of two up to 32.
            actor: Who reads; of this CTA or another of its cluster.
            site: Where.
            is_strong: Whether the access takes part in synchronisation, so that it races with ordinary ones only.
        """
        if not self.check_lanes(addresses, size, site):
            return np.full((len(addresses), size), POISON, dtype=np.uint8)
        cells = cells_of(addresses, size)
        self.check_readable(cells, site)
        order = self.cta.simulation.order
        if order.enabled:
            if is_strong:
                order.strong(self.shadow, cells, actor, site, writes=False)
            else:
                order.read(self.shadow, cells, actor, site)
        return gather(self.bytes, addresses, size)

    def write(
        self,
        addresses: NDArray[np.int64],
        data: NDArray[np.uint8],
        actor: Actor,
        site: Site,
        *,
        is_strong: bool = False,
    ) -> None:
        """What lanes write: `[n, size]` bytes; nothing if one of them may not."""
        size = data.shape[1]
        if not self.check_lanes(addresses, size, site):
            return
        cells = cells_of(addresses, size)
        self.report_in_flight(cells, site)
        order = self.cta.simulation.order
        if order.enabled:
            if is_strong:
                order.strong(self.shadow, cells, actor, site, writes=True)
            else:
                same = bool((gather(self.bytes, addresses, size) == data).all())
                order.write(self.shadow, cells, actor, site, same=same)
        self.initialised[cells] = True
        scatter(self.bytes, addresses, data)

    def update(
        self, addresses: NDArray[np.int64], size: int, actor: Actor, site: Site, apply: Update
    ) -> None:
        """Read, change and write what lanes address, one lane after the other; nothing if one of them may not."""
        if not self.check_lanes(addresses, size, site):
            return
        cells = cells_of(addresses, size)
        self.check_readable(cells, site)
        order = self.cta.simulation.order
        if order.enabled:
            order.strong(self.shadow, cells, actor, site, writes=True)
        apply(self.bytes, addresses, np.arange(len(addresses)))

    def check_lanes(self, addresses: NDArray[np.int64], size: int, site: Site) -> bool:
        """Bounds, alignment and barriers of lanes; False after reporting."""
        if self.cta.has_ended:
            text = f"cta {self.cta.number} has ended, and its shared memory is gone"
            self.cta.simulation.findings.add("exited-cta", text, site)
            return False
        first, last = int(addresses.min()), int(addresses.max())
        if not (self.check_range(first, size, site) and self.check_range(last, size, site)):
            return False
        if size > 1 and int(np.bitwise_or.reduce(addresses)) & (size - 1):
            wrong = int(addresses[(addresses & (size - 1)) != 0][0])
            return self.check_aligned(wrong, size, site)
        covers = self.cta.barriers.covers
        if covers(first, last + size - first):
            for address in addresses.tolist():
                if covers(address, size):
                    self.cta.simulation.findings.add(
                        "barrier-access",
                        f"an ordinary access to shared address {address:#x}, which belongs to an mbarrier",
                        site,
                        barrier=self.cta.simulation.findings.barrier_name(self._dynamic(address)),
                    )
                    break
        return True

    def check_readable(self, cells: NDArray[np.int64] | slice, site: Site) -> None:
        """Report a read of bytes that nobody has written, or that are about to change."""
        if not self.initialised[cells].all():
            self._report_first(
                "uninitialised", "nothing has been written", cells, ~self.initialised, site
            )
        self.report_in_flight(cells, site)

    def report_in_flight(self, cells: NDArray[np.int64] | slice, site: Site) -> None:
        """Report an access to bytes that an asynchronous write is about to change."""
        if self.in_flight[cells].any():
            self._report_first(
                "in-flight", "an asynchronous write is under way", cells, self.in_flight, site
            )

    def _report_first(
        self,
        kind: str,
        what: str,
        cells: NDArray[np.int64] | slice,
        marks: NDArray[np.bool_],
        site: Site,
    ) -> None:
        """Report the first of the cells that is marked."""
        numbers = np.arange(len(marks))[cells]
        address = int(numbers[marks[cells]][0]) * CELL_BYTES
        self.cta.simulation.findings.add(
            kind, f"{what} at shared address {address:#x}", site, region=self._region(address)
        )

    def _dynamic(self, address: int) -> int:
        """An address as an offset from the dynamic base, as `Names` counts."""
        return address - self.cta.simulation.dynamic_shared_base

    def _region(self, address: int) -> str | None:
        """Name of the region that holds an address."""
        return self.cta.simulation.findings.region_name(self._dynamic(address))
