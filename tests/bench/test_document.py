"""The JSON, the table, the page and the picture of a run."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from mlagen.bench.document import heading, markdown, refusals, short_name, table
from mlagen.bench.installed import OURS
from mlagen.bench.measure import Result
from mlagen.bench.plot import COLOURS, MARGIN, draw
from tests.bench.results import MACHINE, TIMED, document, result

FIELDS = {
    "row", "implementation", "regime", "kernel", "timing", "tflops", "rel_l2", "of_bound", "is_wrong", "refused",
    "best_peer", "ratio",
}  # fmt: skip
REFUSED = [
    Result("b1,s64,h8,causal", "fa4", "cool", refused="flash-attn-4: not installed"),
    Result("b2,s64,h8,causal", "fa4", "cool", refused="flash-attn-4: not installed"),
]


def test_the_document_is_json_with_everything() -> None:
    whole = document(TIMED)
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole
    assert set(whole) == {"machine", "command", "results"}
    assert all(set(one) == FIELDS for one in whole["results"])
    assert whole["results"][0]["timing"]["power_w"] == 612.5


def test_a_line_of_the_table_has_ours_and_every_peer() -> None:
    columns, lines = table(document([*TIMED, *REFUSED])["results"])
    assert columns == (
        "row", "regime", "ms", "mlagen TFLOP/s", "torch SDPA (cuDNN) TFLOP/s", "FlashInfer TFLOP/s",
        "× best peer", "SM MHz", "W", "relative L2 error",
    )  # fmt: skip
    row = "b1,s64,h8,causal"
    assert lines[0] == (
        row,
        "cool",
        "1.667",
        "600",
        "500",
        "480",
        "1.20",
        "1850",
        "612",
        "2.00e-03",
    )
    assert lines[1] == (row, "hot", "2.222", "450", "300", None, "1.50", "1850", "612", "2.00e-03")


def test_a_wrong_number_says_so() -> None:
    results = document([result(OURS, 600.0), result("flex", 900.0, is_wrong=True)])["results"]
    assert table(results)[1][0][3:6] == ("600", "900 (wrong)", None)


def test_refusals_are_told_once_with_their_rows() -> None:
    assert refusals(document(REFUSED)["results"]) == [
        "flash-attn-4, b1,s64,h8,causal; b2,s64,h8,causal: flash-attn-4: not installed"
    ]


def test_the_page_names_machine_command_and_picture() -> None:
    page = markdown(document([*TIMED, *REFUSED]), picture="run.svg")
    assert page.startswith("# NVIDIA B200: `mlagen bench small.yaml`\n")
    for words in (
        "CUDA 13.0",
        "flashinfer-python 0.7.4",
        "power limit 1000 W",
        "highest SM clock 1965 MHz",
    ):
        assert words in page
    assert "](run.svg)" in page
    assert "| b1,s64,h8,causal | hot | 2.222 | 450 | 300 |  | 1.50 |" in page
    assert "- flash-attn-4, " in page


def test_facts_that_are_not_known_are_not_in_the_heading() -> None:
    known = ("date", "gpu", "driver", "cubins", "torch", "cudnn", "python")
    assert heading({name: MACHINE[name] for name in known}).endswith(", Python 3.12.3")


@pytest.mark.parametrize(
    ("gpu", "name"), [("NVIDIA B200", "b200"), ("NVIDIA H200 NVL", "h200-nvl"), (None, "none")]
)
def test_a_gpu_names_its_files(gpu: str | None, name: str) -> None:
    assert short_name(gpu) == name


def bars(svg: str) -> list[tuple[str, float]]:
    """Colour and width of each bar."""
    return [
        (found[2], float(found[1]))
        for found in re.finditer(
            rf'<rect x="{MARGIN}" y="[^"]*" width="([^"]*)".*fill="(#\w+)"', svg
        )
    ]


def test_bars_are_as_long_as_their_numbers() -> None:
    svg = draw(document([*TIMED, *REFUSED]))
    ElementTree.fromstring(svg)  # noqa: S314  # our own text
    found = bars(svg)
    assert [colour for colour, _ in found] == [
        COLOURS[name] for name in (OURS, "torch_cudnn", "flashinfer", OURS, "torch_cudnn")
    ]
    per_tflops = [
        width / number for (_, width), number in zip(found, (600, 500, 480, 450, 300), strict=True)
    ]
    assert per_tflops == pytest.approx([per_tflops[0]] * 5, rel=1e-3)
    assert "1.20 ×" in svg
    assert "1.50 ×" in svg


def test_a_run_of_nothing_can_be_drawn() -> None:
    assert bars(draw(document(REFUSED))) == []
    ElementTree.fromstring(draw(document([])))  # noqa: S314
