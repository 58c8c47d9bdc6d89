"""Registers as parts of others, and as wider ones than a type; clocks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.isa import bits_of
from mlagen.sim.ptx import Operand, Register

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.sim.lanes import Executing
    from mlagen.sim.numerics import Array


def halves(register: Register) -> tuple[Register, Register]:
    """A `b128` register as two of 64 bits, low half first."""
    if register.kind != "b128":
        raise UnsupportedPtxError(f"{register.name} is not a register of 128 bits")
    low = Register(f"{register.name}.low", "b64", register.row)
    return low, Register(f"{register.name}.high", "b64", register.row + 1)


def natural_kind(kind: str, operand: Operand) -> str:
    """The kind, or that of the whole register if it is wider."""
    if isinstance(operand, Register) and operand.kind not in ("pred", "b128"):
        width = int(operand.kind[1:])
        if width != bits_of(kind):
            return f"u{width}"
    return "u16" if kind in ("u8", "s8") else kind


@functools.cache
def packer(bits: int) -> Callable[..., None]:
    """`mov` of parts to the register that they make up, the lowest first."""

    def pack(*arguments: Array) -> None:
        *parts, out = arguments
        view = out.view(f"u{bits // 8}")
        for index, part in enumerate(parts):
            view[..., index :: len(parts)] = part

    return pack


@functools.cache
def unpacker(bits: int) -> Callable[..., None]:
    """`mov` of a register to its parts, the lowest first."""

    def unpack(source: Array, *outs: Array) -> None:
        view = source.view(f"u{bits // 8}").copy()
        for index, out in enumerate(outs):
            out[...] = view[..., index :: len(outs)]

    return unpack


def read_clock(name: str, executing: Executing, out: Array) -> None:
    """The simulation's step counter stands for all clocks."""
    step = executing.file.cta.simulation.step
    out[...] = np.uint64(step >> 32 if name.endswith("_hi") else step).astype(out.dtype)
