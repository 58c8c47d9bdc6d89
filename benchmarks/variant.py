"""Verify and time one kernel: what `report.py` runs in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.machine import facts, graphics_card
from benchmarks.prefill import time_kernel
from benchmarks.rows import Row
from mlagen.plan.cycle_model import visible
from mlagen.runtime.kernel import load
from mlagen.trials import Trial, run_trial
from mlagen.verify.problems import problem_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from benchmarks.prefill import Result
    from benchmarks.timing import Regime
    from mlagen.spec.model import KernelSpec
    from mlagen.trials import Verdict

BUDGET_MS = 250.0


def machine() -> Iterator[dict[str, Any]]:  # Any: JSON values
    """Facts of this machine; asked here, so that the process that writes the report has no CUDA context."""
    yield {**facts(), **graphics_card()}


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
    kernels = load(spec)
    with torch.inference_mode():
        for seqlen in seqlens:
            yield from time_kernel(
                kernels, spec, row_of(spec, seqlen, heads), peers, regimes, BUDGET_MS
            )


def row_of(spec: KernelSpec, seqlen: int, heads: int) -> Row:
    """One sequence as a row of a table; a mask that depends on data counts as one that hides nothing."""
    ranges = (visible(spec.mask, q, seqlen) for q in range(seqlen))
    return Row(
        label=f"{seqlen // 1024}k",
        q_lens=(seqlen,),
        kv_lens=(seqlen,),
        heads=heads,
        # What decides whether a peer does the same work; it may have its operands as it likes them.
        kernel={
            "dtype": spec.dtype,
            "mask.kind": spec.mask.kind,
            "score_mod.kind": getattr(spec.score_mod, "kind", "chain"),
            "sink": spec.sink,
        },
        pairs=sum(end - begin for begin, end in ranges),
    )
