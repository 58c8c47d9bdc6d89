"""Ticket counters: the one word of device memory that the blocks of a launch share.

A kernel takes its tiles by `atomicAdd` on a counter that must be zero when it starts and that it
leaves zero when it ends. Two launches that may run at once must not share one. So an eager launch
uses the counter of its stream, whose launches run one after another, and every captured launch gets
a counter of its own, because its graph may be replayed beside anything. A launch that the driver
refuses has run no block and leaves its counter zero. A captured launch keeps its counter for ever,
replayed or not: nobody tells us when a graph dies, and a counter takes 32 bytes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.runtime.driver import Driver

# One sector of L2 each, so that launches running at once do not queue at one another's atomics.
COUNTER_BYTES = 32
POOL_COUNTERS = 2048


class TicketCounters:
    """The counters of one device. The caller makes the device's context current for calls that may allocate."""

    def __init__(self, driver: Driver) -> None:
        """Hold no memory yet; `reserve` allocates the first pool."""
        self._driver = driver
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._of_stream: dict[int, int] = {}

    def reserve(self) -> None:
        """Have at least one counter ready, so that a capture need not allocate."""
        with self._lock:
            if not self._free:
                self._extend()

    def of_stream(self, stream_id: int) -> int:
        """The address of a stream's counter; the id, unlike the handle, is never used again."""
        found = self._of_stream.get(stream_id)
        if found is not None:
            return found
        with self._lock:
            if stream_id not in self._of_stream:
                self._of_stream[stream_id] = self._take()
            return self._of_stream[stream_id]

    def take(self) -> int:
        """The address of a counter that nobody else will get: for one captured launch."""
        with self._lock:
            return self._take()

    def give_back(self, address: int) -> None:
        """Return a counter of a launch that the driver refused."""
        with self._lock:
            self._free.append(address)

    def _take(self) -> int:
        if not self._free:
            self._extend()
        return self._free.pop()

    def _extend(self) -> None:
        # Other streams of this thread may be capturing; in relaxed mode the driver permits the
        # allocation.
        mode = self._driver.relax_capture()
        try:
            base = self._driver.upload(bytes(POOL_COUNTERS * COUNTER_BYTES))
        finally:
            self._driver.restore_capture(mode)
        self._free.extend(base + COUNTER_BYTES * index for index in reversed(range(POOL_COUNTERS)))
