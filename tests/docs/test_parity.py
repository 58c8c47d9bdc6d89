"""docs/kernels/parity.md: its options have kernels or are refused as it says, and the tests that it names exist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: the values of a spec, as in YAML

import pytest
from ruamel.yaml import YAML

from mlagen.errors import UnsupportedError
from mlagen.plan import plan_kernel
from mlagen.spec.yaml import kernel_from_dict
from tests.plan.kernels import HEADS

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "kernels" / "parity.md").read_text(encoding="utf-8")
PARAMETERS = (
    "KVLUTType",
    "output_type",
    "MaskType",
    "ScoreModType",
    "SchedulerType",
    "config",
    "use_score_mod",
    "ValidLengthType",
    "SinkType",
    "KVRowOffsetsType",
    "MaxSeqLenType",
    "PartitionType",
    "_ndbuffer_mha_operand",
    "KRopeType",
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        origin: What the origin has.
        options: Kernels that have it here, by their options, in YAML.
        proof: Tests, as `FILE::NAME` below `tests/`; or, if it is refused, words of the refusal.
        is_refused: Whether there is no kernel.
    """

    origin: str
    options: tuple[str, ...]
    proof: tuple[str, ...]
    is_refused: bool


def rows() -> list[Row]:
    """The rows of all tables of the page."""
    cells = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return [
        Row(
            origin.strip(),
            code(here),
            code(proof),
            is_refused=proof.strip().startswith("refused: "),
        )
        for origin, here, proof in cells
        if origin.strip() != "origin"
    ]


def code(cell: str) -> tuple[str, ...]:
    """What is marked as code in a cell."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def plan(text: str) -> None:
    """Plan the kernel that differs in these options from DeepSeek's dense one."""
    options: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    values = {"arch": "sm_100a", "op": "prefill", "geometry": HEADS["192x128"]} | options
    plan_kernel(kernel_from_dict(values))


ROWS = rows()
BUILT = [(row, text) for row in ROWS if not row.is_refused for text in row.options]
REFUSED = [(row, text) for row in ROWS if row.is_refused for text in row.options]


@pytest.mark.parametrize(("row", "text"), BUILT, ids=lambda value: getattr(value, "origin", value))
def test_an_option_has_a_kernel(row: Row, text: str) -> None:
    plan(text)


@pytest.mark.parametrize(
    ("row", "text"), REFUSED, ids=lambda value: getattr(value, "origin", value)
)
def test_what_is_refused_is_refused_in_these_words(row: Row, text: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan(text)
    for words in row.proof:
        assert words in str(refusal.value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.origin)
def test_every_row_has_a_proof_that_exists(row: Row) -> None:
    assert row.proof
    for place in row.proof if not row.is_refused else ():
        file, _, name = place.partition("::")
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text("utf-8"), re.MULTILINE), place


def test_every_generic_parameter_has_a_row() -> None:
    table = PAGE.partition("## Generic parameters")[2]
    named = [code(line.split(" | ")[0])[0] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(named) == PARAMETERS
