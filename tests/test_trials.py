"""Trials: what counts as wrong, and that a log spares repetitions. Here a stand-in computes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import multiprocessing.connection
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mlagen.trials
from mlagen.errors import SimulationError, UnsupportedPtxError
from mlagen.plan import plan_kernel
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.plan_names import names_of
from mlagen.runtime.simulator import Simulated, Simulator
from mlagen.sim.report import Finding
from mlagen.sim.simulate import SimulationResult
from mlagen.sim.trace import Counters
from mlagen.trial_log import TrialLog
from mlagen.trials import Trial, Verdict, _in_processes, run_trial, run_trials
from mlagen.verify.reference import reference
from tests.runtime.calls import make_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = make_spec(mask="causal", lse=True)


def leave(arguments: dict[str, Any]) -> None:
    """Damage nothing."""


@dataclass
class StandIn:
    """Computes by the reference, rounds, and then does what the test says."""

    damage: Callable[[dict[str, Any]], None] = leave
    findings: tuple[Finding, ...] = ()
    error: Exception | None = None
    simulators: list[Simulator] = field(default_factory=list)

    def simulate(self, arguments: dict[str, Any], *, simulator: Simulator) -> Simulated:
        self.simulators.append(simulator)
        if self.error:
            raise self.error
        call = parse_call(arguments)
        out, lse = reference(SPEC, call.tensors, softmax_scale=call.options.softmax_scale)
        rows = int(call.tensors["cu_seqlens_q"][-1])
        arguments["out"][:rows] = out[:rows].astype(arguments["out"].dtype)
        arguments["lse"][:rows] = lse[:rows]
        self.damage(arguments)
        nothing: frozenset[int] = frozenset()
        result = SimulationResult(
            self.findings, Counters(0, 0, 0, 0), (1, 2), nothing, nothing, nothing
        )
        return Simulated(
            arguments["out"], arguments["lse"], result, names_of(plan_kernel(SPEC), "")
        )


def run(stand_in: StandIn, problem: str = "three blocks walk", **how: Any) -> Verdict:
    """One trial of the stand-in."""
    trial = Trial(SPEC, problem, backend=Simulator(), **how)
    return run_trial(trial, stand_in)  # type: ignore[arg-type]  # it has what a trial uses


@pytest.mark.parametrize("problem", ["random", "integer walk", "no keys", "huge falling"])
def test_a_right_result_passes(problem: str) -> None:
    verdict = run(StandIn(), problem)
    assert verdict.complaints == ()
    assert verdict.passed
    assert verdict.out_error is not None
    assert verdict.out_error <= 1.0
    assert verdict.replay == ""


def one_wrong(arguments: dict[str, Any]) -> None:
    arguments["out"][150, -1, 5] += 1


def lse_off(arguments: dict[str, Any]) -> None:
    arguments["lse"][150, -1] += 1e-4


def infinite(arguments: dict[str, Any]) -> None:
    arguments["out"][150, -1, 5] = np.inf


def unwritten(arguments: dict[str, Any]) -> None:
    owner = arguments["out"].base.view(np.uint16)
    arguments["out"][7, 0, 0] = owner[0, 0, 0:1].view(arguments["out"].dtype)[0]


def outside(arguments: dict[str, Any]) -> None:
    arguments["lse"].base[0, 0] = 1.0


def past_the_sequences(arguments: dict[str, Any]) -> None:
    arguments["out"][-1] = 0


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (one_wrong, "out: 0 misplaced inf or nan, 1 beyond the bound"),
        (lse_off, "lse: 0 misplaced inf or nan, 1 beyond the bound"),
        (infinite, "out: 1 misplaced inf or nan"),
        (unwritten, "out: 1 elements not written"),
        (outside, "lse: 1 elements written outside of it"),
        (past_the_sequences, "out: 256 elements written outside of it"),
    ],
)
def test_a_wrong_result_is_said(damage: Callable[[dict[str, Any]], None], complaint: str) -> None:
    verdict = run(StandIn(damage))
    assert not verdict.passed
    assert any(text.startswith(complaint) for text in verdict.complaints), verdict.complaints
    assert verdict.replay.startswith("replay1:")


def test_errors_of_the_simulator_fail_a_trial_and_notes_do_not() -> None:
    note, error = Finding("polling", "note", "hm"), Finding("race", "error", "two writes")
    verdict = run(StandIn(findings=(note,)))
    assert verdict.passed
    assert verdict.findings == ("polling",)
    verdict = run(StandIn(findings=(note, error)))
    assert verdict.findings == ("polling", "race")
    assert "race: two writes" in verdict.complaints[0]


@pytest.mark.parametrize("error", [UnsupportedPtxError("mystery.op"), SimulationError("no")])
def test_what_the_simulator_cannot_run_fails(error: Exception) -> None:
    verdict = run(StandIn(error=error))
    assert verdict.complaints == (str(error),)
    assert verdict.out_error is None


def test_the_problem_says_how_many_blocks_unless_the_trial_does() -> None:
    stand_in = StandIn()
    run(stand_in)
    run(stand_in, ctas=7)
    assert [simulator.ctas for simulator in stand_in.simulators] == [3, 7]


def test_verdicts_survive_json() -> None:
    verdict = run(StandIn(one_wrong))
    values = json.loads(json.dumps(verdict.to_json()))
    assert values["passed"] is False
    assert Verdict.from_json(values) == verdict


def test_a_log_remembers_what_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "log.jsonl"
    good, bad = run(StandIn()), run(StandIn(outside), "random")
    trials = [Trial(SPEC, name, backend=Simulator()) for name in ("three blocks walk", "random")]
    assert [good.key, bad.key] == [trial.key for trial in trials]
    log = TrialLog(path)
    log.add(good)
    log.add(bad)
    with path.open("a") as file:
        file.write('{"version": "of an interru')
    again = TrialLog(path)
    assert again.find(trials[0]) == good
    assert again.find(trials[1]) is None, "what failed is run again"
    for change in ({"seed": 1}, {"ctas": 2}, {"backend": Simulator("pct:1")}):
        assert again.find(dataclasses.replace(trials[0], **change)) is None
    monkeypatch.setattr("mlagen.trial_log.version_digest", lambda: "another")
    assert TrialLog(path).find(trials[0]) is None


def test_trials_run_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlagen.trials, "_loaded", lambda _spec: StandIn())
    trials = [Trial(SPEC, name, backend=Simulator()) for name in ("one key", "random", "no keys")]
    verdicts = list(run_trials(trials, jobs=1))
    assert [verdict.key for verdict in verdicts] == [trial.key for trial in trials]


def pause_unless(task: int) -> int:
    """A task that ends at once, or never."""
    if task:
        signal.pause()
    return task


def test_an_interrupted_run_does_not_wait_for_its_processes() -> None:
    results = _in_processes(pause_unless, [0, 1, 2, 3], 2)
    assert next(results) == 0
    with pytest.raises(KeyboardInterrupt):
        results.throw(KeyboardInterrupt)  # type: ignore[attr-defined] # it is a generator
    # Whether they have ended, asked of their pipes: the pool's own thread may be about to strike them off the list.
    left = [child.sentinel for child in multiprocessing.active_children()]
    assert set(multiprocessing.connection.wait(left, timeout=0)) == set(left)


def test_no_trials_have_no_verdicts() -> None:
    assert list(run_trials([], jobs=2)) == []
