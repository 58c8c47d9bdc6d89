"""Bulk copies, tensor copies and their groups (being written)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.hardware import Cta, Decoder
    from mlagen.sim.report import Findings

DECODERS: dict[str, Decoder] = {}
ALIGNED: frozenset[str] = frozenset()


def at_exit(cta: Cta, findings: Findings) -> None:
    """Nothing yet."""
