"""One GPU as the runtime sees it: its context, its loaded kernels and its counters.

What is loaded here stays until the process ends: a captured graph may hold a kernel's code or a
counter longer than any Python object, and nobody tells us when it dies.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from mlagen.arch import ARCHS
from mlagen.errors import DeviceError
from mlagen.runtime.tickets import TicketCounters

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from mlagen.arch import Arch
    from mlagen.plan.plan import KernelPlan
    from mlagen.runtime.driver import Driver


class Device:
    """State of one GPU in this process.

    Attributes:
        driver: How it is called.
        ordinal: CUDA's number of it.
        context: Its primary context.
        sm_count: Streaming multiprocessors.
        counters: Ticket counters.
        launch_lock: Held while a launch's parameters are written and given to the driver.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        """Retain the primary context; the calling thread's context stays as it was."""
        self.driver = driver
        self.ordinal = ordinal
        self.context = driver.primary_context(ordinal)
        self.sm_count = driver.sm_count(ordinal)
        self.counters = TicketCounters(driver)
        self.launch_lock = threading.Lock()
        self._lock = threading.Lock()
        self._functions: dict[tuple[str, str], int] = {}

    @functools.cached_property
    def arch(self) -> Arch:
        """The architecture whose kernels run here.

        Raises:
            DeviceError: No kernel can be generated for this GPU.
        """
        capability = self.driver.compute_capability(self.ordinal)
        for arch in ARCHS.values():
            if arch.compute_capability == capability:
                return arch
        known = ", ".join(
            f"{major}.{minor} ({arch.name})"
            for arch in ARCHS.values()
            for major, minor in [arch.compute_capability]
        )
        have = f"{capability[0]}.{capability[1]}"
        message = (
            f"device: cuda:{self.ordinal} has compute capability {have}\n  use a GPU of {known}"
        )
        raise DeviceError(message)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this device's context the thread's and allow allocation beside a capture, in a `with` block."""
        driver = self.driver
        foreign = driver.current_context() != self.context
        if foreign:
            driver.push_context(self.context)
        try:
            mode = driver.relax_capture()
            try:
                yield
            finally:
                driver.restore_capture(mode)
        finally:
            if foreign:
                driver.pop_context()

    def function(self, plan: KernelPlan, cubin: bytes) -> int:
        """The loaded kernel of a cubin, with its dynamic shared memory allowed; loaded once a process."""
        key = (plan.name, hashlib.sha256(cubin).hexdigest())
        with self._lock:
            if key not in self._functions:
                with self.current():
                    loaded = self.driver.load_function(cubin, plan.name)
                    self.driver.allow_shared_memory(loaded, plan.shared_memory_bytes)
                    self.counters.reserve()
                self._functions[key] = loaded
            return self._functions[key]


class Devices:
    """The GPUs of a driver, each made when first asked for."""

    def __init__(self, driver: Driver) -> None:
        """Ask the driver for nothing yet."""
        self.driver = driver
        self._lock = threading.Lock()
        self._made: dict[int, Device] = {}

    def get(self, ordinal: int) -> Device:
        """The device of this ordinal."""
        with self._lock:
            if ordinal not in self._made:
                self._made[ordinal] = Device(self.driver, ordinal)
            return self._made[ordinal]


@functools.cache
def _devices_of(driver: Hashable) -> Devices:
    return Devices(cast("Driver", driver))


def devices_of(driver: Driver) -> Devices:
    """The one `Devices` of a driver, so that kernels loaded twice share modules and counters."""
    return _devices_of(cast("Hashable", driver))
