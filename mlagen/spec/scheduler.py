"""Schedulers: which CTA computes which query tile, and in which order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mlagen.spec.base import SpecModel, name_form


class Scheduler(SpecModel):
    """How query tiles are given to CTAs (the origin's SchedulerType)."""

    kind: Literal["transient", "persistent", "queued"] = Field(
        "queued",
        description="transient: one CTA a tile (the origin's TransientScheduler); persistent: a CTA an SM, tiles by "
        "a fixed stride (TileScheduler); queued: a CTA an SM, tiles from a counter in memory (QueuedTileScheduler).",
    )
    order: Literal["natural", "longest_first", "rotate"] = Field(
        "longest_first",
        description="natural: as the tiles lie; longest_first: the tiles with most keys first; rotate: odd heads "
        "backwards (the origin's PROMPT_ROTATE).",
    )


SchedulerOption = Annotated[Scheduler, name_form("kind", ("transient", "persistent", "queued"))]
