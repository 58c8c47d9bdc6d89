"""Facts of the GPU architectures that kernels are generated for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Arch:
    """One compile target.

    Attributes:
        name: NVRTC's name; the `a` suffix admits wgmma, setmaxnreg and tcgen05, and ties a cubin to this capability.
        compute_capability: What the driver reports.
        shared_memory_bytes: Most dynamic shared memory of one block (PTX ISA: 228 KiB an SM, 1 KiB reserved).
        registers: 32-bit registers of an SM.
        tensor_memory_columns: Columns of tensor memory, 0 if there is none.
        tensor_flops_per_cycle: Dense 16-bit floating-point operations a cycle and SM.
        exp2_per_cycle: `ex2.approx` results a cycle and SM (measured 15.96 on an H200, 2026-12-01).
        proven_on: What has run its kernels.
    """

    name: str
    compute_capability: tuple[int, int]
    shared_memory_bytes: int
    registers: int
    tensor_memory_columns: int
    tensor_flops_per_cycle: int
    exp2_per_cycle: int
    proven_on: Literal["GPU", "simulator"]

    @property
    def virtual_name(self) -> str:
        """NVRTC's name of the PTX of this architecture, which it then does not assemble."""
        return self.name.replace("sm_", "compute_")


SM_90A = Arch("sm_90a", (9, 0), 232_448, 65_536, 0, 4_096, 16, "GPU")
SM_100A = Arch("sm_100a", (10, 0), 232_448, 65_536, 512, 8_192, 16, "simulator")

ARCHS: dict[str, Arch] = {arch.name: arch for arch in (SM_90A, SM_100A)}
