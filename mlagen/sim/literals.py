"""Numbers in PTX text."""

from __future__ import annotations

import re
import struct

from mlagen.sim.ptx import Immediate

_NUMBER = re.compile(r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?)\Z")
_DECIMAL_FLOAT = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?\Z|-?\d+[eE][-+]?\d+\Z")


def parse_immediate(text: str) -> Immediate | None:
    """A literal: decimal, octal, hexadecimal, or a float as its bits or in decimals; None if it is no number."""
    if _NUMBER.match(text):
        sign = -1 if text[0] == "-" else 1
        digits = text.lstrip("-").removesuffix("U")
        prefix, pattern = digits[:2].lower(), digits[2:]
        if prefix == "0f":
            return Immediate(int(pattern, 16) ^ (sign < 0) << 31, is_float=True)
        if prefix == "0d":
            return Immediate(int(pattern, 16) ^ (sign < 0) << 63, is_float=True, is_double=True)
        return Immediate(sign * parse_integer(digits))
    if _DECIMAL_FLOAT.match(text):
        return Immediate(
            struct.unpack("<Q", struct.pack("<d", float(text)))[0], is_float=True, is_double=True
        )
    return None


def parse_integer(digits: str) -> int:
    """A literal without a sign: decimal, octal or hexadecimal."""
    digits = digits.strip().removesuffix("U")
    if digits[:2].lower() == "0x":
        return int(digits, 16)
    is_octal = len(digits) > 1 and digits[0] == "0"
    return int(digits, 8 if is_octal else 10)


def element_bits(value: Immediate, size: int) -> int:
    """An initial value as the bits of its element."""
    if not value.is_float or value.is_double == (size == 8):
        return value.value
    number = struct.unpack(
        "<d" if value.is_double else "<f",
        value.value.to_bytes(8 if value.is_double else 4, "little"),
    )
    return int.from_bytes(struct.pack("<d" if size == 8 else "<f", number[0]), "little")


def bytes_of(kind: str) -> int:
    """Size of a PTX type."""
    if kind.endswith("x2"):
        return 2 * bytes_of(kind[:-2])
    return int(re.sub(r"\D", "", kind) or "64") // 8
