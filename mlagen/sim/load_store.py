"""`ld`, `st`, `mapa`: ordinary loads and stores of lanes, and those that synchronise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import (
    UNSIGNED,
    access_form,
    element_readers,
    element_writers,
    lane_values,
    read_lanes,
    write_lanes,
)
from mlagen.sim.strong import strong_read, strong_write
from mlagen.sim.windows import RANK_SHIFT, SHARED_WINDOW

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction


def decode_load(instruction: Instruction, bind: Binder) -> Handler:
    """`ld`: the whole vector of a lane is aligned (PTX ISA 9.7.9.8)."""
    form = access_form(instruction)
    destination, source, *_ = instruction.operands  # a cache policy may follow
    address = bind.address(source)
    writers = element_writers(instruction, bind, destination, form)
    dtype = UNSIGNED[form.element_bytes]

    def load(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        where = lane_values(address(path), path).view(np.int64)
        if form.is_strong:
            data = strong_read(path, form, where, site)
        else:
            data = read_lanes(path, form.space, where, form.size, site)
        columns = data.view(dtype)
        for number, write in enumerate(writers):
            write(path, columns[:, number])

    return load


def decode_store(instruction: Instruction, bind: Binder) -> Handler:
    """`st` (PTX ISA 9.7.9.11)."""
    form = access_form(instruction)
    destination, source, *_ = instruction.operands
    address = bind.address(destination)
    values = element_readers(instruction, bind, source, form)

    def store(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        where = lane_values(address(path), path).view(np.int64)
        if form.is_strong:
            strong_write(path, form, where, values(path), site)
        else:
            write_lanes(path, form.space, where, values(path), site)

    return store


def decode_mapa(instruction: Instruction, bind: Binder) -> Handler:
    """`mapa`: an address of the own CTA's shared memory -> the same place of another CTA (PTX ISA 9.7.9.22)."""
    match instruction.parts[1:]:
        case ("shared::cluster", "u32" | "u64" as kind):
            window = 0
        case ("u64" as kind,):
            window = SHARED_WINDOW
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    target, address, rank = instruction.operands
    write = bind.writer(target, kind)
    read_address, read_rank = bind.reader(address, kind), bind.reader(rank, "u32")
    offsets = (1 << RANK_SHIFT) - 1

    def mapa(path: Path) -> None:
        inside = np.asarray(read_address(path)).astype(np.uint64) & np.uint64(offsets)
        ranks = np.asarray(read_rank(path)).astype(np.uint64) + np.uint64(1)
        mapped = inside | ranks << np.uint64(RANK_SHIFT) | np.uint64(window)
        write(path, mapped.astype(UNSIGNED[int(kind[1:]) // 8]))

    return mapa


DECODERS: dict[str, Decoder] = {"ld": decode_load, "st": decode_store, "mapa": decode_mapa}
