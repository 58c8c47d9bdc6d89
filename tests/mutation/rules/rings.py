"""Rings of buffers: positions that stand still or run ahead, parities that do not flip, the wrong buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import replaced
from tests.mutation.rules.stages import STAGES
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source

# A buffer of a ring as an operand; the barriers of a ring are the affair of `waits` and `arrivals`.
_BUFFER = r"shared\.(?:k|v|tile)\[(?P<ring>k|v|slot)\.stage\]"


def _other_buffer(source: Source) -> Iterator[Edit]:
    for found in source.find(_BUFFER):
        ring = found["ring"]
        text = found[0].replace(f"{ring}.stage", f"({ring}.stage + 1) % {STAGES[ring]}")
        yield Edit(found.start(), found.end(), text)
    for found in source.find(r"shared\.q\[warpgroup\]"):
        yield Edit(found.start(), found.end(), "shared.q[1 - warpgroup]")


def _fixed_buffer(source: Source) -> Iterator[Edit]:
    for found in source.find(_BUFFER):
        text = found[0].replace(f"{found['ring']}.stage", "0")
        yield Edit(found.start(), found.end(), text)
    for found in source.find(r"shared\.q\[warpgroup\]"):
        yield Edit(found.start(), found.end(), "shared.q[0]")


RULES = (
    replaced("advance-removed", "a ring's position stands still", r"\b\w+\.advance\(\);", ";"),
    replaced(
        "advance-twice",
        "a ring's position skips a buffer",
        r"\b(\w+)\.advance\(\);",
        r"\1.advance(); \1.advance();",
    ),
    replaced("parity-stuck", "a parity never flips", r"parity \^= 1;", ";"),
    replaced(
        "parity-flips-each-step",
        "a parity flips at every step, not at a ring's end",
        r"stage \+= 1;",
        "stage += 1; parity ^= stage != kStages;",
    ),
    replaced(
        "parity-starts-at-1",
        "one position starts in the other phase",
        r"(RingPosition<\w+>) (\w+);",
        r"\1 \2 = {0, 1};",
    ),
    replaced(
        "ring-short",
        "one role goes round before the ring's end",
        r"RingPosition<(k\w+)> (\w+);",
        r"RingPosition<\1 - 1> \2;",
    ),
    replaced(
        "ring-long",
        "one role goes round behind the ring's end",
        r"RingPosition<(\w+)> (\w+);",
        r"RingPosition<\1 + 1> \2;",
    ),
    Rule("buffer-other", "data of a ring are written or read one stage on", _other_buffer),
    Rule("buffer-fixed", "data of a ring are always written or read at its start", _fixed_buffer),
)
