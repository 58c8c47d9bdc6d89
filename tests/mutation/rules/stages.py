"""Another place in a ring: what is written for the next stage, or for the other warpgroup."""

from __future__ import annotations

import re

STAGES = {"k": "kKStages", "v": "kVStages", "slot": "kTileSlots"}


def other_stage(expression: str) -> str | None:
    """The same with the next stage of its ring, or the other warpgroup; None if it has neither."""
    if found := re.search(r"\[(k|v|slot)\.stage\]", expression):
        ring = found[1]
        return expression.replace(found[0], f"[({ring}.stage + 1) % {STAGES[ring]}]")
    if "[warpgroup]" in expression:
        return expression.replace("[warpgroup]", "[1 - warpgroup]")
    return None
