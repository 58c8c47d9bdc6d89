"""A kernel with a fixed number of parts: there may be more than blocks, so that a block takes several of them."""

from __future__ import annotations

from tests.mutation.bench import Bench
from tests.mutation.catalogue import RULES
from tests.plan.kernels import shipped_specs

(FIXED,) = (
    spec
    for spec in shipped_specs("sm_100a")
    if spec.partition.kind == "split_kv" and spec.partition.splits != "auto"
)
(PLACE_KEPT,) = (rule for rule in RULES if rule.name == "part-place-kept")


def test_a_block_that_keeps_a_place_in_q_cannot_go_on() -> None:
    kernel = Bench(FIXED)
    (mutant,) = PLACE_KEPT.sites(kernel.source)
    outcome = kernel.run(mutant)
    assert (outcome.status, outcome.by) == ("caught", "deadlock"), outcome
