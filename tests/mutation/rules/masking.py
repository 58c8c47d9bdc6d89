"""Masks and bounds: which blocks are visited, which scores are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _bounds(change: str) -> object:
    """Each bound of `KeyBlocks` one block on, or back."""

    def plant(source: Source) -> Iterator[Edit]:
        for found in source.find(
            r"^    (?:begin|end|full_begin|full_end) = ([^;]*)", *source.body("KeyBlocks.KeyBlocks")
        ):
            yield Edit(*found.span(1), f"({found[1]}){change}")

    return plant


RULES = (
    replaced(
        "mask-removed",
        "scores of a masked block are not hidden",
        r"if constexpr \(kMasked\) hide_masked\([^;]*;",
        ";",
    ),
    replaced(
        "mask-right-late",
        "one key behind the last visible one counts",
        r"column >= end",
        "column > end",
    ),
    replaced(
        "mask-right-early", "the last visible key is hidden", r"column >= end", "column >= end - 1"
    ),
    replaced(
        "mask-left-late",
        "the first visible key is hidden",
        r"column < begin",
        "column <= begin",
    ),
    replaced(
        "mask-left-early",
        "one key before the first visible one counts",
        r"column < begin",
        "column < begin - 1",
    ),
    replaced(
        "mask-left-removed", "keys before the first visible one count", r"column < begin \|\| ", ""
    ),
    replaced(
        "mask-length-removed",
        "keys behind a sequence's end count",
        r"min\(((?:end_of_visible_keys|\w*end\w*)\(position(?: \+ kRowDistance \* row|_of_row[^)]*)\)), seqlen_k\)",
        r"\1",
    ),
    replaced(
        "mask-rows-together",
        "both rows of a thread have the mask of the first",
        r"position \+ kRowDistance \* row\)(?=[, ])",
        "position)",
    ),
    replaced(
        "mask-columns-swapped",
        "the mask of another column",
        r"8 \* \(i / 2\) \+ i % 2;",
        "8 * (i / 2) + 1 - i % 2;",
    ),
    replaced(
        "masked-block-unmasked",
        "a block at the mask's edge goes without it",
        r"(next|attend)_block<true>",
        r"\1_block<false>",
    ),
    replaced(
        "first-block-unmasked",
        "the first block goes without a mask",
        r"score_to_probability<true, true>",
        "score_to_probability<true, false>",
    ),
    Rule("block-bound-high", "a bound of the key blocks is one block on", _bounds(" + 1")),  # type: ignore[arg-type]  # NumPy's stubs, or a table of many types
    Rule("block-bound-low", "a bound of the key blocks is one block back", _bounds(" - 1")),  # type: ignore[arg-type]  # NumPy's stubs, or a table of many types
    replaced(
        "visible-end-off",
        "a query sees one key more, or one less",
        r"(return position(?: \+ kWindowRight)? \+ 1);",
        r"\1 - 1;",
    ),
    replaced(
        "visible-begin-off",
        "a query's window or chunk begins one key late",
        r"return (position - kWindowLeft|chunk_begin\(position\));",
        r"return \1 + 1;",
    ),
    replaced(
        "chunk-of-negative-position",
        "a position before the keys belongs to the first chunk",
        r"position >= 0 \? position / kChunkSize : \(position \+ 1\) / kChunkSize - 1",
        "position / kChunkSize",
    ),
    replaced(
        "offset-top-left",
        "the first query stands at the first key",
        r"(?<=first_row\(\)) \+ tile\.keys\.length - tile\.queries\.length",
        "",
    ),
    replaced(
        "half-block-always",
        "a first block is always half",
        r"first_block<kScoresPerThread>",
        "first_block<kScoresPerThread / 2>",
    ),
    replaced(
        "half-block-never",
        "a first block is always whole",
        r"first_block<kScoresPerThread / 2>",
        "first_block<kScoresPerThread>",
    ),
    replaced(
        "half-block-by-warpgroup",
        "a first block is half wherever the upper warpgroup is",
        r"if \(min\(end_of_visible_keys\(last_position\), tile\.keys\.length\)[^{]*\{",
        "if (warpgroup == 0) {",
    ),
    replaced(
        "half-block-without-length",
        "a first block is half without a look at the keys' end",
        r"if \(min\((end_of_visible_keys\(last_position\)), tile\.keys\.length\) <= ",
        r"if (\1 < ",
    ),
    replaced(
        "half-block-of-more",
        "a first block is half although one key more counts",
        r"(tile\.keys\.length\) <= block \* kTileN \+ kTileN / 2)\)",
        r"\1 + 1)",
    ),
)
