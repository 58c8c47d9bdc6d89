"""Small CUDA kernels in the simulator: compile, run on NumPy arrays, look at results and findings."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import Lazy
from mlagen.sim.simulate import Checks, load_program, simulate

if TYPE_CHECKING:
    from mlagen.sim.program import Program
    from mlagen.sim.schedule import Schedule
    from mlagen.sim.simulate import SimulationResult

Shape = int | tuple[int, int, int]


@functools.cache
def program(source: str, arch: str = "sm_90a") -> Program:
    """The one kernel of a CUDA source, lowered."""
    options = (*KERNEL_OPTIONS, "-lineinfo")
    return load_program(compile_cuda(source, name="test", arch=arch, options=options).ptx)


def run(
    source: str,
    *arguments: np.ndarray[Any, Any] | np.generic | TensorMapSpec,
    grid: Shape = 1,
    block: Shape = 32,
    cluster: Shape = 1,
    shared: int = 0,
    arch: str = "sm_90a",
    memory: GlobalMemory | None = None,
    schedule: Schedule = Lazy(),  # noqa: B008 (a frozen value)
    checks: Checks = Checks.strict(),  # noqa: B008 (a frozen value)
    **options: Any,  # of `simulate`
) -> SimulationResult:
    """Run a kernel; arrays are passed as pointers and written in place."""
    kernel = program(source, arch)
    memory = memory or GlobalMemory()
    record = LaunchRecord(
        kernel=kernel.function.name,
        grid=_three(grid),
        block=_three(block),
        cluster=_three(cluster),
        shared_memory_bytes=shared,
        parameters=tuple(_pack(memory, number, one) for number, one in enumerate(arguments)),
    )
    return simulate(kernel, record, memory, schedule=schedule, checks=checks, **options)


def kinds(result: SimulationResult) -> list[str]:
    """Kinds of a run's findings."""
    return [finding.kind for finding in result.findings]


def _three(shape: Shape) -> tuple[int, int, int]:
    return (shape, 1, 1) if isinstance(shape, int) else shape


def _pack(
    memory: GlobalMemory, number: int, value: np.ndarray[Any, Any] | np.generic | TensorMapSpec
) -> bytes | TensorMapSpec:
    if isinstance(value, TensorMapSpec):
        return value
    if isinstance(value, np.ndarray):
        return np.uint64(memory.add(value, f"argument {number}")).tobytes()
    return value.tobytes()
