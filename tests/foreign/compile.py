"""Triton and Gluon functions to PTX without a GPU, and their launch in the simulator."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
from numpy.typing import NDArray
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import Lazy, Schedule
from mlagen.sim.simulate import Checks, SimulationResult, load_program, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.sim.program import Program

WARP_THREADS = 32
# CUtensorMapSwizzle as Triton's metadata has it -> bytes.
_SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
_ELEMENT_TYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


@dataclass(frozen=True)
class Foreign:
    """A compiled kernel.

    Attributes:
        program: Lowered.
        ptx: As Triton made it.
        metadata: What its compiler says of it.
    """

    program: Program
    ptx: str
    metadata: Any  # Any: a named tuple that Triton makes up


@dataclass(frozen=True)
class Tensor:
    """A matrix that a kernel accesses through a tensor descriptor; one element a row of `array`'s last dimension."""

    array: NDArray[np.generic]


Argument = NDArray[np.generic] | Tensor | int | float


def compile_kernel(
    function: Any,  # Any: a function of Triton's, which has no types
    signature: dict[str, str],
    constants: dict[str, Any],
    *,
    arch: int,
    aligned: tuple[str, ...] = (),
    **options: Any,
) -> Foreign:
    """Compile for sm_90a or sm_100a.

    Args:
        function: Decorated by `triton.jit` or `gluon.jit`.
        signature: Types of the parameters that are not constants.
        constants: Values of the others.
        arch: 90 or 100.
        aligned: Parameters that are multiples of 16, which lets the compiler vectorise.
        options: `num_warps`, `num_stages`, `num_ctas`.
    """
    names = list(function.arg_names)
    kinds = {name: signature.get(name, "constexpr") for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source_type = GluonASTSource if isinstance(function, GluonJITFunction) else ASTSource
    source = source_type(function, kinds, constants, attributes)
    target = GPUTarget("cuda", arch, WARP_THREADS)
    compiled = triton.compile(source, target=target, options={"enable_fp_fusion": True, **options})
    ptx = compiled.asm["ptx"]
    return Foreign(load_program(ptx), ptx, compiled.metadata)


def run_kernel(
    kernel: Foreign,
    grid: tuple[int, int, int],
    arguments: Sequence[Argument],
    *,
    schedule: Schedule = Lazy(),  # noqa: B008 (a frozen value)
) -> SimulationResult:
    """Run it at the level `practice`.

    Args:
        kernel: The kernel.
        grid: Clusters in x, y, z.
        arguments: Of the parameters that are not constants, in order; arrays are written in place.
        schedule: Who goes when.
    """
    memory = GlobalMemory()
    metadata, function = kernel.metadata, kernel.program.function
    descriptors = iter(metadata.tensordesc_meta or ())
    parameters: list[bytes | TensorMapSpec] = []
    for number, argument in enumerate(arguments):
        name = f"argument {number}"
        if isinstance(argument, Tensor):
            parameters += _tensor_parameters(argument, next(descriptors), memory, name)
        elif isinstance(argument, np.ndarray):
            parameters.append(struct.pack("<Q", memory.add(argument, name)))
        else:
            parameters.append(struct.pack("<i" if isinstance(argument, int) else "<f", argument))
    ctas = math.prod(grid) * metadata.num_ctas
    for size in (metadata.global_scratch_size, metadata.profile_scratch_size):
        address = memory.reserve(size * ctas, "scratch") if size else 0
        parameters.append(struct.pack("<Q", address))
    assert function.max_threads is not None
    record = LaunchRecord(
        kernel=function.name,
        grid=(grid[0] * metadata.num_ctas, *grid[1:]),
        block=(function.max_threads, 1, 1),
        shared_memory_bytes=metadata.shared,
        parameters=tuple(parameters),
        cluster=(metadata.num_ctas, 1, 1),
    )
    return simulate(kernel.program, record, memory, schedule=schedule, checks=Checks.practice())


def _tensor_parameters(
    tensor: Tensor,
    meta: dict[str, Any],  # Any: Triton's own description
    memory: GlobalMemory,
    name: str,
) -> list[bytes | TensorMapSpec]:
    """A tensor map, then sizes and strides in elements, as Triton passes them."""
    array = tensor.array
    size = array.itemsize
    strides = [stride // size for stride in array.strides]
    spec = TensorMapSpec(
        address=memory.add(array, name),
        element_type=_ELEMENT_TYPES.get(array.dtype.name, "uint8"),
        dims=tuple(reversed(array.shape)),
        strides_bytes=tuple(reversed(array.strides[:-1])),
        box=tuple(reversed(meta["block_size"])),
        swizzle_bytes=_SWIZZLES[meta["swizzle"]],
    )
    sizes = [struct.pack("<i", extent) for extent in array.shape]
    return [spec, *sizes, *(struct.pack("<q", stride) for stride in strides)]
