"""Operand lists of inline PTX, which are too long to write by hand and too plain to hide in a template."""

from __future__ import annotations

REGISTERS_PER_ROW = 16
OPERANDS_PER_ROW = 8


def register_rows(count: int, first: int = 0) -> list[str]:
    """`%first, %first+1, ...` in rows; every row but the last ends with a comma."""
    names = [f"%{index}" for index in range(first, first + count)]
    rows = [
        names[start : start + REGISTERS_PER_ROW] for start in range(0, count, REGISTERS_PER_ROW)
    ]
    return _join(rows)


def operand_rows(array: str, count: int) -> list[str]:
    """`"+f"(array[0]), ...` in rows; every row but the last ends with a comma."""
    return input_rows(array, count, "+f")


def output_rows(array: str, count: int) -> list[str]:
    """`"=f"(array[0]), ...` likewise."""
    return input_rows(array, count, "=f")


def input_rows(array: str, count: int, constraint: str) -> list[str]:
    """`"r"(array[0]), ...` likewise, with any constraint."""
    names = [f'"{constraint}"({array}[{index}])' for index in range(count)]
    rows = [names[start : start + OPERANDS_PER_ROW] for start in range(0, count, OPERANDS_PER_ROW)]
    return _join(rows)


def coordinate_parameters(rank: int) -> str:
    """C++ parameters of the coordinates of a tensor map."""
    return ", ".join(f"int c{dimension}" for dimension in range(rank))


def coordinate_list(rank: int, first: int) -> str:
    """The coordinates as a PTX vector."""
    return "{" + ", ".join(f"%{first + dimension}" for dimension in range(rank)) + "}"


def coordinate_operands(rank: int) -> str:
    """The coordinates as operands of an asm statement."""
    return ", ".join(f'"r"(c{dimension})' for dimension in range(rank))


def _join(rows: list[list[str]]) -> list[str]:
    last = len(rows) - 1
    return [", ".join(row) + ("," if index < last else "") for index, row in enumerate(rows)]
