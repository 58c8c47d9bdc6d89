"""The instruction set: what each register-only opcode computes, and which unit executes every other one.

An opcode of the ALU is one row: its name, its types, which operands it has, and a function on arrays. Modifiers that
change the result in the same way everywhere (`.ftz`, `.sat`, rounding) are applied around that function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim import choices, integers, lanes, numerics, special_functions
from mlagen.sim.conversions import find_conversion

Call = Callable[..., Any]  # a NumPy ufunc, or a function of this package: sources, then results


@dataclass(frozen=True, slots=True)
class Alu:
    """How an opcode is computed.

    Attributes:
        call: `call(*sources, *results)` on arrays of the kinds below.
        sources: Kinds by which its sources are viewed.
        results: Kinds of its results.
        context: Whether it is given an `Executing` as its first argument.
        crosses_lanes: Whether it looks at other lanes of the warp; then it has a context.
        chain: For `d = d' op a`, a function of many rows that computes a whole chain of them; None if there is none.
    """

    call: Call
    sources: tuple[str, ...]
    results: tuple[str, ...]
    context: bool = False
    crosses_lanes: bool = False
    chain: Call | None = None


# What makes the function of a row for the modifiers that it was given.
Maker = Callable[[frozenset[str]], Call]


@dataclass(frozen=True, slots=True)
class _Row:
    """An opcode with a list of types; see `_rows`."""

    types: frozenset[str]
    signature: str
    call: Call | None
    modifiers: frozenset[str]
    crosses_lanes: bool = False
    chain: Call | None = None
    make: Maker | None = None


INTEGERS = "u16 s16 u32 s32 u64 s64"
PACKED_INTEGERS = "u16x2 s16x2"
BITS = "b16 b32 b64"
HALVES = "f16 f16x2 bf16 bf16x2"
FLOATS = f"f32 f64 f32x2 {HALVES}"
ARITHMETIC_MODIFIERS = "rn rz rm rp ftz sat"
_LANE_OPCODES = frozenset({"shfl", "vote", "activemask", "match", "redux"})
_DIRECTED = ("rz", "rm", "rp")
_COMPARISONS: dict[str, Call] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


class _Table:
    """Rows by opcode.

    Signatures: results, `=`, sources; `t` is the opcode's type, `w` one twice as wide, `b` bits of its width, `u` u32,
    `p` a predicate.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[_Row]] = {}

    def row(
        self,
        name: str,
        types: str,
        signature: str,
        call: Call | None,
        modifiers: str = "",
        *,
        chain: Call | None = None,
        make: Maker | None = None,
    ) -> None:
        """Add an opcode; some have several rows, by types and number of sources."""
        entry = _Row(
            frozenset(types.split()),
            signature,
            call,
            frozenset(modifiers.split()),
            crosses_lanes=name.partition(".")[0] in _LANE_OPCODES,
            chain=chain,
            make=make,
        )
        self.rows.setdefault(name, []).append(entry)


@functools.cache
def _rows() -> dict[str, list[_Row]]:
    table = _Table()
    _add_integers(table.row)
    _add_floats(table.row)
    _add_choices(table.row)
    _add_lane_crossing(table.row)
    return table.rows


def _add_integers(row: Callable[..., None]) -> None:
    row("add", f"{INTEGERS} {PACKED_INTEGERS}", "t=tt", np.add)
    row("sub", f"{INTEGERS} {PACKED_INTEGERS}", "t=tt", np.subtract)
    row("add.sat", "s32", "t=tt", integers.saturating(np.add))
    row("sub.sat", "s32", "t=tt", integers.saturating(np.subtract))
    row("mul.lo", INTEGERS, "t=tt", np.multiply)
    row("mul.hi", INTEGERS, "t=tt", integers.multiply_high)
    row("mul.wide", "u16 s16 u32 s32", "w=tt", integers.multiply_wide)
    row("mad.lo", INTEGERS, "t=ttt", integers.multiply_add)
    row("mad.hi", INTEGERS, "t=ttt", integers.multiply_add_high)
    row("mad.wide", "u16 s16 u32 s32", "w=ttw", integers.multiply_add_wide)
    row("mul24.lo", "u32 s32", "t=tt", integers.multiply_24)
    row("mad24.lo", "u32 s32", "t=ttt", integers.multiply_add_24)
    row("mul24.hi", "u32 s32", "t=tt", integers.multiply_24_high)
    row("mad24.hi", "u32 s32", "t=ttt", integers.multiply_add_24_high)
    row("mad.hi.sat", "s32", "t=ttt", integers.multiply_add_high_saturating)
    row("sad", INTEGERS, "t=ttt", integers.sum_of_absolute_differences)
    row("div", INTEGERS, "t=tt", integers.divide)
    row("rem", INTEGERS, "t=tt", integers.remainder)
    row("abs", "s16 s32 s64", "t=t", np.absolute)
    row("neg", "s16 s32 s64", "t=t", np.negative)
    row("min", f"{INTEGERS} {PACKED_INTEGERS}", "t=tt", integers.minimum)
    row("max", f"{INTEGERS} {PACKED_INTEGERS}", "t=tt", integers.maximum)
    row("min.relu", "s32 s16x2", "t=tt", integers.positive_extreme(np.minimum))
    row("max.relu", "s32 s16x2", "t=tt", integers.positive_extreme(np.maximum))
    row("and", BITS, "t=tt", np.bitwise_and)
    row("or", BITS, "t=tt", np.bitwise_or)
    row("xor", BITS, "t=tt", np.bitwise_xor)
    row("not", BITS, "t=t", np.invert)
    row("and", "pred", "t=tt", np.logical_and)
    row("or", "pred", "t=tt", np.logical_or)
    row("xor", "pred", "t=tt", np.logical_xor)
    row("not", "pred", "t=t", np.logical_not)
    row("cnot", BITS, "t=t", integers.cnot)
    row("shl", BITS, "t=tu", integers.shift_left)
    row("shr", f"{BITS} {INTEGERS}", "t=tu", integers.shift_right)
    for side in ("l", "r"):
        for mode in ("wrap", "clamp"):
            row(f"shf.{side}.{mode}", "b32", "t=ttu", integers.funnel_shift(side, mode))
    row("bfe", "u32 s32 u64 s64", "t=tuu", integers.extract_field)
    row("bfi", "b32 b64", "t=ttuu", integers.insert_field)
    row("bmsk.clamp", "b32", "t=tt", integers.bit_mask)
    row("bmsk.wrap", "b32", "t=tt", integers.bit_mask_wrapping)
    row("szext.wrap", "u32 s32", "t=tu", integers.extend_sign_wrapping)
    row("szext.clamp", "u32 s32", "t=tu", integers.extend_sign)
    row("clz", "b32 b64", "u=t", integers.count_leading_zeros)
    row("popc", "b32 b64", "u=t", integers.population_count)
    row("brev", "b32 b64", "t=t", integers.reverse_bits)
    row("bfind", "u32 s32 u64 s64", "u=t", integers.find_highest(shift_amount=False))
    row("bfind.shiftamt", "u32 s32 u64 s64", "u=t", integers.find_highest(shift_amount=True))
    row("lop3", "b32", "t=tttt", integers.logic_of_3)
    row("prmt", "b32", "t=ttt", integers.permute_bytes(""))
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        row(f"prmt.{mode}", "b32", "t=ttt", integers.permute_bytes(mode))


def _add_floats(row: Callable[..., None]) -> None:
    row("add", FLOATS, "t=tt", np.add, ARITHMETIC_MODIFIERS, chain=numerics.sum_of_rows)
    row("sub", FLOATS, "t=tt", np.subtract, ARITHMETIC_MODIFIERS)
    row("mul", FLOATS, "t=tt", np.multiply, ARITHMETIC_MODIFIERS)
    row("fma", FLOATS, "t=ttt", numerics.fma, f"{ARITHMETIC_MODIFIERS} relu")
    row("mad", FLOATS, "t=ttt", numerics.fma, ARITHMETIC_MODIFIERS)
    row("neg", f"f32 f64 {HALVES}", "t=t", np.negative, "ftz")
    row("abs", f"f32 f64 {HALVES}", "t=t", np.absolute, "ftz")
    row("div", "f32 f64", "t=tt", np.divide, "rn ftz full")
    row("div.approx", "f32", "t=tt", numerics.div_approx_f32, "ftz")
    row("rcp", "f32 f64", "t=t", np.reciprocal, "rn ftz")
    row("sqrt", "f32 f64", "t=t", np.sqrt, "rn ftz")
    row("rcp.approx", "f32", "t=t", special_functions.rcp)
    row("rcp.approx.ftz", "f32", "t=t", special_functions.rcp_ftz)
    row("sqrt.approx", "f32", "t=t", numerics.through_f64(np.sqrt), "ftz")
    row(
        "rsqrt.approx",
        "f32 f64",
        "t=t",
        numerics.through_f64(numerics.reciprocal_square_root),
        "ftz",
    )
    row("sin.approx", "f32", "t=t", numerics.through_f64(np.sin), "ftz")
    row("cos.approx", "f32", "t=t", numerics.through_f64(np.cos), "ftz")
    row("lg2.approx", "f32", "t=t", special_functions.lg2)
    row("lg2.approx.ftz", "f32", "t=t", special_functions.lg2_ftz)
    row("ex2.approx", "f32", "t=t", special_functions.ex2)
    row("ex2.approx.ftz", "f32", "t=t", special_functions.ex2_ftz)
    row("ex2.approx", HALVES, "t=t", numerics.through_f64(np.exp2), "ftz")
    row("tanh.approx", f"f32 {HALVES}", "t=t", numerics.through_f64(np.tanh))
    row("copysign", "f32 f64", "t=tt", choices.copy_sign)
    for name, ufunc in (("min", np.fmin), ("max", np.fmax)):
        make = functools.partial(_make_extreme, ufunc)
        chain = functools.partial(choices.extreme_of_rows, ufunc)
        row(name, f"f32 f64 {HALVES}", "t=tt", None, "ftz NaN xorsign abs", make=make, chain=chain)
        row(name, "f32", "t=ttt", None, "ftz NaN abs", make=make)
    for name, test in choices.TESTS.items():
        row(f"testp.{name}", "f32 f64", "p=t", test)


def _add_choices(row: Callable[..., None]) -> None:
    for name, compare in _COMPARISONS.items():
        row(f"setp.{name}", f"{INTEGERS} {BITS}", "p=tt", compare)
    of_floats = {name: _COMPARISONS[name] for name in ("eq", "lt", "le", "gt", "ge")}
    for name, compare in (of_floats | choices.COMPARISONS).items():
        row(f"setp.{name}", f"f32 f64 {HALVES}", "p=tt", compare, "ftz")
    row("selp", f"{INTEGERS} {BITS} f32 f64", "b=bbp", choices.select)
    row("mov", f"{INTEGERS} {BITS} f32 f64 f16 bf16 f16x2 bf16x2", "b=b", choices.copy)
    row("mov", "pred", "t=t", choices.copy)


def _add_lane_crossing(row: Callable[..., None]) -> None:
    for mode in ("idx", "up", "down", "bfly"):
        row(f"shfl.sync.{mode}", "b32", "tp=tuuu", lanes.shuffle(mode))
    for mode in ("all", "any", "uni"):
        row(f"vote.sync.{mode}", "pred", "t=tu", lanes.vote(mode))
    row("vote.sync.ballot", "b32", "t=pu", lanes.vote("ballot"))
    row("activemask", "b32", "t=", lanes.active_mask)
    row("match.any.sync", "b32 b64", "u=tu", lanes.match_any)
    row("match.all.sync", "b32 b64", "up=tu", lanes.match_all)
    for name in ("add", "min", "max"):
        row(f"redux.sync.{name}", "u32 s32", "t=tu", lanes.reduce(name))
    for name in ("and", "or", "xor"):
        row(f"redux.sync.{name}", "b32", "t=tu", lanes.reduce(name))
    for name in ("min", "max"):
        make = functools.partial(_make_reduction, name)
        row(f"redux.sync.{name}", "f32", "t=tu", None, "abs NaN", make=make)


def _make_extreme(ufunc: np.ufunc, modifiers: frozenset[str]) -> Call:
    return choices.extreme(ufunc, nan="NaN" in modifiers, magnitude="abs" in modifiers)


def _make_reduction(name: str, modifiers: frozenset[str]) -> Call:
    return lanes.reduce(name, magnitude="abs" in modifiers, nan="NaN" in modifiers)


@functools.cache
def names() -> frozenset[str]:
    """The first parts of all opcodes in the table."""
    return frozenset(name.partition(".")[0] for name in _rows())


_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def kind_of(type_name: str) -> str:
    """The kind by which an operand of a PTX type is viewed: that of `b32` is `u32`."""
    return type_name.replace("b", "u") if type_name in ("b8", "b16", "b32", "b64") else type_name


def bits_of(type_name: str) -> int:
    """Width of a PTX type."""
    if type_name.endswith("x2"):
        return 2 * bits_of(type_name[:-2])
    return int("".join(character for character in type_name if character.isdigit()) or 1)


@functools.cache
def find(opcode: str, sources: int) -> Alu:
    """How the ALU computes an opcode with so many sources.

    Raises:
        UnsupportedPtxError: It does not know it.
    """
    if opcode.startswith("cvt."):
        conversion = find_conversion(opcode, sources)
        return Alu(
            conversion.call, tuple(map(kind_of, conversion.sources)), (kind_of(conversion.result),)
        )
    parts = opcode.split(".")
    if parts[0] == "prmt":
        parts = [parts[0], *parts[2:], parts[1]]
    for length in range(len(parts) - 1, 0, -1):
        for row in _rows().get(".".join(parts[:length]), ()):
            modifiers = frozenset(parts[length:-1])
            if (
                parts[-1] in row.types
                and modifiers <= row.modifiers
                and len(row.signature.split("=")[1]) == sources
            ):
                return _instance(parts[0], row, parts[-1], modifiers)
    raise UnsupportedPtxError(f"opcode {opcode} with {sources} sources")


def _instance(name: str, row: _Row, type_name: str, modifiers: frozenset[str]) -> Alu:
    kinds = {
        "t": kind_of(type_name),
        "w": _WIDE.get(type_name, ""),
        "u": "u32",
        "p": "pred",
        "b": f"u{bits_of(type_name)}",
    }
    results, sources = (
        tuple(kinds[letter] for letter in side) for side in row.signature.split("=")
    )
    call = row.call if row.make is None else row.make(modifiers)
    assert call is not None
    rounding = next((modifier for modifier in modifiers if modifier in _DIRECTED), None)
    if rounding is not None:
        if type_name not in ("f32", "f32x2"):
            raise UnsupportedPtxError(f"{name}.{rounding}.{type_name}")
        call = numerics.with_rounding("fma" if name == "mad" else name, rounding)
    if "ftz" in modifiers and name in ("mul", "fma", "mad"):
        call = numerics.flush_product_to_zero(call)
    elif "ftz" in modifiers:
        call = numerics.flush_to_zero(call)
    if "sat" in modifiers:
        call = numerics.saturate(call)
    if "relu" in modifiers:
        call = numerics.relu(call)
    chain = row.chain if modifiers <= {"rn"} and type_name in ("f32", "f32x2") else None
    return Alu(call, sources, results, row.crosses_lanes, row.crosses_lanes, chain)
