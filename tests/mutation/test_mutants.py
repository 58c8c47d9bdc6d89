"""A sample of mutants of one shipped kernel, each of another concept: something catches every one."""

from __future__ import annotations

import pytest

from mlagen.plan.name import kernel_name
from tests.mutation.catalogue import RULES
from tests.mutation.runner import built, run_mutants
from tests.plan.kernels import shipped_specs

# Rule -> what catches its first mutant.
SAMPLE = {
    "wait-relaxed": "found",
    "expect-removed": "found",
    "init-fence-removed": "found",
    "proxy-fence-removed": "found",
    "mask-removed": "wrong",
}
KERNEL = "192x128_bf16_causal_ragged_paged64_lse_9cfcd236"


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_caught(name: str) -> None:
    spec = next(one for one in shipped_specs() if kernel_name(one).endswith(KERNEL))
    rule = next(rule for rule in RULES if rule.name == name)
    (fate,) = run_mutants(spec, rule.sites(built(spec).source)[:1], ["random", "integer walk"])
    assert fate.outcome == SAMPLE[name], fate
