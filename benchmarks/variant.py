"""Verify and time one kernel: what `report.py` runs in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.bench.machine import current_card, facts
from mlagen.bench.measure import Measurement, time_row
from mlagen.bench.rows import Row, Shape
from mlagen.trials import Trial, run_trial
from mlagen.verify.problems import problem_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from mlagen.bench.measure import Result
    from mlagen.bench.timing import Regime
    from mlagen.spec.model import KernelSpec
    from mlagen.trials import Verdict


def machine() -> Iterator[dict[str, Any]]:  # Any: JSON values
    """Facts of this machine; asked here, so that the process that writes the report has no CUDA context."""
    yield facts()


def verify(spec: KernelSpec) -> Iterator[Verdict]:
    """What `mlagen verify --backend cuda` does: every problem of the kernel, against float64."""
    for problem in problem_names(spec):
        yield run_trial(Trial(spec, problem))


def measure(
    spec: KernelSpec,
    seqlens: Sequence[int],
    heads: int,
    peers: Sequence[str],
    regimes: Sequence[Regime],
) -> Iterator[Result]:
    """Time the kernel on one sequence of each length, beside the peers that can do the same work."""
    how = Measurement(peers, regimes, card=current_card())
    for seqlen in seqlens:
        yield from time_row([spec], row_of(spec, seqlen, heads), how)


def row_of(spec: KernelSpec, seqlen: int, heads: int) -> Row:
    """One sequence as a row of a table, for whatever the kernel computes."""
    name = f"b1,s{seqlen},h{heads},{spec.mask.kind}"
    return Row(name, Shape((seqlen,), (seqlen,), heads), wanted={})
