"""Which candidates of a row are timed, what is wrong or refused, and the ratio to the best peer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mlagen.bench import measure
from mlagen.bench.installed import OURS
from mlagen.bench.measure import Measurement, Result, time_row, with_ratios
from mlagen.bench.peers import PEERS, RefusedShapeError
from mlagen.bench.rows import flops, parse_row
from mlagen.bench.timing import Timing
from mlagen.plan.name import kernel_name
from mlagen.runtime.kernel import load
from tests.bench.kernels import DENSE, kernels
from tests.bench.results import result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlagen.bench.rows import Shape
    from mlagen.bench.timing import Regime

ROW = parse_row("b2,s20,h4,causal")


class Peer:
    """Attention of torch on the CPU, times a factor; or a refusal."""

    def __init__(self, *, factor: float = 1.0, refusal: Exception | None = None) -> None:
        self.factor = factor
        self.refusal = refusal

    def prepare(
        self, shape: Shape, sets: Sequence[Any], *, causal: bool, scale: float
    ) -> Callable[[int], torch.Tensor]:
        if self.refusal:
            raise self.refusal
        assert shape == ROW.shape
        assert scale == pytest.approx(192**-0.5)

        def call(index: int) -> torch.Tensor:
            q, k, v = (x.double().unflatten(0, (2, -1)).transpose(1, 2) for x in sets[index])
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=scale
            )
            return out.transpose(1, 2).flatten(0, 1) * self.factor

        return call

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        del shape
        return out


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Regime]:
    """Run rows on the CPU, ours by the float64 reference; every call takes 2 ms. The regimes that were timed."""
    timed: list[Regime] = []

    def time_calls(
        call: Callable[[int], object], *, sets: int, regime: Regime, **_: object
    ) -> Timing:
        call(sets - 1)
        timed.append(regime)
        return Timing(median_ms=2.0, least_ms=1.0, p90_ms=3.0, calls=20, regime=regime)

    monkeypatch.setattr(measure, "load", functools.partial(load, backend="reference"))
    monkeypatch.setattr(measure, "time_calls", time_calls)
    monkeypatch.setattr("mlagen.bench.workload.ROTATED_BYTES", 1.0)
    monkeypatch.setitem(PEERS, "torch_cudnn", Peer())
    return timed


def run(peers: Sequence[str], *, regimes: Sequence[Regime] = ("cool",)) -> dict[str, Result]:
    specs = kernels({**DENSE, "mask": "causal"}, {**DENSE, "mask": "none"})
    results = time_row(specs, ROW, Measurement(peers, regimes), device="cpu")
    return {f"{one.implementation} {one.regime}": one for one in results}


def test_every_candidate_is_timed_in_every_regime(calls: list[Regime]) -> None:
    found = run(["torch_cudnn"], regimes=["cool", "hot"])
    assert list(found) == ["mlagen cool", "torch_cudnn cool", "mlagen hot", "torch_cudnn hot"]
    assert calls == ["cool", "cool", "hot", "hot"]  # one regime after the other
    (spec, _) = kernels({**DENSE, "mask": "causal"}, {**DENSE, "mask": "none"})
    ours = found["mlagen cool"]
    assert ours.kernel == kernel_name(spec)
    assert ours.tflops == pytest.approx(flops(spec, ROW.shape) / 2e-3 / 1e12)
    assert (ours.best_peer, ours.ratio) == ("torch_cudnn", 1.0)
    assert not ours.is_wrong
    assert ours.of_bound is not None
    assert 0 < ours.of_bound <= 1
    assert found["torch_cudnn cool"].ratio is None


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RefusedShapeError("no ragged batches"), "no ragged batches"),
        (RuntimeError("no kernel\n  found"), "RuntimeError: no kernel found"),
    ],
)
def test_a_peer_that_refuses_says_why_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setitem(PEERS, "flex", Peer(refusal=error))
    found = run(["flex", "torch_cudnn"])
    assert found["flex cool"].refused == reason
    assert found["flex cool"].tflops is None
    assert found["mlagen cool"].best_peer == "torch_cudnn"


@pytest.mark.usefixtures("calls")
def test_a_peer_that_computes_something_else_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "flex", Peer(factor=1.05))
    found = run(["flex"])
    assert found["flex cool"].is_wrong
    assert found["flex cool"].rel_l2 == pytest.approx(0.05, rel=1e-3)
    assert found["mlagen cool"].best_peer is None


@pytest.mark.usefixtures("calls")
def test_a_wrong_output_of_ours_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, specs: Sequence[Any]) -> None:
            self.kernels = load(specs, backend="reference")
            self.specs = self.kernels.specs

        def run(self, tensors: dict[str, Any], **options: Any) -> Any:
            return self.kernels.run(tensors, **options) * 1.02

    monkeypatch.setattr(measure, "load", Wrong)
    ours = run([])["mlagen cool"]
    assert ours.is_wrong
    assert ours.of_bound is not None
    assert ours.of_bound > 1


@pytest.mark.usefixtures("calls")
def test_what_is_not_finite_is_wrong_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "flex", Peer(factor=float("inf")))
    found = run(["flex"])["flex cool"]
    assert found.is_wrong
    assert found.rel_l2 is None  # JSON knows no infinity


@pytest.mark.usefixtures("calls")
def test_too_little_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(measure, "make_workload", fail)
    assert run(["torch_cudnn"])["mlagen cool"].refused == "out of device memory"


@pytest.mark.usefixtures("calls")
def test_several_configurations_of_one_meaning_are_left_to_run() -> None:
    whole, half = (
        kernels({**DENSE, "mask": "causal", "config": config}, arch="sm_100a")[0]
        for config in ({}, {"tile_m": 128})
    )
    (ours,) = time_row([whole, half], ROW, Measurement([], ["cool"]), device="cpu")
    assert ours.kernel == kernel_name(half)  # which suits 20 queries


def test_the_ratio_is_to_the_fastest_right_peer_of_the_row_and_regime() -> None:
    results = [
        result(OURS, 600.0),
        result("torch_cudnn", 500.0),
        result("fa4", 900.0, is_wrong=True),
        result("flex", 480.0),
        result("flashinfer", 700.0, regime="hot"),
        result("flashinfer", 800.0, row="b2,s64,h8,causal"),
        result(OURS, 350.0, regime="hot"),
        result(OURS, 1.0, row="b3,s64,h8,causal"),
    ]
    ours = [one for one in with_ratios(results) if one.implementation == OURS]
    assert [(one.best_peer, one.ratio) for one in ours] == [
        ("torch_cudnn", 1.2),
        ("flashinfer", 0.5),
        (None, None),
    ]
