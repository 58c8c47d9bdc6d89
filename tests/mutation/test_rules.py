"""The rules: names of their own, places in shipped kernels, and every place that a call has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.mutation.accepted import ACCEPTED
from tests.mutation.campaign import ARCHITECTURES, bench, chosen_kernels, kernels_of
from tests.mutation.catalogue import RULES

if TYPE_CHECKING:
    from tests.mutation.rule import Rule

KERNELS = range(len(chosen_kernels()))
# Of each architecture the kernel that most of the templates' blocks are in.
LARGEST = [kernels_of(arch)[0] for arch in ARCHITECTURES]
BY_NAME = {rule.name: rule for rule in RULES}
# Rule -> the text of the calls that it changes, and how many mutants it makes besides: those of the device function.
AT_CALLS = {
    "wait-removed": ("barrier_wait(|tensor_wait(", 1),
    "wait-parity-0": ("barrier_wait(|tensor_wait(", 0),
    "expect-less": ("barrier_arrive_expect_bytes(", 0),
    "init-count-high": ("barrier_init(", -1),  # fence_barrier_init
    "product-fence-removed": ("wgmma_fence(", 1),
    "product-wait-removed": ("wgmma_wait<", 1),
    "commit-removed": ("wgmma_commit(", 1),
    "tensor-fence-after-removed": ("fence_tensor_after(", 1),
    "tensor-arrive-plain": ("tensor_arrive(", 0),
    "tensor-loads-unawaited": ("wait_tensor_loads(", 1),
    "tensor-stores-unawaited": ("wait_tensor_stores(", 1),
    "tensor-half-other": ("scores_of(|probabilities_of(|output_of(", 0),
    "rescale-missing": ("rescale(", 0),
    "named-barrier-count-low": ("named_barrier_sync(|named_barrier_arrive(", 0),
    "proxy-fence-removed": ("fence_async_proxy(", 1),
    "advance-removed": (".advance();", 0),
    "registers-by-one-warp": ("release_registers<|claim_registers<", 0),
}


def test_kinds_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(RULES)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_more_than_two_hundred_kinds_fit_an_architecture(arch: str) -> None:
    sources = [bench(kernel).source for kernel in kernels_of(arch)]
    assert sum(any(rule.sites(source) for source in sources) for rule in RULES) > 200


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fits_some_kernel_and_changes_it(rule: Rule) -> None:
    sources = (bench(kernel).source for kernel in KERNELS)
    source, found = next((source, found) for source in sources if (found := rule.sites(source)))
    assert all(mutant.source != source for mutant in found)


@pytest.mark.parametrize("kernel", LARGEST)
def test_mutants_of_a_kernel_differ(kernel: int) -> None:
    mutants = [mutant for rule in RULES for mutant in rule.sites(bench(kernel).source)]
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names) > 400


@pytest.mark.parametrize("kernel", LARGEST)
@pytest.mark.parametrize("name", AT_CALLS)
def test_a_fault_is_planted_at_every_call(name: str, kernel: int) -> None:
    texts, others = AT_CALLS[name]
    source = bench(kernel).source
    lines = [line.partition("//")[0] for line in source.splitlines()]
    # Of a definition only what stands behind its parameters.
    code = [line.partition(")")[2] if "__device__" in line else line for line in lines]
    calls = sum(line.count(text) for line in code for text in texts.split("|"))
    functions = "|".join(re.findall(r"\w+", texts))
    defined = any(re.search(rf"__device__ .* (?:{functions})\(", line) for line in lines)
    assert len(BY_NAME[name].sites(source)) == (calls + others if defined else 0)


def test_reasons_are_for_mutants_that_exist() -> None:
    accepted = {rule for one in ACCEPTED for rule in one.rules.split("|")}
    places = {
        (bench(kernel).plan.name, mutant.rule, mutant.place)
        for kernel in KERNELS
        for rule in RULES
        if rule.name in accepted
        for mutant in rule.sites(bench(kernel).source)
    }
    for one in ACCEPTED:
        assert any(one.fits(*place) for place in places), one
        for rule in one.rules.split("|"):
            assert rule in BY_NAME, one
