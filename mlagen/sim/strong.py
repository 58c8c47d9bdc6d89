"""Strong accesses: `ld.acquire`, `st.release`, `volatile` and `relaxed` ones, `fence` and `membar`, for `atom` as well.

Every place that somebody accesses strongly keeps what its writers knew. The rules, after PTX ISA 8.8 and 8.9:

- a release store or atomic leaves all that its warp knows at the place; a relaxed one leaves what the warp knew at its
  last `fence`;
- an atomic carries on what it finds there (a release sequence); a plain strong store does not;
- an acquire load or atomic takes what it finds; a relaxed one takes it at the warp's next `fence`;
- whoever reads strongly comes after the strong writes that it has seen (observation order), whatever the semantics.

Scopes: `.cta` carries knowledge within a CTA only; `.cluster`, `.gpu` and `.sys` are one scope here. Knowledge is that
of warps: a lane is taken to know what other lanes of its warp do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import read_lanes, split_by_space, write_lanes
from mlagen.sim.hardware import Watched
from mlagen.sim.order import Knowledge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlagen.sim.access import AccessForm, Part
    from mlagen.sim.hardware import Binder, Decoder, Handler, Path, Simulation, Warp
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

UNIT = "strong"
_NOTHING = Knowledge(0, 0, 0)


class Place(Watched):
    """Where strong accesses meet: an address in global memory or in one CTA's shared memory.

    Attributes:
        name: For reports.
        wide: What writers at a scope beyond the CTA have left.
        narrow: What those of each CTA have left at any scope.
        writers: Events of the strong writes that led to the present value.
    """

    __slots__ = ("name", "narrow", "wide", "writers")

    def __init__(self, name: str) -> None:
        """Nothing is left there yet."""
        super().__init__()
        self.name = name
        self.wide = _NOTHING
        self.narrow: dict[int, Knowledge] = {}
        self.writers = 0

    def leave(
        self, writer: Warp, knowledge: Knowledge, *, wide: Knowledge, carries_on: bool
    ) -> None:
        """A write.

        Args:
            writer: Who writes, as the event of the write.
            knowledge: For readers of its CTA.
            wide: For readers of others.
            carries_on: Whether earlier writers' knowledge stays.
        """
        if not carries_on:
            self.wide = _NOTHING
            self.narrow = {}
            self.writers = 0
        cta = writer.cta.number
        self.writers |= 1 << writer.event
        self.wide = self.wide | wide
        self.narrow[cta] = self.narrow.get(cta, _NOTHING) | knowledge

    def found(self, cta: int, *, is_wide: bool) -> Knowledge:
        """What a reader of a CTA finds."""
        own = self.narrow.get(cta, _NOTHING)
        return own | self.wide if is_wide else own

    def describe(self, path: Path) -> str:
        """Which place."""
        return f"a write to {self.name}"


@dataclass(slots=True)
class Fences:
    """What a warp's fences connect.

    Attributes:
        released: What it knew at its last fence, for readers of its own CTA.
        released_wide: The same at its last fence beyond `.cta`, for readers of others.
        seen: What relaxed loads have found since the last fence.
    """

    released: Knowledge = field(default_factory=lambda: _NOTHING)
    released_wide: Knowledge = field(default_factory=lambda: _NOTHING)
    seen: Knowledge = field(default_factory=lambda: _NOTHING)


def fences_of(warp: Warp) -> Fences:
    """What a warp's fences connect."""
    fences = warp.units.get(UNIT)
    if fences is None:
        fences = warp.units[UNIT] = Fences()
    assert isinstance(fences, Fences)
    return fences


def place_at(simulation: Simulation, part: Part, address: int) -> Place:
    """The place at an address of a part's space."""
    places: dict[tuple[int, int], Place] = simulation.units.setdefault(UNIT, {})
    owner = part.owner.number if part.space == "shared" else -1
    place = places.get((owner, address))
    if place is None:
        shown = (
            f"shared address {address:#x} of cta {owner}"
            if part.space == "shared"
            else simulation.memory.describe(address)
        )
        place = places[owner, address] = Place(shown)
    return place


def note_read(path: Path, places: list[Place], form: AccessForm) -> None:
    """The order that a strong read makes."""
    warp = path.warp
    is_wide = form.scope != "cta"
    knowledge = _NOTHING
    for place in places:
        knowledge = knowledge | place.found(warp.cta.number, is_wide=is_wide)
        warp.ordered |= place.writers
    if form.semantics in {"acquire", "acq_rel"}:
        warp.cta.simulation.order.acquire(warp, knowledge)
    else:
        fences = fences_of(warp)
        fences.seen = fences.seen | knowledge


@dataclass(slots=True)
class Release:
    """A strong write, from before it happens until after: it is an event of its own.

    Attributes:
        warp: Who writes.
        knowledge: What it leaves for its CTA.
        wide: What it leaves for others.
    """

    warp: Warp
    knowledge: Knowledge
    wide: Knowledge

    @classmethod
    def begin(cls, path: Path, form: AccessForm) -> Release:
        """Before the write."""
        warp = path.warp
        everything = warp.cta.simulation.order.publish(warp)
        fences = fences_of(warp)
        knowledge, wide = fences.released, fences.released_wide
        if form.semantics in {"release", "acq_rel"}:
            knowledge = wide = everything
        return cls(warp, knowledge, _NOTHING if form.scope == "cta" else wide)

    def end(self, places: list[Place], *, is_atomic: bool, changed: bool) -> None:
        """After the write: wake those who poll the places, if there is something new."""
        for place in places:
            place.leave(self.warp, self.knowledge, wide=self.wide, carries_on=is_atomic)
            if changed:
                place.change()
        self.warp.cta.simulation.order.publish(self.warp)


def places_of(
    path: Path, space: str | None, addresses: NDArray[np.int64], site: Site
) -> list[Place]:
    """The places that lanes address, each once; local and other spaces that only one thread has hold none."""
    simulation = path.warp.cta.simulation
    return [
        place_at(simulation, part, address)
        for part in split_by_space(path, space, addresses, site)
        if part.space in {"global", "shared"}
        for address in sorted(set(part.addresses.tolist()))
    ]


def strong_read(
    path: Path, form: AccessForm, addresses: NDArray[np.int64], site: Site
) -> NDArray[np.uint8]:
    """A strong load by lanes: `[n, size]` bytes."""
    places = places_of(path, form.space, addresses, site)
    note_read(path, places, form)
    if places:
        path.polled = places[0], places[0].version
    return read_lanes(path, form.space, addresses, form.size, site, is_strong=True)


def strong_write(
    path: Path, form: AccessForm, addresses: NDArray[np.int64], data: NDArray[np.uint8], site: Site
) -> None:
    """A strong store by lanes."""
    release = Release.begin(path, form)
    write_lanes(path, form.space, addresses, data, site, is_strong=True)
    places = places_of(path, form.space, addresses, site)
    release.end(places, is_atomic=False, changed=True)


def decode_fence(instruction: Instruction, bind: Binder) -> Handler:
    """`fence` and `membar`: later relaxed writes release, earlier relaxed reads acquire (PTX ISA 9.7.13.4)."""
    match instruction.parts:
        case (
            (
                "fence",
                "acq_rel" | "sc" | "release" | "acquire",
                ("cta" | "cluster" | "gpu" | "sys") as scope,
            )
            | ("fence", ("cta" | "cluster" | "gpu" | "sys") as scope)
            | ("membar", ("cta" | "gl" | "sys") as scope)
        ):
            pass
        case ("fence", "release" | "acquire", restriction, "cluster") if restriction.startswith(
            "sync_restrict::"
        ):
            scope = "cluster"
        case _:
            raise UnsupportedPtxError(instruction.opcode)
    releases, acquires = "acquire" not in instruction.parts, "release" not in instruction.parts

    def fence(path: Path) -> None:
        warp = path.warp
        order = warp.cta.simulation.order
        fences = fences_of(warp)
        if acquires:
            order.acquire(warp, fences.seen)
            fences.seen = _NOTHING
        if releases:
            fences.released = order.publish(warp)
            if scope != "cta":
                fences.released_wide = fences.released

    return fence


DECODERS: dict[str, Decoder] = {"fence": decode_fence, "membar": decode_fence}
