"""A sample of mutants, of kinds from every part of a kernel and of some pitfalls: something catches each.

`make mutants` runs all.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

from tests.mutation.accepted import ACCEPTED
from tests.mutation.bench import compile_ptx
from tests.mutation.campaign import ARCHITECTURES, bench, kernels_of
from tests.mutation.catalogue import RULES, SHARED_PARTS, SM100_PARTS
from tests.mutation.lucky import LUCKY, Lucky, lucky_mutants
from tests.mutation.rule import Rule
from tests.mutation.rules.skipping import skipped_right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.mutation.bench import Bench, Outcome
    from tests.mutation.rule import Mutant

# Whether every kind is caught at every place is for `make mutants` to say.
PITFALLS = ("skip-released-by-one-thread", "skip-without-turn", "half-block-by-warpgroup")
# Faults that only one problem shows, and which.
TOLD_BY = {
    "row-maximum-of-fewer": "towering keys",
    "row-maximum-forgets": "towering keys",
    "part-weight-of-nothing": "blocks share rising keys",
}
SM90_RULES = [rule for part in SHARED_PARTS for rule in part.RULES]
SM90_SAMPLE = [
    rule
    for place, rule in enumerate(SM90_RULES)
    if rule.name not in TOLD_BY and (place % 13 == 0 or rule.name in PITFALLS)
]
SM100_SAMPLE = [
    rule
    for part in SM100_PARTS
    for rule in part.RULES
    if rule.name
    in (
        "tensor-free-early",
        "tensor-fence-after-removed",
        "tensor-column-on",
        "instruction-reserved",
        "scores-before-output",
        "rescale-never",
        "handed-early",
        "pair-exit-early",
    )
]


def run_any(rule: Rule, *, archs: Sequence[str]) -> Outcome:
    """The fate of one mutant of a rule: in which kernel and where depends on the rule's name only.

    Of a mutant that is accepted nothing is expected.
    """
    start = zlib.crc32(rule.name.encode())
    for kernels in map(kernels_of, archs):
        for offset in range(len(kernels)):
            kernel = bench(kernels[(start + offset) % len(kernels)])
            mutants = [one for one in rule.sites(kernel.source) if not is_accepted(kernel, one)]
            if mutants:
                return kernel.run(mutants[start % len(mutants)])
    pytest.skip(f"every mutant of {rule.name} is accepted: docs/mutation.md says why")


def is_accepted(kernel: Bench, mutant: Mutant) -> bool:
    """Whether it may survive."""
    return any(one.fits(kernel.plan.name, mutant.rule, mutant.place) for one in ACCEPTED)


@pytest.mark.parametrize("rule", SM90_SAMPLE, ids=lambda rule: rule.name)
def test_a_planted_fault_is_caught(rule: Rule) -> None:
    outcome = run_any(rule, archs=ARCHITECTURES)
    assert outcome.status in ("caught", "equivalent"), outcome


@pytest.mark.parametrize("rule", SM100_SAMPLE, ids=lambda rule: rule.name)
def test_a_fault_planted_in_a_blackwell_kernel_is_caught(rule: Rule) -> None:
    outcome = run_any(rule, archs=["sm_100a"])
    assert outcome.status == "caught", outcome


@pytest.mark.parametrize("rule", TOLD_BY)
def test_a_problem_shows_what_it_is_there_for(rule: str) -> None:
    problem = TOLD_BY[rule]
    (fault,) = (one for one in RULES if one.name == rule)
    with_fault = [
        next((one for one in map(bench, kernels_of(arch)) if fault.sites(one.source)), None)
        for arch in ARCHITECTURES
    ]
    assert any(with_fault)
    for kernel in filter(None, with_fault):
        mutant = fault.sites(kernel.source)[0]
        wrong = kernel.simulate(mutant.source, compile_ptx(mutant.source, kernel.plan), problem)
        assert {kind for kind, _ in wrong} == {"numerics"}


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
