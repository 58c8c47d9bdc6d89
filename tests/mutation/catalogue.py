"""All rules, in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rules import (
    alternating,
    arrivals,
    barrier_setup,
    copies,
    correction,
    descriptors,
    divergence,
    masking,
    named_barriers,
    output,
    pairs,
    register_split,
    rings,
    scheduler,
    skipping,
    softmax,
    split_kv,
    tensor_core,
    tensor_memory,
    tensor_products,
    transposition,
    waits,
)

if TYPE_CHECKING:
    from tests.mutation.rule import Rule

# By the part of a kernel that they break: parts that kernels of both architectures have, or Hopper's only.
SHARED_PARTS = (
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
    split_kv,
    transposition,
)
# Parts that only Blackwell's have.
SM100_PARTS = (tensor_memory, tensor_products, correction, alternating, pairs)
PARTS = SHARED_PARTS + SM100_PARTS
RULES: tuple[Rule, ...] = tuple(rule for part in PARTS for rule in part.RULES)
