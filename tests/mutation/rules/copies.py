"""TMA: boxes missing, doubled or from elsewhere; stores that nobody commits or waits for; the proxy fence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import (
    argument,
    asm_statements,
    at_calls,
    blanked,
    doubled,
    gone,
    guarded,
    removed,
    replaced,
)
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Call, Source

_BOXES = "load_clipped|load_clipped_page|load_packed|load_batched"
_LOADS = f"{_BOXES}|tma_load"
_STORES = "store_clipped|store_batched"


def _copies(source: Source, names: str) -> Iterator[Call]:
    """Copies that a role issues, not the device functions' own calls of each other."""
    for call in source.calls(names):
        if source.function(call.start).startswith(("LoadWarp", "MathWarpgroup", "StoreWarp")):
            yield call


def _removed(names: str) -> object:
    return lambda source: (removed(source, call) for call in _copies(source, names))


def _column(source: Source) -> Iterator[Edit]:
    """64 columns on, or back where there are none."""
    for call in _copies(source, _BOXES):
        column = source.argument(call, 3)
        is_later = column.isdigit() and int(column) > 0
        yield argument(call, 3, f"{column} - 64" if is_later else f"64 - {column}")
    for call in _copies(source, _STORES):
        yield argument(call, 2, f"64 - ({source.argument(call, 2)})")


def _row(source: Source) -> Iterator[Edit]:
    for call in _copies(source, _LOADS):
        yield argument(call, 5, f"{source.argument(call, 5)} + 1")
    for call in _copies(source, _STORES):
        yield argument(call, 4, f"{source.argument(call, 4)} + 1")


def _head(source: Source) -> Iterator[Edit]:
    for call in _copies(source, f"{_BOXES}|{_STORES}"):
        for span in call.arguments:
            if source.text[slice(*span)].startswith("tile.head"):
                yield Edit(*span, "0")


def _panel(source: Source) -> Iterator[Edit]:
    """The first panel in place of a later one, the second in place of the first."""
    for call in _copies(source, f"{_BOXES}|{_STORES}"):
        place = 1 if source.text[call.start :].startswith("store") else 0
        region = source.argument(call, place)
        panel = re.search(r"(\w+)(?=[\])](?:\[first\])?$)", region)
        assert panel is not None
        index = panel[0]
        other = f"1 - {index}" if not index.isdigit() else "0" if int(index) else "1"
        yield argument(call, place, f"{region[: panel.start()]}{other}{region[panel.end() :]}")


def _store_commit_gone(source: Source) -> Iterator[Edit]:
    for name in ("tma_store_commit", "tma_store_wait_read"):
        for start, end in asm_statements(source, name):
            yield blanked(source, start, end)
        for call in source.calls(name):
            yield removed(source, call)


def _fence_late(source: Source) -> Iterator[list[Edit]]:
    """Behind the barrier by which others learn that the writes are done."""
    for call in source.calls("fence_async_proxy"):
        start, end = source.statement(call)
        _, end_of_function = source.around(start)
        barrier = next(
            source.find(r"(?:named_barrier_sync|warp_arrive)\([^;]*;", end, end_of_function)
        )
        yield source.moved(start, end, barrier.end())


RULES = (
    Rule("copy-removed", "a box is not loaded or stored", _removed(f"{_LOADS}|{_STORES}")),  # type: ignore[arg-type]  # NumPy's stubs, or a table of many types
    Rule(
        "copy-twice",
        "a box is copied twice",
        lambda source: (doubled(source, call) for call in _copies(source, f"{_LOADS}|{_STORES}")),
    ),
    Rule("copy-other-column", "a box of other columns", _column),
    Rule("copy-other-row", "a box one row on", _row),
    Rule("copy-first-head", "a box of the first head", _head),
    Rule("copy-other-panel", "a box at the place of another", _panel),
    replaced(
        "clip-removed",
        "rows past a sequence's end are those of the next",
        r"kClippedRows - rows\.length \+ row, kClippedRows,(\s*)rows\.offset \+ rows\.length",
        r"0, 0,\1(rows.offset + row)",
    ),
    replaced(
        "offset-removed",
        "a sequence's rows begin at the tensor's start",
        r"rows\.offset \+ ",
        "",
    ),
    replaced(
        "page-clip-removed",
        "rows of a page behind a sequence's end are those that lie there",
        r"min\(row \+ rows_left, kPageSize\)",
        "kPageSize",
    ),
    replaced("batch-fixed", "rows of the first sequence", r"row, rows\.batch", "row, 0"),
    Rule("store-unfinished", "a store is not committed, or not waited for", _store_commit_gone),
    replaced(
        "store-wait-loose",
        "a wait lets one store be unfinished",
        r"wait_group\.read 0",
        "wait_group.read 1",
    ),
    Rule("proxy-fence-removed", "no proxy fence before a store", gone("fence_async_proxy")),
    Rule("proxy-fence-late", "the proxy fence behind the barrier", _fence_late),
    Rule(
        "proxy-fence-by-one-warp",
        "only the storing warp fences",
        at_calls("fence_async_proxy", lambda source, call: guarded(source, call, "thread() < 32")),
    ),
)
