"""Instructions that look at other lanes of the warp: `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`.

Operands are arrays whose last axis holds the threads of whole warps.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.choices import extreme
from mlagen.sim.hardware import LANES
from mlagen.sim.numerics import canonical_nan
from mlagen.sim.windows import OFFSET_MASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.ptx import Instruction
    from mlagen.sim.registers import RegisterFile

    Array = NDArray[Any]  # Any: of whatever type the caller's view has

_LANE = np.arange(LANES)
_IS_FIRST = _LANE == 0
_ALL = 0xFFFF_FFFF
_POISON = np.uint32(0x7FFF_DEAD)


class Executing:
    """The lanes for which an instruction is executed, and where to report.

    Attributes:
        file: Registers of the CTA.
        first: The first thread.
        count: Threads; whole warps, but for instructions that do not look at other lanes.
        mask: Which of them execute; None if all do.
        instruction: Which.
    """

    __slots__ = ("count", "file", "first", "instruction", "mask")

    def __init__(
        self,
        file: RegisterFile,
        first: int,
        count: int,
        mask: Array | None,
        instruction: Instruction,
    ) -> None:
        """All lanes of a range of threads, or some of them."""
        self.file = file
        self.first = first
        self.count = count
        self.mask = mask
        self.instruction = instruction

    def report(self, kind: str, message: str, warp: int) -> None:
        """Add a finding about the `warp`-th of the warps."""
        cta = self.file.cta
        findings = cta.simulation.findings
        site = findings.site(cta.warps[self.first // LANES + warp], self.instruction)
        findings.add(kind, message, site)

    def by_warp(self) -> NDArray[np.bool_]:
        """Executing lanes `[warp, lane]`."""
        if self.mask is None:
            return np.ones((self.count // LANES, LANES), np.bool_)
        return self.mask.reshape(-1, LANES)


def _warps(values: Array, lanes: Executing) -> Array:
    """`[..., thread]` as `[..., warp, lane]`, a view; a constant for all threads is repeated."""
    if values.ndim == 0 or values.shape[-1] != lanes.count:
        values = np.broadcast_to(values, (*values.shape[:-1], lanes.count))
    return values.reshape(*values.shape[:-1], lanes.count // LANES, LANES)


def _check_members(lanes: Executing, members: Array) -> None:
    """Report executing lanes that their own member mask lacks."""
    if members.ndim == 0 and members == _ALL:
        return
    of_warps = _warps(members, lanes)
    executing = lanes.by_warp()
    missing = executing & ((of_warps >> _LANE.astype(np.uint32) & np.uint32(1)) == 0)
    if missing.any():
        for warp in np.flatnonzero(missing.reshape(-1, *executing.shape).any(axis=(0, 2))):
            lanes.report("membermask", "an executing lane is not in its own membermask", int(warp))


def _shuffle_sources(mode: str, offset: Array, bounds: Array) -> tuple[Array, Array]:
    """From which lane each lane reads, and whether that lies inside its segment (else it reads itself)."""
    offset = offset.astype(np.int64) & 31
    segment = bounds.astype(np.int64) >> 8 & 31
    highest = (_LANE & segment) | (bounds.astype(np.int64) & 31 & ~segment)
    if mode == "up":
        source = _LANE - offset
        inside = source >= highest
    elif mode == "idx":
        source = (_LANE & segment) | (offset & ~segment)
        inside = source <= highest
    else:
        source = _LANE + offset if mode == "down" else _LANE ^ offset
        inside = source <= highest
    return np.where(inside, source, _LANE), inside


@functools.cache
def _constant_shuffle(mode: str, offset: int, bounds: int) -> tuple[Array, Array]:
    return _shuffle_sources(mode, np.array([offset]), np.array([bounds]))


@functools.cache
def shuffle(mode: str) -> Callable[..., None]:
    """`shfl.sync`: PTX ISA 9.7.9.6; `c` holds the clamp value and the mask that splits the warp into segments."""

    def call(
        lanes: Executing, a: Array, b: Array, c: Array, members: Array, out: Array, valid: Array
    ) -> None:
        _check_members(lanes, members)
        values = _warps(a, lanes)
        if b.ndim == 0 and c.ndim == 0:
            source, inside = _constant_shuffle(mode, int(b), int(c))
            result = values[..., source]
        else:
            source, inside = _shuffle_sources(mode, _warps(b, lanes), _warps(c, lanes))
            shape = np.broadcast_shapes(values.shape, source.shape)
            result = np.take_along_axis(
                np.broadcast_to(values, shape), np.broadcast_to(source, shape), axis=-1
            )
        if lanes.mask is not None:
            result = _without_absent(lanes, result, np.broadcast_to(source, result.shape))
        _warps(out, lanes)[...] = result
        _warps(valid, lanes)[...] = inside

    return call


def _without_absent(lanes: Executing, result: Array, source: Array) -> Array:
    """Poison what was read from a lane that does not execute the instruction."""
    executing = lanes.by_warp()
    present = np.take_along_axis(np.broadcast_to(executing, source.shape), source, axis=-1)
    absent = executing & ~present
    if not absent.any():
        return result
    for warp in np.flatnonzero(absent.reshape(-1, *executing.shape).any(axis=(0, 2))):
        lanes.report("shfl-inactive-lane", "shfl reads a lane that does not execute it", int(warp))
    return np.where(absent, _POISON, result)


@functools.cache
def vote(mode: str) -> Callable[..., None]:
    """`vote.sync.{all,any,uni,ballot}`: PTX ISA 9.7.13.9."""

    def call(lanes: Executing, predicate: Array, members: Array, out: Array) -> None:
        _check_members(lanes, members)
        values = _warps(predicate, lanes)
        some_of = values & lanes.by_warp() if lanes.mask is not None and mode != "all" else values
        result: Array
        if mode == "ballot":
            bits = np.packbits(some_of, axis=-1, bitorder="little")
            result = np.ascontiguousarray(bits).view(np.uint32)
        elif mode == "any":
            result = np.logical_or.reduce(some_of, axis=-1, keepdims=True)
        else:
            every = values if lanes.mask is None else values | ~lanes.by_warp()
            result = np.logical_and.reduce(every, axis=-1, keepdims=True)
            if mode == "uni":
                result = result | ~some_of.any(axis=-1, keepdims=True)
        _warps(out, lanes)[...] = result

    return call


def elect(lanes: Executing, members: Array, leader: Array, out: Array) -> None:
    """`elect.sync`: the lowest executing lane is elected; all learn its number."""
    _check_members(lanes, members)
    if lanes.mask is None:
        leader[...] = 0
        _warps(out, lanes)[...] = _IS_FIRST
        return
    first = lanes.by_warp().argmax(axis=-1)[:, None]
    _warps(leader, lanes)[...] = first
    _warps(out, lanes)[...] = first == _LANE


def active_mask(lanes: Executing, out: Array) -> None:
    """`activemask`."""
    executing = lanes.by_warp()
    bits = np.packbits(executing, axis=-1, bitorder="little").view(np.uint32)
    out[...] = np.broadcast_to(bits, executing.shape).reshape(-1)


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


@functools.cache
def reduce(operation: str, *, magnitude: bool = False, nan: bool = False) -> Callable[..., None]:
    """`redux.sync`: PTX ISA 9.7.13.12. For f32, `min` and `max` with `.abs` and `.NaN`."""

    def call(lanes: Executing, a: Array, members: Array, out: Array) -> None:
        _check_members(lanes, members)
        values, executing = _warps(a, lanes), lanes.by_warp()
        result = np.empty_like(values[..., :1])
        for index in np.ndindex(values.shape[:-1]):
            chosen = values[index][executing[index[-1]]]
            result[index] = _reduced(operation, chosen, magnitude, nan) if chosen.size else 0
        shape = (*values.shape[:-1], LANES)
        out[...] = np.broadcast_to(result, shape).reshape(*shape[:-2], lanes.count)

    return call


def _reduced(operation: str, values: Array, magnitude: bool, nan: bool) -> Any:  # a value each
    if values.dtype.kind != "f":
        return _REDUCTIONS[operation].reduce(values, dtype=values.dtype)
    pairwise = extreme(np.fmin if operation == "min" else np.fmax, nan=nan)
    total = np.abs(values[:1]) if magnitude else values[:1].copy()
    for value in values[1:]:
        pairwise(total, np.abs(value)[None] if magnitude else value[None], total)
    return canonical_nan(values.dtype) if np.isnan(total[0]) else total[0]


def _equal_lanes(lanes: Executing, a: Array, members: Array) -> Array:
    """`[..., warp, lane, lane]`: which executing lanes hold the same value."""
    _check_members(lanes, members)
    values, executing = _warps(a, lanes), lanes.by_warp()
    equal: Array = (
        (values[..., :, None] == values[..., None, :])
        & executing[:, None, :]
        & executing[:, :, None]
    )
    return equal


def match_any(lanes: Executing, a: Array, members: Array, out: Array) -> None:
    """`match.any.sync`: the lanes with the same value. PTX ISA 9.7.13.11."""
    bits = np.packbits(_equal_lanes(lanes, a, members), axis=-1, bitorder="little")
    out[...] = np.ascontiguousarray(bits).view(np.uint32).reshape(out.shape)


def match_all(lanes: Executing, a: Array, members: Array, out: Array, every: Array) -> None:
    """`match.all.sync`: all lanes, and true, if all hold the same value; else 0."""
    equal, executing = _equal_lanes(lanes, a, members), lanes.by_warp()
    agree: Array = equal | ~executing[:, None, :] | ~executing[:, :, None]
    alike = np.logical_and.reduce(agree, axis=(-1, -2))[..., None]
    bits = np.packbits(executing, axis=-1, bitorder="little").view(np.uint32)
    shape = (*equal.shape[:-2], LANES)
    out[...] = np.broadcast_to(np.where(alike, bits, np.uint32(0)), shape).reshape(out.shape)
    every[...] = np.broadcast_to(alike, shape).reshape(every.shape)


def load_parameters(kind: str, lanes: Executing, base: Array, offset: Array, *outs: Array) -> None:
    """`ld.param`: from the parameter space, which all threads share; bounds and alignment are checked."""
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    if kind[0] == "f":  # bits, not numbers
        outs = tuple(out.view(dtype) for out in outs)
    if base.ndim and (base == base[0]).all():
        base = base[0]
    addresses = (base.astype(np.uint64) + offset) & np.uint64(OFFSET_MASK)
    size = dtype.itemsize * len(outs)
    data = lanes.file.cta.simulation.parameters
    bad = (addresses + np.uint64(size) > len(data)) | (addresses % np.uint64(size) != 0)
    if bad.ndim and lanes.mask is not None:
        bad = bad & lanes.mask
    if bad.any():
        message = f"ld.param of {size} bytes: misaligned, or outside of {len(data)} bytes"
        lanes.report("parameter-bounds", message, 0)
        return
    if not addresses.ndim:
        values = data[int(addresses) : int(addresses) + size].view(dtype)
        for out, value in zip(outs, values, strict=True):
            np.copyto(out, value, casting="unsafe")
        return
    addresses = np.minimum(addresses, np.uint64(len(data) - size))
    for index, out in enumerate(outs):
        places = addresses[:, None] + np.arange(dtype.itemsize, dtype=np.uint64)
        octets = np.ascontiguousarray(data[places + np.uint64(index * dtype.itemsize)])
        np.copyto(out, octets.view(dtype)[:, 0], casting="unsafe")
