"""Bulk copies as operations: the places that they read and write, and how loads and stores go on (PTX ISA 9.7.9.25.4).

A place is checked and its order recorded when the copy is issued; data move when it completes. Sources and targets
give and take `[rows, bytes of a row]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.bulk_groups import GroupedCopy, groups_of
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.layout import PATTERN_BYTES, box_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mlagen.sim.global_memory import Buffer
    from mlagen.sim.hardware import Cta, Simulation, Warp
    from mlagen.sim.layout import Cells, Chunks, Swizzle
    from mlagen.sim.mbarrier import MBarrier
    from mlagen.sim.order import Order
    from mlagen.sim.reductions import Operation
    from mlagen.sim.report import Site
    from mlagen.sim.shared_memory import SharedMemory
    from mlagen.sim.tensor_map import Region

    Bytes = NDArray[np.uint8]
    Reduction = tuple[Operation, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class SharedBox:
    """A box in shared memory.

    Attributes:
        shared: Whose.
        base: Address of chunk 0.
        chunks: `[rows, chunks of a row]`.
    """

    shared: SharedMemory
    base: int
    chunks: Chunks

    @property
    def cells(self) -> Cells:
        """The 4-byte cells that it covers."""
        return self.chunks.cells_at(self.base)

    def check(self, site: Site) -> bool:
        """Whether it lies in shared memory; False after reporting."""
        first, end = self.base + self.chunks.first, self.base + self.chunks.end
        return self.shared.check_range(first, end - first, site)

    def read(self) -> Bytes:
        """Its bytes as they are now."""
        return self.chunks.gather(self.shared.bytes, self.base)

    def write(self, data: Bytes) -> None:
        """Its new bytes."""
        self.chunks.scatter(self.shared.bytes, self.base, data)


def shared_box(
    shared: SharedMemory, address: int, rows: int, row_bytes: int, swizzle: Swizzle
) -> SharedBox:
    """A box of rows from an address on, which is a multiple of 16."""
    phase = address % PATTERN_BYTES
    return SharedBox(shared, address - phase, box_chunks(rows, row_bytes, swizzle, phase))


@dataclass(frozen=True, slots=True, eq=False)
class GlobalBox:
    """A box in global memory: regions of buffers, and nothing where the box reaches out of its tensor.

    Attributes:
        shape: Of the whole box, bytes of a row last.
        parts: Where its regions lie: buffer, offset in it, region.
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[Buffer, int, Region], ...]

    def read(self) -> Bytes:
        """Its bytes as they are now; zeros outside of the tensor."""
        if len(self.parts) == 1 and self.parts[0][2].shape == self.shape:
            whole: Bytes = np.ascontiguousarray(_view(*self.parts[0]))
            return whole.reshape(-1, self.shape[-1])
        data = np.zeros(self.shape, dtype=np.uint8)
        for buffer, offset, region in self.parts:
            data[region.inside] = _view(buffer, offset, region)
        return data.reshape(-1, self.shape[-1])

    def write(self, data: Bytes) -> None:
        """New bytes of its regions."""
        whole = data.reshape(self.shape)
        for buffer, offset, region in self.parts:
            _view(buffer, offset, region)[...] = whole[region.inside]

    def reduce(self, data: Bytes, reduction: Reduction) -> None:
        """Combine its regions with data."""
        operation, dtype = reduction
        whole = data.reshape(self.shape)
        for buffer, offset, region in self.parts:
            target = _view(buffer, offset, region, dtype)
            target[...] = operation(target, np.ascontiguousarray(whole[region.inside]).view(dtype))

    def accesses(self, order: Order) -> Iterable[tuple[Any, Cells]]:
        """Shadows and cells that order has to look at. Any: a `Shadow`."""
        if order.enabled:
            for buffer, offset, region in self.parts:
                if buffer.shadow is not None:
                    yield buffer.shadow, region.cells(offset)


def _view(
    buffer: Buffer, offset: int, region: Region, dtype: np.dtype[Any] | type[np.uint8] = np.uint8
) -> NDArray[Any]:
    """A region's bytes where they are, as elements of a type."""
    size = np.dtype(dtype).itemsize
    return np.ndarray(
        shape=(*region.shape[:-1], region.shape[-1] // size),
        dtype=dtype,
        buffer=buffer.bytes.data,
        offset=offset,
        strides=(*region.strides[:-1], size),
    )


def global_box(
    simulation: Simulation,
    shape: tuple[int, ...],
    regions: Iterable[Region],
    site: Site,
    *,
    writes: bool,
) -> GlobalBox | None:
    """Find the buffers of a box; None after reporting what the copy may not touch."""
    parts = []
    for region in regions:
        found = simulation.memory.locate(region.address, region.size)
        if found is None:
            simulation.findings.add("out-of-bounds", _describe_outside(simulation, region), site)
            return None
        if writes and not simulation.memory.check_writable(found[0], simulation, site):
            return None
        parts.append((*found, region))
    return GlobalBox(shape, tuple(parts))


def _describe_outside(simulation: Simulation, region: Region) -> str:
    """Which end of a region is no memory."""
    memory = simulation.memory
    last = region.address + region.size - 1
    inside = memory.locate(region.address, 1) is not None
    return (
        f"{region.size} bytes from {memory.describe(region.address)}"
        + (f" to {memory.describe(last)}" if inside else "")
        + ": not within one buffer"
    )


class BulkLoad(AsyncOperation):
    """A copy into shared memory that an mbarrier waits for.

    Attributes:
        target: Where it writes.
    """

    __slots__ = ("_barrier", "_reduction", "_size", "_source", "target")

    def __init__(
        self,
        name: str,
        cta: Cta,
        source: GlobalBox | SharedBox | None,
        target: SharedBox,
        barrier: MBarrier | None,
        reduction: Reduction | None = None,
    ) -> None:
        """Nothing moves yet.

        Args:
            name: For reports.
            cta: Who issues it.
            source: None if it is not there: poison arrives.
            target: Where it writes.
            barrier: Which to signal; None if there is none there.
            reduction: How to combine old and new bytes; None to overwrite.
        """
        super().__init__(name, cta)
        self.target = target
        self._source = source
        self._barrier = barrier
        self._reduction = reduction
        self._size = target.chunks.index.size * 16

    def issue(self, warp: Warp, site: Site) -> None:
        """Check and record what it reads and writes, mark its target, hand it to the schedule."""
        simulation = self.cta.simulation
        order = simulation.order
        order.register(self, warp, site)
        shared, cells = self.target.shared, self.target.cells
        source = self._source
        if isinstance(source, SharedBox):
            source.shared.check_readable(source.cells, site)
            order.async_read(source.shared.shadow, source.cells, self)
        elif source is not None:
            for shadow, numbers in source.accesses(order):
                order.async_read(shadow, numbers, self)
        if self._reduction is not None:
            shared.check_readable(cells, site)
            order.strong(shared.shadow, cells, self, site, writes=True)
        else:
            shared.report_in_flight(cells, site)
            order.async_write(shared.shadow, cells, self)
            shared.begin_async_write(cells)
        simulation.submit(self)

    def complete(self) -> None:
        """Move the bytes, then signal all of them, those outside of the tensor too."""
        target = self.target
        if self._reduction is not None and self._source is not None:
            operation, dtype = self._reduction
            combined = operation(target.read().view(dtype), self._source.read().view(dtype))
            target.write(combined.view(np.uint8))
        elif self._source is not None:
            target.write(self._source.read())
        target.shared.end_async_write(target.cells)
        if self._barrier is not None:
            self._barrier.complete_bytes(self._size, self)


class BulkStore(GroupedCopy):
    """A copy from shared to global memory, which its thread waits for by groups."""

    __slots__ = ("_reduction", "_source", "_target")

    def __init__(
        self,
        name: str,
        warp: Warp,
        source: SharedBox,
        target: GlobalBox | None,
        reduction: Reduction | None = None,
    ) -> None:
        """Nothing moves yet.

        Args:
            name: For reports.
            warp: Who issues it.
            source: Where it reads.
            target: Where it writes; None if it may not.
            reduction: How to combine old and new bytes; None to overwrite.
        """
        super().__init__(name, warp.cta, groups_of(warp))
        self._source = source
        self._target = target
        self._reduction = reduction

    def issue(self, warp: Warp, lane: int, site: Site) -> None:
        """Check and record what it reads and writes, add it to the thread's open group, hand it to the schedule."""
        simulation = self.cta.simulation
        order = simulation.order
        order.register(self.reading, warp, site)
        order.register(self, warp, site)
        source = self._source
        source.shared.check_readable(source.cells, site)
        order.async_read(source.shared.shadow, source.cells, self.reading)
        if self._target is not None:
            for shadow, cells in self._target.accesses(order):
                if self._reduction is None:
                    order.async_write(shadow, cells, self)
                else:
                    order.strong(shadow, cells, self, site, writes=True)
        groups_of(warp).of(lane).open.append(self)
        simulation.submit(self)

    def move(self) -> None:
        """Write to global memory what is in shared memory now."""
        if self._target is None:
            return
        data = self._source.read()
        if self._reduction is None:
            self._target.write(data)
        else:
            self._target.reduce(data, self._reduction)
