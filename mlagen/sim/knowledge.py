"""What a release hands over to whoever acquires it."""

from __future__ import annotations

from typing import NamedTuple

from mlagen.sim.cell_states import BEFORE


class Knowledge(NamedTuple):
    """Three sets of events that a release hands over; see `hardware.Actor`."""

    ordered: int = BEFORE
    async_visible: int = BEFORE
    tensor_ordered: int = BEFORE

    def __or__(self, other: Knowledge) -> Knowledge:
        """What both know."""
        return Knowledge(
            self.ordered | other.ordered,
            self.async_visible | other.async_visible,
            self.tensor_ordered | other.tensor_ordered,
        )
