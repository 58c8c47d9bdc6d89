"""Results as a run would leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlagen.bench.document import make_document
from mlagen.bench.installed import OURS
from mlagen.bench.measure import Result, with_ratios
from mlagen.bench.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.bench.timing import Regime

MACHINE: dict[str, Any] = {
    "date": "2026-12-02 11:12 UTC",
    "gpu": "NVIDIA B200",
    "driver": "580.1",
    "cubins": "NVRTC 13.5, compiled here",
    "torch": "2.13.0",
    "torch_cuda": "13.0",
    "cudnn": 91900,
    "python": "3.12.3",
    "peers": {"flashinfer-python": "0.7.4"},
    "power_limit_w": 1000.0,
    "max_sm_clock_mhz": 1965,
}


def result(
    implementation: str,
    tflops: float,
    *,
    row: str = "b1,s64,h8,causal",
    regime: Regime = "cool",
    **other: Any,
) -> Result:
    """One that was timed."""
    timing = Timing(
        median_ms=1e3 / tflops,
        least_ms=1.0,
        p90_ms=2.0,
        calls=20,
        regime=regime,
        sm_clock_mhz=1850.4,
        power_w=612.5,
    )
    return Result(row, implementation, regime, timing=timing, tflops=tflops, rel_l2=2e-3, **other)


def document(results: Sequence[Result]) -> dict[str, Any]:
    """Of these results, with their ratios."""
    return make_document(MACHINE, "mlagen bench small.yaml", with_ratios(results))


TIMED = (
    result(OURS, 600.0),
    result("torch_cudnn", 500.0),
    result("flashinfer", 480.0),
    result(OURS, 450.0, regime="hot"),
    result("torch_cudnn", 300.0, regime="hot"),
)
