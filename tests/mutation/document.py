"""The tables of `docs/mutation.md`: `python -m tests.mutation.document` prints them."""

from __future__ import annotations

import sys

from tests.mutation.accepted import GROUPS
from tests.mutation.catalogue import PARTS, RULES


def kinds_table() -> str:
    """How many kinds of faults there are, part by part."""
    lines = ["| `rules/` | faults | kinds |", "|---|---|---|"]
    for part in PARTS:
        assert part.__doc__ is not None
        what = part.__doc__.splitlines()[0].rstrip(".")
        lines.append(f"| `{part.__name__.rpartition('.')[2]}` | {what} | {len(part.RULES)} |")
    lines.append(f"| | all | {len(RULES)} |")
    return "\n".join(lines)


def accepted_tables() -> dict[str, str]:
    """Group -> what is accepted, and why."""
    tables = {}
    for group, accepted in GROUPS.items():
        lines = ["| mutant | where | why |", "|---|---|---|"]
        for one in accepted:
            rules = ", ".join(f"`{rule}`" for rule in one.rules.split("|"))
            lines.append(f"| {rules} | `{one.where}` | {one.reason} |")
        tables[group] = "\n".join(lines)
    return tables


def main() -> None:
    """Print all of them."""
    sys.stdout.write(kinds_table() + "\n")
    for group, table in accepted_tables().items():
        sys.stdout.write(f"\n### {group}\n\n{table}\n")


if __name__ == "__main__":
    main()
