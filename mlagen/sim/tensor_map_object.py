"""`tensormap.replace` and `tensormap.cp_fenceproxy`: tensor maps that a kernel makes (PTX ISA 9.7.9.27, 9.7.13.16).

The 128 bytes of a tensor map are opaque, so they may hold what they like here: every field by itself. What another
thread must do before it uses a map, `fence.proxy.tensormap`, is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.launch_record import TensorMapSpec
from mlagen.sim.access import read_lanes, write_lanes
from mlagen.sim.ptx import Immediate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Decoder, Handler, Path
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site

MAP_BYTES = 128
_MOST_DIMENSIONS = 5
_CHUNK_BYTES = 16

# PTX ISA 9.7.9.27, tables of new_val for .elemtype and .swizzle_mode.
_ELEMENT_TYPES = {
    0: "uint8",
    1: "uint16",
    2: "uint32",
    3: "int32",
    4: "uint64",
    5: "int64",
    6: "float16",
    7: "float32",
    9: "float64",
    10: "bfloat16",
}
_SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a field lies in the simulator's own encoding.

    Attributes:
        offset: Of its first byte.
        size: Bytes of one value.
        count: Values: one, or one a dimension.
    """

    offset: int
    size: int
    count: int = 1


_FIELDS = {
    "global_address": _Field(0, 8),
    "global_stride": _Field(8, 8, _MOST_DIMENSIONS - 1),
    "global_dim": _Field(40, 4, _MOST_DIMENSIONS),
    "box_dim": _Field(60, 4, _MOST_DIMENSIONS),
    "element_stride": _Field(80, 4, _MOST_DIMENSIONS),
    "rank": _Field(100, 4),
    "elemtype": _Field(104, 4),
    "interleave_layout": _Field(108, 4),
    "swizzle_mode": _Field(112, 4),
    "fill_mode": _Field(116, 4),
    "swizzle_atomicity": _Field(120, 4),
}


def decode_map(data: bytes) -> TensorMapSpec | None:
    """The map that 128 bytes hold; None if a field is none that the simulator knows."""
    values = np.frombuffer(data, np.uint32)
    field = {
        name: values[one.offset // 4 :][: one.count * one.size // 4]
        for name, one in _FIELDS.items()
    }
    rank = int(field["rank"][0]) + 1
    element_type = _ELEMENT_TYPES.get(int(field["elemtype"][0]))
    swizzle_bytes = _SWIZZLE_BYTES.get(int(field["swizzle_mode"][0]))
    unusual = (
        field["interleave_layout"][0] or field["fill_mode"][0] or field["swizzle_atomicity"][0]
    )
    if rank > _MOST_DIMENSIONS or element_type is None or swizzle_bytes is None or unusual:
        return None
    if (field["element_stride"][:rank] != 1).any():
        return None
    strides = np.ascontiguousarray(field["global_stride"]).view(np.uint64)
    return TensorMapSpec(
        address=int(np.ascontiguousarray(field["global_address"]).view(np.uint64)[0]),
        element_type=element_type,
        dims=tuple(field["global_dim"][:rank].tolist()),
        strides_bytes=tuple(strides[: rank - 1].tolist()),
        box=tuple(field["box_dim"][:rank].tolist()),
        swizzle_bytes=swizzle_bytes,
    )


def _decode_replace(instruction: Instruction, bind: Binder) -> Handler:
    """`tensormap.replace.tile.field{.space}.b1024.type [map] {, dimension}, value`."""
    match instruction.parts[2:]:
        case ("tile", name, *spaces, "b1024", "b32" | "b64") if name in _FIELDS and len(spaces) < 2:
            field, space = _FIELDS[name], _space(instruction, spaces)
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    address, *rest = instruction.operands
    number = 0
    if field.count > 1:
        number = _dimension(instruction, rest.pop(0), field)
    if len(rest) != 1:
        raise UnsupportedPtxError(f"{instruction.opcode}: operands")
    read_address = bind.address(address)
    read_value = bind.reader(rest[0], f"u{8 * field.size}")
    offset = field.offset + number * field.size

    def replace(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        lanes = list(path.lanes)
        addresses = np.broadcast_to(read_address(path), 32)[lanes].astype(np.int64) + offset
        values = np.broadcast_to(read_value(path), 32)[lanes]
        data = np.ascontiguousarray(values)[:, None].view(np.uint8)
        write_lanes(path, space, addresses, data, site)

    return replace


def _space(instruction: Instruction, spaces: list[str]) -> str | None:
    """State space of the map; None for a generic address."""
    if not spaces:
        return None
    if spaces[0] not in {"global", "shared::cta"}:
        raise UnsupportedPtxError(f"{instruction.opcode}: .{spaces[0]}")
    return spaces[0].removesuffix("::cta")


def _dimension(instruction: Instruction, operand: Operand, field: _Field) -> int:
    """The dimension whose field is replaced, which is an immediate."""
    if not isinstance(operand, Immediate) or not 0 <= operand.value < field.count:
        raise UnsupportedPtxError(f"{instruction.opcode}: dimension")
    return operand.value


def _decode_copy(instruction: Instruction, bind: Binder) -> Handler:
    """`tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [to], [from], 128`."""
    match instruction.parts[2:]:
        case (
            "global",
            "shared::cta",
            "tensormap::generic",
            "release",
            "cta" | "cluster" | "gpu" | "sys",
            "sync",
            "aligned",
        ):
            pass
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    read_target = bind.uniform_address(instruction.operands[0])
    read_source = bind.uniform_address(instruction.operands[1])

    def copy(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        _copy_map(path, read_source(path), read_target(path), site)

    return copy


def _copy_map(path: Path, source: int, target: int, site: Site) -> None:
    """Copy 128 bytes from shared to global memory, as if every lane did."""
    count = len(path.lanes)
    for offset in range(0, MAP_BYTES, _CHUNK_BYTES):
        data: NDArray[np.uint8] = read_lanes(
            path, "shared", np.full(count, source + offset), _CHUNK_BYTES, site
        )
        write_lanes(path, "global", np.full(count, target + offset), data, site)


DECODERS: dict[str, Decoder] = {
    "tensormap.replace": _decode_replace,
    "tensormap.cp_fenceproxy": _decode_copy,
}
ALIGNED = frozenset({"tensormap.cp_fenceproxy"})
