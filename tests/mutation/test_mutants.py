"""A sample of mutants, of kinds from every part of a kernel and of some pitfalls: something catches each.

`make mutants` runs all.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from tests.mutation.accepted import ACCEPTED
from tests.mutation.campaign import bench, chosen_kernels
from tests.mutation.catalogue import RULES
from tests.mutation.lucky import LUCKY, Lucky, lucky_mutants
from tests.mutation.rule import Rule
from tests.mutation.rules.skipping import skipped_right

if TYPE_CHECKING:
    from tests.mutation.bench import Bench, Outcome
    from tests.mutation.rule import Mutant

# Whether every kind is caught at every place is for `make mutants` to say.
PITFALLS = ("skip-released-by-one-thread", "skip-without-turn", "half-block-by-warpgroup")
SAMPLE = [rule for place, rule in enumerate(RULES) if place % 12 == 0 or rule.name in PITFALLS]


def run_any(rule: Rule) -> Outcome:
    """The fate of one mutant of a rule: in which kernel and where depends on the rule's name only.

    Of a mutant that is accepted nothing is expected.
    """
    start = zlib.crc32(rule.name.encode())
    for offset in range(len(chosen_kernels())):
        kernel = bench((start + offset) % len(chosen_kernels()))
        mutants = [one for one in rule.sites(kernel.source) if not is_accepted(kernel, one)]
        if mutants:
            return kernel.run(mutants[start % len(mutants)])
    pytest.skip(f"every mutant of {rule.name} is accepted: docs/mutation.md says why")


def is_accepted(kernel: Bench, mutant: Mutant) -> bool:
    """Whether it may survive."""
    return any(one.fits(kernel.plan.name, mutant.rule, mutant.place) for one in ACCEPTED)


@pytest.mark.parametrize("rule", SAMPLE, ids=lambda rule: rule.name)
def test_a_planted_fault_is_caught(rule: Rule) -> None:
    outcome = run_any(rule)
    assert outcome.status in ("caught", "equivalent"), outcome


@pytest.mark.parametrize("lucky", LUCKY, ids=lambda lucky: f"{lucky.rule} {lucky.place}")
def test_luck_does_not_help_in_the_simulator(lucky: Lucky) -> None:
    kernel = bench(0)
    (mutant,) = [mutant for one, mutant in lucky_mutants(kernel.source) if one is lucky]
    outcome = kernel.run(mutant)
    assert (outcome.status, outcome.by) == ("caught", lucky.finding)


def test_a_block_skipped_right_is_no_fault() -> None:
    kernel = bench(0)
    (mutant,) = Rule("skipped-right", "", skipped_right).sites(kernel.source)
    assert kernel.run(mutant).status == "survived"
