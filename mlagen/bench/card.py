"""What the driver's management library knows of a GPU: its limits, and the energy that it has used.

NVML is asked through ctypes: it comes with every driver, its Python bindings do not. What it cannot say is None.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_SM_CLOCK = 1  # NVML_CLOCK_SM
_GPU_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    Attributes:
        library: NVML, initialised.
        handle: Of the device.
    """

    library: ctypes.CDLL
    handle: ctypes.c_void_p

    @classmethod
    def of_uuid(cls, uuid: str) -> Card | None:
        """The GPU with this UUID, with or without its `GPU-`; None if NVML is not there or does not know it."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        handle = ctypes.c_void_p()
        name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
            return None
        return cls(library, handle)

    def energy_j(self) -> float | None:
        """Joules used since the driver was loaded."""
        millijoules = ctypes.c_ulonglong()
        if self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(millijoules)):
            return None
        return millijoules.value / 1e3

    def limits(self) -> dict[str, float]:
        """Highest SM clock, power limit and the temperature now; what is not known is not there."""
        value = ctypes.c_uint()
        found: dict[str, float] = {}
        if not self.library.nvmlDeviceGetMaxClockInfo(self.handle, _SM_CLOCK, ctypes.byref(value)):
            found["max_sm_clock_mhz"] = value.value
        if not self.library.nvmlDeviceGetEnforcedPowerLimit(self.handle, ctypes.byref(value)):
            found["power_limit_w"] = value.value / 1e3
        if not self.library.nvmlDeviceGetTemperature(
            self.handle, _GPU_TEMPERATURE, ctypes.byref(value)
        ):
            found["temperature_c"] = value.value
        return found
