"""How results look: tables, progress, code, JSON. The only file that knows rich.

Results go to stdout; everything else (progress, notes, warnings) goes to stderr, so that a pipe
gets only the result. rich is imported when it is needed.
Colour and progress appear on a terminal only, and never with NO_COLOR set.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console

# What a pipe or a file gets: wide enough that no row of a table is folded.
_FILE_COLUMNS = 240


def print_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Print a line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows under their headings; columns of numbers are set right, None is an empty cell."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        is_number = bool(cells) and all(_is_number(cell) for cell in cells)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    _console(sys.stdout).print(table)


def print_facts(facts: Mapping[str, object], *, title: str | None = None) -> None:
    """Print `name  value` lines, aligned."""
    width = max(map(len, facts), default=0)
    console = _console(sys.stdout)
    if title:
        console.print(title, style="bold", markup=False, highlight=False)
    for name, value in facts.items():
        console.print(f"{name:{width}}  {value}", markup=False, highlight=False, soft_wrap=True)


def print_code(text: str, *, language: str) -> None:
    """Print source text, in colour on a terminal."""
    console = _console(sys.stdout)
    if not console.is_terminal or console.no_color:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, language, background_color="default"))


@contextlib.contextmanager
def progress_bar(total: int, *, what: str) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr while the body runs; call what it yields to count one and show a label.

    Nothing is shown where stderr is no terminal.
    """
    console = _console(sys.stderr)
    if not console.is_terminal or total == 0:
        yield lambda _label: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[label]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, label="")
        yield lambda label: bar.update(task, advance=1, label=label)


def _console(file: TextIO) -> Console:
    """Return a console over a stream as it is now; rich itself obeys NO_COLOR."""
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else _FILE_COLUMNS, highlight=False)


def _is_number(cell: object) -> bool:
    text = str(cell).rstrip("%").strip()
    return text == "-" or text.replace(".", "", 1).replace(",", "").isdigit()
