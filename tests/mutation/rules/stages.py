"""Another place in a ring: what is written for the next stage, or for the other warpgroup or half."""

from __future__ import annotations

import re

STAGES = {
    "k": "kKStages",
    "v": "kVStages",
    "kv": "kKvSlots",
    "rope": "kRopeBuffers",
    "slot": "kTileSlots",
}
# An index of `shared.kv` that was a position's stage when it was taken.
_SLOTS = ("v_slot", "slot")


def other_stage(expression: str) -> str | None:
    """The same with the next stage of its ring, or the other warpgroup or half; None if it has none of these."""
    if found := re.search(rf"\b({'|'.join(STAGES)})\.stage\b", expression):
        return expression.replace(found[0], f"({found[0]} + 1) % {STAGES[found[1]]}")
    for slot in _SLOTS:
        if expression.endswith(f"[{slot}]") or expression == slot:
            return expression.replace(slot, f"({slot} + 1) % {STAGES['kv']}")
    for user in ("warpgroup", "half"):
        if f"[{user}]" in expression:
            return expression.replace(f"[{user}]", f"[1 - {user}]")
    return None
