"""The project's own measurements as far as they run without a GPU: goals, and what they write into documents."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import prefill, publish
from benchmarks.device_run import STAGES
from benchmarks.prefill import GOALS, missed_goals
from benchmarks.prepare_kernels import SPECS
from benchmarks.publish import FOLDER, README, page, pages, readme_block, runs, with_block
from mlagen.bench.installed import OURS
from mlagen.bench.rows import SETS
from mlagen.errors import MissingDependencyError
from tests.bench.results import MACHINE, document, result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlagen.bench.measure import Measurement, Result
    from mlagen.bench.rows import Row

ROW = SETS["figures"][0]


def report() -> dict[str, Any]:
    """What `device_run` leaves."""
    timed = [
        one
        for row in SETS["figures"]
        for one in (
            result(OURS, 800.0, row=row),
            result("torch_cudnn", 640.0, row=row),
            result(OURS, 500.0, row=row, regime="hot"),
        )
    ]
    stages = [
        {
            "name": "doctor",
            "command": "python -m mlagen doctor",
            "status": "passed",
            "tail": "a | b",
        },
        {
            "name": "figures",
            "command": "python -m benchmarks.prefill --json x",
            "status": "passed",
            "tail": "",
        },
    ]
    return {"machine": MACHINE, "stages": stages, "results": {"figures": document(timed)}}


def test_every_spec_that_is_built_ahead_exists() -> None:
    assert all(path.exists() for path in SPECS)


def test_stages_write_into_files_of_their_own() -> None:
    files = [stage.result for stage in STAGES.values() if stage.result]
    assert len(set(files)) == len(files)


def test_goals_are_of_rows_that_are_timed() -> None:
    assert set(GOALS) == set(SETS["figures"])


@pytest.mark.parametrize(
    ("ours", "cudnn", "regime", "missed"),
    [(115.0, 100.0, "cool", 0), (114.9, 100.0, "cool", 1), (100.0, 100.0, "hot", 0)],
)
def test_a_goal_is_a_ratio_to_cudnn_in_short_bursts(
    ours: float, cudnn: float, regime: Any, missed: int
) -> None:
    pair = [(OURS, ours), ("torch_cudnn", cudnn), ("flex", 1e3)]
    results = [result(name, speed, row=ROW, regime=regime) for name, speed in pair]
    assert len(missed_goals(document(results)["results"])) == missed


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """A command line, on a B200 on which every row runs at 600 TFLOP/s, and cuDNN at 500."""

    def time_row(specs: Sequence[Any], row: Row, how: Measurement) -> list[Result]:
        assert {spec.arch for spec in specs} == {"sm_100a"}
        pair = [(OURS, 600.0), *((name, 500.0) for name in how.peers)]
        return [result(name, speed, row=row.name, regime="cool") for name, speed in pair]

    monkeypatch.setattr(prefill, "archs_of_gpu", lambda: ("sm_100a",))
    monkeypatch.setattr(prefill, "facts", lambda: MACHINE)
    monkeypatch.setattr(prefill, "time_row", time_row)
    return argparse.Namespace(
        rows=["figures"],
        peers=["torch_cudnn"],
        regime=["cool"],
        budget_ms=250.0,
        json=tmp_path / "prefill.json",
    )


def test_the_figures_are_written_and_their_goals_checked(
    arguments: argparse.Namespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert prefill.run(arguments) == 0
    written = json.loads(arguments.json.read_text(encoding="utf-8"))
    assert [one["row"] for one in written["results"][::2]] == list(SETS["figures"])
    assert "no goal was missed" in capsys.readouterr().out
    monkeypatch.setitem(GOALS, ROW, 1.21)
    assert prefill.run(arguments) == 1
    assert f"MISSED: {ROW} is 1.200 times as fast as cuDNN, goal 1.21" in capsys.readouterr().out


def test_without_a_gpu_there_are_no_figures(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "archs_of_gpu", lambda: None)
    with pytest.raises(MissingDependencyError, match="no GPU"):
        prefill.run(arguments)


def test_figures_replace_only_what_stands_between_the_markers() -> None:
    text = README.read_text(encoding="utf-8")
    changed = with_block(text, "figures", "new")
    head, begin, tail = text.partition("<!-- figures:begin")
    end = "<!-- figures:end -->"
    marker = tail.splitlines()[0]
    assert changed == f"{head}{begin}{marker}\nnew\n{end}{tail.partition(end)[2]}"


def test_readme_figures_name_machine_command_and_page() -> None:
    block = readme_block("2026-12-02-b200", report())
    assert "| causal 2k tokens | 800 TFLOP/s | 640 TFLOP/s | 1.25 × |" in block
    assert "| dense 8k tokens | 800 TFLOP/s" in block
    assert "500" not in block  # of the other regime
    for words in (
        "NVIDIA B200",
        "python -m benchmarks.prefill",
        "(docs/performance/2026-12-02-b200.md)",
    ):
        assert words in block


def test_the_page_of_a_run_has_its_tables_commands_and_plots() -> None:
    text = page("2026-12-02-b200", report())
    assert f"| {ROW} | cool | 1.250 | 800 | 640 | 1.25 |" in text
    assert "`python -m benchmarks.prefill`" in text
    assert "](2026-12-02-b200.figures.svg)" in text
    assert "| `python -m mlagen doctor` | passed: a \\| b |" in text


def test_the_index_lists_the_newest_run_first() -> None:
    lines = runs({"a": report(), "b": report()}).splitlines()[2:]
    assert [line.split("](")[1].split(".md")[0] for line in lines] == ["b", "a"]


def test_a_new_report_gets_a_page_and_renews_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text(
        "<!-- runs:begin -->\n<!-- runs:end -->\n<!-- figures:begin -->\n<!-- figures:end -->\n"
    )
    new = tmp_path / "results.json"
    new.write_text(json.dumps(report()), encoding="utf-8")
    folder = tmp_path / "performance"
    folder.mkdir()
    (folder / "README.md").write_text("<!-- runs:begin -->\n<!-- runs:end -->\n")
    for name, path in {
        "ROOT": tmp_path,
        "FOLDER": folder,
        "README": tmp_path / "README.md",
    }.items():
        monkeypatch.setattr(publish, name, path)
    monkeypatch.setattr("sys.argv", ["publish", str(new)])
    publish.main()
    made = sorted(path.name for path in folder.iterdir())
    name = "2026-12-02-b200"
    assert made == [f"{name}.figures.svg", f"{name}.json", f"{name}.md", "README.md"]
    assert f"[2026-12-02 11:12 UTC]({name}.md)" in (folder / "README.md").read_text(
        encoding="utf-8"
    )
    assert f"(docs/performance/{name}.md)" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_committed_pages_are_what_their_reports_say() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python -m benchmarks.publish"
    assert {path.suffix for path in FOLDER.iterdir()} == {".json", ".md", ".svg"}
