"""The rules: names of their own, places in shipped kernels, and every place that a call has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.mutation.accepted import ACCEPTED
from tests.mutation.campaign import bench, chosen_kernels
from tests.mutation.catalogue import RULES

if TYPE_CHECKING:
    from tests.mutation.rule import Rule

KERNELS = range(len(chosen_kernels()))
BY_NAME = {rule.name: rule for rule in RULES}
# Rule -> the text of the calls that it changes, and how many mutants it makes besides: those of the device function.
AT_CALLS = {
    "wait-removed": ("barrier_wait(", 1),
    "wait-parity-0": ("barrier_wait(", 0),
    "expect-less": ("barrier_arrive_expect_bytes(", 0),
    "init-count-high": ("barrier_init(", -1),  # fence_barrier_init
    "product-fence-removed": ("wgmma_fence(", 1),
    "product-wait-removed": ("wgmma_wait<", 1),
    "commit-removed": ("wgmma_commit(", 1),
    "named-barrier-count-low": ("named_barrier_sync(|named_barrier_arrive(", 0),
    "proxy-fence-removed": ("fence_async_proxy(", 1),
    "advance-removed": (".advance();", 0),
    "registers-by-one-warp": ("release_registers<|claim_registers<", 0),
}


def test_there_are_more_than_forty_kinds_with_names_of_their_own() -> None:
    assert len(BY_NAME) == len(RULES) > 40


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fits_some_kernel_and_changes_it(rule: Rule) -> None:
    found = [mutant for kernel in KERNELS for mutant in rule.sites(bench(kernel).source)]
    assert found
    sources = {bench(kernel).source for kernel in KERNELS}
    assert not sources & {mutant.source for mutant in found}


@pytest.mark.parametrize("kernel", KERNELS)
def test_mutants_of_a_kernel_differ(kernel: int) -> None:
    mutants = [mutant for rule in RULES for mutant in rule.sites(bench(kernel).source)]
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names) > 400


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", AT_CALLS)
def test_a_fault_is_planted_at_every_call(name: str, kernel: int) -> None:
    texts, others = AT_CALLS[name]
    source = bench(kernel).source
    lines = [line.partition("//")[0] for line in source.splitlines()]
    calls = sum(
        line.count(text)
        for line in lines
        for text in texts.split("|")
        if not line.lstrip().startswith("__device__")
    )
    assert len(BY_NAME[name].sites(source)) == calls + others


def test_reasons_are_for_mutants_that_exist() -> None:
    places = {
        (bench(kernel).plan.name, mutant.rule, mutant.place)
        for kernel in KERNELS
        for rule in RULES
        for mutant in rule.sites(bench(kernel).source)
    }
    for one in ACCEPTED:
        assert any(one.fits(*place) for place in places), one
        for rule in one.rules.split("|"):
            assert rule in BY_NAME, one
