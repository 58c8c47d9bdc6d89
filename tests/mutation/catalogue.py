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

RULES = (
    *waits.RULES,
    *arrivals.RULES,
    *barrier_setup.RULES,
    *rings.RULES,
    *named_barriers.RULES,
    *tensor_core.RULES,
    *descriptors.RULES,
    *copies.RULES,
    *divergence.RULES,
    *register_split.RULES,
    *skipping.RULES,
    *masking.RULES,
    *softmax.RULES,
    *output.RULES,
    *scheduler.RULES,
)
