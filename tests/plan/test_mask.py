"""Masks as unions of key ranges: the same visibility as the definition has, in the plainest form."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mlagen.plan.mask import MAX_RANGES, KeyRange, key_ranges
from mlagen.verify.reference import visibility
from tests.plan.kernels import spec

WINDOW = {"kind": "sliding_window", "left": 3, "right": 1}
CHUNK = {"kind": "chunked", "size": 6}


def ranges_of(mask: Any) -> tuple[KeyRange, ...] | None:
    return key_ranges(spec(mask=mask).mask)


@pytest.mark.parametrize(
    ("mask", "ranges"),
    [
        ("none", [KeyRange()]),
        ({"all": ["causal", "padding"]}, [KeyRange(right=0, is_padded=True)]),
        ({"all": [WINDOW, "causal", CHUNK]}, [KeyRange(left=3, right=0, chunks=(6,))]),
        # Two sizes of which one divides the other are one; others are not.
        ({"all": [CHUNK, {"kind": "chunked", "size": 2}]}, [KeyRange(right=0, chunks=(2,))]),
        ({"all": [CHUNK, {"kind": "chunked", "size": 4}]}, [KeyRange(right=0, chunks=(4, 6))]),
        ({"any": [WINDOW, "padding"]}, [KeyRange(left=3, right=1), KeyRange(is_padded=True)]),
        # A range inside another adds nothing.
        ({"any": ["none", WINDOW]}, [KeyRange()]),
        (
            {"any": [CHUNK, {"kind": "sliding_window", "left": 9, "right": 0}, "causal"]},
            [KeyRange(right=0)],
        ),
        (
            {"all": ["padding", {"any": [WINDOW, CHUNK]}]},
            [
                KeyRange(left=3, right=1, is_padded=True),
                KeyRange(right=0, chunks=(6,), is_padded=True),
            ],
        ),
    ],
    ids=str,
)
def test_the_plainest_ranges(mask: Any, ranges: list[KeyRange]) -> None:
    assert ranges_of(mask) == tuple(ranges)


def test_many_ranges_are_given_up() -> None:
    """Also where they would be more than any computer holds."""
    windows = [{"kind": "sliding_window", "left": n, "right": 40 - n} for n in range(40)]
    assert ranges_of({"any": windows[:MAX_RANGES]}) is not None
    assert ranges_of({"any": windows[: MAX_RANGES + 1]}) is None
    chunks = [{"kind": "chunked", "size": size} for size in (101, 103, 107, 109, 113, 127)]
    pairs = [{"any": chunks[:2]}, {"any": chunks[2:4]}, {"any": chunks[4:]}]
    assert ranges_of({"all": pairs[:2]}) is not None
    assert ranges_of({"all": pairs * 20}) is None


def drawn_mask(draw: random.Random, depth: int) -> Any:
    """A mask of any kind, a combination of up to three parts at first."""
    if depth == 0:
        side = draw.choice([None, 0, 1, 4])
        return draw.choice(
            [
                "none",
                "causal",
                "padding",
                {"kind": "sliding_window", "left": draw.randint(0, 5), "right": side},
                {"kind": "chunked", "size": draw.randint(1, 9), "causal": draw.random() < 0.5},
            ]
        )
    parts = [drawn_mask(draw, draw.randint(0, depth - 1)) for _ in range(draw.randint(1, 3))]
    return {draw.choice(["all", "any"]): parts}


def keys_in(one: KeyRange, query: int, keys: int, valid: int) -> set[int]:
    """The keys of one range, by its conditions."""
    return {
        key
        for key in range(keys)
        if (one.left is None or query - key <= one.left)
        and (one.right is None or key - query <= one.right)
        and all(key // size == query // size for size in one.chunks)
        and (not one.is_padded or key < valid)
    }


def test_ranges_show_what_the_definition_shows() -> None:
    draw = random.Random(4)  # noqa: S311  no secret
    keys, positions = 14, range(-3, 16)
    unions = 0
    for _ in range(150):
        mask, valid = spec(mask=drawn_mask(draw, 3)).mask, draw.randint(0, keys)
        ranges = key_ranges(mask)
        if ranges is None:
            continue
        unions += len(ranges) > 1
        shown = visibility(mask, np.array(positions)[:, None], np.arange(keys)[None, :], valid)
        for row, query in zip(shown, positions, strict=True):
            union = set().union(*(keys_in(one, query, keys, valid) for one in ranges))
            assert union == set(np.flatnonzero(row).tolist()), (mask, query)
    assert unions > 20
