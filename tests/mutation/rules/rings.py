"""Rings of buffers: positions that stand still or run ahead, parities that do not flip, the wrong buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import replaced
from tests.mutation.rules.stages import STAGES, other_stage
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source

# A buffer of a ring as an operand; the barriers of a ring are the affair of `waits` and `arrivals`.
_BUFFER = rf"shared\.(?:k|v|v_rows|tile|kv|k_rope)\[(?:{'|'.join(STAGES)})\.stage\]|shared\.kv\[v_slot\](?=\))"
# A place that belongs to a warpgroup, or a half.
_PLACE = r"shared\.q\[(warpgroup|half)\]"


_ADVANCE = r"\b\w+(?:\[\w+\])?\.advance"


def _other_buffer(source: Source) -> Iterator[Edit]:
    for found in source.find(f"{_BUFFER}|{_PLACE}"):
        if other := other_stage(found[0]):
            yield Edit(found.start(), found.end(), other)


def _fixed_buffer(source: Source) -> Iterator[Edit]:
    for found in source.find(f"{_BUFFER}|{_PLACE}"):
        yield Edit(found.start(), found.end(), f"{found[0].partition('[')[0]}[0]")


RULES = (
    replaced("advance-removed", "a ring's position stands still", rf"{_ADVANCE}\(\);", ";"),
    replaced(
        "advance-twice",
        "a ring's position skips a buffer",
        rf"{_ADVANCE}\(\);",
        r"\g<0> \g<0>",
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
        "parity-starts-at-1-in-both-halves",
        "the positions of both halves start in the other phase",
        r"(RingPosition<1>) (\w+)\[2\];",
        r"\1 \2[2] = {{0, 1}, {0, 1}};",
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
