"""Device memory: arrays of the caller under simulated addresses, with room between them."""

from __future__ import annotations

import bisect
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.order import Shadow
from mlagen.sim.shared_memory import POISON, cells_of, gather, scatter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import AsyncOperation, Simulation, Warp
    from mlagen.sim.report import Site
    from mlagen.sim.shared_memory import Update

CELL_BYTES = 4
_CELL_SHIFT = 2
_FIRST_ADDRESS = 0x0100_0000_0000
# Buffers start this far apart, which no access that goes astray crosses by a little; addresses cost nothing.
_SLOT_BYTES = 1 << 36


def _byte_bounds(array: NDArray[Any]) -> tuple[int, int]:
    """The first address of an array's memory and the one behind it; equal if it has no element."""
    first = end = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return first, first
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            first += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return first, end + array.itemsize


def _host_bytes(address: int, size: int) -> NDArray[np.uint8]:
    """A view of the process's own memory, which somebody else keeps alive."""
    if size == 0:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), dtype=np.uint8)


class Buffer:
    """A piece of device memory.

    Attributes:
        bytes: Its contents; what the caller gave, not a copy.
        name: For reports.
        address: Simulated address of the first byte.
        read_only: Whether a write is a finding. Such a buffer has no shadow: nothing can race.
    """

    def __init__(
        self, contents: NDArray[np.uint8], name: str, address: int, *, read_only: bool
    ) -> None:
        """Map `contents` at `address`."""
        self.bytes = contents
        self.name = name
        self.address = address
        self.read_only = read_only
        self._shadow: Shadow | None = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + len(self.bytes)

    @property
    def shadow(self) -> Shadow | None:
        """Who wrote and read last, per 4 bytes, in the present run; None if nobody may write."""
        if self._shadow is None and not self.read_only:
            self._shadow = Shadow(-(-len(self.bytes) // CELL_BYTES), CELL_BYTES, self.name)
        return self._shadow

    def cells(self, offset: int, size: int) -> slice:
        """The cells of a contiguous range."""
        return slice(offset >> _CELL_SHIFT, (offset + size + CELL_BYTES - 1) >> _CELL_SHIFT)

    def forget(self) -> None:
        """Start a new run: nobody has accessed anything."""
        self._shadow = None


class GlobalMemory:
    """All buffers. Made by the caller before a run; addresses depend on the order of `add` alone."""

    def __init__(self) -> None:
        """No buffer yet."""
        self.buffers: list[Buffer] = []  # ascending in address
        self._starts: list[int] = []
        self._host_ranges: list[tuple[int, int, int]] = []  # first, end, buffer's number
        self._variables: dict[str, int] = {}
        self._owners: list[
            Any
        ] = []  # keeps the caller's arrays alive; Any: whatever owns their memory

    def add(self, array: NDArray[Any], name: str, *, read_only: bool = False) -> int:
        """Map an array, strided or not, and say where its element 0 lies.

        Arrays that overlap in the caller's memory share a buffer, so that they overlap here. The whole array that owns
        the memory is mapped, up to its bounds; the device may access no more than what has been added.

        Returns:
            The simulated device pointer; modulo 256 it is the offset within the owner.

        Raises:
            ValueError: A part of the memory is mapped already, and another part is not.
        """
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        first, end = _byte_bounds(owner)
        pointer = int(array.__array_interface__["data"][0])
        for host_first, host_end, number in self._host_ranges:
            if first < host_end and host_first < end:
                if first < host_first or host_end < end:
                    msg = f"{name}: overlaps {self.buffers[number].name}, which is mapped without the rest"
                    raise ValueError(msg)
                buffer = self.buffers[number]
                buffer.read_only = buffer.read_only and read_only
                return buffer.address + pointer - host_first
        size = end - first
        is_input = read_only or not owner.flags.writeable
        buffer = self._append(_host_bytes(first, size), name, read_only=is_input)
        self._owners.append(owner)
        if size:
            self._host_ranges.append((first, end, len(self.buffers) - 1))
        return buffer.address + pointer - first

    def reserve(self, size: int, name: str) -> int:
        """Map `size` bytes of zeros, and say where."""
        return self._append(np.zeros(size, dtype=np.uint8), name, read_only=False).address

    def place(self, name: str, size: int, contents: bytes) -> int:
        """Map a module's variable, with its first contents; the same one again in a later launch."""
        if name not in self._variables:
            self._variables[name] = self.reserve(size, name)
            buffer = self.buffers[-1]
            buffer.bytes[: len(contents)] = np.frombuffer(contents, dtype=np.uint8)
        return self._variables[name]

    def locate(self, address: int, size: int) -> tuple[Buffer, int] | None:
        """The buffer that holds a range, and the offset in it; None if none holds all of it."""
        number = bisect.bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        buffer = self.buffers[number]
        return (buffer, address - buffer.address) if address + size <= buffer.end else None

    def begin_run(self) -> None:
        """Forget who accessed what in an earlier run."""
        for buffer in self.buffers:
            buffer.forget()

    def describe(self, address: int) -> str:
        """An address relative to the nearest buffer: `0x1000000040, 64 bytes behind the end of lse`."""
        number = bisect.bisect_right(self._starts, address) - 1
        text = f"global address {address:#x}"
        if number >= 0:
            buffer = self.buffers[number]
            behind = address - buffer.end
            if behind < 0:
                place = address - buffer.address
                return f"byte {place} of {len(buffer.bytes)} of {buffer.name} ({text})"
            if behind < _SLOT_BYTES // 2:
                return f"{text}, {behind} bytes behind the end of {buffer.name}"
        if number + 1 < len(self.buffers):
            before = self.buffers[number + 1].address - address
            if before < _SLOT_BYTES // 2:
                return f"{text}, {before} bytes before {self.buffers[number + 1].name}"
        return f"{text}, which belongs to no buffer"

    def read(
        self,
        addresses: NDArray[np.int64],
        size: int,
        actor: Warp | AsyncOperation,
        site: Site,
        *,
        alignment: int | None = None,
        is_strong: bool = False,
    ) -> NDArray[np.uint8]:
        """What lanes read: `[n, size]` bytes; poison in the lanes that may not.

        Args:
            addresses: One a lane.
            size: Bytes a lane.
            actor: Who reads.
            site: Where.
            alignment: Of the addresses, `size` if not given; a power of two.
            is_strong: Whether the access takes part in synchronisation, so that it races with ordinary ones only.
        """
        simulation = actor.cta.simulation
        order = simulation.order
        result = np.full((len(addresses), size), POISON, dtype=np.uint8)
        for buffer, lanes in self._by_buffer(addresses, size, alignment or size, site, simulation):
            offsets = addresses[lanes] - buffer.address
            shadow = buffer.shadow
            if shadow is not None and order.enabled:
                if is_strong:
                    order.strong(shadow, cells_of(offsets, size), actor, site, writes=False)
                else:
                    order.read(shadow, cells_of(offsets, size), actor, site)
            result[lanes] = gather(buffer.bytes, offsets, size)
        return result

    def write(
        self,
        addresses: NDArray[np.int64],
        data: NDArray[np.uint8],
        actor: Warp | AsyncOperation,
        site: Site,
        *,
        is_strong: bool = False,
    ) -> None:
        """What lanes write: `[n, size]` bytes; nothing in the lanes that may not."""
        simulation = actor.cta.simulation
        order = simulation.order
        size = data.shape[1]
        for buffer, lanes in self._by_buffer(addresses, size, size, site, simulation):
            if not self.check_writable(buffer, simulation, site):
                continue
            offsets = addresses[lanes] - buffer.address
            mine = data[lanes]
            if buffer.shadow is not None and order.enabled:
                cells = cells_of(offsets, size)
                if is_strong:
                    order.strong(buffer.shadow, cells, actor, site, writes=True)
                else:
                    same = bool((gather(buffer.bytes, offsets, size) == mine).all())
                    order.write(buffer.shadow, cells, actor, site, same=same)
            scatter(buffer.bytes, offsets, mine)

    def update(
        self,
        addresses: NDArray[np.int64],
        size: int,
        actor: Warp | AsyncOperation,
        site: Site,
        apply: Update,
    ) -> None:
        """Read, change and write what lanes address, one lane after the other; not in the lanes that may not."""
        simulation = actor.cta.simulation
        numbers = np.arange(len(addresses))
        for buffer, lanes in self._by_buffer(addresses, size, size, site, simulation):
            if not self.check_writable(buffer, simulation, site):
                continue
            offsets = addresses[lanes] - buffer.address
            if buffer.shadow is not None and simulation.order.enabled:
                cells = cells_of(offsets, size)
                simulation.order.strong(buffer.shadow, cells, actor, site, writes=True)
            apply(buffer.bytes, offsets, numbers[lanes])

    def check_writable(self, buffer: Buffer, simulation: Simulation, site: Site | None) -> bool:
        """Whether a buffer may be written; False after reporting."""
        if not buffer.read_only:
            return True
        simulation.findings.add(
            "read-only", f"a write to {buffer.name}, which is an input", site, region=buffer.name
        )
        return False

    def _by_buffer(
        self,
        addresses: NDArray[np.int64],
        size: int,
        alignment: int,
        site: Site,
        simulation: Simulation,
    ) -> list[tuple[Buffer, slice | NDArray[np.bool_]]]:
        """The lanes of each buffer; reports those that hit none or are not aligned."""
        if alignment > 1 and int(np.bitwise_or.reduce(addresses)) & (alignment - 1):
            wrong = int(addresses[(addresses & (alignment - 1)) != 0][0])
            simulation.findings.add(
                "misaligned",
                f"{size} bytes at {self.describe(wrong)}: not a multiple of {alignment}",
                site,
            )
            return []
        first, last = int(addresses.min()), int(addresses.max())
        found = self.locate(first, size)
        if found is not None and last + size <= found[0].end:
            return [(found[0], slice(None))]
        groups: dict[Buffer, NDArray[np.bool_]] = {}
        for lane, address in enumerate(addresses.tolist()):
            found = self.locate(address, size)
            if found is None:
                simulation.findings.add(
                    "out-of-bounds", f"{size} bytes at {self.describe(address)}", site
                )
                continue
            groups.setdefault(found[0], np.zeros(len(addresses), dtype=np.bool_))[lane] = True
        return list(groups.items())

    def _append(self, contents: NDArray[np.uint8], name: str, *, read_only: bool) -> Buffer:
        """Give a buffer the next free slot."""
        last = self._starts[-1] if self._starts else _FIRST_ADDRESS - _SLOT_BYTES
        address = last + _SLOT_BYTES
        buffer = Buffer(contents, name, address, read_only=read_only)
        self.buffers.append(buffer)
        self._starts.append(address)
        return buffer
