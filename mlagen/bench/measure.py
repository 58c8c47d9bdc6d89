"""Time rows: our kernels beside peers, in one run, on the same values.

Ours is timed as users call it, `mlagen.load(...).run(...)`. Every output is checked in the same run, and times are only
compared with times of the same regime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from mlagen.bench.installed import OURS
from mlagen.bench.peers import PEERS, RefusedShapeError
from mlagen.bench.rows import find_kernel, flops
from mlagen.bench.timing import Regime, Timing, time_calls
from mlagen.bench.workload import REL_L2_LIMIT, Exact, has_peers, make_workload
from mlagen.plan.name import kernel_name
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.dispatch import normalised, select
from mlagen.runtime.kernel import load
from mlagen.runtime.preference import reluctance
from mlagen.spec.config import FA4Config
from mlagen.spec.partition import NoPartition
from mlagen.spec.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlagen.bench.card import Card
    from mlagen.bench.rows import Row
    from mlagen.bench.workload import Error, Workload
    from mlagen.runtime.kernel import Kernels
    from mlagen.spec.model import KernelSpec

# A peer that is further off computes something else, and is no peer. Ours must keep within much less.
PEER_REL_L2_LIMIT = 2e-2
_LONGEST_REFUSAL = 200


@dataclass(frozen=True, slots=True)
class Result:
    """One row timed with one implementation in one regime, or why it was not.

    Attributes:
        row: Its name.
        implementation: `mlagen`, or a key of `PEERS`.
        regime: See `timing.py`.
        kernel: Ours: the name of the kernel that ran.
        timing: None if it was not timed.
        tflops: By the median.
        rel_l2: Relative L2 error on the heads that are checked; None if something is not finite.
        of_bound: Ours: largest error of an element in units of what rounding explains.
        is_wrong: The error is too large: then the time means nothing.
        refused: Why it was not timed.
        best_peer: Ours: the fastest peer that is not wrong, in the same regime; None if there is none.
        ratio: Ours: speed relative to it.
    """

    row: str
    implementation: str
    regime: Regime
    kernel: str | None = None
    timing: Timing | None = None
    tflops: float | None = None
    rel_l2: float | None = None
    of_bound: float | None = None
    is_wrong: bool = False
    refused: str | None = None
    best_peer: str | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """How rows are timed.

    Attributes:
        peers: Keys of `PEERS`.
        regimes: See `timing.py`.
        budget_ms: Device time of a measurement.
        card: Counts the energy; None for no power.
    """

    peers: Sequence[str]
    regimes: Sequence[Regime]
    budget_ms: float = 250.0
    card: Card | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An implementation that is ready to be timed."""

    name: str
    call: Callable[[int], object]
    error: Error
    is_wrong: bool
    kernel: str | None = None


def time_row(
    specs: Sequence[KernelSpec], row: Row, how: Measurement, *, device: str = "cuda"
) -> list[Result]:
    """Check and time one row with one of these kernels and every peer that can compute it.

    Args:
        specs: Kernels of one architecture; one of them must be able to run the row.
        row: What to time.
        how: With whom, and in which regimes.
        device: Where.
    """
    spec = find_kernel(specs, row)
    assert spec is not None, f"{row.name}: no kernel"
    kernels = load([one for one in specs if _has_calls_of(one, spec)])
    try:
        with torch.inference_mode():
            results = _time_workload(kernels, spec, row, how, device)
    except torch.cuda.OutOfMemoryError:
        reason = "out of device memory"
        results = [Result(row.name, OURS, regime, refused=reason) for regime in how.regimes]
    if device == "cuda":
        torch.cuda.empty_cache()
    return with_ratios(results)


def _has_calls_of(spec: KernelSpec, other: KernelSpec) -> bool:
    """Whether the same calls mean the same to both: then `run` chooses between them."""
    how = {"config": FA4Config(), "scheduler": Scheduler(), "partition": NoPartition()}
    return spec.model_copy(update=how) == other.model_copy(update=how)


def _time_workload(
    kernels: Kernels, spec: KernelSpec, row: Row, how: Measurement, device: str
) -> list[Result]:
    for_peers = bool(how.peers) and has_peers(spec)
    workload = make_workload(spec, row.shape, for_peers=for_peers, device=device)
    exact = Exact(workload)
    candidates = [_ours(kernels, workload, exact)]
    refused: dict[str, str] = {}
    for name in how.peers if for_peers else ():
        try:
            candidates.append(_peer(name, workload, exact))
        except Exception as error:  # libraries refuse shapes with errors of all kinds
            kind = "" if isinstance(error, RefusedShapeError) else f"{type(error).__name__}: "
            refused[name] = " ".join(f"{kind}{error}".split())[:_LONGEST_REFUSAL]
    results = []
    for regime in how.regimes:
        results += [_timed(one, workload, row, regime, how) for one in candidates]
        results += [Result(row.name, name, regime, refused=why) for name, why in refused.items()]
    return results


def _ours(kernels: Kernels, workload: Workload, exact: Exact) -> _Candidate:
    sets, options = workload.sets, workload.options
    result = kernels.run(sets[0], **options)
    error = exact.error_of(result[0] if isinstance(result, tuple) else result)
    limit = REL_L2_LIMIT.get(workload.spec.dtype, math.inf)
    chosen = select(
        kernels.specs,
        normalised(parse_call({**sets[0], **options})),
        arch=workload.spec.arch,
        source="the spec",
        reluctance=reluctance,
    )
    return _Candidate(
        OURS,
        lambda i: kernels.run(sets[i], **options),
        error,
        is_wrong=error.relative_l2 > limit or error.of_bound > 1,
        kernel=kernel_name(chosen),
    )


def _peer(name: str, workload: Workload, exact: Exact) -> _Candidate:
    peer, shape = PEERS[name], workload.shape
    is_causal = workload.spec.mask.kind == "causal"
    call = peer.prepare(shape, workload.packed, causal=is_causal, scale=workload.scale)
    error = exact.error_of(peer.packed(shape, call(0)))
    return _Candidate(name, call, error, is_wrong=error.relative_l2 > PEER_REL_L2_LIMIT)


def _timed(
    one: _Candidate, workload: Workload, row: Row, regime: Regime, how: Measurement
) -> Result:
    timing = time_calls(
        one.call,
        sets=len(workload.sets),
        regime=regime,
        budget_ms=how.budget_ms,
        card=how.card,
    )
    return Result(
        row=row.name,
        implementation=one.name,
        regime=regime,
        kernel=one.kernel,
        timing=timing,
        tflops=flops(workload.spec, workload.shape) / timing.median_ms / 1e9,
        rel_l2=one.error.relative_l2 if math.isfinite(one.error.relative_l2) else None,
        of_bound=one.error.of_bound
        if one.name == OURS and math.isfinite(one.error.of_bound)
        else None,
        is_wrong=one.is_wrong,
    )


def with_ratios(results: Sequence[Result]) -> list[Result]:
    """The results, ours with the best peer of the same row and regime and the speed relative to it."""

    def compared(ours: Result) -> Result:
        peers = [
            (peer.tflops, peer.implementation)
            for peer in results
            if (peer.row, peer.regime) == (ours.row, ours.regime)
            and peer.implementation != OURS
            and peer.tflops is not None
            and not peer.is_wrong
        ]
        if not peers or ours.tflops is None:
            return ours
        speed, name = max(peers)
        return replace(ours, best_peer=name, ratio=ours.tflops / speed)

    return [compared(one) if one.implementation == OURS else one for one in results]
