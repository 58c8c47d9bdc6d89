"""Blocks that one warpgroup skips: an optimisation that kernels do not have, planted right and wrong.

The upper warpgroup of a tile may see nothing of the tile's last key block, where the offset between queries and keys is
no multiple of the tile. It could leave the block out, and would then have to give K and V of it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source

_SEES_NOTHING = (
    "block > blocks.begin && min(end_of_visible_keys(tile.row + (warpgroup + 1) * kRowsPerWarpgroup - 1 + "
    "tile.keys.length - tile.queries.length), tile.keys.length) <= block * kTileN"
)
_TURN = (
    "named_barrier_sync(kTurnBarrier + warpgroup, kMathThreads); "
    "named_barrier_arrive(kTurnBarrier + 1 - warpgroup, kMathThreads); "
)
_WAIT_EACH = "barrier_wait(shared.{0}_full[{0}.stage], {0}.parity); "
_RELEASE_EACH = "release(shared.{0}_empty[{0}.stage]); "
_RELEASE_BY_ONE = (
    "if (thread() / 32 == 0 && elect_one()) "
    "for (int i = 0; i < 4; ++i) barrier_arrive(shared.{0}_empty[{0}.stage]); "
)


def _skip(source: Source, *, wait: str, release: str, turn: str) -> Iterator[list[Edit]]:
    """A block that a warpgroup sees nothing of is left out, at the start of `attend`."""
    for found in source.find(r"int block = blocks\.end - 1;", *source.body("MathWarpgroup.attend")):
        ring = "".join((wait + release).format(name) + f"{name}.advance(); " for name in ("k", "v"))
        turns = turn if "kTurnBarrier" in source.code else ""
        yield [Edit(found.end(), found.end(), f" if ({_SEES_NOTHING}) {{ {ring}{turns}--block; }}")]


def skipped_right(source: Source) -> Iterator[list[Edit]]:
    """The control: every warp looks at the full barriers and gives the stages back itself, and takes its turn."""
    return _skip(source, wait=_WAIT_EACH, release=_RELEASE_EACH, turn=_TURN)


RULES = (
    Rule(
        "skip-released-by-one-thread",
        "a skipped stage is released by one thread, other warps have not looked at it",
        lambda source: _skip(source, wait=_WAIT_EACH, release=_RELEASE_BY_ONE, turn=_TURN),
    ),
    Rule(
        "skip-released-unseen",
        "a skipped stage is released by every warp, and none has looked at it",
        lambda source: _skip(source, wait="", release=_RELEASE_EACH, turn=_TURN),
    ),
    Rule(
        "skip-released-unseen-by-one-thread",
        "a skipped stage is released by one thread, and nobody has looked at it",
        lambda source: _skip(source, wait="", release=_RELEASE_BY_ONE, turn=_TURN),
    ),
    Rule(
        "skip-not-released",
        "a skipped stage is not given back",
        lambda source: _skip(source, wait=_WAIT_EACH, release="", turn=_TURN),
    ),
    Rule(
        "skip-without-turn",
        "a skipped block takes no turn: unequal counts of ping-pong",
        lambda source: _skip(source, wait=_WAIT_EACH, release=_RELEASE_EACH, turn=""),
    ),
)
