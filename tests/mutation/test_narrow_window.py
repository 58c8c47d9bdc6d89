"""A kernel with a narrow window: the second half of a tile does not see the first block that the other half sees."""

from __future__ import annotations

from tests.mutation.bench import Bench, compile_ptx
from tests.mutation.catalogue import RULES
from tests.runtime.calls import make_spec

NARROW = make_spec(arch="sm_100a", mask={"kind": "sliding_window", "left": 3, "right": 0})
(ORDER,) = (rule for rule in RULES if rule.name == "block-order-of-products")


def test_the_second_half_cannot_ask_for_another_block_than_it_multiplies() -> None:
    kernel = Bench(NARROW)
    (mutant,) = (one for one in ORDER.sites(kernel.source) if "second_half" in one.place)
    ptx = compile_ptx(mutant.source, kernel.plan)
    ((kind, _), *_) = kernel.simulate(mutant.source, ptx, "three tiles walk")
    assert kind == "race"
