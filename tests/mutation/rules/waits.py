"""Waits for mbarriers: missing, late, of the wrong phase, on the wrong barrier, by too few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import argument, at_calls, gone, guarded, next_line, replaced
from tests.mutation.rules.stages import other_stage
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


_WAITS = "barrier_wait|tensor_wait"


def _inverted(source: Source) -> Iterator[Edit]:
    for call in source.calls(_WAITS):
        yield argument(call, 1, f"({source.argument(call, 1)}) ^ 1")
    for found in source.find(r'"r"\((parity)\)', *source.body("barrier_wait")):
        yield Edit(*found.span(1), "parity ^ 1")


def _other_barrier(source: Source) -> Iterator[Edit]:
    for call in source.calls(_WAITS):
        if other := other_stage(source.argument(call, 0)):
            yield argument(call, 0, other)


def _late(source: Source) -> Iterator[list[Edit]]:
    """Behind what the wait protects: the block of the elected lane, or all up to the next release or advance."""
    for call in source.calls(_WAITS):
        start, end = source.statement(call)
        if source.code[end:].lstrip().startswith("if ("):
            opening = source.code.index("{", end)
            yield source.moved(start, end, source.closing(opening))
            continue
        to = next_line(source, end, r"\.advance\(\)|release\(")
        if to is not None and source.code[end:to].strip():
            yield source.moved(start, end, to)


def _by_one_warp(source: Source) -> Iterator[Edit]:
    for call in source.calls(_WAITS):
        if "Warpgroup." in source.function(call.start):
            yield guarded(source, call, "thread() < 32")


def _constant(parity: int) -> Rule:
    return Rule(
        f"wait-parity-{parity}",
        f"a wait always asks for parity {parity}",
        at_calls(_WAITS, lambda _, call: argument(call, 1, str(parity))),
    )


RULES = (
    Rule("wait-removed", "a wait for an mbarrier is missing", gone(_WAITS)),
    Rule("wait-inverted", "a wait asks for the other parity", _inverted),
    _constant(0),
    _constant(1),
    Rule("wait-other-barrier", "a wait looks at another stage of its ring", _other_barrier),
    Rule("wait-late", "a wait comes behind what it protects", _late),
    Rule(
        "wait-by-one-lane",
        "one lane waits, the others go on",
        at_calls(_WAITS, lambda source, call: guarded(source, call, "elect_one()")),
    ),
    Rule(
        "wait-by-one-warp",
        "one warp of a warpgroup waits, the others go on",
        _by_one_warp,
    ),
    replaced(
        "wait-once",
        "a wait that ran into its time limit is not repeated",
        r'"bra WAIT;\\n"',
        '""',
    ),
    replaced(
        "wait-relaxed",
        "a wait acquires nothing",
        r"mbarrier\.try_wait\.parity\.shared",
        "mbarrier.try_wait.parity.relaxed.cta.shared",
    ),
)
