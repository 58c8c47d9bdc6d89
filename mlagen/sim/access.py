"""What every instruction that accesses memory by lanes shares: its modifiers, addresses, bytes and spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import LANES, lane_numbers
from mlagen.sim.ptx import Register, Sink, Vector
from mlagen.sim.shared_memory import POISON, gather, scatter
from mlagen.sim.windows import OFFSET_MASK, RANK_SHIFT, WINDOW_SHIFT, locate_shared, space_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Cta, Path, Writer
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site

_TYPE_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_SPACES = {
    "global": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "const": "const",
    "param": "param",
    "param::entry": "param",
}
_SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
_SCOPES = ("cta", "cluster", "gpu", "sys")
# Hints to caches: they change no value and no order.
_CACHE_HINTS = frozenset({"nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1", "L2"})
UNSIGNED: dict[int, np.dtype[Any]] = {
    **{size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    16: np.dtype("V16"),
}
_SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_REGISTER_BYTES = {"b16": 2, "b32": 4, "b64": 8, "b128": 16}


@dataclass(frozen=True, slots=True)
class AccessForm:
    """The modifiers of `ld`, `st`, `atom` and `red`.

    Attributes:
        space: State space; None for a generic address.
        semantics: `weak`, `relaxed`, `acquire`, `release`, `acq_rel`; `volatile` and `mmio` count as `relaxed`.
        scope: `cta`, `cluster`, `gpu` or `sys`.
        count: Elements of the vector.
        type_letter: `b`, `u`, `s`, `f`, or all of `bf` and of packed types.
        element_bytes: Of one element in memory.
        rest: Modifiers that are the instruction's own, in order.
    """

    space: str | None
    semantics: str
    scope: str
    count: int
    type_letter: str
    element_bytes: int
    rest: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that one lane accesses."""
        return self.count * self.element_bytes

    @property
    def is_strong(self) -> bool:
        """Whether the access takes part in synchronisation (PTX ISA 8.1.3, strong operations)."""
        return self.semantics != "weak"


def access_form(instruction: Instruction, *, own: frozenset[str] = frozenset()) -> AccessForm:
    """Decode the modifiers of an access.

    Args:
        instruction: The instruction.
        own: Modifiers that the instruction has besides the shared ones; they end up in `rest`.

    Raises:
        UnsupportedPtxError: A modifier is unknown.
    """
    space: str | None = None
    semantics, scope, count = "weak", "gpu", 1
    rest = []
    *modifiers, type_name = instruction.parts[1:]
    for part in modifiers:
        if part in _SPACES:
            space = _SPACES[part]
        elif part in own:
            rest.append(part)
        elif part in _SEMANTICS:
            semantics = "relaxed" if part in {"volatile", "mmio"} else part
        elif part in _SCOPES:
            scope = part
        elif part in {"v2", "v4", "v8"}:
            count = int(part[1:])
        elif part.split("::")[0] not in _CACHE_HINTS:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{part}")
    if type_name == "b128" and count > 1:
        raise UnsupportedPtxError(f"{instruction.opcode}: a vector of .b128")
    letter = type_name.rstrip("0123456789x")
    width = type_name[len(letter) :]
    if type_name in {"f16x2", "bf16x2"}:
        letter, width = type_name, "32"
    if width not in _TYPE_BYTES or letter not in {"b", "u", "s", "f", "bf", "f16x2", "bf16x2"}:
        raise UnsupportedPtxError(f"{instruction.opcode}: type .{type_name}")
    return AccessForm(space, semantics, scope, count, letter, _TYPE_BYTES[width], tuple(rest))


def elements_of(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector, or the operand alone."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def lane_values(values: NDArray[Any] | np.generic, path: Path) -> NDArray[Any]:
    """Values of an operand in the lanes of a path only."""
    if isinstance(values, np.ndarray) and values.ndim:
        return values[lane_numbers(path.mask)] if len(path.lanes) < LANES else values
    return np.full(len(path.lanes), values)


def all_lanes(values: NDArray[Any], path: Path) -> NDArray[Any]:
    """Values of a path's lanes as an array of 32, as a writer takes it."""
    if len(values) == LANES:
        return values
    spread = np.zeros(LANES, dtype=values.dtype)
    spread[lane_numbers(path.mask)] = values
    return spread


def operand_bytes(operand: Operand, element_bytes: int) -> int:
    """Bytes of the register that holds an element, which may be wider than the element."""
    if isinstance(operand, Register):
        return _REGISTER_BYTES[operand.kind]
    return max(element_bytes, 2)


def element_writers(
    instruction: Instruction, bind: Binder, operand: Operand, form: AccessForm
) -> list[Callable[[Path, NDArray[Any]], None]]:
    """For each element of a destination, what writes a column of loaded values, extended to the register's width."""
    elements = elements_of(operand)
    if len(elements) != form.count:
        raise UnsupportedPtxError(
            f"{instruction.opcode}: {len(elements)} registers for {form.count}"
        )
    return [_element_writer(element, bind, form) for element in elements]


def _element_writer(
    element: Operand, bind: Binder, form: AccessForm
) -> Callable[[Path, NDArray[Any]], None]:
    """What writes one element into its register."""
    if isinstance(element, Sink):
        return lambda path, values: None
    width = operand_bytes(element, form.element_bytes)
    if width == _REGISTER_BYTES["b128"]:
        write_halves = bind.writer(element, "b128")
        return lambda path, values: write_halves(path, _halves(all_lanes(values, path)))
    write: Writer = bind.writer(element, f"u{8 * width}")
    target = UNSIGNED[width]
    if form.type_letter == "s" and width > form.element_bytes:
        narrow, wide = _SIGNED[form.element_bytes], _SIGNED[width]
        return lambda path, values: write(
            path, all_lanes(values.view(narrow).astype(wide).view(target), path)
        )
    return lambda path, values: write(path, all_lanes(values.astype(target, copy=False), path))


def element_readers(
    instruction: Instruction, bind: Binder, operand: Operand, form: AccessForm
) -> Callable[[Path], NDArray[np.uint8]]:
    """What gathers the elements of a source as `[n, size]` bytes, one row a lane of the path."""
    elements = elements_of(operand)
    if len(elements) != form.count:
        raise UnsupportedPtxError(
            f"{instruction.opcode}: {len(elements)} registers for {form.count}"
        )
    if form.element_bytes == _REGISTER_BYTES["b128"]:
        (whole,) = [bind.reader(element, "b128") for element in elements]
        return lambda path: _joined(whole(path), path)
    readers = [
        bind.reader(element, f"u{8 * operand_bytes(element, form.element_bytes)}")
        for element in elements
    ]
    dtype = UNSIGNED[form.element_bytes]

    def read(path: Path) -> NDArray[np.uint8]:
        columns = np.empty((len(path.lanes), len(readers)), dtype=dtype)
        for number, reader in enumerate(readers):
            columns[:, number] = lane_values(reader(path), path)  # keeps the low bytes
        return columns.view(np.uint8)

    return read


def _halves(values: NDArray[Any]) -> NDArray[np.uint64]:
    """128-bit values of lanes as `[2, lane]`, low half first: the two rows of a `b128` register."""
    return values.view(np.uint64).reshape(-1, 2).T


def _joined(halves: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    """The two rows of a `b128` register as `[n, 16]` bytes, one row a lane of the path."""
    return np.ascontiguousarray(halves.T[lane_numbers(path.mask)]).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Part:
    """The lanes of an access that fall into one space, and for shared memory into one CTA.

    Attributes:
        space: `global`, `shared`, `local`, `const` or `param`.
        lanes: Which of the access's rows.
        addresses: Within the space; `shared::cta` addresses of `owner` for shared memory.
        owner: Whose shared memory; else the CTA that accesses.
    """

    space: str
    lanes: NDArray[np.intp] | slice
    addresses: NDArray[np.int64]
    owner: Cta


def read_lanes(
    path: Path,
    space: str | None,
    addresses: NDArray[np.int64],
    size: int,
    site: Site,
    *,
    is_strong: bool = False,
) -> NDArray[np.uint8]:
    """What the lanes of a path read: `[n, size]` bytes; poison where they may not.

    Args:
        path: Whose lanes; one address each.
        space: State space, None if the addresses are generic.
        addresses: As the instruction has them.
        size: Bytes a lane.
        site: For findings.
        is_strong: Whether the access takes part in synchronisation.
    """
    warp = path.warp
    cta = warp.cta
    memory = cta.simulation.memory
    if space == "global":
        return memory.read(addresses, size, warp, site, is_strong=is_strong)
    result = np.full((len(addresses), size), POISON, dtype=np.uint8)
    for part in split_by_space(path, space, addresses, site):
        if part.space == "shared":
            shared = part.owner.shared
            found = shared.read(part.addresses, size, warp, site, is_strong=is_strong)
        elif part.space == "global":
            found = memory.read(part.addresses, size, warp, site, is_strong=is_strong)
        else:
            bank, offsets = _bank(path, part)
            if not _inside(path, part, size, site):
                continue
            found = gather(bank, offsets, size)
        result[part.lanes] = found
    return result


def write_lanes(
    path: Path,
    space: str | None,
    addresses: NDArray[np.int64],
    data: NDArray[np.uint8],
    site: Site,
    *,
    is_strong: bool = False,
) -> None:
    """Write `[n, size]` bytes, one row a lane of the path."""
    warp = path.warp
    cta = warp.cta
    memory = cta.simulation.memory
    if space == "global":
        memory.write(addresses, data, warp, site, is_strong=is_strong)
        return
    for part in split_by_space(path, space, addresses, site):
        mine = data[part.lanes]
        if part.space == "shared":
            part.owner.shared.write(part.addresses, mine, warp, site, is_strong=is_strong)
        elif part.space == "global":
            memory.write(part.addresses, mine, warp, site, is_strong=is_strong)
        elif part.space != "local":
            cta.simulation.findings.add("read-only", f"a write to {part.space} memory", site)
        elif _inside(path, part, data.shape[1], site):
            bank, offsets = _bank(path, part)
            scatter(bank, offsets, mine)


def split_by_space(
    path: Path, space: str | None, addresses: NDArray[np.int64], site: Site
) -> list[Part]:
    """Group lanes by state space, and those of shared memory by CTA; an address in no space is reported, left out."""
    cta = path.warp.cta
    parts = []
    for lanes in _equal(addresses >> WINDOW_SHIFT) if space is None else [slice(None)]:
        mine = addresses[lanes]
        place = space if space is not None else space_of(int(mine[0]))
        if place is None:
            text = f"address {int(mine[0]):#x} lies in no state space"
            cta.simulation.findings.add("out-of-bounds", text, site)
        elif place == "shared":
            numbers = np.arange(len(addresses))[lanes]
            for same in _equal(mine >> RANK_SHIFT):
                owner, first = locate_shared(cta, int(mine[same][0]))
                inside = mine[same] - (int(mine[same][0]) - first)
                parts.append(Part(place, numbers[same], inside, owner))
        else:
            parts.append(Part(place, lanes, mine & OFFSET_MASK, cta))
    return parts


def _equal(keys: NDArray[np.int64]) -> list[NDArray[np.intp] | slice]:
    """Positions of equal keys, key by key."""
    if (keys == keys[0]).all():
        return [slice(None)]
    return [np.flatnonzero(keys == key) for key in np.unique(keys)]


def _bank(path: Path, part: Part) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The array behind local, const or param memory, and offsets in it."""
    cta = path.warp.cta
    if part.space == "const":
        return cta.simulation.constants, part.addresses
    if part.space == "param":
        return cta.simulation.parameters, part.addresses
    threads = path.warp.first_thread + lane_numbers(path.mask)[part.lanes]
    return cta.local.reshape(-1), threads * cta.local.shape[1] + part.addresses


def _inside(path: Path, part: Part, size: int, site: Site) -> bool:
    """Bounds and alignment in local, const or param memory; False after reporting."""
    cta = path.warp.cta
    findings = cta.simulation.findings
    limit = {
        "local": cta.local.shape[1],
        "const": len(cta.simulation.constants),
        "param": len(cta.simulation.parameters),
    }[part.space]
    last = int(part.addresses.max())
    if last + size > limit:
        text = f"{size} bytes at {part.space} address {last:#x}: there are {limit}"
        findings.add("out-of-bounds", text, site)
        return False
    if int(np.bitwise_or.reduce(part.addresses)) & (size - 1):
        text = f"{size} bytes at {part.space} address {last:#x}: not a multiple of {size}"
        findings.add("misaligned", text, site)
        return False
    return True
