"""YAML 1.2 text as plain data, with the place of every key and value, and errors shown at their place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

Path = tuple[str | int, ...]

MAX_CHARACTERS = 1_000_000
MAX_NODES = 100_000
MAX_SHOWN_COLUMNS = 140

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "timestamp")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One error of a spec.

    Attributes:
        path: Keys and indexes from the root, as they are written.
        message: What is wrong, with the value found.
        advice: What to do.
        at_key: Whether the key is at fault rather than its value.
    """

    path: Path
    message: str
    advice: str
    at_key: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A piece of one line.

    Attributes:
        line: From 1.
        column: From 1.
        length: Characters to underline, 1 or more.
    """

    line: int
    column: int
    length: int


@dataclass
class Source:
    """A parsed text.

    Attributes:
        name: What messages call it, usually the path of the file.
        lines: Its lines.
        data: Dicts, lists and scalars; of a repeated key the first value.
        values: Place of the value at a path.
        keys: Place of the key at a path.
        scalars: Paths of values that are neither mappings nor lists.
        unreadable: Paths of values that stand as null in the data because of an error.
        errors: What the text itself has wrong, with places.
    """

    name: str
    lines: list[str]
    data: object = None
    values: dict[Path, Span] = field(default_factory=dict)
    keys: dict[Path, Span] = field(default_factory=dict)
    scalars: set[Path] = field(default_factory=set)
    unreadable: set[Path] = field(default_factory=set)
    errors: list[tuple[Span, Finding]] = field(default_factory=list)

    def place(self, finding: Finding) -> Span:
        """Where to point: the value, the key where that is at fault, or what is nearest above it."""
        path = finding.path
        if not finding.at_key and path in self.values:
            return self.values[path]
        while path and path not in self.keys and path not in self.values:
            path = path[:-1]
        if path != finding.path and path in self.scalars:  # a short form lacks a field
            return self.values[path]
        return self.keys.get(path) or self.values.get(path) or Span(1, 1, 1)

    def is_unreadable(self, path: Path) -> bool:
        """Whether an error of the text itself stands at the path or above it: what models say there is void."""
        return any(path[:length] in self.unreadable for length in range(len(path) + 1))

    def render(self, span: Span, finding: Finding) -> str:
        """The error as it is shown: place and message, the line with carets, the advice."""
        where = f"{self.name}:{span.line}:{span.column}: "
        head = f"{where}{show_path(finding.path)}{finding.message}"
        line = self.lines[span.line - 1] if span.line <= len(self.lines) else ""
        start = (
            0
            if len(line) <= MAX_SHOWN_COLUMNS
            else max(0, span.column - 1 - MAX_SHOWN_COLUMNS // 2)
        )
        shown = line[start : start + MAX_SHOWN_COLUMNS]
        before = re.sub(r"[^\t]", " ", shown[: span.column - 1 - start])
        carets = "^" * max(1, min(span.length, len(shown) - len(before)))
        number = f"{span.line:>4}"
        return f"{head}\n{number} | {shown}\n{' ' * len(number)} | {before}{carets}\n  {finding.advice}"


def show_path(path: Path) -> str:
    """`kernels[1].mask.kind: `, or nothing for the root."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{text.removeprefix('.')}: " if text else ""


def parse_source(text: str, name: str) -> Source:
    """Parse one YAML 1.2 document; what is wrong with it is in `errors`, never raised."""
    text = text.removeprefix("\ufeff")
    source = Source(name, re.split("\r\n|[\n\r\x85\u2028\u2029]", text))  # as YAML counts lines
    if len(text) > MAX_CHARACTERS:
        _complain(
            source, Span(1, 1, 1), f"longer than {MAX_CHARACTERS:,} characters", "split the file"
        )
        return source
    version = re.search(r"^%YAML\s+(?!1\.2\s*$).*$", text, re.MULTILINE)
    if version:
        line = text.count("\n", 0, version.start()) + 1
        _complain(
            source, Span(line, 1, len(version.group())), "specs are YAML 1.2", "remove this line"
        )
        return source
    try:
        _Reader(source).read(text)
    except MarkedYAMLError as error:
        _complain_about_syntax(source, error)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - (text.rfind("\n", 0, error.position) + 1) + 1
        _complain(
            source,
            Span(line, column, 1),
            "not YAML: a character that no text file holds",
            "remove it",
        )
    except RecursionError:
        _complain(
            source, Span(1, 1, 1), "nested too deeply", "a spec has no more than a dozen levels"
        )
    return source


def _complain(source: Source, span: Span, message: str, advice: str) -> None:
    source.errors.append((span, Finding((), message, advice)))


def _complain_about_syntax(source: Source, error: MarkedYAMLError) -> None:
    mark = error.problem_mark or error.context_mark
    span = Span(1, 1, 1)
    if mark:
        # The library's column runs on where a scalar crosses one of YAML's rarer line ends.
        line = source.lines[mark.line] if mark.line < len(source.lines) else ""
        span = Span(mark.line + 1, min(mark.column, len(line)) + 1, 1)
    context = f" ({error.context})" if error.context else ""
    advice = "check brackets, quotes and indentation here and just above"
    if "another document" in str(error.problem):
        advice = "one file holds one spec: split it at ---"
    elif "\\t" in str(error.problem):
        advice = "indent with spaces"
    _complain(source, span, f"not YAML: {error.problem}{context}", advice)


class _Reader:
    """Turns a tree of nodes into data and notes where each piece stands."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.yaml = YAML(typ="safe", pure=True)
        self.nodes = 0
        self.open: list[Node] = []

    def read(self, text: str) -> None:
        """Compose the text and convert its root."""
        root = self.yaml.compose(text)
        if root is not None:
            self.source.data = self._value(root, ())

    def _error(self, node: Node, path: Path, message: str, advice: str) -> None:
        self.source.errors.append((self._span(node), Finding(path, message, advice)))

    def _span(self, node: Node) -> Span:
        start, end = node.start_mark, node.end_mark
        if isinstance(node, MappingNode) and not node.flow_style and node.value:
            return self._span(node.value[0][0])
        if isinstance(node, SequenceNode) and not node.flow_style:
            return Span(start.line + 1, start.column + 1, 1)
        line = self.source.lines[start.line] if start.line < len(self.source.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        return Span(start.line + 1, start.column + 1, max(1, stop - start.column))

    def _value(self, node: Node, path: Path) -> object:
        if not (isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index):
            self.source.values[path] = self._span(node)  # nothing written has no place of its own
        self.nodes += 1
        if any(node is parent for parent in self.open):
            return self._unreadable(
                node, path, "contains itself", "write the value out instead of an alias"
            )
        if self.nodes == MAX_NODES + 1:
            return self._unreadable(
                node, path, f"more than {MAX_NODES:,} values", "use fewer aliases"
            )
        if self.nodes > MAX_NODES:
            self.source.unreadable.add(path)
            return None
        self.open.append(node)
        try:
            return self._content(node, path)
        finally:
            self.open.pop()

    def _unreadable(self, node: Node, path: Path, message: str, advice: str) -> object:
        """Report a value that cannot be used, and stand null for it."""
        self.source.unreadable.add(path)
        self._error(node, path, message, advice)
        return None

    def _content(self, node: Node, path: Path) -> object:
        match node:
            case MappingNode() if str(node.tag) == _TAG + "map":
                return self._mapping(node, path)
            case SequenceNode() if str(node.tag) == _TAG + "seq":
                return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
            case ScalarNode() if str(node.tag) in _SCALAR_TAGS:
                return self._scalar(node, path)
            case _:
                message = f"has the tag {node.tag}"
                return self._unreadable(node, path, message, "specs have no tags: remove it")

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        self.source.scalars.add(path)
        if str(node.tag) == _TAG + "timestamp":  # YAML 1.2 has none: it is text
            return node.value
        try:
            return self.yaml.constructor.construct_object(node)
        except ValueError:
            message = f"{node.value[:40]!r} is no number"
            return self._unreadable(node, path, message, "write a shorter number")

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or str(key.tag) != _TAG + "str":
                self._bad_key(key, path)
                continue
            here = (*path, key.value)
            if key.value in values:
                first = self.source.keys[here].line
                self._error(
                    key, here, f"written twice, first in line {first}", "remove one of the two"
                )
                continue
            self.source.keys[here] = self._span(key)
            values[key.value] = self._value(value, here)
        return values

    def _bad_key(self, key: Node, path: Path) -> None:
        if isinstance(key, ScalarNode) and key.value == "<<":
            message, advice = "merge keys are YAML 1.1", "write the fields out"
        else:
            message, advice = "a field's name is text", "write one of the field names here"
        self._error(key, path, message, advice)
