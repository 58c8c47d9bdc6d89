"""Run a case in the simulator."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.sim.lower import lower
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.parser import parse
from mlagen.sim.simulate import Checks, simulate
from tests.hardware.case import Case, Map, Pointer
from tests.hardware.modules import module_texts

if TYPE_CHECKING:
    from mlagen.sim.program import Program
    from mlagen.sim.ptx import Module
    from mlagen.sim.report import Finding


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the simulator made of a case.

    Attributes:
        outputs: Bytes of each output buffer.
        findings: What it complained about.
    """

    outputs: tuple[bytes, ...]
    findings: tuple[Finding, ...]


@functools.cache
def ptx_of(module: str) -> str:
    """The PTX of a module, compiled here."""
    return compile_cuda(
        module_texts()[module], name=module, arch="sm_90a", options=KERNEL_OPTIONS
    ).ptx


@functools.cache
def _parsed(module: str) -> Module:
    return parse(ptx_of(module))


@functools.cache
def program_of(module: str, entry: str) -> Program:
    """One kernel of a module, lowered."""
    return lower(_parsed(module), entry)


def replay(case: Case) -> Replayed:
    """Run it.

    Raises:
        UnsupportedPtxError: The simulator does not know the instruction.
    """
    memory = GlobalMemory()
    arrays = [np.array(buffer.data, copy=True) for buffer in case.buffers]
    addresses = [memory.add(array, f"buffer{i}") for i, array in enumerate(arrays)]
    record = LaunchRecord(
        kernel=case.entry,
        grid=case.grid,
        block=case.block,
        shared_memory_bytes=case.shared_bytes,
        parameters=tuple(_parameter(one, addresses) for one in case.parameters),
        cluster=(case.cluster, 1, 1),
    )
    result = simulate(
        program_of(case.module, case.entry),
        record,
        memory,
        checks=Checks.strict(),
        accumulation="hardware",
    )
    outputs = tuple(
        array.tobytes()
        for array, buffer in zip(arrays, case.buffers, strict=True)
        if buffer.is_output
    )
    return Replayed(outputs, result.findings)


def _parameter(parameter: Pointer | Map | bytes, addresses: list[int]) -> TensorMapSpec | bytes:
    if isinstance(parameter, Pointer):
        return (addresses[parameter.buffer] + parameter.offset).to_bytes(8, "little")
    if isinstance(parameter, Map):
        return parameter.spec(addresses[parameter.buffer])
    return parameter
