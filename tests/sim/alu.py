"""Runs single instructions on given register values, through parser and lowering."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mlagen.sim.hardware import Cta, Path, Simulation, Warp
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

THREADS = 128

_KERNEL = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry kernel(.param .b64 first, .param .align 16 .b8 second[48])
{{
.reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<100>; .reg .b64 %d<20>; .reg .b128 %q<4>;
.reg .b64 %address;
{body}
bra.uni NEXT;
NEXT:
{uses}
ret;
}}
"""
# Instructions that others can notice, so that the registers keep their rows.
_USES = {
    "p": "@{} exit;",
    "h": "st.global.b16 [%address], {};",
    "r": "st.global.b32 [%address], {};",
    "d": "st.global.b64 [%address], {};",
}


@dataclass
class Reports:
    """Stands in for `Findings`."""

    items: list[tuple[str, str]] = field(default_factory=list)

    def add(self, kind: str, message: str, site: object = None, **_: object) -> None:
        self.items.append((kind, message))

    def site(self, *_: object) -> None:
        return None


class _Bytes:
    """Stands in for shared memory, of which special registers want the size."""

    bytes = np.zeros(1024 + 4096, np.uint8)


def make_cta(threads: int = THREADS, **fields: Any) -> Cta:
    """A CTA with warps, without memory. Any: whatever `Simulation` has."""
    values: dict[str, Any] = {
        "function": None,
        "memory": None,
        "order": None,
        "findings": Reports(),
        "strict": True,
        "target": "sm_100a",
        "grid": (6, 2, 1),
        "block": (threads, 1, 1),
        "cluster_shape": (1, 1, 1),
        **fields,
    }
    simulation = Simulation(**values)
    cta = Cta(simulation, (0, 0, 0), 0)
    cta.shared = cast("Any", _Bytes())
    cta.warps = [Warp(cta, index, (1 << 32) - 1) for index in range(-(-threads // 32))]
    return cta


def reported(cta: Cta) -> list[str]:
    """Kinds of what has been reported."""
    findings = cast("Reports", cta.simulation.findings)
    return [kind for kind, _ in findings.items]


def run(
    body: str,
    inputs: dict[str, NDArray[Any]] | None = None,
    *,
    mask: int | None = None,
    cta: Cta | None = None,
) -> dict[str, NDArray[Any]]:
    """Execute `body` and return all registers that it names.

    Args:
        body: PTX statements on `%p0..9`, `%h0..19` (16 bits), `%r0..99` (32), `%d0..19` (64).
        inputs: Values of registers, of any type of their size, one per thread.
        mask: Lanes of warp 1 that execute; all of all warps by default.
        cta: Runs it; a new one by default.
    """
    names = sorted(set(re.findall(r"%[phrd]\d+", body)))
    uses = "\n".join(_USES[name[1]].format(name) for name in names)
    program = lower(parse(_KERNEL.format(body=body, uses=uses)))
    cta = cta or make_cta()
    program.open_registers(cta, {})
    for name, values in (inputs or {}).items():
        kind, row = program.rows[name]
        array = cta.registers[kind]
        array[row] = np.ascontiguousarray(values).view(array.dtype)
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    with np.errstate(all="ignore"):
        if mask is None:
            segment.run(cta, 0, len(cta.warps))
        else:
            segment.run_path(Path(cta.warps[1], 0, mask))
    return {
        name: cta.registers[program.rows[name][0]][program.rows[name][1]].copy() for name in names
    }


_REGISTERS = {16: ("h", np.uint16), 32: ("r", np.uint32), 64: ("d", np.uint64), 1: ("p", np.bool_)}


def width_of(kind: str) -> int:
    """Bits of a PTX type."""
    if kind == "pred":
        return 1
    return int("".join(letter for letter in kind if letter.isdigit()))


def execute(opcode: str, sources: list[tuple[str, list[int]]], result: str) -> list[int]:
    """Run an instruction on columns of bit patterns, one per thread; the result's patterns."""
    names, inputs = [], {}  # type: ignore[var-annotated]  # NumPy's stubs, or a table of many types
    for number, (kind, patterns) in enumerate(sources):
        letter, dtype = _REGISTERS[width_of(kind)]
        name = f"%{letter}{number + 1}"
        names.append(name)
        inputs[name] = np.array(patterns, dtype)
    letter, _ = _REGISTERS[width_of(result)]
    values = run(f"{opcode} %{letter}0, {', '.join(names)};", inputs)[f"%{letter}0"]
    return [int(value) for value in values]
