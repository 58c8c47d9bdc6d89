"""Findings as values, as text and as JSON; the catalogue of their kinds against the sources and the documentation."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import mlagen.sim
from mlagen.sim.finding_kinds import KINDS
from mlagen.sim.report import (
    MOST_FINDINGS,
    Finding,
    Findings,
    Names,
    Site,
    render_text,
    role_of,
    to_json,
)
from tests.sim.ptx_kernel import BASE, launch, only

NAMES = Names(
    barriers={0: "k_full[0]", 8: "k_full[1]"},
    regions=((1024, 512, "k[0]"), (1536, 512, "k[1]")),
    roles={0: "load warp", 4: "math warpgroup 0", 8: "math warpgroup 1"},
    source="first\n  k_full[stage].arrive();\nthird\n",
)
ALL = 0xFFFFFFFF


def site(*, line: int = 7, warp: int = 5, lanes: int = ALL, source_line: int | None = None) -> Site:
    return Site(3, warp, lanes, "mbarrier.arrive", line, source_line, 12)


def test_the_same_kind_at_the_same_places_counts_once() -> None:
    findings = Findings(NAMES)
    for step in range(3):
        findings.add("race", f"time {step}", site())
    findings.add("race", "elsewhere", site(line=8))
    findings.add("race", "against another", site(), earlier=site(line=9))
    findings.add("deadlock", "another kind", site())
    assert [one.message for one in findings.items] == [
        "time 0",
        "elsewhere",
        "against another",
        "another kind",
    ]


def test_there_is_an_end_of_findings() -> None:
    findings = Findings(NAMES)
    for line in range(2 * MOST_FINDINGS):
        findings.add("race", "", site(line=line))
    assert len(findings.items) == MOST_FINDINGS


@pytest.mark.parametrize(
    ("offset", "region"),
    [(1023, None), (1024, "k[0]"), (1535, "k[0]"), (1536, "k[1]"), (2047, "k[1]"), (2048, None)],
)
def test_regions_have_ends(offset: int, region: str | None) -> None:
    assert Findings(NAMES).region_name(offset) == region


@pytest.mark.parametrize(
    ("warp", "role"),
    [(0, "load warp"), (3, "load warp"), (4, "math warpgroup 0"), (11, "math warpgroup 1")],
)
def test_a_role_reaches_to_the_next(warp: int, role: str) -> None:
    assert role_of(NAMES, warp) == role
    assert role_of(Names(roles={4: "math"}), 3) is None


def test_text_says_what_where_and_how_to_mend_it() -> None:
    finding = Finding(
        "mbarrier-over-arrival",
        "error",
        "k_full[1]: 2 arrivals, phase 0 lacks only 1 of 1",
        site(lanes=0b1, source_line=2),
        site(line=20, warp=0, lanes=0b1011),
        barrier="k_full[1]",
        region="k[1]",
    )
    assert render_text([finding], NAMES).splitlines() == [
        "error: mbarrier-over-arrival: k_full[1]: 2 arrivals, phase 0 lacks only 1 of 1 (k[1])",
        "  at: line 2, CTA 3, warp 5 (math warpgroup 0), lane 0, step 12: mbarrier.arrive",
        "        2 | k_full[stage].arrive();",
        "  earlier: PTX line 20, CTA 3, warp 0 (load warp), lanes 0-1 and 3, step 12: mbarrier.arrive",
        f"  {KINDS['mbarrier-over-arrival'].advice}",
    ]


def test_text_without_names_falls_back_to_numbers() -> None:
    text = render_text([Finding("trap", "note", "stop", site(source_line=99))], Names())
    assert text.splitlines() == [
        "note: trap: stop",
        "  at: line 99, CTA 3, warp 5, step 12: mbarrier.arrive",
    ]


def test_findings_are_parted_by_an_empty_line() -> None:
    one = Finding("trap", "error", "stop")
    assert render_text([one, one], NAMES) == "error: trap: stop\n\nerror: trap: stop"
    assert render_text([], NAMES) == ""


def test_json_holds_everything_by_name() -> None:
    finding = Finding("race", "error", "text", site(), None, region="k[0]")
    (value,) = json.loads(json.dumps(to_json([finding])))
    assert value == {
        "kind": "race",
        "severity": "error",
        "message": "text",
        "site": {
            "cta": 3,
            "warp": 5,
            "lanes": ALL,
            "opcode": "mbarrier.arrive",
            "ptx_line": 7,
            "source_line": None,
            "step": 12,
            "call_lines": [],
        },
        "earlier": None,
        "barrier": None,
        "region": "k[0]",
    }


def test_a_race_in_a_kernel_names_region_roles_and_both_lines() -> None:
    names = Names(regions=((64, 128, "scratch"),), roles={0: "load warp", 1: "math warp"})
    body = only(3, f"st.shared.u32 [{BASE + 64}], 1;") + only(
        40, f"ld.shared.u32 %r1, [{BASE + 64}];"
    )
    (finding,) = launch(body, {}, threads=64, names=names).findings
    assert (finding.kind, finding.region) == ("race", "scratch")
    assert finding.site is not None
    assert finding.earlier is not None
    assert (finding.site.warp, finding.site.lanes, finding.site.opcode) == (
        1,
        1 << 8,
        "ld.shared.u32",
    )
    assert (finding.earlier.warp, finding.earlier.lanes) == (0, 1 << 3)
    assert finding.earlier.ptx_line < finding.site.ptx_line
    text = render_text([finding], names)
    assert "warp 1 (math warp), lane 8" in text
    assert "warp 0 (load warp), lane 3" in text


def kinds_in_the_sources() -> set[str]:
    """First arguments of whatever reports findings, where they are literal, and names bound to kinds."""
    found = set()
    for path in Path(mlagen.sim.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                first = node.args[0]
                if name in {"add", "report", "_report", "_report_first"} and isinstance(
                    first, ast.Constant
                ):
                    found.add(first.value)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.Tuple):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                value = (
                    node.value.elts[0]
                    if isinstance(node.value, ast.Tuple) and node.value.elts
                    else node.value
                )
                if names & {"kind", "problem"} and isinstance(value, ast.Constant):
                    found.add(value.value)
    return {one for one in found if isinstance(one, str)}


def test_every_kind_that_is_reported_is_in_the_catalogue() -> None:
    found = kinds_in_the_sources()
    assert len(found) > 40
    assert found <= set(KINDS)
    # two are chosen among by a variable
    assert set(KINDS) - found <= {"proxy-fence", "tcgen05-fence"}


def test_the_documentation_has_the_catalogue() -> None:
    text = (Path(__file__).parents[2] / "docs/simulator.md").read_text(encoding="utf-8")
    for name, kind in KINDS.items():
        assert f"| `{name}` | {kind.meaning} | {kind.source} | {kind.practice} |" in text, name
    rows = [line for line in text.splitlines() if line.startswith("| `") and line.count("|") == 5]
    assert {row.split("`")[1] for row in rows} >= set(KINDS)
