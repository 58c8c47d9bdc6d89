"""Pairs of CTAs: who leads, whose barrier and whose memory, rows and columns of each, and the end of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import gone, hollow, replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _own_arrival(source: Source) -> Iterator[Edit]:
    """An arrival at this block's own barrier, at each call; the leader's are its own anyway."""
    for call in source.calls("leader_arrive"):
        yield Edit(call.start, source.code.index("(", call.start), "warp_arrive")


RULES = (
    # Who leads.
    replaced(
        "pair-both-lead", "both blocks lead", r"return rank_in_pair\(\) == 0;", "return true;"
    ),
    replaced(
        "pair-nobody-leads", "no block leads", r"return rank_in_pair\(\) == 0;", "return false;"
    ),
    replaced(
        "pair-other-leads",
        "the second block leads",
        r"return rank_in_pair\(\) == 0;",
        "return rank_in_pair() == 1;",
    ),
    replaced(
        "pair-lead-unasked",
        "both blocks do what is the leader's",
        r"(?<=\()leads_pair\(\)(?= && |\))|(?<= && )leads_pair\(\)",
        "true",
    ),
    replaced(
        "pair-rank",
        "neighbours are of one rank",
        r"return blockIdx\.x % 2;",
        "return blockIdx.x / 2 % 2;",
    ),
    # Whose barriers.
    Rule("pair-arrives-at-home", "an arrival at the own barrier, not the leader's", _own_arrival),
    replaced(
        "pair-arrives-at-other",
        "arrivals, or bytes of copies, at the barrier of the block that does not lead",
        r"shared_address_in\(0, ",
        "shared_address_in(1, ",
    ),
    replaced(
        "pair-address-at-home",
        "an address of this block in place of one in the other",
        r"shared_address_in\(\w+, (&\w+)\)",
        r"shared_address(\1)",
    ),
    replaced(
        "pair-commit-to-one",
        "products are over for the leader alone",
        r"kBothBlocks = 3;",
        "kBothBlocks = 1;",
    ),
    replaced(
        "pair-commit-to-other",
        "products are over for the other block alone",
        r"kBothBlocks = 3;",
        "kBothBlocks = 2;",
    ),
    Rule("pair-fence-removed", "an arrival may overtake a load", gone("fence_pair_release")),
    # The announced tile.
    replaced(
        "pair-tile-to-leader",
        "the leader keeps a tile to itself",
        r"rank < 2(?=; \+\+rank)",
        "rank < 1",
    ),
    replaced(
        "pair-tile-to-other",
        "the leader does not know its tile",
        r"int rank = 0(?=; rank < 2)",
        "int rank = 1",
    ),
    replaced(
        "pair-tile-part",
        "the end of a tile is not sent",
        r"i < sizeof\(Object\) / 16",
        "i < sizeof(Object) / 16 - 1",
    ),
    replaced(
        "pair-tile-bytes",
        "a tile has more bytes than are sent",
        r'("r"\(full\), "n"\(sizeof\(Object\))',
        r"\1 + 16",
    ),
    replaced(
        "pair-tile-address", "all words of a tile at one place", r"(?<=address) \+ 16 \* i", ""
    ),
    # What is whose.
    replaced(
        "pair-share-of-leader",
        "both blocks have the leader's share",
        r"rank_in_pair\(\)(?= \* k)",
        "0",
    ),
    replaced(
        "pair-share-of-other",
        "each block has the other's share",
        r"rank_in_pair\(\)(?= \* k)",
        "(1 - rank_in_pair())",
    ),
    replaced(
        "pair-ticket-of-block",
        "pairs count their tickets in blocks",
        r"(blockIdx\.x|gridDim\.x) / 2(?= \+|;)",
        r"\1",
    ),
    # The end, and the form of instructions.
    replaced(
        "pair-exit-early",
        "a block ends before the last products have freed its slots",
        r"slot < kKvSlots(?=; \+\+slot)",
        "slot < 0",
    ),
    Rule(
        "pair-sync-half",
        "arrivals or waits of the pair are missing",
        lambda source: hollow(source, "pair_sync"),
    ),
    replaced(
        "pair-group",
        "an instruction of one block",
        r"(?<=cta_group::)2(?=\.)",
        "1",
    ),
    replaced(
        "pair-commit-without-multicast",
        "a commit for one barrier",
        r"\.multicast::cluster(\.b64 \[%0\]), %1",
        r"\1",
    ),
)
