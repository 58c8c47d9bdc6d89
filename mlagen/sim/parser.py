"""PTX text to a `Module`."""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field, replace

from mlagen.errors import PtxError
from mlagen.sim.ptx import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    RegisterKind,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NAME = r"[A-Za-z_$%][\w$]*"
_STATEMENT = re.compile(
    rf"""\s*(?:
      \.loc\s+\d+\s+(?P<loc>\d+)[^\n]*
    | \.(?P<directive>\w+)
    | (?P<brace>[{{}}])
    | (?P<label>{_NAME})\s*:(?!:)
    | (?:@(?P<negated>!?)\s*(?P<guard>{_NAME})\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>[^;]*);
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_TOKEN = re.compile(
    r"\s*([%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?|-?\d[\w.]*(?:[eE][-+]?\d+)?|[\[\]{}()|!,+-])"
)
_NUMBER = re.compile(r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?)\Z")
_DECIMAL_FLOAT = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?\Z|-?\d+[eE][-+]?\d+\Z")
_VARIABLE = re.compile(
    rf"""\s*(?:\.align\s+(?P<align>\d+)\s*|\.(?P<vector>v[24])\b\s*|\.attribute\s*\([^)]*\)\s*
    |\.ptr\b\s*(?:\.(?:global|shared|const|local|param)\b\s*)?(?:\.align\s+\d+\s*)?
    |\.(?P<type>[busf]\d+(?:x2)?|pred|texref|samplerref|surfref)\b\s*)+
    (?P<name>{_NAME})\s*(?P<dims>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<data>.*))?\Z""",
    re.VERBOSE | re.DOTALL,
)
_RANGE = re.compile(rf"({_NAME})\s*<\s*(\d+)\s*>\Z")
_DIRECTIVES_OF_A_LINE = frozenset({"version", "target", "address_size", "file"})
_SPACES = frozenset({"param", "shared", "global", "const", "local"})

_KINDS: dict[str, RegisterKind] = {
    "pred": "pred", "b8": "b16", "u8": "b16", "s8": "b16", "b16": "b16", "u16": "b16", "s16": "b16",
    "f16": "b16", "bf16": "b16", "b32": "b32", "u32": "b32", "s32": "b32", "f32": "b32", "f16x2": "b32",
    "bf16x2": "b32", "b64": "b64", "u64": "b64", "s64": "b64", "f64": "b64", "b128": "b128",
}  # fmt: skip
_ROWS = {"b128": 2}

_SPECIALS = frozenset(
    """tid ntid ctaid nctaid clusterid nclusterid cluster_ctaid cluster_nctaid cluster_ctarank cluster_nctarank
    is_explicit_cluster laneid warpid nwarpid smid nsmid gridid lanemask_eq lanemask_le lanemask_lt lanemask_ge
    lanemask_gt clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi dynamic_smem_size total_smem_size
    aggr_smem_size reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap current_graph_exec
    """.split()
) | {f"envreg{number}" for number in range(32)}


def parse(text: str) -> Module:
    """Read a PTX file.

    Raises:
        PtxError: The text does not follow the grammar; the message begins with the line.
    """
    return _Parser(text).module()


class _Scope:
    """What `{}` encloses: names that hide those outside."""

    __slots__ = ("labels", "parent", "ranges", "registers", "targets")

    def __init__(self, parent: _Scope | None) -> None:
        self.parent = parent
        self.registers: dict[str, Register] = {}
        self.ranges: dict[str, tuple[RegisterKind, int]] = {}
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}


@dataclass(slots=True)
class _Body:
    """A function while it is read."""

    scope: _Scope
    line: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    scopes: list[_Scope] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    rows: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("pred", "b16", "b32", "b64"), 0)
    )
    depth: int = 0
    source_line: int | None = None


class _Parser:
    """One pass over the text."""

    def __init__(self, text: str) -> None:
        self._text = _COMMENT.sub(_blank, text)
        self._newlines = [match.start() for match in re.finditer("\n", self._text)]
        self._position = 0
        self._offsets: dict[str, int] = {}
        self._variables: dict[str, Variable] = {}
        self._functions: dict[str, Function] = {}
        self._body = _Body(_Scope(None))

    # --- Module level

    def module(self) -> Module:
        version, target = (0, 0), ""
        while True:
            statement = self._next()
            if statement["end"] is not None:
                return Module(version, target, self._functions, self._variables)
            directive = statement["directive"]
            if statement["loc"] is not None:
                continue
            if directive is None:
                raise self._error(f"unexpected {statement[0].strip()[:40]!r} outside of a function")
            if directive == "version":
                major, _, minor = self._rest_of_line().strip().partition(".")
                version = (int(major), int(minor))
            elif directive == "target":
                target = self._rest_of_line().split(",")[0].strip()
            elif directive in _DIRECTIVES_OF_A_LINE:
                self._rest_of_line()
            elif directive == "section":
                self._until("}")
            elif directive in ("entry", "func"):
                self._function(is_entry=directive == "entry")
            elif directive in _SPACES:
                variable = self._variable(directive, self._until(";"))
                self._variables[variable.name] = variable
            elif directive in ("visible", "extern", "weak", "common"):
                pass  # linkage: what it belongs to follows
            else:
                self._until(";")

    def _next(self) -> re.Match[str]:
        match = _STATEMENT.match(self._text, self._position)
        if match is None:
            self._position += len(self._text[self._position :]) - len(
                self._text[self._position :].lstrip()
            )
            rest = self._text[self._position :].split("\n", 1)[0].strip()
            raise self._error(f"cannot read {rest[:60]!r}")
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
        return self._until("\n")

    def _until(self, end: str) -> str:
        start = self._position
        stop = self._text.find(end, start)
        if stop < 0 and end == "\n":  # the last line
            stop = len(self._text)
        if stop < 0:
            raise self._error(f"no {end!r} until the end of the text")
        self._position = stop + 1
        return self._text[start:stop]

    def _variable(self, space: str, text: str) -> Variable:
        """Read what follows `.global`, up to the semicolon, and give it a place in its space."""
        match = _VARIABLE.match(text)
        if match is None or match["type"] is None:
            raise self._error(f"cannot read the variable {text.strip()[:60]!r}")
        element = _bytes_of(match["type"]) * int((match["vector"] or "v1")[1:])
        count = 1
        for dimension in re.findall(r"\[([^\]]*)\]", match["dims"]):
            count *= _integer(dimension) if dimension.strip() else 0
        data = self._data(match["data"], match["type"]) if match["data"] else b""
        align = int(match["align"] or element)
        if match["dims"] and not count and data:
            count = len(data) // element
        offset = -(-self._offsets.get(space, 0) // align) * align
        self._offsets[space] = offset + element * count
        return Variable(
            match["name"], space, align, element * count, offset, data.ljust(element * count, b"\0")
        )

    def _data(self, text: str, kind: str) -> bytes:
        size = _bytes_of(kind)
        data = bytearray()
        for item in re.findall(r"[^\s,{}]+", text):
            value = _immediate(item)
            if value is None:
                raise self._error(f"initial value {item!r} is not a number")
            data += (_bits(value, size) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return bytes(data)

    # --- Functions

    def _function(self, *, is_entry: bool) -> None:
        start = self._position
        stop = min(
            p
            for p in (self._text.find("{", start), self._text.find(";", start), len(self._text))
            if p >= 0
        )
        head = self._text[start:stop]
        self._position = stop + 1
        match = re.match(
            rf"\s*(?:\((?P<results>[^)]*)\))?\s*(?P<name>{_NAME})\s*(?:\((?P<parameters>[^)]*)\))?(?P<rest>.*)",
            head,
            re.DOTALL,
        )
        if match is None:
            raise self._error(f"cannot read the function {head.strip()[:60]!r}", start)
        if self._text[stop : stop + 1] != "{":
            return  # a declaration; calling it is refused when the caller is lowered
        results = self._parameters(match["results"] or "")
        parameters = self._parameters(match["parameters"] or "")
        limits = {
            name: tuple(int(number) for number in values.split(","))
            for name, values in re.findall(r"\.(\w+)\s+(\d+(?:\s*,\s*\d+)*)", match["rest"])
        }
        self._body = _Body(_Scope(None))
        self._statements()
        threads = limits.get("reqntid") or limits.get("maxntid")
        cluster = limits.get("reqnctapercluster")
        self._functions[match["name"]] = Function(
            name=match["name"],
            is_entry=is_entry,
            parameters=parameters,
            variables=tuple(self._body.variables),
            register_counts=dict(self._body.rows),
            instructions=tuple(self._resolve()),
            max_threads=None if threads is None else _product(threads),
            min_ctas=limits.get("minnctapersm", (None,))[0],
            cluster=None if cluster is None else (*cluster, 1, 1)[:3],  # type: ignore[arg-type] # three of at least three
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
            if (opcode := statement["opcode"]) is not None:
                self._instruction(opcode, statement)
            elif (line := statement["loc"]) is not None:
                body.source_line = int(line) or body.source_line
            elif (label := statement["label"]) is not None:
                self._label(label)
            elif statement["brace"] == "{":
                body.scope = _Scope(body.scope)
            elif statement["brace"] == "}":
                if body.scope.parent is None:
                    return
                body.scope = body.scope.parent
            elif statement["directive"] is not None:
                self._directive(statement["directive"])
            else:
                raise self._error("the text ends inside a function")

    def _label(self, name: str) -> None:
        scope = self._body.scope
        lists = re.compile(r"\s*\.(branchtargets|calltargets|callprototype)\b([^;]*);").match(
            self._text, self._position
        )
        if lists is not None:
            self._position = lists.end()
            scope.targets[name] = tuple(target.strip() for target in lists[2].split(","))
            return
        if name in scope.labels:
            raise self._error(f"label {name!r} is defined twice")
        scope.labels[name] = len(self._body.instructions)

    def _directive(self, name: str) -> None:
        if name in _DIRECTIVES_OF_A_LINE:
            self._rest_of_line()
        elif name == "reg":
            self._registers(self._until(";"))
        elif name in ("local", "shared", "param"):
            self._body.variables.append(self._variable(name, self._until(";")))
        elif name in ("pragma", "extern"):
            if name == "pragma":
                self._until(";")
        else:
            raise self._error(f"directive .{name} inside a function")

    def _registers(self, text: str) -> None:
        """Declare what follows `.reg`."""
        head, _, names = (
            text.strip().partition(" ") if " " in text.strip() else text.strip().partition("\t")
        )
        kind = _KINDS.get(head.lstrip(".").strip())
        if kind is None:
            raise self._error(f"registers of type {head!r}")
        scope = self._body.scope
        for item in names.split(","):
            name = item.strip()
            if match := _RANGE.match(name):
                scope.ranges[match[1]] = (kind, int(match[2]))
            else:
                scope.registers[name] = self._new_register(name, kind)

    def _new_register(self, name: str, kind: RegisterKind) -> Register:
        rows, file = self._body.rows, "b64" if kind == "b128" else kind
        row = rows[file]
        rows[file] += _ROWS.get(kind, 1)
        return Register(name, kind, row)

    def _find_register(self, name: str) -> Register | None:
        scope: _Scope | None = self._body.scope
        while scope is not None:
            if (register := scope.registers.get(name)) is not None:
                return register
            if scope.ranges and name[-1].isdigit():
                prefix = name.rstrip("0123456789")
                found = scope.ranges.get(prefix)
                if found is not None and int(name[len(prefix) :]) < found[1]:
                    register = scope.registers[name] = self._new_register(name, found[0])
                    return register
            scope = scope.parent
        return None

    # --- Instructions

    def _instruction(self, opcode: str, statement: re.Match[str]) -> None:
        body = self._body
        start = (
            statement.start("opcode")
            if statement["guard"] is None
            else statement.start("guard") - 1
        )
        body.line = self._line(start)
        guard = None
        if (name := statement["guard"]) is not None:
            register = self._find_register(name)
            if register is None or register.kind != "pred":
                raise self._error(f"guard {name!r} is not a predicate", start)
            guard = (register, statement["negated"] == "!")
        operands = self._operands(statement["operands"], start)
        text = statement[0].strip()
        index = len(body.instructions)
        body.instructions.append(
            Instruction(index, opcode, operands, guard, body.line, body.source_line, text)
        )
        body.scopes.append(body.scope)

    def _operands(self, text: str, position: int) -> tuple[Operand, ...]:
        if not text:
            return ()
        tokens = _TOKEN.findall(text)
        if len("".join(tokens)) != len("".join(text.split())):
            raise self._error(f"cannot read the operands {text.strip()[:60]!r}", position)
        reader = _Tokens(tokens)
        operands = [self._operand(reader, position)]
        while reader.take(","):
            operands.append(self._operand(reader, position))
        if reader.peek():
            raise self._error(f"unexpected {reader.peek()!r} in {text.strip()[:60]!r}", position)
        return tuple(operands)

    def _operand(self, tokens: _Tokens, position: int) -> Operand:
        token = tokens.next()
        if token == "[":
            return self._address(tokens, position)
        if token in ("{", "("):
            return self._vector(tokens, "}" if token == "{" else ")", position)
        if token == "!":
            operand = self._atom(tokens.next(), position)
            if not isinstance(operand, Register):
                raise self._error("'!' stands before a predicate only", position)
            return Negated(operand)
        if token == "-":
            token += tokens.next()
        operand = self._atom(token, position)
        if tokens.take("|"):
            return Pair(operand, self._atom(tokens.next(), position))
        return operand

    def _vector(self, tokens: _Tokens, end: str, position: int) -> Vector:
        elements: list[Operand] = []
        while not tokens.take(end):
            if not tokens.peek():
                raise self._error(f"no {end!r} at the end of a vector", position)
            elements.append(self._operand(tokens, position))
            tokens.take(",")
        return Vector(tuple(elements))

    def _address(self, tokens: _Tokens, position: int) -> Address:
        base = self._atom(tokens.next(), position)
        offset = 0
        coordinates: tuple[Operand, ...] = ()
        while not tokens.take("]"):
            token = tokens.next()
            if token == ",":
                operand = self._operand(tokens, position)
                coordinates += operand.elements if isinstance(operand, Vector) else (operand,)
                continue
            sign = 1
            while token in ("+", "-"):
                sign = -sign if token == "-" else sign
                token = tokens.next()
            value = _immediate(token)
            if value is None or value.is_float:
                raise self._error(f"{token!r} in an address is not an integer", position)
            offset += sign * value.value
        return Address(base, offset, coordinates)

    def _atom(self, token: str, position: int) -> Operand:
        if (register := self._find_register(token) if token else None) is not None:
            return register
        if token == "_":
            return Sink()
        if (immediate := _immediate(token)) is not None:
            return immediate
        if token.startswith("%"):
            if token[1:].partition(".")[0] not in _SPECIALS:
                raise self._error(f"register {token!r} is not declared", position)
            return Special(token)
        if not re.fullmatch(_NAME, token):
            raise self._error(f"cannot read the operand {token!r}", position)
        return Immediate(32) if token == "WARP_SZ" else Symbol(token)

    # --- Labels, when all are known

    def _resolve(self) -> list[Instruction]:
        resolved = []
        for instruction, scope in zip(self._body.instructions, self._body.scopes, strict=True):
            if instruction.opcode.startswith(("bra", "brx")):
                operands = tuple(
                    self._target(operand, scope, instruction)
                    if isinstance(operand, Symbol)
                    else operand
                    for operand in instruction.operands
                )
                resolved.append(replace(instruction, operands=operands))
            else:
                resolved.append(instruction)
        return resolved

    def _target(
        self, symbol: Symbol, scope: _Scope | None, instruction: Instruction
    ) -> Label | Vector:
        inner = scope
        while scope is not None:
            if symbol.name in scope.labels:
                return Label(symbol.name, scope.labels[symbol.name])
            if symbol.name in scope.targets:
                names = scope.targets[symbol.name]
                return Vector(
                    tuple(self._target(Symbol(name), inner, instruction) for name in names)
                )
            scope = scope.parent
        raise PtxError(f"PTX line {instruction.line}: label {symbol.name!r} is not defined")


class _Tokens:
    """Tokens of one statement's operands."""

    __slots__ = ("_index", "_tokens")

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._index = 0

    def peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self._index += 1
        return token

    def take(self, token: str) -> bool:
        if self._index < len(self._tokens) and self._tokens[self._index] == token:
            self._index += 1
            return True
        return False


def _blank(match: re.Match[str]) -> str:
    """Comments become nothing but their line ends; strings stay."""
    text = match[0]
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def _immediate(token: str) -> Immediate | None:
    if _NUMBER.match(token):
        sign = -1 if token[0] == "-" else 1
        digits = token.lstrip("-").removesuffix("U")
        prefix = digits[:2].lower()
        if prefix == "0f":
            return Immediate(int(digits[2:], 16) ^ (sign < 0) << 31, is_float=True)
        if prefix == "0d":
            return Immediate(int(digits[2:], 16) ^ (sign < 0) << 63, is_float=True, is_double=True)
        return Immediate(sign * _integer(digits))
    if _DECIMAL_FLOAT.match(token):
        return Immediate(
            struct.unpack("<Q", struct.pack("<d", float(token)))[0], is_float=True, is_double=True
        )
    return None


def _integer(digits: str) -> int:
    digits = digits.strip().removesuffix("U")
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    return (
        int(digits, 8) if len(digits) > 1 and digits.isdigit() and digits[0] == "0" else int(digits)
    )


def _bits(value: Immediate, size: int) -> int:
    """An initial value as the bits of its element."""
    if not value.is_float or value.is_double == (size == 8):
        return value.value
    number = struct.unpack(
        "<d" if value.is_double else "<f",
        value.value.to_bytes(8 if value.is_double else 4, "little"),
    )
    return int.from_bytes(struct.pack("<d" if size == 8 else "<f", number[0]), "little")


def _bytes_of(kind: str) -> int:
    if kind.endswith("x2"):
        return 2 * _bytes_of(kind[:-2])
    return int(re.sub(r"\D", "", kind) or "64") // 8


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
