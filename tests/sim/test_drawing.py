from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from mlagen.sim.drawing import HEAD, MARGIN, WIDTH, draw
from mlagen.sim.report import Names
from mlagen.sim.trace import TraceEvent

if TYPE_CHECKING:
    from mlagen.sim.trace import EventKind

NAMES = Names(roles={0: "load", 4: "math <0>"}, source="first\na < b\nthird")


def event(
    step: int,
    kind: EventKind,
    label: str,
    *,
    warp: int | None = 0,
    operation: int | None = None,
    cta: int = 0,
    line: int | None = None,
) -> TraceEvent:
    return TraceEvent(step, cta, warp, operation, kind, 0, line, label)


EVENTS = (
    event(1, "run", "mbarrier.init.b64"),
    event(2, "issue", "tma load", operation=-1, line=2),
    event(2, "run", "cp.async.bulk.tensor.2d"),
    event(3, "wait", "mbarrier.try_wait.b64", warp=4, line=2),
    event(50, "complete", "tma load", warp=None, operation=-1),
    event(59, "run", "mbarrier.try_wait.b64", warp=4),
    event(99, "issue", "wgmma", warp=4, operation=-2),
    event(99, "run", "wgmma.mma_async", warp=4),
)


def elements(text: str, tag: str) -> list[ET.Element]:
    root = ET.fromstring(text)  # noqa: S314  # our own text
    return [one for one in root if one.tag.endswith(tag)]


def bars(text: str) -> dict[str, ET.Element]:
    """The bars of a drawing by their titles."""
    return {one[0].text or "": one for one in elements(text, "rect") if len(one)}


def test_lanes_are_roles_and_kinds_of_operations() -> None:
    texts = [one.text for one in elements(draw(EVENTS, NAMES), "text")]
    assert texts[-4:] == [
        "block 0: load",
        "block 0: math <0>",
        "block 0: tma load",
        "block 0: wgmma",
    ]
    assert texts[0] is not None
    assert "order, not time" in texts[0]


def test_bars_lie_where_their_steps_are() -> None:
    found = bars(draw(EVENTS, NAMES))
    scale = (WIDTH - MARGIN) / 100
    load = found["tma load, step 2, line 2: a < b"]
    assert float(load.get("x", 0)) == round(MARGIN + 2 * scale, 1)
    assert float(load.get("width", 0)) == round(48 * scale, 1)
    wait = found["waits: mbarrier.try_wait.b64, step 3, line 2: a < b"]
    assert float(wait.get("width", 0)) == round(56 * scale, 1)
    assert float(wait.get("y", 0)) > float(found["mbarrier.init.b64, step 1"].get("y", 0)) >= HEAD


def test_an_operation_that_never_completes_reaches_the_end() -> None:
    found = bars(draw(EVENTS, NAMES))
    product = found["wgmma, step 99"]
    assert float(product.get("x", 0)) + float(product.get("width", 0)) == WIDTH


def test_steps_of_one_kind_are_one_bar() -> None:
    events = [event(step, "run", "wgmma.mma_async") for step in (1, 5, 9, 200)]
    assert sorted(bars(draw(events, NAMES))) == [
        "wgmma.mma_async, step 1",
        "wgmma.mma_async, step 200",
    ]


def test_operations_that_overlap_lie_in_rows_of_their_own() -> None:
    events = []
    for number, begin, end in ((-1, 1, 10), (-2, 5, 12), (-3, 11, 15)):
        events.append(event(begin, "issue", "wgmma", operation=number))
        events.append(event(end, "complete", "wgmma", operation=number, warp=None))
    tops = {title: bar.get("y") for title, bar in bars(draw(events, NAMES)).items()}
    assert tops["wgmma, step 1"] == tops["wgmma, step 11"] != tops["wgmma, step 5"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert bars(draw((), NAMES)) == {}


def test_a_bar_names_the_calls_that_led_to_its_line() -> None:
    inlined = TraceEvent(1, 0, 0, None, "run", 0, 1, "bar.sync", (2, 3))
    (title,) = bars(draw([inlined], NAMES))
    assert title == "bar.sync, step 1, line 1: first\nline 2: a < b\nline 3: third"
