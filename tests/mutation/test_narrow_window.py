"""A kernel with a narrow window: the second half of a tile does not see the first block that the other half sees."""

from __future__ import annotations

import pytest

from tests.mutation.bench import Bench, compile_ptx
from tests.mutation.catalogue import RULES
from tests.runtime.calls import make_spec

NARROW = make_spec(arch="sm_100a", mask={"kind": "sliding_window", "left": 3, "right": 0})
RULE = {rule.name: rule for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        pytest.param("block-order-of-products", "second_half", id="asks for another"),
        pytest.param("rescale-unseen", "correct_halves", id="corrects it"),
    ],
)
def test_the_second_half_leaves_out_a_block_that_it_does_not_see(rule: str, place: str) -> None:
    kernel = Bench(NARROW)
    (mutant,) = (one for one in RULE[rule].sites(kernel.source) if place in one.place)
    ptx = compile_ptx(mutant.source, kernel.plan)
    ((kind, _), *_) = kernel.simulate(mutant.source, ptx, "three tiles walk")
    assert kind == "race"
