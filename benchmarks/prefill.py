"""Time prefill kernels beside other implementations of attention, in one run on the same tensors.

    python -m benchmarks.prefill                       # the rows of issue 2, cool
    python -m benchmarks.prefill --rows speed operands masks --regime cool hot
    python -m benchmarks.prefill --peers torch_cudnn flex fa4 flashinfer --json prefill.json

Ours is timed as users call it: `mlagen.load(spec).run(tensors, ...)`, one committed spec, no override
for a row. Every output is checked in the same run: some heads against float64, all against cuDNN.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mlagen
from benchmarks.machine import facts, heading
from benchmarks.peers import PEERS, Peer, RefusedRowError
from benchmarks.rows import ROWS, Row
from benchmarks.timing import Regime, Timing, time_calls
from mlagen.verify.reference import reference
from tests.gpu.workloads import Batch, Operands, draw_operands, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlagen.runtime.kernel import Kernels
    from mlagen.spec.model import KernelSpec

SPEC = Path(__file__).parent / "specs/prefill.yaml"
# Input sets are rotated until they hold this much, so that small shapes do not sit in the L2 (60 MB on an H200).
ROTATED_BYTES = 200e6
MOST_SETS = 8
REL_L2_LIMIT = {"bfloat16": 2.5e-3, "float16": 3.5e-4}
CHECKED_HEADS = 3
OURS = "mlagen"


@dataclass(frozen=True, slots=True)
class Result:
    """One row timed with one implementation, or why it was not."""

    row: str
    peer: str
    regime: Regime
    timing: Timing | None = None
    tflops: float | None = None
    ratio: float | None = None
    goal: float | None = None
    rel_l2: float | None = None
    rel_l2_limit: float = math.inf
    refused: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether its output is not within the bound of its dtype: then its time means nothing."""
        return self.rel_l2 is not None and not self.rel_l2 <= self.rel_l2_limit

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        return None if self.goal is None or self.ratio is None else self.ratio >= self.goal


def main() -> int:
    """Time what was asked for; the exit status is 1 if a goal was missed or an output was wrong."""
    arguments = parse_arguments()
    found = facts()
    print(heading(found), flush=True)
    kernels = mlagen.load(SPEC)
    results: list[Result] = []
    with torch.inference_mode():
        for row in [row for name in arguments.rows for row in ROWS[name]]:
            results += time_row(
                kernels, row, arguments.peers, arguments.regime, arguments.budget_ms
            )
            save(arguments.json, found, results)
    print(table(results))
    wrong = [result for result in results if result.is_wrong and result.peer == OURS]
    for result in wrong:
        print(f"WRONG: {line(result)}")
    return int(bool(wrong) or any(result.reached is False for result in results))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time MLA prefill beside other attention.")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=["figures"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=["torch_cudnn"])
    parser.add_argument("--regime", nargs="+", choices=["cool", "hot"], default=["cool"])
    parser.add_argument("--budget-ms", type=float, default=250.0, help="device time a measurement")
    parser.add_argument("--json", type=Path, help="file to write results to")
    return parser.parse_args()


def time_row(
    kernels: Kernels, row: Row, peers: Sequence[str], regimes: Sequence[Regime], budget_ms: float
) -> list[Result]:
    """Check and time one row with the kernel that it names and every peer that can compute it."""
    return time_kernel(kernels, find_kernel(kernels, row), row, peers, regimes, budget_ms)


def time_kernel(
    kernels: Kernels,
    spec: KernelSpec,
    row: Row,
    peers: Sequence[str],
    regimes: Sequence[Regime],
    budget_ms: float,
) -> list[Result]:
    """Check and time one row with a kernel of ours and every peer that can compute it."""
    batch = Batch(row.q_lens, row.kv_lens, row.heads)
    bytes_per_set = 2 * row.heads * (192 + 128) * (sum(row.q_lens) + sum(row.kv_lens))
    count = min(MOST_SETS, max(1, math.ceil(ROTATED_BYTES / bytes_per_set)))
    operands = [draw_operands(spec, batch, seed=seed) for seed in range(count)]
    sets = [lay_out(spec, batch, each, filler=0.0) for each in operands]
    options = run_options(spec)
    calls: dict[str, Callable[[int], object]] = {OURS: lambda i: kernels.run(sets[i], **options)}
    results: list[Result] = []
    rel_l2 = check_output(row, spec, batch, sets[0], kernels.run(sets[0], **options))
    errors: dict[str, float] = {OURS: rel_l2}
    if row.is_plain:
        packed = [(each.q, fused_keys(each), each.v) for each in operands]
        for name in peers:
            try:
                calls[name], errors[name] = prepare_peer(
                    PEERS[name], row, spec, batch, packed, sets[0]
                )
            except Exception as error:  # libraries refuse shapes with errors of all kinds
                kind = "" if isinstance(error, RefusedRowError) else f"{type(error).__name__}: "
                refusal = " ".join(f"{kind}{error}".split())[:200]
                results += [Result(row.label, name, regime, refused=refusal) for regime in regimes]
    for regime in regimes:
        timings = {
            name: time_calls(call, sets=count, regime=regime, budget_ms=budget_ms)
            for name, call in calls.items()
        }
        results += [measured(row, name, timings, errors[name]) for name in timings]
    for result in results:
        print(line(result), flush=True)
    torch.cuda.empty_cache()
    return results


def measured(row: Row, name: str, timings: dict[str, Timing], rel_l2: float) -> Result:
    """The result of one implementation; ours carries its speed relative to cuDNN."""
    timing, cudnn = timings[name], timings.get("torch_cudnn")
    ratio = cudnn.median_ms / timing.median_ms if cudnn else None
    return Result(
        row=row.label,
        peer=name,
        regime=timing.regime,
        timing=timing,
        tflops=row.flops() / timing.median_ms / 1e9,
        ratio=ratio,
        goal=row.goal if name == OURS and timing.regime == "cool" else None,
        rel_l2=rel_l2,
        rel_l2_limit=REL_L2_LIMIT.get(str(row.wanted["dtype"]), math.inf),
    )


def find_kernel(kernels: Kernels, row: Row) -> KernelSpec:
    """The one kernel of the spec that has what the row names."""

    def value(spec: KernelSpec, path: str) -> object:
        found: Any = spec
        for name in path.split("."):
            found = getattr(found, name)
        return found

    found = [
        spec
        for spec in kernels.specs
        if all(value(spec, path) == want for path, want in row.wanted.items())
    ]
    assert len(found) == 1, f"{row.label}: {len(found)} kernels of {SPEC} have {row.wanted}"
    return found[0]


def run_options(spec: KernelSpec) -> dict[str, Any]:
    """What a user says besides the tensors, in the short forms that users write."""
    options = {"mask": spec.mask.model_dump(), "score_mod": spec.score_mod.model_dump()}
    short = {name: value["kind"] if len(value) == 1 else value for name, value in options.items()}
    if short["score_mod"] == "identity":
        del short["score_mod"]
    return {**short, "return_lse": spec.lse, "softmax_scale": 192**-0.5}


def fused_keys(operands: Operands) -> torch.Tensor:
    """K with its rope columns, as torch's attention wants it."""
    rope = operands.k_rope.expand(-1, operands.k_nope.shape[1], -1)
    return torch.cat((operands.k_nope, rope), dim=-1)


def prepare_peer(
    peer: Peer,
    row: Row,
    spec: KernelSpec,
    batch: Batch,
    packed: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    tensors: dict[str, torch.Tensor],
) -> tuple[Callable[[int], torch.Tensor], float]:
    """A peer's call and its error on the first input set."""
    call = peer.prepare(row, packed, 192**-0.5)
    out = peer.packed(row, call(0))
    if spec.q_layout == "dense":
        out = out.unflatten(0, (batch.size, -1))
    return call, check_output(row, spec, batch, tensors, out)


def check_output(
    row: Row, spec: KernelSpec, batch: Batch, tensors: dict[str, torch.Tensor], result: Any
) -> float:
    """Relative L2 error against float64 on the first, middle and last head; inf if anything is not finite."""
    out = result[0] if isinstance(result, tuple) else result
    heads = sorted({0, row.heads // 2, row.heads - 1})[:CHECKED_HEADS]
    per_head = {"q", "q_nope", "q_pe", "k", "v"}
    part = {name: x[..., heads, :] if name in per_head else x for name, x in tensors.items()}
    part = {name: x[heads] if name in {"sinks", "alibi_slopes"} else x for name, x in part.items()}
    if spec.score_mod.kind == "alibi":  # the slopes belong to all the heads
        from mlagen.verify.reference import alibi_slopes

        part["alibi_slopes"] = torch.tensor(alibi_slopes(row.heads), device=out.device)[heads]
        tensor_slopes = spec.score_mod.model_copy(update={"slopes": "tensor"})
        spec = spec.model_copy(update={"score_mod": tensor_slopes})
    wanted, _ = reference(spec, part, softmax_scale=192**-0.5)
    if not bool(out.isfinite().all()):
        return math.inf
    return float((out[..., heads, :].double() - wanted).norm() / wanted.norm())


def line(result: Result) -> str:
    """One result as text."""
    start = f"{result.row:28} {result.regime:4} {result.peer:12}"
    if result.timing is None or result.tflops is None:
        return f"{start} not timed: {result.refused}"
    ratio = f"  x {result.ratio:.3f}" if result.ratio else ""
    goal = f" (goal {result.goal})" if result.goal else ""
    speed = f"{result.timing.median_ms:8.3f} ms {result.tflops:6.0f} TFLOP/s"
    return f"{start} {speed}  rel L2 {result.rel_l2:.2e}{ratio}{goal}"


def table(results: Sequence[Result]) -> str:
    """TFLOP/s as a Markdown table, ours first, then the ratio to cuDNN."""
    names = list(dict.fromkeys(result.peer for result in results))
    by_key = {(result.row, result.regime, result.peer): result for result in results}
    lines = [
        "| row | regime | "
        + " | ".join(f"{name} TFLOP/s" for name in names)
        + " | × cuDNN | goal |",
        "|---|---|" + "---:|" * (len(names) + 2),
    ]
    for row, regime in dict.fromkeys((result.row, result.regime) for result in results):
        found = [by_key.get((row, regime, name)) for name in names]
        cells = [f"{cell.tflops:.0f}" if cell and cell.tflops else "" for cell in found]
        ours = by_key[row, regime, OURS]
        ratio = f"{ours.ratio:.3f}" if ours.ratio else ""
        lines.append(f"| {row} | {regime} | {' | '.join(cells)} | {ratio} | {ours.goal or ''} |")
    return "\n".join(lines)


def save(path: Path | None, found: dict[str, Any], results: Sequence[Result]) -> None:
    """Write everything measured so far, so that an interrupted run leaves what it has."""
    if path is None:
        return
    rows = [{**asdict(result), "reached": result.reached} for result in results]
    path.write_text(json.dumps({"machine": found, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
