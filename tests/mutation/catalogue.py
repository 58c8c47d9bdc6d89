"""All rules, in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rules import (
    arrivals,
    barrier_setup,
    copies,
    descriptors,
    divergence,
    masking,
    named_barriers,
    output,
    register_split,
    rings,
    scheduler,
    skipping,
    softmax,
    tensor_core,
    waits,
)

if TYPE_CHECKING:
    from tests.mutation.rule import Rule

# By the part of a kernel that they break.
PARTS = (
    waits,
    arrivals,
    barrier_setup,
    rings,
    named_barriers,
    tensor_core,
    descriptors,
    copies,
    divergence,
    register_split,
    skipping,
    masking,
    softmax,
    output,
    scheduler,
)
RULES: tuple[Rule, ...] = tuple(rule for part in PARTS for rule in part.RULES)
