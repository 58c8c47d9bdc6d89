"""Where the state spaces lie among generic addresses.

The top byte of a generic address names the space, so no pointer can lie in two of them, and small integers lie in
none that a kernel may touch. A shared address is an offset into one CTA's shared memory, or that with the CTA's rank
plus one in bits 24 and up (`mapa`): the cluster's window holds the CTA's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.hardware import Cta

# The first KiB of shared memory is the system's: an address of 0 is a bug, as on hardware.
SHARED_BASE = 1024

WINDOW_SHIFT = 56
GLOBAL_WINDOW = 0
SHARED_WINDOW = 1 << WINDOW_SHIFT
LOCAL_WINDOW = 2 << WINDOW_SHIFT
PARAM_WINDOW = 3 << WINDOW_SHIFT
CONST_WINDOW = 4 << WINDOW_SHIFT

SPACES = ("global", "shared", "local", "param", "const")
OFFSET_MASK = (1 << WINDOW_SHIFT) - 1
RANK_SHIFT = 24


def space_of(address: int) -> str | None:
    """State space of a generic address; None if no window holds it."""
    number = address >> WINDOW_SHIFT
    return SPACES[number] if number < len(SPACES) else None


def cluster_address(rank: int, offset: int) -> int:
    """The `shared::cluster` address of an offset in the shared memory of the CTA with this rank (`mapa`)."""
    return (rank + 1) << RANK_SHIFT | offset & ((1 << RANK_SHIFT) - 1)


def own_address(cta: Cta, offset: int) -> int:
    """What a CTA's code gets as the address of its own variable: with its rank, in a cluster, unless that is 0.

    So it is on hardware (seen on an H200): whoever needs the bare offset, in a matrix descriptor, has to mask it.
    """
    return cluster_address(cta.rank, offset) if cta.rank else offset


def locate_shared(cta: Cta, address: int) -> tuple[Cta, int]:
    """Whose shared memory a `shared::cluster` or generic shared address means, and where in it.

    Returns:
        The CTA and its `shared::cta` address. A rank that the cluster does not have gives an address behind all
        shared memory, which the bounds check reports.
    """
    inside = address & OFFSET_MASK
    rank = inside >> RANK_SHIFT
    if rank == 0 or rank > len(cta.cluster):
        return cta, inside
    return cta.cluster[rank - 1], inside & ((1 << RANK_SHIFT) - 1)
