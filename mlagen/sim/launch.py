"""A launch: parameters, module variables, and the CTAs of the grid, built when their turn comes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import SimulationError
from mlagen.launch_record import TensorMapSpec
from mlagen.sim import barrier, cp_async, tcgen05, tma, wgmma
from mlagen.sim.barrier import BarrierFile
from mlagen.sim.hardware import ALL_LANES, LANES, Cta, Simulation, Warp
from mlagen.sim.shared_memory import POISON, SharedMemory
from mlagen.sim.tcgen05 import TensorMemory
from mlagen.sim.windows import SHARED_BASE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mlagen.launch_record import LaunchRecord
    from mlagen.sim.memory import GlobalMemory
    from mlagen.sim.order import Order
    from mlagen.sim.program import Program
    from mlagen.sim.report import Findings

MOST_THREADS = 1024
# Limits of x, y and z, and of a cluster with the non-portable attribute (CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability", 9.0 and 10.0).
_MOST_CTAS = (2**31 - 1, 65535, 65535)
_MOST_BLOCK = (1024, 1024, 64)
_MOST_CLUSTER = 16
# What a CTA may have: 227 KiB, besides the first KiB that is the system's.
MOST_SHARED_BYTES = 227 * 1024
TENSOR_MAP_BYTES = 128

_UNITS_WITH_EXIT_CHECKS = (barrier, tma, wgmma, tcgen05, cp_async)


class Launch:
    """The grid of one launch.

    Attributes:
        simulation: What the units see.
    """

    def __init__(
        self,
        program: Program,
        record: LaunchRecord,
        memory: GlobalMemory,
        *,
        findings: Findings,
        order: Order,
        is_strict: bool,
    ) -> None:
        """Check the record against the kernel and lay out its parameters.

        Raises:
            SimulationError: They do not fit.
        """
        self._program = program
        self._dynamic_shared_bytes = record.shared_memory_bytes
        cluster = program.function.cluster or record.cluster
        _check_shape(program, record, cluster)
        memory.begin_run()
        self._symbols = {name: _place_variable(program, memory, name) for name in program.globals}
        self.simulation = Simulation(
            function=program.function,
            memory=memory,
            order=order,
            findings=findings,
            strict=is_strict,
            target=program.module.target,
            grid=record.grid,
            block=record.block,
            cluster_shape=cluster,
            dynamic_shared_base=program.dynamic_shared_base,
            constants=_constant_bank(program),
        )
        self._lay_out_parameters(record)
        self._unstarted = _clusters(record.grid, cluster)
        self._unended: dict[Cta, int] = {}  # by a cluster's first CTA, how many of its CTAs run

    def start_cluster(self) -> list[Cta]:
        """Build the CTAs of the grid's next cluster; none if all have been started."""
        indices = next(self._unstarted, [])
        grid = self.simulation.grid
        ctas: list[Cta] = []
        for rank, (x, y, z) in enumerate(indices):
            cta = Cta(self.simulation, (x, y, z), x + grid[0] * (y + grid[1] * z))
            cta.rank = rank
            cta.cluster = ctas
            ctas.append(cta)
        for cta in ctas:
            self._fill(cta)
        if ctas:
            self._unended[ctas[0]] = len(ctas)
            self.simulation.ctas += ctas
        return ctas

    def end(self, cta: Cta) -> list[Cta]:
        """A CTA has ended: check what it leaves behind, and start the next cluster behind a cluster's last.

        Returns:
            CTAs that start now.
        """
        cta.has_ended = True
        for unit in _UNITS_WITH_EXIT_CHECKS:
            unit.at_exit(cta, self.simulation.findings)
        first = cta.cluster[0]
        self._unended[first] -= 1
        if self._unended[first]:
            return []
        del self._unended[first]
        for one in cta.cluster:
            self.simulation.ctas.remove(one)
            if all(operation.cta is not one for operation in self.simulation.operations):
                self._program.close_registers(one)
        return self.start_cluster()

    def _fill(self, cta: Cta) -> None:
        """Give a CTA its memory, registers and warps."""
        threads = math.prod(self.simulation.block)
        cta.shared = SharedMemory(
            cta, self._program.dynamic_shared_base + self._dynamic_shared_bytes
        )
        cta.barriers = BarrierFile(cta)
        if self.simulation.target.startswith("sm_10"):
            cta.tensor_memory = TensorMemory(cta)
        cta.local = np.full((threads, self._program.local_bytes), POISON, dtype=np.uint8)
        for index in range(-(-threads // LANES)):
            lanes = min(LANES, threads - LANES * index)
            warp = Warp(cta, index, ALL_LANES >> LANES - lanes)
            cta.warps.append(warp)
            self.simulation.order.register(warp, None, None)
        self._program.open_registers(cta, self._symbols)

    def _lay_out_parameters(self, record: LaunchRecord) -> None:
        """Write the parameter space: bytes as they are, and for each tensor map where its description is."""
        declared = self._program.function.parameters
        if len(declared) != len(record.parameters):
            msg = f"{record.kernel}: takes {len(declared)} parameters, got {len(record.parameters)}"
            raise SimulationError(msg)
        size = max((one.offset + one.size for one in declared), default=0)
        self.simulation.parameters = np.zeros(size, dtype=np.uint8)
        for parameter, value in zip(declared, record.parameters, strict=True):
            if isinstance(value, TensorMapSpec):
                self.simulation.tensor_maps[parameter.offset] = value
                value = parameter.offset.to_bytes(TENSOR_MAP_BYTES, "little")  # noqa: PLW2901
            if len(value) != parameter.size:
                msg = f"{record.kernel}: parameter {parameter.name} has {parameter.size} bytes, got {len(value)}"
                raise SimulationError(msg)
            place = slice(parameter.offset, parameter.offset + parameter.size)
            self.simulation.parameters[place] = np.frombuffer(value, dtype=np.uint8)


def _clusters(
    grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> Iterator[list[tuple[int, int, int]]]:
    """`%ctaid` of the CTAs of each cluster, by rank; x runs first in both."""
    counts = (grid[0] // cluster[0], grid[1] // cluster[1], grid[2] // cluster[2])
    for cx, cy, cz in _points(counts):
        yield [
            (cx * cluster[0] + x, cy * cluster[1] + y, cz * cluster[2] + z)
            for x, y, z in _points(cluster)
        ]


def _points(shape: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """All `(x, y, z)` of a box, x first; one by one, as a grid may have 2^31 of them."""
    for z in range(shape[2]):
        for y in range(shape[1]):
            for x in range(shape[0]):
                yield x, y, z


def _place_variable(program: Program, memory: GlobalMemory, name: str) -> int:
    """Address of a module's `.global` variable, which keeps its value from launch to launch."""
    variable = program.module.variables[name]
    return memory.place(name, variable.size, variable.data)


def _constant_bank(program: Program) -> NDArray[np.uint8]:
    """The module's `.const` variables."""
    variables = [one for one in program.module.variables.values() if one.space == "const"]
    size = max((one.offset + one.size for one in variables), default=0)
    bank = np.zeros(size, dtype=np.uint8)
    for one in variables:
        bank[one.offset : one.offset + len(one.data)] = np.frombuffer(one.data, dtype=np.uint8)
    return bank


def _check_shape(program: Program, record: LaunchRecord, cluster: tuple[int, int, int]) -> None:
    """Raise what a driver would refuse."""
    threads = math.prod(record.block)
    most = min(program.function.max_threads or MOST_THREADS, MOST_THREADS)
    shared = program.dynamic_shared_base - SHARED_BASE + record.shared_memory_bytes
    problem = None
    if record.kernel != program.function.name:
        problem = f"the PTX holds {program.function.name}"
    elif not 1 <= threads <= most:
        problem = f"block {record.block}: {threads} threads, the kernel allows 1 to {most}"
    elif min(record.block) < 1 or _exceeds(record.block, _MOST_BLOCK):
        problem = f"block {record.block}: at most {_MOST_BLOCK}"
    elif min(record.grid) < 1:
        problem = f"grid {record.grid} is empty"
    elif _exceeds(record.grid, _MOST_CTAS):
        problem = f"grid {record.grid}: at most {_MOST_CTAS}"
    elif min(cluster) < 1 or math.prod(cluster) > _MOST_CLUSTER:
        problem = f"cluster {cluster}: 1 to {_MOST_CLUSTER} CTAs"
    elif any(size % width for size, width in zip(record.grid, cluster, strict=True)):
        problem = f"grid {record.grid} is no multiple of the cluster {cluster}"
    elif record.cluster not in {cluster, (1, 1, 1)}:
        problem = f"cluster {record.cluster}: the kernel is compiled for {cluster}"
    elif record.shared_memory_bytes < 0 or shared > MOST_SHARED_BYTES:
        problem = f"{shared} bytes of shared memory, {MOST_SHARED_BYTES} available"
    if problem is not None:
        raise SimulationError(f"{record.kernel}: {problem}")


def _exceeds(shape: tuple[int, int, int], most: tuple[int, int, int]) -> bool:
    """Whether one of x, y and z is beyond its limit."""
    return any(size > limit for size, limit in zip(shape, most, strict=True))
