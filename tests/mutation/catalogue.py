"""All rules, in one order."""

from __future__ import annotations

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
RULES = tuple(rule for part in PARTS for rule in part.RULES)
