"""Ask a GPU for `ex2.approx`, `rcp.approx` and `lg2.approx` of all mantissas, and find what it interpolates with.

    python -m benchmarks.fit_special_functions prepare .carry/special       # here: machine code
    python -m benchmarks.fit_special_functions record .carry/special        # on the GPU, into $OUT
    python -m benchmarks.fit_special_functions fit RECORDINGS               # here: checks the simulator's tables

`fit` derives every coefficient again and compares: `mlagen/sim/special_function_tables.py` holds those of an H200. It
also prints the checksums of the answers, which `tests/sim/test_special_functions.py` expects.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim import special_function_tables as tables
from mlagen.sim.special_functions import squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

MANTISSAS = 1 << 23
# Where ranges of 2^23 arguments begin, of either sign and many sizes, the ends of what does not overflow among them.
STARTS = {
    "ex2": (1.0, 0.5, 0.25, 2.0**-5, 2.0**-8, 2.0**-22, 64.0, -0.5, -1.0, -(2.0**-8), -128.0),
    "rcp": (1.0, 2.0, 2.0**126, 2.0**127, 2.0**-126, 0.0),
    "lg2": (1.0, 2.0, 0.5, 0.25, 2.0**20, 2.0**-126),
}
_KERNEL = """
extern "C" __global__ void {name}(unsigned* answers, unsigned first) {{
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  float answer;
  asm volatile("{name}.approx.ftz.f32 %0, %1;" : "=f"(answer) : "f"(__uint_as_float(first + index)));
  answers[index] = __float_as_uint(answer);
}}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a function's coefficients are scaled.

    Attributes:
        rows: The simulator's table.
        slope: Of the answers' 24-bit integers in a segment, for a slope coefficient of 1.
        curvature: The same for a curvature of 1.
        shift: Of constants, in the sum.
        makeup: What every sum has too much.
        behind: Bits of the sum behind the answer's last one.
        squares: What one unit of curvature is, in units of the square.
    """

    rows: tuple[tuple[int, int, int], ...]
    slope: int
    curvature: int
    shift: int
    makeup: int
    behind: int
    squares: int


SHAPES = {
    "ex2": Shape(tables.EX2, slope=4, curvature=1, shift=13, makeup=6114, behind=15, squares=1),
    "rcp": Shape(tables.RCP, slope=2, curvature=1, shift=13, makeup=2023, behind=15, squares=1),
    "lg2": Shape(tables.LG2, slope=8, curvature=4, shift=12, makeup=837, behind=14, squares=2),
}


def main() -> int:
    """One step."""
    parser = argparse.ArgumentParser(description="Find how a GPU computes special functions.")
    parser.add_argument("step", choices=("prepare", "record", "fit"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    return {"prepare": prepare, "record": record, "fit": fit}[arguments.step](arguments.folder)


def prepare(folder: Path) -> int:
    """Compile the kernels."""
    from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda

    source = "".join(_KERNEL.format(name=name) for name in STARTS)
    compiled = compile_cuda(source, name="special_functions", arch="sm_90a", options=KERNEL_OPTIONS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "special_functions.cubin").write_bytes(compiled.cubin)
    return 0


def record(folder: Path) -> int:
    """Ask; answers are kept as differences between neighbours, which compress well."""
    from cuda.bindings import driver as cuda

    from mlagen.runtime.driver import system_driver

    def call(name: str, *arguments: Any) -> Any:  # Any: handles of the driver
        code, *results = getattr(cuda, name)(*arguments)
        if int(code):
            raise RuntimeError(f"{name}: {code}")
        return results[0] if results else None

    driver = system_driver()
    driver.push_context(driver.primary_context(0))
    module = call("cuModuleLoadData", (folder / "special_functions.cubin").read_bytes())
    buffer = call("cuMemAlloc", 4 * MANTISSAS)
    answers = np.empty(MANTISSAS, np.uint32)
    for name, starts in STARTS.items():
        function = call("cuModuleGetFunction", module, name.encode())
        found: dict[str, Any] = {}  # Any: NumPy's `savez` takes them as keywords
        for start in starts:
            values = (np.array([int(buffer)], np.uint64), arguments_from(start)[:1].view(np.uint32))
            table = (ctypes.c_void_p * 2)(*(value.ctypes.data for value in values))
            call(
                "cuLaunchKernel",
                function,
                *(MANTISSAS // 256, 1, 1),
                *(256, 1, 1),
                0,
                cuda.CUstream(0),
                ctypes.addressof(table),
                0,
            )
            call("cuCtxSynchronize")
            call("cuMemcpyDtoH", answers.ctypes.data, buffer, answers.nbytes)
            found[repr(start)] = np.diff(answers.view(np.int32), prepend=np.int32(0))
        np.savez_compressed(Path(os.environ["OUT"]) / f"{name}.npz", **found)
        print(f"{name}: {len(starts)} ranges of {MANTISSAS} arguments", flush=True)
    return 0


def arguments_from(start: float) -> NDArray[np.float32]:
    """The float32 values that follow a number, away from zero."""
    first = np.float32(start).view(np.uint32)
    return (np.arange(MANTISSAS, dtype=np.uint32) + first).view(np.float32)


def fit(folder: Path) -> int:
    """Derive the coefficients from the answers and say whether they are those of the simulator."""
    wrong = 0
    for name, shape in SHAPES.items():
        with np.load(folder / f"{name}.npz") as recorded:
            for start in STARTS[name]:
                answers = np.cumsum(recorded[repr(start)], dtype=np.int32)
                print(f'    ("{name}", {start!r}, 0x{zlib.crc32(answers.tobytes()):08X}),')
            first = np.cumsum(recorded[repr(1.0)], dtype=np.int32)
        lowest, highest = bounds_of_sums(name, first)
        rows = coefficients(shape, lowest, highest)
        wrong += rows != list(shape.rows)
        print(f"{name}: {'as' if rows == list(shape.rows) else 'NOT as'} in the simulator's table")
    return int(wrong > 0)


def bounds_of_sums(
    name: str, answers: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sums that give the answers to the arguments from 1 to 2: the smallest, the largest."""
    behind = SHAPES[name].behind
    if name == "lg2":
        values = answers.view(np.float32).astype(np.float64)
        lowest = (values * 2.0 ** (24 + behind)).astype(np.int64)
        exponents = (answers.astype(np.int64) >> 23) - 127
        # The last two bits of a sum are lost, and more where the answer is larger.
        highest = lowest + (1 << np.maximum(exponents + behind + 1, 2)) - 1
        lowest[0], highest[0] = -(1 << 60), 1 << 60  # the logarithm of 1 is 0 by rule
        return lowest, highest
    largest = {"ex2": 0x4000_0000, "rcp": 0x3F00_0000}[name]
    mantissas = answers.astype(np.int64) - largest + MANTISSAS
    return mantissas << behind, ((mantissas + 1) << behind) - 1


def coefficients(
    shape: Shape, lowest: NDArray[np.int64], highest: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """A row a segment, the only one with sums between the bounds, or zeros if there is none or more than one."""
    segments = len(shape.rows)
    length = MANTISSAS // segments
    x = np.arange(length, dtype=np.int64)
    square = squares()[x * (segments // 64)] * shape.squares
    found = []
    for segment in range(segments):
        here = slice(segment * length + (segment == 0), (segment + 1) * length)
        inside = slice(int(segment == 0), None)
        middle = (lowest[here] + highest[here]) / 2.0 / (1 << shape.behind)
        curvature, slope, _ = np.polyfit(x[inside] / length, middle, 2)
        c1, c2 = round(slope / shape.slope), round(curvature / shape.curvature)
        rest = (c1 * x + c2 * square)[inside]
        least = int((lowest[here] - rest).max()) - shape.makeup
        most = int((highest[here] - rest).min()) - shape.makeup
        c0 = -(-least >> shape.shift)
        is_only = c0 == most >> shape.shift
        found.append((c0, c1, c2) if is_only else (0, 0, 0))
    return found


if __name__ == "__main__":
    sys.exit(main())
