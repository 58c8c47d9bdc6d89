"""What a PTX file says, as typed values; `parser.parse` makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RegisterKind = Literal["pred", "b16", "b32", "b64", "b128"]


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register.

    Attributes:
        name: As in the text, `%r12`.
        kind: Its file; `.b8` lives in `b16`, and a `b128` in two consecutive rows of `b64`, low half first.
        row: Row in the register file of its kind.
    """

    name: str
    kind: RegisterKind
    row: int

    def __hash__(self) -> int:
        """Cheap, and different for registers of one name in different scopes: inlined assembly has hundreds."""
        return hash(self.name) ^ self.row


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal.

    Attributes:
        value: An integer (negative ones as such), or the bits of a float.
        is_float: Whether it was written as a float: `0f3F800000`, `0d3FF0000000000000`, `1.0`.
        is_double: Whether these are 64 bits: `0d...` and `1.0`.
    """

    value: int
    is_float: bool = False
    is_double: bool = False


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable of the module or function, standing for its address in its state space; or a function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target; `index` is that of the instruction behind it."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`, or `[base, {coordinates}]` of a tensor copy."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p` as an operand."""

    operand: Register


Operand = Register | Immediate | Special | Symbol | Label | Sink | Vector | Address | Pair | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        index: In its function.
        opcode: In full, `mbarrier.try_wait.parity.shared::cta.b64`.
        operands: In the order of the text, results first.
        guard: `(predicate, negated)` of `@p` or `@!p`.
        line: In the PTX text, from 1.
        source_line: Of the CUDA source, from the last `.loc`; None without `-lineinfo`.
        text: As written.
        call_lines: Source lines of the calls through which it was inlined, innermost first.
    """

    index: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None
    line: int
    source_line: int | None
    text: str
    call_lines: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode at its dots: `("mbarrier", "try_wait", "parity", "shared::cta", "b64")`."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Variable:
    """A module- or function-scope variable, or a parameter.

    Attributes:
        name: As in the text.
        space: `param`, `shared`, `global`, `const` or `local`.
        align: Bytes.
        size: Bytes; 0 for `extern .shared x[]`.
        offset: From the start of its space's area.
        data: Initial contents of `global` and `const`, else empty.
    """

    name: str
    space: str
    align: int
    size: int
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Function:
    """An `.entry` or `.func`.

    Attributes:
        name: As in the text.
        is_entry: Whether it is a kernel.
        parameters: In order, with offsets.
        variables: Shared and local variables that it declares.
        register_counts: Rows per kind.
        instructions: In order.
        max_threads: `.maxntid`, None if not given.
        min_ctas: `.minnctapersm`, None if not given.
        cluster: `.reqnctapercluster`, None if not given.
        max_registers: `.maxnreg`, None if not given.
        results: Return parameters of a `.func`.
    """

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    register_counts: dict[str, int]
    instructions: tuple[Instruction, ...]
    max_threads: int | None = None
    min_ctas: int | None = None
    cluster: tuple[int, int, int] | None = None
    max_registers: int | None = None
    results: tuple[Variable, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file.

    Attributes:
        version: `.version`.
        target: `sm_90a`.
        functions: By name.
        variables: Of module scope, by name.
    """

    version: tuple[int, int]
    target: str
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
