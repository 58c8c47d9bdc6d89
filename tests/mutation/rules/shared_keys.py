"""Hopper blocks that share keys: to whom they go and who gives them back, whose rows are whose, blocks passed over.

No shipped kernel has such blocks, so these rules stand beside the catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import gone, replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _release_at_home(source: Source) -> Iterator[Edit]:
    """A buffer is given back to this block's own load warp only, at each call."""
    for call in source.calls("release_in_pair"):
        yield Edit(call.start, source.code.index("(", call.start), "release")


RULES = (
    # Who gets keys, and who gives them back.
    replaced("shared-keys-to-one", "keys go to the first block", r"kBoth = 3;", "kBoth = 1;"),
    replaced("shared-keys-to-other", "keys go to the second block", r"kBoth = 3;", "kBoth = 2;"),
    Rule("shared-release-at-home", "given back at home only", _release_at_home),
    replaced(
        "shared-release-abroad",
        "each arrival goes to the other block",
        r"arrive_in\(rank, empty\)",
        "arrive_in(1 - rank_in_pair(), empty)",
    ),
    replaced(
        "shared-release-once",
        "arrivals at the first block only",
        r"rank < 2(?=; \+\+rank\) arrive_in)",
        "rank < 1",
    ),
    replaced(
        "shared-empty-half",
        "a buffer is free when half of the warps have released it",
        r"(?<=barrier : shared\.[kv]_empty\) barrier_init\(barrier, )16",
        "8",
    ),
    replaced(
        "shared-bytes-half",
        "a stage is there when half of it is",
        r"barrier_arrive_expect_bytes\(full, (k[KV]StageBytes)\)",
        r"barrier_arrive_expect_bytes(full, \1 / 2)",
    ),
    replaced(
        "shared-place",
        "both halves of the keys at the place of the first",
        r"\[rank_in_pair\(\) \* kOwnKeys\]",
        "[0]",
    ),
    Rule("shared-sync-removed", "blocks do not wait for one another", gone("pair_sync")),
    # Whose rows.
    replaced("shared-rows-not-in-turn", "both blocks are told other rows", r"rank \^ turn", "rank"),
    replaced(
        "shared-rows-of-leader",
        "the leader loads other rows than it is told",
        r"tile\.row \+ turn \* kRowsPerBlock",
        "tile.row",
    ),
    replaced(
        "shared-blocks-of-pair",
        "a block has the keys of both",
        r"KeyBlocks blocks = KeyBlocks::of_block\(tile\)",
        "KeyBlocks blocks(tile)",
    ),
    replaced(
        "shared-blocks-of-block",
        "a load warp brings the keys of its own rows only",
        r"(?<=const KeyBlocks )blocks\(tile\)",
        "blocks = KeyBlocks::of_block(tile)",
    ),
    replaced(
        "shared-q-always",
        "Q is loaded for rows that see no key",
        r"if \(!KeyBlocks::of_block\(tile\)\.empty\(\)\) load_q",
        "load_q",
    ),
    # Blocks passed over.
    Rule("shared-pass-removed", "keys are not passed over", gone("pass_blocks|pass_k|pass_v")),
    replaced(
        "shared-pass-all-values", "values of one block more", r"if \(i > 0\) pass_v", "pass_v"
    ),
    replaced(
        "shared-pass-behind-product",
        "two blocks passed over, while the last product is lacking",
        r"passed <= 1\)",
        "true)",
    ),
    replaced(
        "shared-product-twice",
        "a last product is made again",
        r"lacks_product = false;(?=\s+previous|\s+\})",
        ";",
    ),
)
