"""Every pair of options of the Blackwell prefill has a kernel in `tests/sim/specs`, or is refused; some of them run.

The runs here are a sample: `make sim-full SIM_SPECS='tests/sim/specs/*.yaml'` has them all.
"""

from __future__ import annotations

import itertools

import pytest

from mlagen.spec.yaml import load_spec_file
from mlagen.verify.problems import problem_names
from tests.pairwise import pairs_of
from tests.sim.option_pairs import (
    AXES,
    IN_TURN,
    committed_rows,
    has_kernel,
    in_turn,
    spec_path,
    spec_text,
)
from tests.sim.test_kernels import assert_passes

ROWS = committed_rows()
ADVICE = "run: python -m tests.sim.option_pairs"


@pytest.mark.parametrize("geometry", AXES["geometry"])
def test_committed_spec_holds_these_kernels(geometry: str) -> None:
    assert spec_path(geometry).read_text(encoding="utf-8") == spec_text(geometry, in_turn(ROWS)), (
        ADVICE
    )


def test_values_in_turn_all_have_a_kernel() -> None:
    chosen = {choice for row in in_turn(ROWS) for choice in row.items()}
    assert {(axis, text) for (axis, _), texts in IN_TURN.items() for text in texts} <= chosen


def test_every_value_has_a_kernel_alone() -> None:
    choices = [(axis, value) for axis, values in AXES.items() for value in values]
    assert [choice for choice in choices if not has_kernel(dict([choice]))] == []


def test_every_pair_that_is_not_refused_is_covered() -> None:
    assert all(has_kernel(row) for row in ROWS), ADVICE
    covered = set().union(*map(pairs_of, ROWS))
    for (a, values), (b, others) in itertools.combinations(AXES.items(), 2):
        for x, y in itertools.product(values, others):
            is_covered = frozenset({(a, x), (b, y)}) in covered
            assert is_covered or not has_kernel({a: x, b: y}), f"{a}: {x}, {b}: {y}; {ADVICE}"


@pytest.mark.parametrize("geometry", AXES["geometry"])
def test_a_sample_of_the_kernels(geometry: str) -> None:
    spec = load_spec_file(spec_path(geometry)).expand()[9]
    assert_passes(spec, problem_names(spec)[9], "pct:9")
