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
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID

# What a pipe or a file gets: wide enough that no row of a table is folded.
_FILE_COLUMNS = 240


def print_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Print a line for the person at the terminal, on stderr."""
    print(text, file=sys.stderr)


def count(number: int, noun: str) -> str:
    """Return `1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
    console = _console(sys.stdout)
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


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


class Bar:
    """A progress bar on stderr, or nothing where stderr is no terminal."""

    def __init__(self, bar: Progress | None, task: TaskID | None) -> None:
        """Show nothing without a bar."""
        self._bar = bar
        self._task = task

    def label(self, text: str) -> None:
        """Show what is being done now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, label=text)

    def advance(self) -> None:
        """Count one as done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)

    def say(self, text: str) -> None:
        """Print a line on stderr, above the bar if there is one."""
        if self._bar is None:
            note(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False)


@contextlib.contextmanager
def progress_bar(total: int, *, what: str) -> Iterator[Bar]:
    """Show a bar on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Bar(None, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    # The label takes what a narrow terminal leaves.
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[label]}", markup=False, table_column=rest),
    )
    with Progress(*columns, console=_console(sys.stderr), transient=True, expand=True) as bar:
        yield Bar(bar, bar.add_task(what, total=total, label=""))


def _console(file: TextIO) -> Console:
    """Return a console over a stream as it is now; rich itself obeys NO_COLOR."""
    from rich.console import Console

    return Console(file=file, width=None if file.isatty() else _FILE_COLUMNS, highlight=False)


def _is_number(cell: object) -> bool:
    text = str(cell).rstrip("%").strip()
    return text == "-" or text.replace(".", "", 1).replace(",", "").isdigit()
