"""setmaxnreg: who gives registers away, who gets them, how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import at_calls, gone, guarded, replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _wrong_way(source: Source) -> Iterator[Edit]:
    for found in source.find(r"setmaxnreg\.(dec|inc)"):
        yield Edit(*found.span(1), "inc" if found[1] == "dec" else "dec")


RULES = (
    Rule("registers-kept", "setmaxnreg is missing", gone("release_registers|claim_registers")),
    replaced(
        "registers-too-many",
        "a role asks for more registers than the others leave",
        r"(?<=constexpr int )(k\w+Registers) = (\d+)",
        r"\1 = \2 + 8",
    ),
    Rule("registers-wrong-way", "setmaxnreg in the other direction", _wrong_way),
    Rule(
        "registers-by-one-warp",
        "one warp of a warpgroup comes to setmaxnreg",
        at_calls(
            "release_registers|claim_registers",
            lambda source, call: guarded(source, call, "threadIdx.x / 32 % 4 == 0"),
        ),
    ),
)
