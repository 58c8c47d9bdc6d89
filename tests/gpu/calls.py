"""One call of a kernel with guarded outputs, and what it must return."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from tests.gpu.checking import Expected, check_lse, check_out, expected_of
from tests.gpu.guarded import Guarded, guarded
from tests.gpu.kernels import load
from tests.gpu.workloads import Batch, Operands, draw_operands, fit_batch, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlagen.spec.model import KernelSpec

# The driver gives a kernel as many blocks as it asks for; with few, each walks many tiles, which
# is what tickets, rings and barriers are for.
FEW_BLOCKS = (3, 4, 5, 6)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and the arguments of one call.

    Attributes:
        spec: The kernel.
        batch: Lengths.
        tensors: Arguments of `run`.
        seed: Of the values, to be printed.
        options: Other arguments of `run`: `softmax_scale`, `max_seqlen_q`.
        written_rows: Rows of the output that belong to a sequence, if not all do.
        normal_inputs: Q, K and V are normal draws, for which the relative L2 error has a limit. Elsewhere, as with
            equal scores, whose roundings all point one way, only the bound of each element holds.
    """

    spec: KernelSpec
    batch: Batch
    tensors: Mapping[str, torch.Tensor]
    seed: int
    options: Mapping[str, float] = field(default_factory=dict)
    written_rows: int | None = None
    normal_inputs: bool = True

    @property
    def context(self) -> str:
        """What a failure must say so that it can be repeated."""
        return f"seed {self.seed}, {self.batch}"

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        q = self.tensors["q" if "q" in self.tensors else "q_nope"]
        return (*q.shape[:-1], self.spec.geometry.v_head_dim)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.tensors["v"].device


@dataclass(frozen=True, slots=True)
class Outputs:
    """Guarded outputs of one case; `lse` is None if the kernel writes none."""

    out: Guarded
    lse: Guarded | None

    def all(self) -> Iterator[tuple[str, Guarded]]:
        """The outputs by name."""
        yield "out", self.out
        if self.lse is not None:
            yield "lse", self.lse

    def poison(self) -> None:
        """Fill all of them, guards included, with NaN patterns."""
        for _, output in self.all():
            output.poison()

    def bits(self) -> tuple[torch.Tensor, ...]:
        """Copies of what was written, to compare."""
        return tuple(output.bits() for _, output in self.all())

    def check_guards(self, context: str) -> None:
        """Assert that every element was written, and nothing around them."""
        for name, output in self.all():
            assert output.unwritten() == 0, (
                f"{name}, {context}: {output.unwritten()} elements not written"
            )
            assert output.damaged() == 0, (
                f"{name}, {context}: {output.damaged()} elements written outside"
            )


def make_case(
    spec: KernelSpec,
    batch: Batch,
    *,
    seed: int,
    operands: Operands | None = None,
    strided: bool = False,
    padding: int = 0,
    options: Mapping[str, float] | None = None,
) -> Case:
    """A call with random operands (or those given), NaN wherever the kernel has no business."""
    batch = fit_batch(spec, batch)
    operands = operands or draw_operands(spec, batch, seed=seed)
    tensors = lay_out(spec, batch, operands, strided=strided, padding=padding)
    ragged = spec.q_layout == "ragged"
    return Case(
        spec,
        batch,
        tensors,
        seed,
        options or {},
        written_rows=sum(batch.q_lens) if ragged and padding else None,
    )


def make_outputs(case: Case, *, strided: bool = False) -> Outputs:
    """Poisoned outputs for a case."""
    shape, rows = case.out_shape, case.written_rows
    dtype = getattr(torch, case.spec.dtype)
    out = guarded(shape, dtype, device=case.device, strided=strided, written_rows=rows)
    lse = None
    if case.spec.lse:
        lse = guarded(
            shape[:-1], torch.float32, device=case.device, strided=strided, written_rows=rows
        )
    return Outputs(out, lse)


def launch(case: Case, outputs: Outputs, *, blocks: int | None = None) -> None:
    """Enqueue the call on the current stream, with at most `blocks` blocks."""
    kernels = load(case.spec)
    arguments: dict[str, object] = {**case.tensors, **case.options, "out": outputs.out.view}
    if outputs.lse is not None:
        arguments |= {"lse": outputs.lse.view, "return_lse": True}
    kernels.most_blocks = blocks
    try:
        kernels.run(arguments)
    finally:
        kernels.most_blocks = None


def expected(case: Case) -> Expected:
    """The float64 result of a case, without the rows that belong to no sequence."""
    exact = expected_of(case.spec, case.tensors, softmax_scale=case.options.get("softmax_scale"))
    rows = slice(case.written_rows)
    return Expected(exact.out[rows], exact.lse[rows], exact.bound[rows])


def verify(case: Case, *, strided_outputs: bool = False) -> Outputs:
    """Run a case with all blocks and with few, compare the bits, then check against float64."""
    outputs = make_outputs(case, strided=strided_outputs)
    launch(case, outputs)
    outputs.check_guards(case.context)
    first = outputs.bits()
    blocks = FEW_BLOCKS[case.seed % len(FEW_BLOCKS)]
    outputs.poison()
    launch(case, outputs, blocks=blocks)
    context = f"{case.context}, {blocks} blocks"
    outputs.check_guards(context)
    for name, few, all_blocks in zip(("out", "lse"), outputs.bits(), first, strict=False):
        assert torch.equal(few, all_blocks), f"{name}, {context}: other bits than with all blocks"
    check(case, outputs, expected(case))
    return outputs


def check(case: Case, outputs: Outputs, wanted: Expected) -> None:
    """Assert that the outputs are within their bounds of the float64 result."""
    rows = slice(outputs.out.written_rows)
    out = outputs.out.view[rows]
    check_out(out, wanted, context=case.context, normal_inputs=case.normal_inputs)
    if outputs.lse is not None:
        check_lse(outputs.lse.view[rows], wanted, context=case.context)


def with_tensor(case: Case, name: str, tensor: torch.Tensor) -> Case:
    """The case with one tensor replaced."""
    return replace(case, tensors={**case.tensors, name: tensor})
