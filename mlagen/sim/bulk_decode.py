"""What the instructions of bulk and tensor copies share: operands of lanes, destinations, alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import lane_values
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.sim.hardware import Cta, Path, Reader
    from mlagen.sim.mbarrier import MBarrier
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site

COMPLETES_BYTES = "mbarrier::complete_tx::bytes"
BULK_GROUP = "bulk_group"
MULTICAST = "multicast::cluster"
CACHE_HINT = "L2::cache_hint"


def lane_rows(readers: Sequence[Reader], path: Path) -> list[tuple[int, list[int]]]:
    """For each lane of a path its number and its values of some operands."""
    if path.mask & (path.mask - 1) == 0:
        lane = path.first_lane
        values = [read(path) for read in readers]
        return [(lane, [int(one[lane]) if one.ndim else int(one) for one in values])]
    columns = [lane_values(read(path), path).tolist() for read in readers]
    return [
        (lane, [int(one) for one in row])
        for lane, row in zip(path.lanes, zip(*columns, strict=True), strict=True)
    ]


def split_modifiers(
    instruction: Instruction, words: Sequence[str], *, required: str, optional: Sequence[str]
) -> frozenset[str]:
    """The optional modifiers among words; all words must be known and the required one among them.

    Raises:
        UnsupportedPtxError: They are not.
    """
    for word in words:
        if word != required and word not in optional:
            raise UnsupportedPtxError(f"{instruction.opcode}: .{word}")
    if required not in words:
        raise UnsupportedPtxError(f"{instruction.opcode}: without .{required}")
    return frozenset(words) - {required}


def take_operands(
    instruction: Instruction, operands: Sequence[Operand], modifiers: frozenset[str]
) -> Operand | None:
    """The multicast mask among the operands behind the fixed ones; the cache policy means nothing here."""
    rest = list(operands)
    mask = rest.pop(0) if MULTICAST in modifiers and rest else None
    if len(rest) != int(CACHE_HINT in modifiers) or (MULTICAST in modifiers and mask is None):
        raise UnsupportedPtxError(f"{instruction.opcode}: {len(instruction.operands)} operands")
    return mask


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a load goes.

    Attributes:
        cta: Whose shared memory.
        address: There.
        barrier: Which it signals; None after reporting that there is none.
    """

    cta: Cta
    address: int
    barrier: MBarrier | None


def destinations(
    path: Path, address: int, barrier: int, mask: int | None, site: Site, *, is_pair: bool = False
) -> list[Destination]:
    """The destinations of a load: one, or one in every CTA of a multicast, at the same offsets.

    PTX ISA 9.7.9.25.5.2. The mbarrier lies in the destination's CTA; with `.cta_group::2` it may lie in that of its
    peer, and a multicast signals, in each pair, the CTA with the rank parity of the one that holds `barrier`.

    Args:
        path: Who issues it.
        address: `shared::cluster` address.
        barrier: `shared::cluster` address of the mbarrier.
        mask: CTAs of a multicast by rank; None without.
        site: For findings.
        is_pair: `.cta_group::2`.
    """
    cta = path.warp.cta
    findings = cta.simulation.findings
    owner, offset = locate_shared(cta, address)
    keeper, place = locate_shared(cta, barrier)
    if mask is None:
        pairs = [(owner, keeper)]
        if keeper is not owner and not (is_pair and keeper.rank == owner.rank ^ 1):
            findings.add(
                "bulk-barrier",
                f"the mbarrier lies in CTA {keeper.number}, the destination in CTA {owner.number}",
                site,
            )
    else:
        if mask >> len(cta.cluster):
            findings.add(
                "bulk-multicast",
                f"multicast to CTAs {mask:#x} of a cluster of {len(cta.cluster)}",
                site,
            )
        chosen = [one for one in cta.cluster if mask >> one.rank & 1]
        pairs = [
            (one, cta.cluster[one.rank & ~1 | keeper.rank & 1] if is_pair else one)
            for one in chosen
        ]
    found = []
    for target, signalled in pairs:
        if target.has_ended:
            findings.add(
                "bulk-peer", f"CTA {target.number}, the destination, has ended already", site
            )
            continue
        found.append(Destination(target, offset, signalled.barriers.at(place, path, site)))
    return found


def check_address(
    cta: Cta, space: str, address: int, alignment: int, site: Site, *, is_note: bool = False
) -> None:
    """Report an address that is not aligned as a copy demands, or as is usual."""
    if address % alignment:
        cta.simulation.findings.add(
            "misaligned",
            f"{space} address {address:#x} is not a multiple of {alignment}"
            + (", so the box begins inside its swizzle pattern" if is_note else ""),
            site,
            severity="note" if is_note else "error",
        )
