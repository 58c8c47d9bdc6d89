"""Faults that a GPU forgives most of the time: races that luck wins, and that the simulator reports every time.

None of them can leave a GPU waiting: they run there as plain renders, whose waits have no limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.mutation.catalogue import RULES

if TYPE_CHECKING:
    from tests.mutation.rule import Mutant


@dataclass(frozen=True, slots=True)
class Lucky:
    """One such fault.

    Attributes:
        rule: Name of the rule.
        place: Beginning of the place.
        finding: What the simulator says.
        luck: Why a GPU is likely to give the right result all the same.
    """

    rule: str
    place: str
    finding: str
    luck: str


LUCKY = (
    Lucky(
        "proxy-fence-removed",
        "MathWarpgroup.store_output",
        "proxy-fence",
        "the stores to shared memory have long been done when TMA reads behind a barrier",
    ),
    Lucky(
        "arrive-early",
        "MathWarpgroup.next_block: release(shared.k_empty[k.stage])",
        "race",
        "TMA needs longer to bring the next K than the products to read the last columns of this one",
    ),
    Lucky(
        "arrive-early",
        "MathWarpgroup.next_block: release(shared.v_empty[v.stage])",
        "race",
        "likewise with V",
    ),
    Lucky(
        "store-wait-loose",
        "tma_store_wait_read",
        "race",
        "the store has read its 16 KiB before the next tile's Q comes from L2",
    ),
    Lucky(
        "init-fence-removed",
        "init_barriers",
        "mbarrier-init-fence",
        "__syncthreads takes longer than the initialisation to become visible",
    ),
    Lucky(
        "product-fence-removed",
        "MathWarpgroup.multiply_p_v",
        "wgmma-fence",
        "the registers were written long before the product reads them",
    ),
    Lucky(
        "proxy-fence-by-one-warp",
        "MathWarpgroup.store_output",
        "proxy-fence",
        "the other warps' stores are as old as the barrier behind them",
    ),
    Lucky(
        "store-unfinished",
        'tma_store_wait_read: asm volatile("cp.async.bulk.wait_group',
        "race",
        "the store has begun to read long before the next tile's Q comes from L2",
    ),
    Lucky(
        "arrive-relaxed",
        "barrier_arrive: ",
        "race",
        "the hardware has one kind of arrival, and it does not overtake earlier accesses",
    ),
    Lucky(
        "wait-by-one-lane",
        "MathWarpgroup.next_tile",
        "race",
        "the warp comes together behind the branch, when its one lane has waited",
    ),
    Lucky(
        "named-barrier-removed",
        "MathWarpgroup.store_output: named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);",
        "race",
        "four warps store their output at the same time, and TMA begins later than they end",
    ),
)


def lucky_mutants(source: str) -> list[tuple[Lucky, Mutant]]:
    """The mutants of the list in a rendered kernel."""
    rules = {rule.name: rule for rule in RULES}
    return [
        (lucky, mutant)
        for lucky in LUCKY
        for mutant in rules[lucky.rule].sites(source)
        if mutant.place.startswith(lucky.place)
    ]
