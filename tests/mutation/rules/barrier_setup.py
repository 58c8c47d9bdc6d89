"""Setting mbarriers up: counts, the fence, and the block's first synchronisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import argument, at_calls, gone, removed, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.mutation.source import Edit, Source


def _count(name: str, description: str, change: Callable[[int], int]) -> Rule:
    def plant(source: Source) -> Iterator[Edit]:
        for call in source.calls("barrier_init"):
            changed = change(int(source.argument(call, 1)))
            if changed > 0:
                yield argument(call, 1, str(changed))

    return Rule(name, description, plant)


RULES = (
    _count("init-count-low", "a barrier expects one arrival too few", lambda count: count - 1),
    _count("init-count-high", "a barrier expects one arrival too many", lambda count: count + 1),
    _count("init-count-of-lanes", "a barrier counts lanes, not warps", lambda count: 32 * count),
    Rule(
        "init-removed",
        "barriers of one kind are not initialised",
        at_calls("barrier_init", removed),
    ),
    Rule(
        "init-fence-removed",
        "barriers are not made visible to TMA",
        gone("fence_barrier_init"),
    ),
    replaced(
        "block-sync-removed",
        "warps start before the barriers are initialised",
        r"(?:__syncthreads|pair_sync)\(\);",
        ";",
    ),
    replaced(
        "block-sync-early",
        "barriers are initialised behind the block's synchronisation",
        r"(if \(threadIdx\.x == 0\) init_barriers\(shared\);)(\s*)(__syncthreads\(\);)",
        r"\3\2\1",
    ),
    replaced(
        "init-by-all-threads",
        "every thread initialises the barriers",
        r"if \(threadIdx\.x == 0\) (?=init_barriers)",
        "",
    ),
)
