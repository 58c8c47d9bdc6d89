"""Micro-kernels of register-only instructions: element `i` of the results from element `i` of the operands."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.alu_rows import Row, rows
from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output
from tests.hardware.values import FLOATS, UNSIGNED, patterns, width

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_OF_MODULE = 120
LARGEST_BLOCK = 512
_TYPES = {16: "u16", 32: "u32", 64: "u64"}
_CONSTRAINTS = {16: "h", 32: "r", 64: "l"}


def _held(kind: str) -> int:
    """Bits of the register that holds an operand: PTX keeps bytes in wider registers, and so do we predicates."""
    return max(16, width(kind))


def _result_held(kind: str) -> int:
    return 32 if kind == "pred" else _held(kind)


def _statement(row: Row, immediate: int | None) -> str:
    """The instruction as an `asm` statement on `x0, x1, ...` with results `d0, d1`."""
    before, after, words = [], [], []
    for i, kind in enumerate(row.results):
        if kind == "pred":
            before.append(f".reg .pred d{i};")
            after.append(f" selp.u32 %{i}, 1, 0, d{i};")
    results = [f"d{i}" if kind == "pred" else f"%{i}" for i, kind in enumerate(row.results)]
    for i, operand in enumerate(row.operands, start=len(results)):
        if operand == "pred":
            before.append(f".reg .pred x{i}; setp.ne.b16 x{i}, %{i}, 0;")
        words.append(f"x{i}" if operand == "pred" else f"%{i}")
    words += [] if immediate is None else [str(immediate)]
    text = f"{row.opcode} {'|'.join(results)}, {', '.join(words)};"
    outputs = ", ".join(
        f'"={_CONSTRAINTS[_result_held(kind)]}"(d{i})' for i, kind in enumerate(row.results)
    )
    inputs = ", ".join(
        f'"{_CONSTRAINTS[_held(_kind(operand))]}"(x{i})' for i, operand in enumerate(row.operands)
    )
    return (
        f'asm volatile("{{{" ".join([*before, text])}{"".join(after)}}}" : {outputs} : {inputs});'
    )


def _kind(operand: str) -> str:
    return operand.split(":")[0]


def kernel(row: Row, name: str, immediate: int | None = None) -> str:
    """CUDA text of the kernel `name`."""
    operands = [_TYPES[_held(_kind(operand))] for operand in row.operands]
    results = [_TYPES[_result_held(kind)] for kind in row.results]
    parameters = [f"const {kind}* in{i}" for i, kind in enumerate(operands)]
    parameters += [f"{kind}* out{i}" for i, kind in enumerate(results)]
    lines = [f'extern "C" __global__ void {name}({", ".join(parameters)}) {{']
    lines += ["  u32 i = blockIdx.x * blockDim.x + threadIdx.x;"]
    lines += [f"  {kind} x{i} = in{i}[i];" for i, kind in enumerate(operands)]
    lines += [f"  {kind} d{i};" for i, kind in enumerate(results)]
    lines += [f"  {_statement(row, immediate)}"]
    lines += [f"  out{i}[i] = d{i};" for i in range(len(results))]
    return "\n".join([*lines, "}", ""])


def _variants(row: Row) -> tuple[int | None, ...]:
    return row.immediates or (None,)


@functools.cache
def _numbered() -> dict[str, tuple[Row, int | None, str]]:
    """Kernel name to row, immediate and module."""
    pairs = [(row, immediate) for row in rows() for immediate in _variants(row)]
    return {
        f"alu_{i}": (row, immediate, f"alu{i // ROWS_OF_MODULE}")
        for i, (row, immediate) in enumerate(pairs)
    }


def modules() -> dict[str, str]:
    """Texts of the modules by name."""
    texts: dict[str, str] = {}
    for name, (row, immediate, module) in _numbered().items():
        texts[module] = texts.get(module, PRELUDE) + kernel(row, name, immediate)
    return texts


def operands(operand: str, seed: str, count: int) -> NDArray[np.unsignedinteger]:
    """Values of an operand as its kernel reads them."""
    kind, _, restriction = operand.partition(":")
    values = patterns("b16" if width(kind) == 8 and kind != "pred" else kind, seed, count)
    if restriction == "nonzero":
        values = np.where(values == 0, values.dtype.type(3), values)
    elif restriction == "shift":  # most within the widest register, some beyond
        values = np.where(np.arange(count) % 8 == 0, values, values % 70).astype(np.uint32)
    elif restriction.startswith("below"):
        values = values % values.dtype.type(int(restriction[5:]))
    return values.astype(UNSIGNED[_held(kind)])


def _float_kind(kind: str) -> str:
    """The type itself if it is one of floats as wide as the register that holds it."""
    return kind if kind.removesuffix("x2") in FLOATS else ""


def cases(count: int, approximate_count: int) -> list[Case]:
    """One launch a row, on `count` elements; rows whose last bits PTX leaves open on as many as said."""
    found = []
    for name, (row, immediate, module) in _numbered().items():
        elements = approximate_count if row.is_approximate else count
        label = row.opcode if immediate is None else f"{row.opcode}({immediate})"
        if len(row.results) > 1:
            label += "|2"
        buffers = [
            Buffer(operands(operand, f"{row.opcode}/{i}", elements))
            for i, operand in enumerate(row.operands)
        ]
        buffers += [
            output(elements, UNSIGNED[_result_held(kind)], kind=_float_kind(kind))
            for kind in row.results
        ]
        found.append(
            Case(
                f"alu/{label}",
                module,
                name,
                tuple(buffers),
                tuple(Pointer(i) for i in range(len(buffers))),
                grid=(-(-elements // LARGEST_BLOCK), 1, 1),
                block=(min(elements, LARGEST_BLOCK), 1, 1),
                is_approximate=row.is_approximate,
            )
        )
    return found
