"""Every register-only opcode of the simulator has a micro-kernel that an H200 has answered, or a reason why not."""

from __future__ import annotations

from mlagen.sim import isa
from tests.hardware.alu_rows import rows
from tests.hardware.recordings import FIXTURES, load_fixture

# By the first part of an opcode.
OTHER_FAMILIES = {
    "shfl": "tests/hardware/warps.py",
    "vote": "tests/hardware/warps.py",
    "activemask": "tests/hardware/warps.py",
    "match": "tests/hardware/warps.py",
    "redux": "tests/hardware/warps.py",
}
REASONS = {
    "and pred": "predicates alone: the compiler writes them in programs.py",
    "or pred": "predicates alone: the compiler writes them in programs.py",
    "xor pred": "predicates alone: the compiler writes them in programs.py",
    "not pred": "predicates alone: the compiler writes them in programs.py",
    "redux.sync.min f32": "sm_100a and up",
    "redux.sync.max f32": "sm_100a and up",
}


def _answered() -> list[list[str]]:
    names = {
        name
        for part in ("exact", "approximate")
        for name in load_fixture(FIXTURES / f"{part}.npz")[1]
    }
    labels = {name.removeprefix("alu/").partition("|")[0].partition("(")[0] for name in names}
    return [row.opcode.split(".") for row in rows() if row.opcode in labels]


def test_every_row_of_the_table_was_asked() -> None:
    """A row has several types; with one of them at least."""
    answered, missing = _answered(), []
    for name, found in isa._rows().items():
        first, *parts = name.split(".")
        if first in OTHER_FAMILIES:
            continue
        missing += [
            f"{name} {' '.join(sorted(row.types))}"
            for row in found
            if not any(
                one[0] == first and set(parts) <= set(one) and row.types & set(one)
                for one in answered
            )
        ]
    assert sorted(set(missing) - set(REASONS)) == []


def test_every_row_counts() -> None:
    assert len(_answered()) > 900
