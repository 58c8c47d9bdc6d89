"""The ranges of a mask as C++: names of constants, and the expressions of both ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlagen.plan.mask import is_padded_throughout

if TYPE_CHECKING:
    from mlagen.plan.mask import KeyRange


@dataclass(frozen=True, slots=True)
class MaskConstant:
    """A width or a size of the mask."""

    name: str
    value: int
    comment: str


@dataclass(frozen=True, slots=True)
class ChunkText:
    """Chunks of one size: the function that finds a chunk's beginning, and the constant of the size."""

    function: str
    size: str


@dataclass(frozen=True, slots=True)
class RangeText:
    """One range of keys as C++.

    Attributes:
        conditions: What a key must meet, a comment each.
        chunks: Chunks that no range before has used.
        first: Name of the function that gives the first key.
        end: Name of the function that gives the end.
        begin_value: What `first` returns, by `position`.
        end_value: What `end` returns, by `position` and `valid_keys`.
        is_bounded: Whether the range may begin behind the first key.
    """

    conditions: tuple[str, ...]
    chunks: tuple[ChunkText, ...]
    first: str
    end: str
    begin_value: str
    end_value: str
    is_bounded: bool


def mask_texts(
    ranges: tuple[KeyRange, ...],
) -> tuple[tuple[RangeText, ...], tuple[MaskConstant, ...]]:
    """The ranges, and the constants that they name. Where there are several, names end with a number."""
    constants: list[MaskConstant] = []
    sizes = sorted({size for one in ranges for size in one.chunks})
    chunks = {
        size: ChunkText(f"chunk_begin{number}", f"kChunkSize{number}")
        for size, number in zip(sizes, _numbers(len(sizes)), strict=True)
    }
    unused = dict(chunks)
    texts = []
    windows = [one for one in ranges if _is_window(one)]
    numbers = dict(zip(windows, _numbers(len(windows)), strict=True))
    for index, one in enumerate(ranges):
        begins, ends, conditions = [], [], []
        if one in numbers:
            left, right = f"kWindowLeft{numbers[one]}", f"kWindowRight{numbers[one]}"
            conditions.append(
                f"Sliding window: {left} keys before the query's position, its own, and {right} after it."
            )
            if one.left is not None:
                constants.append(MaskConstant(left, one.left, "keys before the query's own"))
                begins.append(f"position - {left}")
            if one.right is not None:
                constants.append(MaskConstant(right, one.right, "keys after the query's own"))
                ends.append(f"position + {right} + 1")
        elif one.right == 0:
            ends.append("position + 1")
            if not one.chunks:
                conditions.append("Causal: the key at the query's position and those before it.")
        for size in one.chunks:
            chunk = chunks[size]
            own = f"Chunked: the keys of the query's own chunk of {chunk.size} positions"
            conditions.append(f"{own}{', up to its own position' if one.right == 0 else ''}.")
            begins.append(f"{chunk.function}(position)")
            if one.right != 0:  # the query's own position lies in its chunk
                ends.append(f"{chunk.function}(position) + {chunk.size}")
        if one.is_padded and not is_padded_throughout(ranges):
            conditions.append("Padding: the keys before the sequence's valid length.")
            ends.append("valid_keys")
        texts.append(
            RangeText(
                conditions=tuple(conditions or ["Every key."]),
                chunks=tuple(unused.pop(size) for size in one.chunks if size in unused),
                first="first_visible_key"
                if len(ranges) == 1
                else f"first_key_of_range_{index + 1}",
                end="end_of_visible_keys" if len(ranges) == 1 else f"end_of_range_{index + 1}",
                begin_value=_nested("max", begins, "0"),
                end_value=_nested("min", ends, "kNoLimit"),
                is_bounded=bool(begins),
            )
        )
    constants += [MaskConstant(chunks[size].size, size, "positions") for size in sizes]
    return tuple(texts), tuple(constants)


def _is_window(one: KeyRange) -> bool:
    return one.left is not None or one.right not in (None, 0)


def _numbers(count: int) -> list[str]:
    return [""] if count == 1 else [str(number + 1) for number in range(count)]


def _nested(function: str, values: list[str], nothing: str) -> str:
    """`max(a, max(b, c))`; of one value itself."""
    if not values:
        return nothing
    first, *others = values
    return f"{function}({first}, {_nested(function, others, nothing)})" if others else first
