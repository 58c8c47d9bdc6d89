"""Every pair of options of the Blackwell prefill has a kernel in `tests/sim/specs`, or is refused; each of them runs.

On one problem, in turn another one: `make sim-full SIM_SPECS='tests/sim/specs/*.yaml'` has them all.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mlagen.plan.name import kernel_name
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

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

ROWS = committed_rows()
SPECS = [
    spec for geometry in AXES["geometry"] for spec in load_spec_file(spec_path(geometry)).expand()
]
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


@pytest.mark.parametrize(
    ("index", "spec"), list(enumerate(SPECS)), ids=[kernel_name(spec) for spec in SPECS]
)
def test_each_kernel_on_a_problem(index: int, spec: KernelSpec) -> None:
    names = problem_names(spec)
    assert_passes(spec, names[index % len(names)])
