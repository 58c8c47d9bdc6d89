"""Arrivals at mbarriers: missing, early, too many, at the wrong barrier, with wrong bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import (
    argument,
    at_calls,
    doubled,
    guarded,
    hollow,
    previous_line,
    removed,
    replaced,
)
from tests.mutation.rules.stages import other_stage
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Call, Source

_GIVEN_AWAY = "barrier_arrive|release|warp_arrive|leader_arrive|tensor_arrive|tensor_commit"
_ARRIVALS = f"{_GIVEN_AWAY}|barrier_arrive_expect_bytes"
# What a release promises to be over: products, stores, reads and writes of the announced tile.
_PROTECTED = (
    r"wgmma_wait|tma_store_wait_read|shared\.tile\[slot\.stage\] = tile"
    r"|tile\.queries = uniform|(?:begin|end)_block\(|multiply_p_v\(|descriptor_q\("
    r"|= shared\.factor|shared\.factor.* = |wait_tensor_stores\(|const int row = thread\(\);"
)


def _missing(source: Source) -> Iterator[Edit]:
    yield from at_calls(_ARRIVALS, removed)(source)
    yield from hollow(source, "barrier_arrive|barrier_arrive_expect_bytes|tensor_commit")


def _early(source: Source) -> Iterator[list[Edit]]:
    for call in source.calls(_GIVEN_AWAY):
        start, end = source.statement(call)
        to = previous_line(source, start, _PROTECTED)
        if to is not None:
            yield source.moved(start, end, to)


def _other_barrier(source: Source) -> Iterator[Edit]:
    for call in source.calls(_ARRIVALS):
        if other := other_stage(source.argument(call, 0)):
            yield argument(call, 0, other)
    for found in source.find(r"uint64& full = (?P<barrier>[^;]*);"):
        if other := other_stage(found["barrier"]):
            yield Edit(*found.span("barrier"), other)


def _full_for_empty(source: Source) -> Iterator[Edit]:
    for call in source.calls(_GIVEN_AWAY):
        barrier = source.argument(call, 0)
        if "_empty" in barrier:
            yield argument(call, 0, barrier.replace("_empty", "_full"))


def _by_one_warp(source: Source) -> Iterator[Edit]:
    """Of a warpgroup; the warps of the others arrive for themselves alone."""
    for call in source.calls("release|warp_arrive|leader_arrive|tensor_arrive"):
        if "Warpgroup." in source.function(call.start):
            yield guarded(source, call, "thread() < 32")


def _bytes_apart(source: Source, call: Call) -> Edit:
    """The arrival first, the bytes behind it: the phase ends between them."""
    barrier, size = source.argument(call, 0), source.argument(call, 1)
    start, end = source.statement(call)
    text = (
        f"{{ barrier_arrive({barrier}); "
        'asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::'
        f'"r"(shared_address(&{barrier})), "r"({size}) : "memory"); }}'
    )
    return Edit(start, end, text)


RULES = (
    Rule("arrive-removed", "an arrival at an mbarrier is missing", _missing),
    Rule("arrive-twice", "an arrival counts twice", at_calls(_ARRIVALS, doubled)),
    Rule("arrive-early", "a buffer is given away before the work on it is over", _early),
    Rule("arrive-other-barrier", "an arrival, or a copy's bytes, at another stage", _other_barrier),
    Rule(
        "arrive-full-for-empty", "an arrival at the barrier of the other direction", _full_for_empty
    ),
    Rule(
        "arrive-by-one-warp",
        "only one warp of a warpgroup gives a buffer back",
        _by_one_warp,
    ),
    replaced(
        "arrive-by-all-lanes",
        "every lane arrives",
        r"if \(elect_one\(\)\) (?=barrier_arrive|tensor_commit)| && elect_one\(\)(?=\) tensor_commit)",
        "",
    ),
    replaced(
        "arrive-relaxed",
        "an arrival publishes nothing",
        r"mbarrier\.arrive\.(expect_tx\.)?shared",
        r"mbarrier.arrive.\1relaxed.cta.shared",
    ),
    Rule(
        "expect-removed",
        "an arrival announces no bytes",
        at_calls(
            "barrier_arrive_expect_bytes",
            lambda source, call: Edit(
                *source.statement(call), f"barrier_arrive({source.argument(call, 0)});"
            ),
        ),
    ),
    replaced(
        "expect-without-arrival",
        "bytes are announced and nobody arrives",
        r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, ",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 ",
    ),
    Rule(
        "expect-behind-arrival",
        "bytes are announced behind the arrival",
        at_calls("barrier_arrive_expect_bytes", _bytes_apart),
    ),
    Rule(
        "expect-less",
        "fewer bytes are announced than come",
        at_calls(
            "barrier_arrive_expect_bytes",
            lambda source, call: argument(call, 1, f"{source.argument(call, 1)} - 8192"),
        ),
    ),
    Rule(
        "expect-more",
        "more bytes are announced than come",
        at_calls(
            "barrier_arrive_expect_bytes",
            lambda source, call: argument(call, 1, f"{source.argument(call, 1)} + 128"),
        ),
    ),
)
