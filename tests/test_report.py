"""`benchmarks.report` without a GPU: fakes in place of what runs on one, in processes as the real ones have."""

from __future__ import annotations

import json
import os
import signal
import threading
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import report, variant
from benchmarks.isolation import run_isolated
from mlagen.bench.installed import OURS
from mlagen.bench.measure import Result
from mlagen.bench.rows import visible_pairs
from mlagen.bench.timing import Timing
from mlagen.cli.selection import select_kernels
from mlagen.errors import MissingDependencyError
from mlagen.plan.name import kernel_name
from mlagen.trials import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mlagen.spec.model import KernelSpec

SPEC = """\
spec: 1
name: small
geometry: {num_heads: [2], qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: [sm_90a, sm_100a]
kernels:
  - {op: prefill, mask: [causal, none, {kind: chunked, size: 256}, {kind: sliding_window, left: 63, right: 0}]}
"""
SILENCE_S = 20.0


def items_and_an_end(count: int) -> Iterator[int]:
    yield from range(count)


def items_and_an_error() -> Iterator[int]:
    yield 1
    raise ValueError("the reason")


def items_and_a_crash() -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def items_and_silence() -> Iterator[int]:
    yield 1
    threading.Event().wait()


def fake_machine() -> Iterator[dict[str, Any]]:
    names = ("date", "driver", "cubins", "torch", "cudnn", "python")
    yield {**dict.fromkeys(names, "x"), "gpu": "NVIDIA B200", "power_limit_w": 1000.0}


def fake_verify(spec: KernelSpec) -> Iterator[Verdict]:
    """The window crashes after its first problem, the chunks are wrong, the others right."""
    wrong = ("out: 3 elements beyond the bound",) if spec.mask.kind == "chunked" else ()
    for problem, complaints in (("random", ()), ("walk", wrong)):
        yield Verdict(
            problem, kernel_name(spec), problem, "", complaints, (), 0.5, None, (), "", 0.1
        )
        if spec.mask.kind == "sliding_window":
            os.kill(os.getpid(), signal.SIGKILL)


def fake_measure(spec: KernelSpec, seqlens: Sequence[int], *_: object) -> Iterator[Result]:
    """The kernel without a mask dies after its first row."""
    for seqlen in seqlens:
        timing = Timing(
            median_ms=2.0,
            least_ms=1.9,
            p90_ms=2.1,
            calls=20,
            regime="cool",
            sm_clock_mhz=1620.4,
            power_w=987.6,
        )
        row = variant.row_of(spec, seqlen, 128)
        yield Result(row.name, OURS, "cool", timing=timing, tflops=1234.0, ratio=1.5, rel_l2=2e-3)
        if spec.mask.kind == "none":
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_process_gives_comes_back_with_its_end() -> None:
    assert run_isolated(items_and_an_end, 3, silence_s=SILENCE_S).items == (0, 1, 2)
    ended = run_isolated(items_and_an_error, silence_s=SILENCE_S)
    assert ended.items == (1,)
    assert ended.error is not None
    assert ended.error.endswith("ValueError: the reason")


def test_a_crash_leaves_what_was_there_before() -> None:
    crashed = run_isolated(items_and_a_crash, silence_s=SILENCE_S)
    assert crashed.items == (1,)
    assert crashed.error == "died of SIGKILL"


def test_a_process_that_hangs_is_stopped() -> None:
    hung = run_isolated(items_and_silence, silence_s=2)
    assert hung.items == (1,)
    assert hung.error == "stopped: silent for 2 s"


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """The command line of a run on a B200 that behaves as the fakes say."""
    monkeypatch.setattr(report, "archs_of_gpu", lambda: ("sm_100a",))
    monkeypatch.setattr(report, "build", lambda _records: None)
    monkeypatch.setattr(variant, "machine", fake_machine)
    monkeypatch.setattr(variant, "verify", fake_verify)
    monkeypatch.setattr(variant, "measure", fake_measure)
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    return Namespace(
        spec=spec,
        words=[],
        seqlens=[2048, 8192],
        heads=128,
        peers=[],
        regime=["cool"],
        jobs=2,
        silence_s=SILENCE_S,
        total_s=float("inf"),
        out=tmp_path / "out",
    )


def test_a_failure_of_one_kernel_does_not_stop_the_others(arguments: Namespace) -> None:
    assert report.run(arguments) == 1
    document = json.loads((arguments.out / "report-b200.json").read_text(encoding="utf-8"))
    found = {kernel["name"].split("_")[5]: kernel for kernel in document["kernels"]}
    assert len(found) == 4  # those of sm_90a do not run here
    causal, full, chunk, window = (
        found[name] for name in ("causal", "full", "chunk256", "window63")
    )
    assert (causal["state"], causal["verified"], len(causal["timings"])) == ("passed", True, 2)
    assert (full["state"], full["verified"], len(full["timings"])) == (
        "time: died of SIGKILL",
        True,
        1,
    )
    assert chunk["state"] == "1 of 2 problems failed"
    assert not chunk["timings"]  # the time of a wrong kernel means nothing
    assert window["errors"] == {"verify": "died of SIGKILL"}
    assert len(window["verdicts"]) == 1


def test_the_page_shows_predicted_beside_measured(arguments: Namespace) -> None:
    report.run(arguments)
    page = (arguments.out / "report-b200.md").read_text(encoding="utf-8")
    assert page.startswith("# NVIDIA B200: 2 of 4 kernels verified\n")
    assert "power limit 1000 W" in page
    (line,) = [line for line in page.splitlines() if "| causal 8k | cool |" in line]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4:12] == ["2.000", "1234", "1613", "0.76", "1.50", "1620", "988", "2.00e-03"]
    assert "out: 3 elements beyond the bound" in page
    assert "verify, after 1 problems:" in page


def test_only_verified_without_lengths_to_time(arguments: Namespace) -> None:
    arguments.seqlens, arguments.words = [], ["causal"]
    assert report.run(arguments) == 0
    page = (arguments.out / "report-b200.md").read_text(encoding="utf-8")
    assert "passed, not timed" in page
    assert "## Timed" not in page


def test_without_a_gpu_it_says_so(arguments: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "archs_of_gpu", lambda: None)
    with pytest.raises(MissingDependencyError, match="no GPU"):
        report.run(arguments)


def test_a_kernel_that_does_not_compile_is_reported(tmp_path: Path) -> None:
    spec = tmp_path / "tree.yaml"
    spec.write_text(SPEC.replace("[causal,", "[tree,"), encoding="utf-8")
    records = [report.Record(one) for one in select_kernels(spec).specs[:1]]
    report.build(records)
    assert "mask: tree" in records[0].errors["build"]
    assert not records[0].is_verified


def test_a_row_counts_what_the_mask_shows(arguments: Namespace) -> None:
    specs = {one.mask.kind: one for one in select_kernels(arguments.spec).specs}
    pairs = {
        kind: visible_pairs(one.mask, variant.row_of(one, 1024, 8).shape)
        for kind, one in specs.items()
    }
    assert pairs["none"] == 1024 * 1024
    assert pairs["causal"] == 1024 * 1025 // 2
    assert pairs["chunked"] == 4 * 256 * 257 // 2
    assert pairs["sliding_window"] == sum(min(q + 1, 64) for q in range(1024))
