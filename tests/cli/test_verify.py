"""`mlagen verify`: which trials it runs, what it prints, and its exit status. A stand-in gives the verdicts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import mlagen.cli.verify
from mlagen.plan.name import kernel_name
from mlagen.trials import Trial, Verdict
from mlagen.verify.problems import problem_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.cli.conftest import Command


@dataclass
class Runs:
    """Stands for `run_trials`: everything passes but what the test names."""

    trials: list[Trial] = field(default_factory=list)
    failing: str = "nothing"

    def __call__(self, trials: Sequence[Trial], *, jobs: int) -> Iterator[Verdict]:
        assert jobs >= 1
        for trial in trials:
            self.trials.append(trial)
            wrong = ("error: race: two writes",) if trial.problem == self.failing else ()
            yield Verdict(
                key=trial.key,
                kernel=kernel_name(trial.spec),
                problem=trial.problem,
                schedule=trial.schedule,
                complaints=wrong,
                findings=("race",) if wrong else (),
                out_error=0.25,
                lse_error=None,
                unreached=(7, 8) if trial.problem == "random" else (8, 9),
                replay="",
                seconds=0.5,
            )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs()
    monkeypatch.setattr(mlagen.cli.verify, "run_trials", stand_in)
    monkeypatch.setattr(mlagen.cli.verify, "gpu_count", lambda: 0)
    return stand_in


def test_all_problems_of_all_kernels_run(mlagen: Command, spec: Path, runs: Runs) -> None:
    outcome = mlagen("verify", spec)
    assert outcome.status == 0, outcome.err
    kernels = list(dict.fromkeys(trial.spec for trial in runs.trials))
    assert len(kernels) == 2
    for kernel in kernels:
        problems = [trial.problem for trial in runs.trials if trial.spec == kernel]
        assert problems == problem_names(kernel)
    assert {trial.schedule for trial in runs.trials} == {"lazy"}
    head, *rows = outcome.out.splitlines()
    assert head.split("  ")[0] == "kernel"
    assert [row.split()[0] for row in rows] == [kernel_name(kernel) for kernel in kernels]
    assert rows[0].split()[1:4] == [str(len(problem_names(kernels[0]))), "0", "0.25"]
    assert rows[0].split()[-3:-1] == ["none", "1"], "line 8 is reached by no problem"
    assert "none failed" in outcome.err


def test_words_choose_kernels_and_problems(mlagen: Command, spec: Path, runs: Runs) -> None:
    words = ("-k", "causal", "--problem", "walk", "--problem", "rising", "--schedule", "full")
    assert mlagen("verify", spec, *words).status == 0
    assert {kernel_name(trial.spec).split("_")[5] for trial in runs.trials} == {"causal"}
    problems = list(dict.fromkeys(trial.problem for trial in runs.trials))
    walks = ["integer walk", "three blocks walk", "huge rising walk", "three tiles walk"]
    assert problems == [*walks, "rising"], "rising is itself a name"
    schedules = list(dict.fromkeys(trial.schedule for trial in runs.trials))
    assert schedules == ["lazy", *(f"pct:{seed}" for seed in range(1, 9))]
    assert len(runs.trials) == 5 * 9


def test_the_first_trial_alone(mlagen: Command, spec: Path, runs: Runs) -> None:
    options = ("--first", "--ctas", "2", "--seed", "5", "--level", "practice")
    assert mlagen("verify", spec, *options).status == 0
    (trial,) = runs.trials
    assert (trial.problem, trial.seed, trial.ctas) == ("random", 5, 2)
    assert not isinstance(trial.backend, str)
    assert trial.backend.level == "practice"


def test_a_failure_is_shown_with_how_to_repeat_it(mlagen: Command, spec: Path, runs: Runs) -> None:
    runs.failing = "one key"
    outcome = mlagen("verify", spec, "-k", "causal", "--schedule", "pct:7", "--seed", "5")
    assert outcome.status == 1
    name = kernel_name(runs.trials[0].spec)
    assert "error: race: two writes" in outcome.err
    again = f"mlagen verify small.yaml --seed 5 --backend sim -k {name} --problem 'one key'"
    assert f"{again} --schedule pct:7\n" in outcome.err
    assert outcome.out.splitlines()[1].split()[2] == "1"
    assert "race" in outcome.out


def test_json(mlagen: Command, spec: Path, runs: Runs) -> None:
    runs.failing = "one key"
    outcome = mlagen("verify", spec, "-k", "causal", "--json")
    assert outcome.status == 1
    found = json.loads(outcome.out)
    assert found["passed"] is False
    assert [one["problem"] for one in found["trials"] if not one["passed"]] == ["one key"]


def test_what_has_passed_is_not_run_again(
    mlagen: Command, spec: Path, runs: Runs, tmp_path: Path
) -> None:
    runs.failing = "one key"
    log = tmp_path / "log.jsonl"
    words = ("verify", spec, "-k", "causal", "--log", log)
    assert mlagen(*words).status == 1
    runs.trials.clear()
    runs.failing = "nothing"
    outcome = mlagen(*words)
    assert outcome.status == 0
    assert [trial.problem for trial in runs.trials] == ["one key"]
    assert "passed before" in outcome.err
    assert outcome.out.splitlines()[1].split()[2] == "0"


def test_a_gpu_is_used_where_there_is_one(
    mlagen: Command, spec: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlagen.cli.verify.gpu_count", lambda: 1)
    mlagen("verify", spec)
    assert {trial.backend for trial in runs.trials} == {"cuda"}
    runs.trials.clear()
    mlagen("verify", spec, "--backend", "sim", "--first")
    assert not isinstance(runs.trials[0].backend, str)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--problem", "nonsense"), "no problem contains nonsense"),
        (("--schedule", "random"), "schedule 'random': not a schedule"),
        (("-k", "nonsense"), "no kernel of it matches -k nonsense"),
    ],
)
def test_nothing_to_run_is_bad_usage(
    mlagen: Command, spec: Path, runs: Runs, words: tuple[str, ...], message: str
) -> None:
    outcome = mlagen("verify", spec, *words)
    assert outcome.status == 2
    assert message in outcome.err
    assert not runs.trials


def test_a_trace_is_drawn(
    mlagen: Command, spec: Path, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlagen.cli.verify.draw_trial", lambda trial: f"<svg>{trial.problem}</svg>")
    path = tmp_path / "run.svg"
    assert mlagen("verify", spec, "--first", "--trace", path).status == 0
    assert path.read_text() == "<svg>random</svg>"


def test_a_gpu_that_is_not_there_is_said_before_anything_runs(
    mlagen: Command, spec: Path, runs: Runs
) -> None:
    outcome = mlagen("verify", spec, "--backend", "cuda")
    assert outcome.status == 3
    assert "no GPU" in outcome.err
    assert runs.trials == []


def test_a_negative_seed_is_a_wrong_argument(mlagen: Command, spec: Path, runs: Runs) -> None:
    outcome = mlagen("verify", spec, "--seed", "-1")
    assert outcome.status == 2
    assert "--seed" in outcome.err
    assert runs.trials == []
