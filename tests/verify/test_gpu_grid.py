"""What the GPU tests rest on, checked without a GPU: their kernels, their inputs and the reference on those inputs."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch

from mlagen.plan import plan_kernel
from mlagen.verify.reference import reference
from tests.gpu.kernels import all_specs
from tests.gpu.option_grid import AXES, GRID, SpecText, covering_rows, spec_files
from tests.gpu.workloads import Batch, Operands, draw_operands, fit_batch, lay_out
from tests.pairwise import pairs_of

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

SPECS = all_specs()


@pytest.mark.parametrize("file", spec_files(), ids=lambda file: file.name)
def test_committed_spec_is_what_the_grid_says(file: SpecText) -> None:
    assert file.path.read_text() == file.text, "run: python -m tests.gpu.option_grid"


def test_grid_covers_every_value_and_every_valid_pair() -> None:
    covered = set().union(*(pairs_of(row) for row in covering_rows()))
    assert GRID.valid_pairs <= covered
    assert {(a, value) for a, values in AXES.items() for value in values} <= set().union(*covered)


def test_grid_holds_each_option_alone() -> None:
    changed = [{axis for axis in AXES if row[axis] != GRID.base[axis]} for row in covering_rows()]
    assert {frozenset(axes) for axes in changed if len(axes) == 1} >= {
        frozenset({axis}) for axis in AXES
    }


@pytest.mark.parametrize("label", SPECS)
def test_every_kernel_of_the_gpu_tests_can_be_planned(label: str) -> None:
    assert plan_kernel(SPECS[label]).name


@pytest.mark.parametrize(("index", "label"), list(enumerate(SPECS)), ids=list(SPECS))
def test_reference_finds_the_operands_in_every_layout(index: int, label: str) -> None:
    spec = SPECS[label]
    batch = fit_batch(spec, Batch(q_lens=(3, 0, 40, 7), kv_lens=(70, 5, 9, 0)))
    operands = draw_operands(spec, batch, seed=1, device="cpu")
    tensors = lay_out(spec, batch, operands, strided=index % 2 == 1, padding=2)
    out, lse = reference(spec, tensors)
    wanted_out, wanted_lse = by_definition(spec, batch, operands)
    rows = len(wanted_out)
    torch.testing.assert_close(out.flatten(0, -3)[:rows], wanted_out, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(lse.flatten(0, -2)[:rows], wanted_lse, rtol=1e-9, atol=1e-12)


def by_definition(
    spec: KernelSpec, batch: Batch, operands: Operands
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed operands with plain loops over sequences and heads, float64."""
    geometry = spec.geometry
    yarn = geometry.rope_scaling
    m = 0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1 if yarn else 1.0
    scale = m * m / math.sqrt(geometry.qk_nope_head_dim + geometry.qk_rope_head_dim)
    out = torch.zeros(len(operands.q), batch.heads, geometry.v_head_dim, dtype=torch.float64)
    lse = torch.full(out.shape[:-1], -math.inf, dtype=torch.float64)
    starts = zip(
        itertools.accumulate(batch.q_lens), itertools.accumulate(batch.kv_lens), strict=True
    )
    group = batch.heads // operands.k_rope.shape[1]
    for (q_end, k_end), q_len, kv_len in zip(starts, batch.q_lens, batch.kv_lens, strict=True):
        rows, keys = slice(q_end - q_len, q_end), slice(k_end - kv_len, k_end)
        position = torch.arange(q_len)[:, None] + kv_len - q_len
        visible = is_visible(spec, position, torch.arange(kv_len)[None, :])
        for head in range(batch.heads):
            k = torch.cat(
                (operands.k_nope[keys, head], operands.k_rope[keys, head // group]), dim=-1
            )
            score = operands.q[rows, head].double() @ k.double().T * scale
            if spec.score_mod.kind == "softcap":
                score = spec.score_mod.cap * torch.tanh(score / spec.score_mod.cap)
            elif spec.score_mod.kind == "alibi":
                given = spec.score_mod.slopes == "tensor"
                # Four heads: a power of two, so that the published slopes are 2^-2, 2^-4, 2^-6, 2^-8.
                slope = (
                    float(operands.alibi_slopes[head])
                    if given
                    else 2.0 ** (-8 * (head + 1) / batch.heads)
                )
                score = score - slope * (position - torch.arange(kv_len)[None, :]).abs().double()
            weight = torch.where(visible, score.exp(), 0.0)
            total = weight.sum(-1)
            lse[rows, head] = total.log()
            total = total + (operands.sinks[head].double().exp() if spec.sink else (total == 0))
            out[rows, head] = weight @ operands.v[keys, head].double() / total[:, None]
    return out, lse


def is_visible(spec: KernelSpec, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    mask = spec.mask
    visible = (q == q) & (k == k)
    if mask.kind == "causal" or (mask.kind == "chunked" and mask.causal):
        visible &= k <= q
    if mask.kind == "sliding_window":
        visible &= (k >= q - (mask.left if mask.left is not None else math.inf)) & (
            k <= q + (mask.right if mask.right is not None else math.inf)
        )
    if mask.kind == "chunked":
        visible &= torch.div(q, mask.size, rounding_mode="floor") == k // mask.size
    return visible
