"""Rendered CUDA as text that rules can edit: calls with their arguments, statements, enclosing functions."""

from __future__ import annotations

import bisect
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COMMENT = re.compile(r"//[^\n]*")
_SCOPE = re.compile(
    r"^(?:extern \"C\" .*?(?P<entry>__global__)|struct (?:__align__\(\d+\) )?(?P<struct>\w+) \{"
    r"|(?:  )?__device__ (?:[\w<>,]+[ &*]+)+(?P<function>\w+)\()",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a text: characters `start` to `end` become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a function's body; not a definition.

    Attributes:
        start: First character of the name.
        end: One past the closing parenthesis.
        arguments: `(start, end)` of each argument.
    """

    start: int
    end: int
    arguments: tuple[tuple[int, int], ...]


class Source:
    """A rendered kernel.

    Attributes:
        text: As rendered.
        code: The same length, comments blanked.
    """

    def __init__(self, text: str) -> None:
        """Take the text as it is."""
        self.text = text
        self.code = _COMMENT.sub(lambda found: " " * len(found[0]), text)
        scopes = list(_scopes(self.code))
        self._starts = [start for start, _ in scopes]
        self._names = [name for _, name in scopes]
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text)), len(text) + 1]

    def find(self, pattern: str, start: int = 0, end: int | None = None) -> Iterator[re.Match[str]]:
        """Every match in the code, comments apart, between two characters."""
        return re.compile(pattern, re.MULTILINE).finditer(
            self.code, start, len(self.code) if end is None else end
        )

    def calls(self, name: str) -> Iterator[Call]:
        """Every call of the functions that the pattern `name` matches, template arguments allowed."""
        for found in self.find(rf"(?<![\w.])(?:{name})(?:<[^<>()]*>)?\("):
            if not self._is_definition(found.start()):
                arguments, end = _arguments(self.code, found.end())
                yield Call(found.start(), end, arguments)

    def _is_definition(self, position: int) -> bool:
        """Whether the name that begins at a character is that of a function being defined."""
        before = self.code[self.code.rfind("\n", 0, position) + 1 : position]
        return before.lstrip().startswith("__device__") and "(" not in before

    def call_at(self, position: int) -> Call:
        """The call whose name begins at a character."""
        opening = self.code.index("(", position)
        arguments, end = _arguments(self.code, opening + 1)
        return Call(position, end, arguments)

    def argument(self, call: Call, index: int) -> str:
        """Text of one argument."""
        return self.text[slice(*call.arguments[index])]

    def statement(self, call: Call) -> tuple[int, int]:
        """`(start, end)` of the call with its semicolon."""
        end = self.code.index(";", call.end) + 1
        assert not self.code[call.end : end - 1].strip(), "the call is a whole statement"
        return call.start, end

    def function(self, position: int) -> str:
        """Name of the function, or struct, that a character lies in."""
        place = bisect.bisect_right(self._starts, position) - 1
        return self._names[place] if place >= 0 else "constants"

    def bodies(self, function: str) -> Iterator[tuple[int, int]]:
        """`(start, end)` of the functions of that name, signatures included."""
        for index, name in enumerate(self._names):
            if name == function:
                following = self._starts[index + 1 :]
                yield self._starts[index], following[0] if following else len(self.text)

    def body(self, function: str) -> tuple[int, int]:
        """The first of them; both 0 if there is none."""
        return next(self.bodies(function), (0, 0))

    def around(self, position: int) -> tuple[int, int]:
        """`(start, end)` of the function that a character lies in."""
        place = bisect.bisect_right(self._starts, position)
        return self._starts[place - 1], [*self._starts, len(self.text)][place]

    def functions(self, pattern: str) -> list[str]:
        """Names of the functions outside structs that a pattern matches as a whole."""
        return [name for name in dict.fromkeys(self._names) if re.fullmatch(pattern, name)]

    def closing(self, opening: int) -> int:
        """One past the bracket that closes the one at `opening`."""
        return _arguments(self.code, opening + 1)[1]

    def line(self, position: int) -> int:
        """Number of the line, from 1."""
        return bisect.bisect_right(self._line_starts, position)

    def line_text(self, position: int) -> str:
        """The whole line that a character lies in."""
        line = self.line(position)
        return self.text[self._line_starts[line - 1] : self._line_starts[line]].rstrip("\n")

    def apply(self, edits: Sequence[Edit]) -> str:
        """The text after edits that do not overlap."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def moved(self, start: int, end: int, to: int) -> list[Edit]:
        """Edits that move a piece of a line to another place, without changing any line's number."""
        lines = self.text[start:end].splitlines()
        piece = " ".join(line.strip() for line in lines)
        return [Edit(start, end, ";" + "\n" * (len(lines) - 1)), Edit(to, to, piece + " ")]


@functools.lru_cache(maxsize=32)
def load(text: str) -> Source:
    """The source of a text; the same one is taken apart once."""
    return Source(text)


def _scopes(code: str) -> Iterator[tuple[int, str]]:
    """Start and name of every function and struct: a method is `Struct.method`."""
    struct = ""
    for found in _SCOPE.finditer(code):
        if found["struct"]:
            struct = found["struct"]
            yield found.start(), struct
        elif found["entry"]:
            yield found.start(), "entry"
        elif found[0].startswith(" "):
            yield found.start(), f"{struct}.{found['function']}"
        else:
            yield found.start(), found["function"]


def _arguments(code: str, start: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Spans of the arguments from behind an opening parenthesis, and the end of the closing one."""
    spans = []
    depth, begin, position = 0, start, start
    while depth >= 0:
        character = code[position]
        depth += (character in "([{") - (character in ")]}")
        if depth < 0 or (depth == 0 and character == ","):
            spans.append(_trimmed(code, begin, position))
            begin = position + 1
        position += 1
    return tuple(span for span in spans if span[0] < span[1]), position


def _trimmed(code: str, start: int, end: int) -> tuple[int, int]:
    text = code[start:end]
    return start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
