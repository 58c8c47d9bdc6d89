"""A sample of mutants of one shipped kernel, each of another concept: something catches every one."""

from __future__ import annotations

import functools

import pytest

from mlagen.plan.name import kernel_name
from tests.mutation.bench import Bench
from tests.mutation.catalogue import RULES
from tests.plan.kernels import shipped_specs

# Rules whose first mutant is planted: findings catch all but the last, which only its numbers give away.
SAMPLE = (
    "wait-relaxed",
    "expect-removed",
    "init-fence-removed",
    "proxy-fence-removed",
    "mask-removed",
)
KERNEL = "192x128_bf16_causal_ragged_paged64_lse_9cfcd236"


@functools.cache
def bench() -> Bench:
    return Bench(next(one for one in shipped_specs() if kernel_name(one).endswith(KERNEL)))


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_caught(name: str) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    outcome = bench().run(rule.sites(bench().source)[0])
    assert outcome.status == "caught", outcome
    assert (outcome.by == "numerics") == (name == "mask-removed"), outcome
