"""bar.sync and bar.arrive: missing, with wrong counts and ids, and the turns of the math warpgroups."""

from __future__ import annotations

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import argument, at_calls, gone, guarded, removed, replaced

_BARRIERS = "named_barrier_sync|named_barrier_arrive"

RULES = (
    Rule("named-barrier-removed", "a bar.sync or bar.arrive is missing", gone(_BARRIERS)),
    Rule(
        "turn-removed",
        "a turn is not waited for, or not passed on",
        at_calls("wait_for_turn|end_turn|pass_turns", removed),
    ),
    Rule(
        "named-barrier-count-low",
        "a named barrier waits for one warp too few",
        at_calls(
            _BARRIERS, lambda source, call: argument(call, 1, f"{source.argument(call, 1)} - 32")
        ),
    ),
    Rule(
        "named-barrier-count-high",
        "a named barrier waits for one warp too many",
        at_calls(
            _BARRIERS, lambda source, call: argument(call, 1, f"{source.argument(call, 1)} + 32")
        ),
    ),
    Rule(
        "named-barrier-shared",
        "two uses of named barriers have one id",
        at_calls(
            _BARRIERS,
            lambda source, call: argument(call, 0, source.argument(call, 0).partition(" ")[0]),
        ),
    ),
    Rule(
        "named-barrier-by-one-warp",
        "one warp of a warpgroup comes to a named barrier",
        at_calls(_BARRIERS, lambda source, call: guarded(source, call, "thread() < 32")),
    ),
    replaced(
        "named-barrier-arrive-only",
        "a bar.arrive where a bar.sync should wait",
        r"named_barrier_sync(?=\(k)",
        "named_barrier_arrive",
    ),
    replaced(
        "turn-not-offered",
        "nobody has the first turn at the tensor cores",
        r"if \((?:warpgroup|half) == 1\) (?=named_barrier_arrive|end_turn)",
        "if (false) ",
    ),
    replaced(
        "turn-offered-twice",
        "both warpgroups offer the first turn",
        r"if \((?:warpgroup|half) == 1\) (?=named_barrier_arrive|end_turn)",
        "",
    ),
)
