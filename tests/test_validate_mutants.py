"""Faulty kernels on a GPU, without one: jobs, children that fail in every way, verdicts, tables."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import validate_simulator
from benchmarks.validation import mutant_compare, mutants
from benchmarks.validation.mutants import DryLauncher, Job, read_jobs, run_batches, write_jobs
from benchmarks.validation.publish import with_tables
from benchmarks.validation.whole import input_digest, specs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlagen.trials import Outputs
    from mlagen.verify.problems import Problem

# The parent of these children has NumPy's threads, which they do not use.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

KERNEL = next(iter(specs()))
PROBLEM = "one key"
LIMIT_S = 30.0


def job(group: mutants.Group, fault: str = "", *, launches: int = 1) -> Job:
    inputs = input_digest(mutants.known_problem(KERNEL, PROBLEM)[0]).hex()
    simulator = {"clean": "clean", "lucky": "race", "deadlock": "deadlock"}[group]
    return Job(group, fault, KERNEL, PROBLEM, "0.cubin", inputs, simulator, launches=launches)


@dataclass(frozen=True)
class Fake:
    """Does what a function does, in place of launches of faulty kernels."""

    act: Callable[[], object]

    def start(self) -> None:
        """Nothing to do."""

    def launch(self, job: Job, problem: Problem, outputs: Outputs) -> None:
        """The exact result, for clean kernels; outputs stay unwritten otherwise."""
        if job.group == "clean":
            DryLauncher().launch(job, problem, outputs)
        else:
            self.act()


def fail() -> None:
    raise RuntimeError("CUDA error: unspecified launch failure\nadvice")


def outcomes(batch: list[Job], act: Callable[[], object], *, limit_s: float = LIMIT_S) -> list[str]:
    return [answer.outcome for _, answer in run_batches([batch], Fake(act), limit_s=limit_s)]


def test_jobs_come_back_as_they_were_written(tmp_path: Path) -> None:
    jobs = [job("clean"), job("lucky", "a @ b", launches=7)]
    write_jobs(tmp_path, jobs)
    assert read_jobs(tmp_path) == jobs


def test_an_exact_result_is_ok() -> None:
    ((_, answer),) = run_batches([[job("clean", launches=3)]], DryLauncher())
    assert (answer.outcome, answer.wrong, answer.distinct) == ("ok", 0, 1)


def test_outputs_that_are_not_written_are_wrong() -> None:
    ((_, answer),) = run_batches([[job("lucky", launches=3)]], Fake(lambda: None))
    assert (answer.outcome, answer.wrong, answer.distinct) == ("wrong", 3, 1)
    assert "not written" in answer.detail


def test_a_failure_at_once_is_no_time_limit() -> None:
    ((_, answer),) = run_batches([[job("deadlock")]], Fake(fail))
    assert answer.outcome == "error"
    assert answer.detail == "CUDA error: unspecified launch failure"


def test_a_failure_behind_the_clock_limit_is_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "SHORTEST_TRAP_S", 0.0)
    assert outcomes([job("deadlock")], fail) == ["trap"]


def test_a_child_that_exits_is_an_error() -> None:
    ((_, answer),) = run_batches([[job("deadlock")]], Fake(lambda: os._exit(3)))
    assert (answer.outcome, answer.detail) == ("error", "the child ended with status 3")


def test_a_child_that_hangs_is_killed() -> None:
    begin = time.monotonic()
    assert outcomes([job("deadlock")], lambda: time.sleep(600), limit_s=0.5) == ["killed"]
    assert time.monotonic() - begin < 100


def test_the_rest_of_a_batch_goes_on_in_another_child() -> None:
    batch = [job("clean"), job("lucky", "a"), job("clean"), job("lucky", "b"), job("clean")]
    assert outcomes(batch, fail) == ["ok", "error", "ok", "error", "ok"]


def test_many_batches_give_one_answer_each() -> None:
    batches = [[job("deadlock", str(number))] for number in range(7)]
    found = list(run_batches(batches, Fake(fail)))
    assert {one.fault for one, _ in found} == set("0123456")
    assert len(found) == 7


def test_jobs_with_other_inputs_are_not_run(tmp_path: Path) -> None:
    write_jobs(tmp_path, [replace(job("clean"), inputs="00")])
    assert mutants.record_all(tmp_path, tmp_path, launcher=DryLauncher()) == 1
    (result,) = mutant_compare.load_recording(tmp_path)["results"]
    assert result["outcome"] == "error"
    assert "other inputs" in result["detail"]


def test_a_dry_record_and_its_comparison_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "SHORTEST_TRAP_S", 0.0)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    folder = tmp_path / "mutants"
    folder.mkdir()
    write_jobs(folder, [job("deadlock", "r @ x"), job("clean"), job("lucky", "l @ y", launches=4)])
    for arguments in (
        ["record", "mutants", str(tmp_path), "--dry"],
        ["compare", "mutants", str(tmp_path / "out"), str(tmp_path / "results")],
    ):
        monkeypatch.setattr(sys, "argv", ["validate_simulator", *arguments])
        assert validate_simulator.main() == 0
    printed = capsys.readouterr().out
    assert "| `r` | 1 | 1 | deadlock | 1 trap | 1 of 1 |" in printed
    assert "| `l @ y` | race | 4 of 4 |" in printed
    assert "0 disagree" in printed
    section = mutant_compare.section(tmp_path / "out", tmp_path / "results")
    assert "Agreeing: 2 of 2." in section


@pytest.mark.parametrize(("group", "outcome"), [("deadlock", "ok"), ("clean", "trap")])
def test_a_gpu_that_does_otherwise_disagrees(tmp_path: Path, group: str, outcome: str) -> None:
    result = dict.fromkeys(mutant_compare._KEPT, "") | {"group": group, "outcome": outcome}
    recording = {"facts": {}, "results": [result]}
    (tmp_path / mutants.RECORDING).write_text(json.dumps(recording))
    assert mutant_compare.compare_all(tmp_path, tmp_path / "mutants.jsonl") == 1


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb\n"
    assert with_tables(page, {"x": "new", "y": ""}) == page.replace("old", "new")
    with pytest.raises(ValueError, match="<!-- y -->"):
        with_tables(page, {"y": "new"})
