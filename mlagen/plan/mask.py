"""Masks in one normal form: a query sees the keys of any of a few ranges, each given by its position.

A range is the intersection of a window around the query's position, of the chunks that the query lies in and of the
sequence's valid keys, so it is an interval whose ends never fall as the position rises. Every combination of such masks
by `all` and `any` is a union of ranges: `all` intersects each range of one part with each of another, `any` adds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RANGE_MASKS = ("none", "causal", "sliding_window", "chunked", "padding")
# A score is held against every range: more of them would be slow, and no model has asked for them.
MAX_RANGES = 4


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys that meet all of these conditions.

    Attributes:
        left: Keys seen before the query's own; None is no bound.
        right: Keys seen after it.
        chunks: Sizes of the chunks of which the query and the key share one each.
        is_padded: Only keys before the sequence's valid length.
    """

    left: int | None = None
    right: int | None = None
    chunks: tuple[int, ...] = ()
    is_padded: bool = False

    def meets(self, other: KeyRange) -> bool:
        """Whether all of its keys lie in another range."""
        return (
            _is_within(self.left, other.left)
            and _is_within(self.right, other.right)
            and all(any(size % own == 0 for own in self.chunks) for size in other.chunks)
            and self.is_padded >= other.is_padded
        )

    def intersection(self, other: KeyRange) -> KeyRange:
        """The keys in both."""
        sizes = sorted({*self.chunks, *other.chunks})
        return KeyRange(
            left=_smaller(self.left, other.left),
            right=_smaller(self.right, other.right),
            # A chunk that is a part of another says all.
            chunks=tuple(
                size for size in sizes if not any(size % own == 0 for own in sizes if own < size)
            ),
            is_padded=self.is_padded or other.is_padded,
        )


def parts_of(mask: Any) -> Iterator[Any]:  # Any: the union of spec.mask
    """The masks that a combination is made of, however deep, or the mask itself."""
    if mask.kind not in ("all", "any"):
        yield mask
        return
    for part in mask.of:
        yield from parts_of(part)


def key_ranges(mask: Any) -> tuple[KeyRange, ...] | None:  # Any: the union of spec.mask
    """The ranges whose union a query sees, none inside another; None if they are more than MAX_RANGES.

    Args:
        mask: One of RANGE_MASKS, or a combination of such.
    """
    match mask.kind:
        case "none":
            return (KeyRange(),)
        case "causal":
            return (KeyRange(right=0),)
        case "sliding_window":
            return (KeyRange(left=mask.left, right=mask.right),)
        case "chunked":
            return (KeyRange(right=0 if mask.causal else None, chunks=(mask.size,)),)
        case "padding":
            return (KeyRange(is_padded=True),)
    found: tuple[KeyRange, ...] = (KeyRange(),) if mask.kind == "all" else ()
    for part in mask.of:
        ranges = key_ranges(part)
        if ranges is None:
            return None
        if mask.kind == "all":
            found = _without_parts(one.intersection(other) for one in found for other in ranges)
        else:
            found = _without_parts((*found, *ranges))
        if len(found) > MAX_RANGES:
            return None
    return found


def mask_bounds(ranges: tuple[KeyRange, ...]) -> tuple[bool, bool]:
    """Whether blocks of keys may lie across the edge of what a row sees on the left, and on the right, of it.

    The end of the keys, or of the valid ones, is no such edge: all rows share it, and only the last block reaches it.
    """
    if len(ranges) > 1:
        return True, True
    only = ranges[0]
    return (
        only.left is not None or bool(only.chunks),
        only.right is not None or bool(only.chunks),
    )


def takes_valid_lengths(mask: Any) -> bool:  # Any: the union of spec.mask
    """Whether a mask asks for the valid keys of a sequence."""
    return any(one.is_padded for one in key_ranges(mask) or ())


def is_padded_throughout(ranges: tuple[KeyRange, ...]) -> bool:
    """Whether no query sees a key that is not valid, so that a sequence may as well end there."""
    return all(one.is_padded for one in ranges)


def _without_parts(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The ranges that lie in no other, in order, each once."""
    found: list[KeyRange] = []
    for one in ranges:
        if not any(one.meets(other) for other in found):
            found = [other for other in found if not other.meets(one)] + [one]
    return tuple(found)


def _is_within(bound: int | None, other: int | None) -> bool:
    return other is None or (bound is not None and bound <= other)


def _smaller(bound: int | None, other: int | None) -> int | None:
    return min((one for one in (bound, other) if one is not None), default=None)
