"""Every pair of options of the Blackwell prefill has a kernel in `tests/sim/specs`, or is refused.

Of these kernels some run here: few that between them have every value of every option, and use every block of the
templates that one of all uses. `make sim-full SIM_SPECS='tests/sim/specs/*.yaml'` runs them all, on all problems.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from mlagen.plan import plan_kernel
from mlagen.spec.yaml import load_spec_file
from mlagen.verify.problems import problem_names
from tests.mutation.cover import cover, template_blocks
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
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

ROWS = committed_rows()
ADVICE = "run: python -m tests.sim.option_pairs"


def chosen_kernels() -> dict[str, KernelSpec]:
    """Few kernels that have all values and all template blocks between them, by name."""
    files = [load_spec_file(spec_path(geometry)) for geometry in AXES["geometry"]]
    plans = [plan_kernel(spec) for file in files for spec in file.expand()]
    blocks = template_blocks(plans)
    parts = {
        plan.name: blocks[plan.name] | {f"{axis}: {value}" for axis, value in row.items()}
        for plan, row in zip(plans, in_turn(ROWS), strict=True)
    }
    specs = {plan.name: plan.spec for plan in plans}
    return {name: specs[name] for name in cover(parts)}


CHOSEN = chosen_kernels()


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


@pytest.mark.parametrize(("index", "kernel"), list(enumerate(CHOSEN)), ids=list(CHOSEN))
def test_chosen_kernels_are_right(index: int, kernel: str) -> None:
    # Each walks many tiles. The other problems are dealt out, and run in an order of the warps of their own.
    spec = CHOSEN[kernel]
    others = [name for name in problem_names(spec) if name != WALK]
    assert_passes(spec, WALK)
    for problem in others[index :: len(CHOSEN)]:
        assert_passes(spec, problem, f"pct:{index}")
