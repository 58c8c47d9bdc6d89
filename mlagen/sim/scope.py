"""Names inside a function, and the operands that use them."""

from __future__ import annotations

import re

from mlagen.sim.literals import parse_immediate
from mlagen.sim.ptx import (
    Address,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    RegisterKind,
    Sink,
    Special,
    Symbol,
    Vector,
)

NAME = r"[A-Za-z_$%][\w$]*"
_TOKEN = re.compile(
    r"\s*([%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?|-?\d[\w.]*(?:[eE][-+]?\d+)?|[\[\]{}()|!,+-])"
)
_RANGE = re.compile(rf"({NAME})\s*<\s*(\d+)\s*>\Z")

_KINDS: dict[str, RegisterKind] = {
    "pred": "pred", "b8": "b16", "u8": "b16", "s8": "b16", "b16": "b16", "u16": "b16", "s16": "b16",
    "f16": "b16", "bf16": "b16", "b32": "b32", "u32": "b32", "s32": "b32", "f32": "b32", "f16x2": "b32",
    "bf16x2": "b32", "b64": "b64", "u64": "b64", "s64": "b64", "f64": "b64", "b128": "b128",
}  # fmt: skip

_SPECIALS = frozenset(
    [
        *(
            "tid",
            "ntid",
            "ctaid",
            "nctaid",
            "laneid",
            "warpid",
            "nwarpid",
            "smid",
            "nsmid",
            "gridid",
        ),
        *("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid", "cluster_ctarank"),
        *("cluster_nctarank", "is_explicit_cluster", "clock", "clock_hi", "clock64", "globaltimer"),
        *("globaltimer_lo", "globaltimer_hi", "dynamic_smem_size", "total_smem_size"),
        *("aggr_smem_size", "current_graph_exec"),
        *(f"reserved_smem_offset_{name}" for name in ("begin", "end", "cap")),
        *(f"lanemask_{name}" for name in ("eq", "le", "lt", "ge", "gt")),
        *(f"envreg{number}" for number in range(32)),
    ]
)


class OperandError(Exception):
    """Operands that do not follow the grammar; whoever knows the line makes a `PtxError` of it."""


class Scope:
    """What `{}` encloses: names that hide those outside.

    Attributes:
        parent: The scope outside; None for a function's body.
        labels: Index of the instruction behind each label.
        targets: Lists of labels, for `brx.idx`.
    """

    __slots__ = ("_ranges", "_registers", "_rows", "labels", "parent", "targets")

    def __init__(self, parent: Scope | None, rows: dict[str, int]) -> None:
        """Nothing is declared yet.

        Args:
            parent: The scope outside.
            rows: Counts the function's rows of registers, per kind.
        """
        self.parent = parent
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}
        self._registers: dict[str, Register] = {}
        self._ranges: dict[str, tuple[RegisterKind, int]] = {}
        self._rows = rows

    def declare(self, text: str) -> None:
        """Declare what follows `.reg`.

        Raises:
            OperandError: The type is not known.
        """
        head, *rest = text.split(None, 1)
        kind = _KINDS.get(head.lstrip("."))
        if kind is None or not rest:
            raise OperandError(f"registers of type {head!r}")
        for item in rest[0].split(","):
            name = item.strip()
            if match := _RANGE.match(name):
                self._ranges[match[1]] = (kind, int(match[2]))
            else:
                self._registers[name] = self._new_register(name, kind)

    def _new_register(self, name: str, kind: RegisterKind) -> Register:
        file = "b64" if kind == "b128" else kind
        row = self._rows[file]
        self._rows[file] += 2 if kind == "b128" else 1
        return Register(name, kind, row)

    def register(self, name: str) -> Register | None:
        """The register of a name, here or outside; of a range (`%r<9>`), those that are used get rows."""
        scope: Scope | None = self
        while scope is not None:
            if (register := scope._registers.get(name)) is not None:
                return register
            if scope._ranges and name[-1:].isdigit():
                prefix = name.rstrip("0123456789")
                found = scope._ranges.get(prefix)
                if found is not None and int(name[len(prefix) :]) < found[1]:
                    register = scope._registers[name] = scope._new_register(name, found[0])
                    return register
            scope = scope.parent
        return None

    def target(self, name: str) -> Label | Vector:
        """The label of a name, or the list of labels.

        Raises:
            OperandError: There is none.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return Label(name, scope.labels[name])
            if name in scope.targets:
                return Vector(tuple(self.target(one) for one in scope.targets[name]))
            scope = scope.parent
        raise OperandError(f"label {name!r} is not defined")


def parse_operands(text: str, scope: Scope) -> tuple[Operand, ...]:
    """The operands of an instruction; labels are symbols still.

    Raises:
        OperandError: They do not follow the grammar, or a register is not declared.
    """
    if not text:
        return ()
    tokens = _TOKEN.findall(text)
    if len("".join(tokens)) != len("".join(text.split())):
        raise OperandError(f"cannot read the operands {text.strip()[:60]!r}")
    reader = _Operands(tokens, scope)
    operands = [reader.operand()]
    while reader.take(","):
        operands.append(reader.operand())
    if reader.peek():
        raise OperandError(f"unexpected {reader.peek()!r} in {text.strip()[:60]!r}")
    return tuple(operands)


class _Operands:
    """Reads operands from tokens."""

    __slots__ = ("_index", "_scope", "_tokens")

    def __init__(self, tokens: list[str], scope: Scope) -> None:
        self._tokens = tokens
        self._index = 0
        self._scope = scope

    def peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def next(self) -> str:
        word = self.peek()
        self._index += 1
        return word

    def take(self, word: str) -> bool:
        if self._index < len(self._tokens) and self._tokens[self._index] == word:
            self._index += 1
            return True
        return False

    def operand(self) -> Operand:
        word = self.next()
        if word == "[":
            return self._address()
        if word in ("{", "("):
            return self._vector("}" if word == "{" else ")")
        if word == "!":
            operand = self._atom(self.next())
            if not isinstance(operand, Register):
                raise OperandError("'!' stands before a predicate only")
            return Negated(operand)
        if word == "-":
            word += self.next()
        first = self._atom(word)
        return Pair(first, self._atom(self.next())) if self.take("|") else first

    def _vector(self, end: str) -> Vector:
        elements: list[Operand] = []
        while not self.take(end):
            if not self.peek():
                raise OperandError(f"no {end!r} at the end of a vector")
            elements.append(self.operand())
            self.take(",")
        return Vector(tuple(elements))

    def _address(self) -> Address:
        base = self._atom(self.next())
        offset = 0
        coordinates: tuple[Operand, ...] = ()
        while not self.take("]"):
            word = self.next()
            if word == ",":
                operand = self.operand()
                coordinates += operand.elements if isinstance(operand, Vector) else (operand,)
                continue
            sign = 1
            while word in ("+", "-"):
                sign = -sign if word == "-" else sign
                word = self.next()
            value = parse_immediate(word)
            if value is None or value.is_float:
                raise OperandError(f"{word!r} in an address is not an integer")
            offset += sign * value.value
        return Address(base, offset, coordinates)

    def _atom(self, word: str) -> Operand:
        if (register := self._scope.register(word)) is not None:
            return register
        if word == "_":
            return Sink()
        if (immediate := parse_immediate(word)) is not None:
            return immediate
        if word.startswith("%"):
            if word[1:].partition(".")[0] not in _SPECIALS:
                raise OperandError(f"register {word!r} is not declared")
            return Special(word)
        if not re.fullmatch(NAME, word):
            raise OperandError(f"cannot read the operand {word!r}")
        return Immediate(32) if word == "WARP_SZ" else Symbol(word)
