"""The register file of a CTA: an array `[row, thread]` a kind, seen through the types that instructions name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mlagen.sim.hardware import LANES
from mlagen.sim.windows import SHARED_BASE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta
    from mlagen.sim.ptx import RegisterKind

# An undefined value is a NaN in every float type, and an address that no memory has.
_POISON: dict[str, int] = {
    "pred": 0,
    "b16": 0x7FFF,
    "b32": 0x7FFF_DEAD,
    "b64": 0x7FFF_DEAD_7FFF_DEAD,
}


@dataclass(frozen=True, slots=True)
class View:
    """How a kind is read out of a register file.

    Attributes:
        file: Whose array.
        dtype: Of an element.
        count: Elements per register: 2 for packed types.
    """

    file: RegisterKind
    dtype: np.dtype[Any]
    count: int = 1


VIEWS: dict[str, View] = {
    "pred": View("pred", np.dtype(np.bool_)),
    "b16": View("b16", np.dtype(np.uint16)),
    "b32": View("b32", np.dtype(np.uint32)),
    "b64": View("b64", np.dtype(np.uint64)),
    "u16": View("b16", np.dtype(np.uint16)),
    "u32": View("b32", np.dtype(np.uint32)),
    "u64": View("b64", np.dtype(np.uint64)),
    "s16": View("b16", np.dtype(np.int16)),
    "s32": View("b32", np.dtype(np.int32)),
    "s64": View("b64", np.dtype(np.int64)),
    "f16": View("b16", np.dtype(np.float16)),
    "bf16": View("b16", np.dtype(ml_dtypes.bfloat16)),
    "f32": View("b32", np.dtype(np.float32)),
    "f64": View("b64", np.dtype(np.float64)),
    "f16x2": View("b32", np.dtype(np.float16), 2),
    "bf16x2": View("b32", np.dtype(ml_dtypes.bfloat16), 2),
    "u16x2": View("b32", np.dtype(np.uint16), 2),
    "s16x2": View("b32", np.dtype(np.int16), 2),
    "f32x2": View("b64", np.dtype(np.float32), 2),
}


class RegisterFile:
    """Registers of one CTA at a time. CTAs of a program use files again, with what has been bound to them.

    Attributes:
        cta: Whose they are now.
        arrays: By kind of register and by kind of view: `[row, thread]`, or `[row, 2 * thread]` for packed types.
        bound: What segments have bound: the calls of a segment for a range of threads, by its first pc and the range.
    """

    __slots__ = ("arrays", "bound", "cta", "executing")

    def __init__(self, cta: Cta, rows: dict[str, int], threads: int) -> None:
        """Poisoned registers."""
        self.cta = cta
        self.bound: dict[tuple[int, int, int], Any] = {}  # Any: the segment's own type
        self.arrays: dict[str, NDArray[Any]] = {}
        for kind in ("pred", "b16", "b32", "b64"):
            dtype = np.bool_ if kind == "pred" else f"u{int(kind[1:]) // 8}"
            self.arrays[kind] = np.empty((rows[kind], threads), dtype)
        for name, view in VIEWS.items():
            if name not in self.arrays:
                self.arrays[name] = self.arrays[view.file].view(view.dtype)

    def poison(self, rows: dict[str, int]) -> None:
        """Make the first rows of every kind undefined."""
        for kind, value in _POISON.items():
            self.arrays[kind][: rows[kind]] = value


def special_value(name: str, cta: Cta, dynamic_base: int) -> NDArray[np.uint64] | int:
    """The value of a special register that does not change while a CTA runs, in all of its threads or in each."""
    simulation = cta.simulation
    threads = np.arange(LANES * len(cta.warps) or LANES, dtype=np.uint64)
    name, _, axis_name = name.removeprefix("%").partition(".")
    axis = "xyzw".find(axis_name or "x")
    if axis == 3:
        return 0
    cluster = simulation.cluster_shape
    per_thread = _of_thread(name, axis, threads, simulation.block)
    if per_thread is not None:
        return per_thread
    within = tuple(index % extent for index, extent in zip(cta.index, cluster, strict=True))
    values = {
        "ntid": simulation.block[axis],
        "ctaid": cta.index[axis],
        "nctaid": simulation.grid[axis],
        "clusterid": cta.index[axis] // cluster[axis],
        "nclusterid": simulation.grid[axis] // cluster[axis],
        "cluster_ctaid": within[axis],
        "cluster_nctaid": cluster[axis],
        "cluster_ctarank": cta.rank,
        "cluster_nctarank": cluster[0] * cluster[1] * cluster[2],
        "is_explicit_cluster": int(cluster != (1, 1, 1)),
        "nwarpid": len(threads) // LANES,
        "smid": cta.number,
        "nsmid": simulation.grid[0] * simulation.grid[1] * simulation.grid[2],
        "gridid": 1,
        "dynamic_smem_size": max(len(cta.shared.bytes) - dynamic_base, 0),
        "total_smem_size": len(cta.shared.bytes) - SHARED_BASE,
        "aggr_smem_size": len(cta.shared.bytes) - SHARED_BASE,
        "reserved_smem_offset_begin": 0,
        "reserved_smem_offset_end": SHARED_BASE,
        "reserved_smem_offset_cap": SHARED_BASE,
    }
    return values.get(name, 0)  # the environment's registers are zero


def _of_thread(
    name: str, axis: int, threads: NDArray[np.uint64], block: tuple[int, int, int]
) -> NDArray[np.uint64] | None:
    """Special registers that differ between threads; None if this is another."""
    width, height = (np.uint64(extent) for extent in block[:2])
    lane = threads % np.uint64(LANES)
    one = np.uint64(1)
    if name == "tid":
        places = (threads % width, threads // width % height, threads // width // height)
        return places[axis]
    if name == "laneid":
        return lane
    if name == "warpid":
        return threads // np.uint64(LANES)
    if name.startswith("lanemask_"):
        equal = one << lane
        below = equal - one
        masks = {"eq": equal, "lt": below, "le": below | equal}
        masks["gt"] = ~masks["le"] & np.uint64(0xFFFF_FFFF)
        masks["ge"] = ~masks["lt"] & np.uint64(0xFFFF_FFFF)
        return masks[name.removeprefix("lanemask_")]
    return None
