"""`mlagen bench`: which rows it times, what it prints and writes, and its exit status. Stand-ins measure."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mlagen.bench import machine, measure
from mlagen.bench.installed import OURS, installed_peers
from mlagen.bench.measure import with_ratios
from mlagen.bench.rows import SETS, names_of
from tests.bench.results import MACHINE, result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlagen.bench.measure import Measurement, Result
    from mlagen.bench.rows import Row
    from tests.cli.conftest import Command

ROW = "b1,s64,h16,causal"


@dataclass
class Gpu:
    """Stands for the measurement: every row takes the same time, cuDNN is slower.

    Attributes:
        rows: Names of what was timed.
        how: Of the last row.
        archs: Of the kernels that were given.
        wrong: The row whose output of ours is wrong.
    """

    rows: list[str] = field(default_factory=list)
    how: Measurement | None = None
    archs: set[str] = field(default_factory=set)
    wrong: str = ""

    def time_row(self, specs: Sequence[Any], row: Row, how: Measurement) -> list[Result]:
        self.rows.append(row.name)
        self.how = how
        self.archs |= {spec.arch for spec in specs}
        results = []
        for regime in how.regimes:
            timed = functools.partial(result, row=row.name, regime=regime)
            results.append(timed(OURS, 600.0, is_wrong=row.name == self.wrong, of_bound=1.5))
            results += [timed(name, 500.0) for name in how.peers]
        return with_ratios(results)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    stand_in = Gpu()
    monkeypatch.setattr("mlagen.cli.bench.archs_of_gpu", lambda: ("sm_90a",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "facts", lambda: MACHINE)
    monkeypatch.setattr(machine, "current_card", lambda: None)
    monkeypatch.setattr(measure, "time_row", stand_in.time_row)
    return stand_in


def test_standard_rows_that_the_spec_can_run_are_timed(
    mlagen: Command, spec: Path, gpu: Gpu
) -> None:
    outcome = mlagen("bench", spec)
    assert outcome.status == 0, outcome.err
    assert gpu.rows == names_of(["speed"])  # its kernels are ragged, and take dense batches so
    assert gpu.how is not None
    assert list(gpu.how.peers) == installed_peers()
    assert tuple(gpu.how.regimes) == ("cool",)
    assert "mlagen TFLOP/s" in outcome.out.splitlines()[0]
    assert "no wrong output" in outcome.err


def test_rows_without_a_kernel_are_left_out(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    assert mlagen("bench", spec, "--rows", "figures,masks", "-k", "causal").status == 0
    wanted = [name for name in names_of(["figures", "masks"]) if name.endswith("h128,causal")]
    assert gpu.rows == wanted


def test_named_rows_are_timed_alone(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    words = ("--row", ROW, "--row", "b2,s64,k128,h4,none", "--regime", "both", "--peers", "flex")
    outcome = mlagen("bench", spec, *words, "--json")
    assert outcome.status == 0, outcome.err
    assert gpu.rows == [ROW, "b2,s64,k128,h4,none"]
    document = json.loads(outcome.out)
    assert document["machine"] == MACHINE
    assert (
        document["command"]
        == f"mlagen bench {spec} {' '.join(words[:4])} --peers flex --regime both"
    )
    assert [(one["implementation"], one["regime"]) for one in document["results"][:4]] == [
        (OURS, "cool"),
        ("flex", "cool"),
        (OURS, "hot"),
        ("flex", "hot"),
    ]
    assert document["results"][0]["ratio"] == 1.2


def test_without_peers_ours_is_timed_alone(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    assert mlagen("bench", spec, "--row", ROW, "--peers", "none").status == 0
    assert gpu.how is not None
    assert not gpu.how.peers


def test_only_kernels_of_the_gpu_are_timed(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    spec.write_text(spec.read_text().replace("arch: sm_90a", "arch: [sm_100a, sm_90a]"))
    assert mlagen("bench", spec, "--row", ROW).status == 0
    assert gpu.archs == {"sm_90a"}


def test_a_folder_gets_json_page_and_plots(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    del gpu
    out = spec.parent / "deep/results"
    outcome = mlagen("bench", spec, "--row", ROW, "--out", out, "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads((out / "bench-b200.json").read_text("utf-8")) == json.loads(outcome.out)
    page = (out / "bench-b200.md").read_text("utf-8")
    assert "](bench-b200.svg)" in page
    assert f"| {ROW} | cool |" in page
    assert (out / "bench-b200.svg").read_text("utf-8").startswith("<svg ")


def test_what_was_measured_before_an_interrupt_is_there(
    mlagen: Command, spec: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_row(specs: Sequence[Any], row: Row, how: Measurement) -> list[Result]:
        if gpu.rows:
            raise KeyboardInterrupt
        return gpu.time_row(specs, row, how)

    monkeypatch.setattr(measure, "time_row", time_row)
    out = spec.parent / "results"
    assert mlagen("bench", spec, "--rows", "figures", "--out", out).status == 130
    document = json.loads((out / "bench-b200.json").read_text("utf-8"))
    assert {one["row"] for one in document["results"]} == {SETS["figures"][0]}


def test_a_wrong_output_has_status_1(mlagen: Command, spec: Path, gpu: Gpu) -> None:
    gpu.wrong = ROW
    outcome = mlagen("bench", spec, "--row", ROW)
    assert outcome.status == 1
    assert (
        f"wrong output: mlagen, {ROW}, cool: relative L2 error 2.00e-03, an element off by 1.50 times"
        in outcome.err
    )
    assert "600 (wrong)" in outcome.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "sped"], "'sped' is none of figures, speed, operands, masks"),
        (["--peers", "cudnn"], "'cudnn' is none of torch_cudnn, flex, fa4, flashinfer, none"),
        (["--row", "b1,s64,h16,casual"], "did you mean 'causal'?"),
        (
            ["--row", "b1,s64,h16,chunked"],
            "no kernel selected from it can run\n    b1,s64,h16,chunked",
        ),
        (["--rows", "figures", "-k", "fp8"], "no kernel of it matches -k fp8"),
        (["--regime", "warm"], "'warm' is not one of"),
    ],
)
def test_bad_usage_has_status_2_without_a_gpu(
    mlagen: Command, spec: Path, words: list[str], says: str
) -> None:
    outcome = mlagen("bench", spec, *words)
    assert outcome.status == 2
    assert says in outcome.err
    assert outcome.out == ""


def test_without_a_gpu_the_status_is_3(
    mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlagen.cli.bench.archs_of_gpu", lambda: None)
    outcome = mlagen("bench", spec, "--row", ROW)
    assert outcome.status == 3
    assert "no GPU here that kernels can be generated for (sm_90a, sm_100a)" in outcome.err
    assert "mlagen doctor" in outcome.err


@pytest.mark.usefixtures("gpu")
def test_without_torch_the_status_is_3(
    mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = mlagen("bench", spec, "--row", ROW)
    assert outcome.status == 3
    assert "needs torch\n  pip install 'mlagen[torch]'" in outcome.err


@pytest.mark.usefixtures("gpu")
def test_a_torch_that_cannot_use_the_gpu_is_named(
    mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = mlagen("bench", spec, "--row", ROW)
    assert outcome.status == 3
    assert "torch cannot use the GPU" in outcome.err
