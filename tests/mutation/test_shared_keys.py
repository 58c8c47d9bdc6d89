"""Faults in how Hopper blocks share keys: each kind has its places, and something catches a sample of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from tests.mutation.bench import Bench
from tests.mutation.rules.shared_keys import RULES
from tests.plan.kernels import spec

if TYPE_CHECKING:
    from tests.mutation.rule import Rule

# A window has all there is: blocks passed over before a tile's own and behind them.
WINDOW = spec(
    mask={"kind": "sliding_window", "left": 100, "right": 0}, config={"cluster_size": 2}, lse=True
)
SAMPLE = (
    "shared-keys-to-one",
    "shared-release-at-home",
    "shared-empty-half",
    "shared-rows-of-leader",
    "shared-pass-removed",
)


@functools.cache
def bench() -> Bench:
    """The kernel with a window."""
    return Bench(WINDOW)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fits_a_kernel_whose_blocks_share_keys(rule: Rule) -> None:
    found = rule.sites(bench().source)
    assert found
    assert all(mutant.source != bench().source for mutant in found)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_in_sharing_is_caught(name: str) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    outcome = bench().run(rule.sites(bench().source)[0])
    assert outcome.status == "caught", outcome
