"""`docs/mutation.md` says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.accepted import GROUPS
from tests.mutation.document import accepted_tables, kinds_table

TEXT = (Path(__file__).parents[2] / "docs/mutation.md").read_text(encoding="utf-8")


def test_the_page_has_the_kinds() -> None:
    assert kinds_table() in TEXT, "python -m tests.mutation.document prints what belongs there"


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_has_what_is_accepted_and_why(group: str) -> None:
    assert f"### {group}\n\n{accepted_tables()[group]}\n" in TEXT, (
        "python -m tests.mutation.document prints what belongs there"
    )
