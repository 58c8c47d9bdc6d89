"""Edits that many rules share: a call removed, doubled, guarded, moved; a pattern replaced; an asm statement gone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.mutation.source import Call, Source


def removed(source: Source, call: Call) -> Edit:
    """The statement is gone."""
    return blanked(source, *source.statement(call))


def doubled(source: Source, call: Call) -> Edit:
    """The statement is executed twice."""
    start, end = source.statement(call)
    text = source.text[start:end]
    return Edit(start, end, f"{{ {text} {on_one_line(text)} }}")


def guarded(source: Source, call: Call, condition: str) -> Edit:
    """The statement is executed only where a condition holds."""
    start, end = source.statement(call)
    return Edit(start, end, f"if ({condition}) {source.text[start:end]}")


def argument(call: Call, index: int, text: str) -> Edit:
    """Another argument."""
    return Edit(*call.arguments[index], text)


def asm_statements(source: Source, function: str) -> Iterator[tuple[int, int]]:
    """`(start, end)` of each asm statement of a device function, semicolon included."""
    for body in source.bodies(function):
        for found in source.find(r"asm volatile(?=\()", *body):
            yield source.statement(source.call_at(found.start()))


def on_one_line(text: str) -> str:
    """The same code without ends of lines."""
    return re.sub(r"\s*\n\s*", " ", text)


def blanked(source: Source, start: int, end: int) -> Edit:
    """A statement over several lines is gone, its line ends remain."""
    return Edit(start, end, ";" + "\n" * source.text[start:end].count("\n"))


def hollow(source: Source, functions: str) -> Iterator[Edit]:
    """Each device function that the pattern matches without its asm statement: gone at every call."""
    for name in source.functions(functions):
        for start, end in asm_statements(source, name):
            yield blanked(source, start, end)


def at_calls(
    functions: str, change: Callable[[Source, Call], Edit]
) -> Callable[[Source], Iterator[Edit]]:
    """Plant a change at every call of the functions that a pattern matches."""

    def plant(source: Source) -> Iterator[Edit]:
        for call in source.calls(functions):
            yield change(source, call)

    return plant


def gone(functions: str) -> Callable[[Source], Iterator[Edit]]:
    """Plant the removal of each call of these device functions, and of all calls of one together."""

    def plant(source: Source) -> Iterator[Edit]:
        yield from at_calls(functions, removed)(source)
        yield from hollow(source, functions)

    return plant


def replaced(name: str, description: str, pattern: str, text: str) -> Rule:
    r"""A rule: each match of a pattern in the code becomes a text, in which `\\1` or `\\g<name>` is a group."""

    def plant(source: Source) -> Iterator[Edit]:
        for found in source.find(pattern):
            yield Edit(found.start(), found.end(), found.expand(text))

    return Rule(name, description, plant)


def previous_line(source: Source, position: int, pattern: str) -> int | None:
    """First character of the nearest earlier line of the same function that matches."""
    start, _ = source.around(position)
    matches = [found.start() for found in source.find(pattern, start, position)]
    return _line_text_start(source, matches[-1]) if matches else None


def next_line(source: Source, position: int, pattern: str) -> int | None:
    """First character of the nearest later line of the same function that matches."""
    _, end = source.around(position)
    found = next(source.find(pattern, position, end), None)
    return None if found is None else _line_text_start(source, found.start())


def _line_text_start(source: Source, position: int) -> int:
    begin = source.text.rfind("\n", 0, position) + 1
    indent = re.match(r" *", source.text[begin:])
    assert indent is not None
    return begin + indent.end()
