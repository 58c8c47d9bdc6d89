"""Tiles whose key blocks two halves take in turn: which blocks, how many outputs, and what the halves exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _not_added(source: Source) -> Iterator[Edit]:
    """One output alone is added to 0, which changes nothing."""
    if "kOutputs = 2;" in source.code:
        for found in source.find(r"fmaf\(output\[j\], scale\[i\], sum\[j\]\)"):
            yield Edit(found.start(), found.end(), "output[j] * scale[i]")


RULES = (
    # Whose blocks.
    replaced(
        "turns-same-blocks",
        "both halves take the first half's blocks",
        r"(?<=int first = blocks\.end - 1 - )(?:half|\(in_turn \? half : 0\))",
        "0",
    ),
    replaced(
        "turns-never",
        "a half without rows is given blocks of its own",
        r"return !has_rows\(tile, 1\);",
        "return false;",
    ),
    replaced(
        "turns-of-other-rows",
        "the second half has rows that there are not",
        r"in_turn \? 0 : half;",
        "half;",
    ),
    replaced("turns-each-block", "each half takes every block", r"in_turn \? 2 : 1", "1"),
    replaced(
        "turns-all-blocks",
        "a role goes on to the other half's block",
        r"(block|pair) -= 2(?=\))",
        r"--\1",
    ),
    replaced(
        "turns-of-other-half",
        "the halves change places",
        r"pair - half;",
        "pair - (1 - half);",
    ),
    replaced(
        "turns-behind-end",
        "a block behind the last one is taken",
        r"if \(block (?:- 2 )?>= blocks\.begin\) (?=end_own|begin_own)|if \(block < blocks\.begin\) continue;"
        r"|if \(blocks\.end - 1 > blocks\.begin\) (?=begin_own)",
        "",
    ),
    replaced(
        "output-first-of-half",
        "the second half's first block has no output of its own, or the first one's two",
        r"block \+ kOutputs >= blocks\.end;",
        "block + 3 - kOutputs >= blocks.end;",
    ),
    replaced(
        "output-committed-often",
        "an output is handed over after each block",
        r"block - 2 < blocks\.begin && ",
        "",
    ),
    replaced("v-behind-k", "V's slots begin where K's do", r"(v = kv;\s*)v\.advance\(\);", r"\1;"),
    # What a row knows in the end.
    replaced("merge-of-own", "the own state for the other half's", r"\[half \^ 1\]", "[half]"),
    replaced(
        "merge-maximum",
        "the maximum of one half",
        r"fmaxf\(own\[0\]\.maximum, own\[1\]\.maximum\)",
        "own[0].maximum",
    ),
    replaced(
        "merge-sum",
        "the sum of one half",
        r"__fmul_rn\(own\[\d\]\.sum, share\[\d\]\)",
        "0.0f",
    ),
    replaced(
        "merge-sum-as-it-is",
        "a half's sum with its own reference",
        r"__fmul_rn\((own\[\d\]\.sum), share\[\d\]\)",
        r"\1",
    ),
    replaced(
        "merge-share",
        "an output with its own reference",
        r"share\[\d\] \* divided",
        "divided",
    ),
    replaced(
        "merge-keeps-maximum",
        "the LSE's reference is the half's",
        r"row = \{maximum, ",
        "row = {own[0].maximum, ",
    ),
    replaced(
        "decay-of-nothing",
        "no guard where a half has seen no key",
        r"from == -infinity\(\) \? 0\.0f : ",
        "",
    ),
    replaced(
        "decay-sign",
        "what has decayed grows",
        r"reference\(from\) - reference\(to\)",
        "reference(to) - reference(from)",
    ),
    replaced(
        "state-of-nothing",
        "a half without blocks hands a state over",
        r"if \(first >= blocks\.begin\) (?=publish_state)",
        "",
    ),
    replaced(
        "outputs-of-short-tile",
        "a tile of one block has two outputs",
        r"min\(blocks, kOutputs\)",
        "kOutputs",
    ),
    Rule("outputs-not-added", "only the last of two outputs counts", _not_added),
    # One output: the maximum goes from block to block.
    replaced(
        "handed-unused",
        "a half does not know the other's maximum",
        r"fmaxf\(before, own\)",
        "own",
    ),
    replaced(
        "handed-to-first",
        "a first block waits for a maximum",
        r"is_first \? -infinity\(\) : (?=take_maximum)",
        "",
    ),
    replaced(
        "handed-by-last",
        "a last block hands its maximum over",
        r"if \(!is_last\) (?=hand_over)",
        "",
    ),
    replaced(
        "handed-not",
        "a maximum is not handed over",
        r"if \(!is_last\) hand_over_maximum\(\);",
        ";",
    ),
    replaced(
        "handed-early",
        "a maximum is handed over before it is known",
        r"maximum = adopted;(\s*)if \(!is_last\) hand_over_maximum\(\);",
        r"if (!is_last) hand_over_maximum();\1maximum = adopted;",
    ),
    replaced(
        "handed-factor",
        "the output keeps an old reference",
        r"return decay\(before, adopted\);",
        "return 1.0f;",
    ),
    replaced(
        "handed-sum",
        "a half's sum keeps an old reference",
        r"sum = __fmul_rn\(sum, decay\(maximum, adopted\)\);",
        ";",
    ),
    replaced(
        "handed-by-row",
        "each row decides by itself what to adopt",
        r"__any_sync\(kAllLanes, grew\) \? raised : before",
        "grew ? raised : before",
    ),
)
