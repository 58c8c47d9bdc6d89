"""PTX text to a `Module`."""

from __future__ import annotations

import bisect
import math
import re
from dataclasses import dataclass, field, replace

from mlagen.errors import PtxError
from mlagen.sim.literals import bytes_of, element_bits, parse_immediate, parse_integer
from mlagen.sim.ptx import Function, Instruction, Module, Symbol, Variable
from mlagen.sim.scope import NAME, OperandError, Scope, parse_operands

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STATEMENT = re.compile(
    rf"""\s*(?:
      \.loc\s+\d+\s+(?P<loc>\d+)(?:\s+(?P<column>\d+))?
      (?:[^\n]*\binlined_at\s+\d+\s+(?P<call>\d+)\s+(?P<call_column>\d+))?[^\n]*
    | \.(?P<directive>\w+)
    | (?P<brace>[{{}}])
    | (?P<label>{NAME})\s*:(?!:)
    | (?:@(?P<negated>!?)\s*(?P<guard>{NAME})\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>[^;]*);
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_VARIABLE = re.compile(
    rf"""\s*(?:\.align\s+(?P<align>\d+)\s*|\.(?P<vector>v[24])\b\s*|\.attribute\s*\([^)]*\)\s*
    |\.ptr\b\s*(?:\.(?:global|shared|const|local|param)\b\s*)?(?:\.align\s+\d+\s*)?
    |\.(?P<type>[busf]\d+(?:x2)?|pred|texref|samplerref|surfref)\b\s*)+
    (?P<name>{NAME})\s*(?P<dims>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<data>.*))?\Z""",
    re.VERBOSE | re.DOTALL,
)
_FUNCTION = re.compile(
    rf"""\s*(?:\((?P<results>[^)]*)\))?\s*(?P<name>{NAME})\s*(?:\((?P<parameters>[^)]*)\))?(?P<rest>.*)""",
    re.DOTALL,
)
_LIMIT = re.compile(r"\.(\w+)\s+(\d+(?:\s*,\s*\d+)*)")
_LIST_OF_TARGETS = re.compile(r"\s*\.(branchtargets|calltargets|callprototype)\b([^;]*);")
_DIRECTIVES_OF_A_LINE = frozenset({"version", "target", "address_size", "file"})
_LINKAGE = frozenset({"visible", "extern", "weak", "common"})
_SPACES = frozenset({"param", "shared", "global", "const", "local"})


def parse(text: str) -> Module:
    """Read a PTX file.

    Raises:
        PtxError: The text does not follow the grammar; the message begins with the line.
    """
    return _Parser(text).module()


@dataclass(slots=True)
class _Body:
    """A function while it is read."""

    rows: dict[str, int]
    scope: Scope
    instructions: list[Instruction] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    source_line: int | None = None
    call_lines: tuple[int, ...] = ()
    # Line and column -> the calls through which it was inlined when it was last given.
    calls: dict[tuple[str, str | None], tuple[int, ...]] = field(default_factory=dict)


def _new_body() -> _Body:
    rows = dict.fromkeys(("pred", "b16", "b32", "b64"), 0)
    return _Body(rows, Scope(None, rows))


class _Parser:
    """One pass over the text."""

    def __init__(self, text: str) -> None:
        self._text = _COMMENT.sub(_blank, text)
        self._newlines = [match.start() for match in re.finditer("\n", self._text)]
        self._position = 0
        self._offsets: dict[str, int] = {}
        self._variables: dict[str, Variable] = {}
        self._functions: dict[str, Function] = {}
        self._body = _new_body()

    # --- Module level

    def module(self) -> Module:
        version, target = (0, 0), ""
        while True:
            statement = self._next()
            if statement["end"] is not None:
                return Module(version, target, self._functions, self._variables)
            directive = statement["directive"]
            if directive == "version":
                version = self._version(self._rest_of_line().strip())
            elif directive == "target":
                target = self._rest_of_line().split(",")[0].strip()
            elif directive is not None:
                self._module_directive(directive)
            elif statement["loc"] is None:
                raise self._error(f"unexpected {statement[0].strip()[:40]!r} outside of a function")

    def _version(self, text: str) -> tuple[int, int]:
        match = re.fullmatch(r"(\d+)\.(\d+)", text)
        if match is None:
            raise self._error(f"version {text!r} is not two numbers", self._position - 1)
        return int(match[1]), int(match[2])

    def _module_directive(self, name: str) -> None:
        if name in _DIRECTIVES_OF_A_LINE:
            self._rest_of_line()
        elif name == "section":
            self._until("}")
        elif name in ("entry", "func"):
            self._function(is_entry=name == "entry")
        elif name in _SPACES:
            variable = self._variable(name, self._until(";"))
            self._variables[variable.name] = variable
        elif name not in _LINKAGE:
            self._until(";")

    def _next(self) -> re.Match[str]:
        match = _STATEMENT.match(self._text, self._position)
        if match is None:
            rest = self._text[self._position :]
            self._position += len(rest) - len(rest.lstrip())
            raise self._error(f"cannot read {rest.strip().splitlines()[0][:60]!r}")
        self._position = match.end()
        return match

    def _line(self, position: int) -> int:
        return bisect.bisect_left(self._newlines, position) + 1

    def _error(self, message: str, position: int | None = None) -> PtxError:
        line = self._line(self._position if position is None else position)
        return PtxError(
            f"PTX line {line}: {message}\n  the simulator reads PTX as NVRTC and Triton write it"
        )

    def _rest_of_line(self) -> str:
        """Up to the line's end, or the text's."""
        start = self._position
        stop = self._text.find("\n", start)
        self._position = len(self._text) if stop < 0 else stop + 1
        return self._text[start : self._position]

    def _until(self, end: str) -> str:
        start = self._position
        stop = self._text.find(end, start)
        if stop < 0:
            raise self._error(f"no {end!r} until the end of the text")
        self._position = stop + 1
        return self._text[start:stop]

    def _variable(self, space: str, text: str) -> Variable:
        """Read what follows `.global`, up to the semicolon, and give it a place in its space."""
        match = _VARIABLE.match(text)
        if match is None or match["type"] is None:
            raise self._error(f"cannot read the variable {text.strip()[:60]!r}")
        element = bytes_of(match["type"]) * int((match["vector"] or "v1")[1:])
        count = 1
        for dimension in re.findall(r"\[([^\]]*)\]", match["dims"]):
            count *= parse_integer(dimension) if dimension.strip() else 0
        data = self._data(match["data"], match["type"]) if match["data"] else b""
        if not count:
            count = len(data) // element
        align = int(match["align"] or element)
        offset = -(-self._offsets.get(space, 0) // align) * align
        self._offsets[space] = offset + element * count
        if data:
            data = data.ljust(element * count, b"\0")
        return Variable(match["name"], space, align, element * count, offset, data)

    def _data(self, text: str, kind: str) -> bytes:
        size = bytes_of(kind)
        data = bytearray()
        for item in re.findall(r"[^\s,{}]+", text):
            value = parse_immediate(item)
            if value is None:
                raise self._error(f"initial value {item!r} is not a number")
            data += (element_bits(value, size) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return bytes(data)

    # --- Functions

    def _function(self, *, is_entry: bool) -> None:
        start = self._position
        ends = [self._text.find(end, start) for end in "{;"]
        stop = min([end for end in ends if end >= 0], default=len(self._text))
        head = self._text[start:stop]
        self._position = stop + 1
        match = _FUNCTION.match(head)
        if match is None:
            raise self._error(f"cannot read the function {head.strip()[:60]!r}", start)
        if self._text[stop : stop + 1] != "{":
            return  # a declaration; calling it is refused when the caller is lowered
        results = self._parameters(match["results"] or "")
        parameters = self._parameters(match["parameters"] or "")
        limits = {
            name: tuple(int(number) for number in values.split(","))
            for name, values in _LIMIT.findall(match["rest"])
        }
        self._body = _new_body()
        self._statements()
        threads = limits.get("reqntid") or limits.get("maxntid")
        x, y, z, *_ = (*limits.get("reqnctapercluster", ()), 1, 1, 1)
        self._functions[match["name"]] = Function(
            name=match["name"],
            is_entry=is_entry,
            parameters=parameters,
            variables=tuple(self._body.variables),
            register_counts=dict(self._body.rows),
            instructions=tuple(self._resolve()),
            max_threads=None if threads is None else math.prod(threads),
            min_ctas=limits.get("minnctapersm", (None,))[0],
            cluster=(x, y, z) if "reqnctapercluster" in limits else None,
            max_registers=limits.get("maxnreg", (None,))[0],
            results=results,
        )

    def _parameters(self, text: str) -> tuple[Variable, ...]:
        self._offsets["param"] = 0
        parts = [part.strip() for part in text.split(",")]
        return tuple(
            self._variable("param", part.removeprefix(".param").removeprefix(".reg"))
            for part in parts
            if part
        )

    def _statements(self) -> None:
        """Read a body up to the brace that closes it."""
        body = self._body
        while True:
            statement = self._next()
            if statement["opcode"] is not None:
                self._instruction(statement)
            elif statement["loc"] is not None:
                self._location(statement)
            elif (label := statement["label"]) is not None:
                self._label(label)
            elif statement["brace"] == "{":
                body.scope = Scope(body.scope, body.rows)
            elif statement["brace"] == "}":
                if body.scope.parent is None:
                    return
                body.scope = body.scope.parent
            elif statement["directive"] is not None:
                self._directive(statement["directive"])
            else:
                raise self._error("the text ends inside a function")

    def _location(self, statement: re.Match[str]) -> None:
        """`.loc`: where the next instructions come from. Calls are given one by one, outer ones first."""
        body = self._body
        body.source_line = int(statement["loc"]) or body.source_line
        body.call_lines = ()
        if statement["call"] is not None:
            outer = body.calls.get((statement["call"], statement["call_column"]), ())
            body.call_lines = (int(statement["call"]), *outer)
        body.calls[statement["loc"], statement["column"]] = body.call_lines

    def _label(self, name: str) -> None:
        scope = self._body.scope
        targets = _LIST_OF_TARGETS.match(self._text, self._position)
        if targets is not None:
            self._position = targets.end()
            scope.targets[name] = tuple(target.strip() for target in targets[2].split(","))
        elif name in scope.labels:
            raise self._error(f"label {name!r} is defined twice")
        else:
            scope.labels[name] = len(self._body.instructions)

    def _directive(self, name: str) -> None:
        if name in _DIRECTIVES_OF_A_LINE:
            self._rest_of_line()
        elif name == "reg":
            start = self._position
            try:
                self._body.scope.declare(self._until(";"))
            except OperandError as error:
                raise self._error(str(error), start) from error
        elif name in ("local", "shared", "param"):
            self._body.variables.append(self._variable(name, self._until(";")))
        elif name == "pragma":
            self._until(";")
        elif name not in _LINKAGE:
            raise self._error(f"directive .{name} inside a function")

    # --- Instructions

    def _instruction(self, statement: re.Match[str]) -> None:
        body = self._body
        guarded = statement["guard"] is not None
        start = statement.start("guard") - 1 if guarded else statement.start("opcode")
        guard = None
        if guarded:
            register = body.scope.register(statement["guard"])
            if register is None or register.kind != "pred":
                raise self._error(f"guard {statement['guard']!r} is not a predicate", start)
            guard = (register, statement["negated"] == "!")
        try:
            operands = parse_operands(statement["operands"], body.scope)
        except OperandError as error:
            raise self._error(str(error), start) from error
        body.instructions.append(
            Instruction(
                index=len(body.instructions),
                opcode=statement["opcode"],
                operands=operands,
                guard=guard,
                line=self._line(start),
                source_line=body.source_line,
                text=statement[0].strip(),
                call_lines=body.call_lines,
            )
        )
        body.scopes.append(body.scope)

    def _resolve(self) -> list[Instruction]:
        """The instructions, with labels in place of symbols where branches name them."""
        resolved = []
        for instruction, scope in zip(self._body.instructions, self._body.scopes, strict=True):
            if not instruction.opcode.startswith(("bra", "brx")):
                resolved.append(instruction)
                continue
            try:
                operands = tuple(
                    scope.target(operand.name) if isinstance(operand, Symbol) else operand
                    for operand in instruction.operands
                )
            except OperandError as error:
                raise PtxError(f"PTX line {instruction.line}: {error}") from error
            resolved.append(replace(instruction, operands=operands))
        return resolved


def _blank(match: re.Match[str]) -> str:
    """Comments become nothing but their line ends; strings stay."""
    text = match[0]
    return text if text[0] == '"' else "\n" * text.count("\n") or " "
