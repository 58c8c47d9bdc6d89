"""Inputs that drive every branch of the online softmax: rescale or not, first tile, empty rows, huge logits.

Scores are exact by construction: three columns of Q and K hold their digits, and with `softmax_scale = ln 2` they are
base-2 logits. So rising or falling by a chosen amount a tile is what the kernel sees, and even at 60 000 the only
rounding is that of the softmax itself.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from mlagen.plan import plan_kernel
from tests.gpu.calls import Case, make_case, verify
from tests.gpu.kernels import spec_of
from tests.gpu.workloads import Batch, draw_operands, fit_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.spec.model import KernelSpec

LN2 = math.log(2.0)
BATCH = Batch(q_lens=(256, 100, 300), kv_lens=(1100, 700, 130), heads=2)

KERNELS = {
    "none": spec_of(),
    "causal": spec_of(mask="causal"),
    "window": spec_of(mask="window_left"),
    "chunked": spec_of(mask="chunked"),
    "softcap": spec_of(score_mod="softcap"),
    "fp16": spec_of(dtype="float16"),
    "128x128": spec_of(geometry="128x128"),
    "256x256": spec_of(geometry="256x256"),
}

# Base-2 logit of key j, given the width n of a key tile and the threshold t of the kernel.
PROFILES: dict[str, Callable[[torch.Tensor, int, float], torch.Tensor]] = {
    "level": lambda j, n, t: 0.0 * j,
    "rising 20 a tile": lambda j, n, t: 20.0 * (j // n),
    "rising just under the threshold a tile": lambda j, n, t: (t - 0.25) * (j // n),
    "rising just over the threshold a tile": lambda j, n, t: (t + 0.25) * (j // n),
    "rising by the threshold a tile": lambda j, n, t: t * (j // n),
    "one step just under the threshold": lambda j, n, t: (t - 0.25) * (j >= n),
    "one step just over the threshold": lambda j, n, t: (t + 0.25) * (j >= n),
    "falling 20 a tile": lambda j, n, t: -20.0 * (j // n),
    "falling just under the threshold a tile": lambda j, n, t: -(t - 0.25) * (j // n),
    "rising inside a tile": lambda j, n, t: 0.125 * (j % n),
    "all at 60000": lambda j, n, t: 60_000.0 + 0 * j,
    "all at -60000": lambda j, n, t: -60_000.0 + 0 * j,
    "falling from 60000 to -60000": lambda j, n, t: torch.where(j < n, 60_000.0, -60_000.0),
    "rising from -60000 to 60000": lambda j, n, t: torch.where(j < n, -60_000.0, 60_000.0),
    "first key far above": lambda j, n, t: torch.where(j == 0, 5_000.0, -60_000.0),
    "last key of a tile far above": lambda j, n, t: torch.where(j % n == n - 1, 0.0, -60_000.0),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("profile", PROFILES)
def test_logits_that_move_from_tile_to_tile(profile: str, kernel: str) -> None:
    verify(profiled_case(KERNELS[kernel], profile, seed=len(profile)))


def profiled_case(spec: KernelSpec, profile: str, *, seed: int) -> Case:
    """A case whose base-2 logits are those of a profile, with random values."""
    batch = fit_batch(spec, BATCH)
    operands = draw_operands(spec, batch, seed=seed)
    j = torch.cat([torch.arange(n, device="cuda") for n in batch.kv_lens])
    plan = plan_kernel(spec)
    score = PROFILES[profile](j, plan.tile_n, plan.rescale_threshold).double()
    q, k = torch.zeros_like(operands.q), torch.zeros_like(operands.k_nope)
    # 256 a + b + c with integers a, b of at most 8 bits and a fraction c: each exact in bf16 and fp16.
    high = torch.round(score / 256)
    low = torch.round(score - 256 * high)
    parts = (high, low, score - 256 * high - low)
    for column, (weight, part) in enumerate(zip((256.0, 1.0, 1.0), parts, strict=True)):
        q[..., column] = weight
        k[..., column] = part.to(k.dtype)[:, None]
    exact = 256 * k[..., 0].double() + k[..., 1].double() + k[..., 2].double()
    assert torch.equal(exact, score[:, None].expand_as(exact))
    operands = replace(operands, q=q, k_nope=k, k_rope=torch.zeros_like(operands.k_rope))
    case = make_case(spec, BATCH, seed=seed, operands=operands, options={"softmax_scale": LN2})
    return replace(case, normal_inputs=False)


@pytest.mark.parametrize(
    ("mask", "batch"),
    [
        ("causal", Batch((300, 128, 64), (7, 0, 1))),
        ("window_left", Batch((300, 129), (7, 128))),
        ("chunked", Batch((300, 129), (7, 128))),
        ("window_both", Batch((500, 129), (100, 3))),
        ("none", Batch((300, 5), (0, 0))),
    ],
    ids=str,
)
def test_rows_that_see_no_key_are_zero(mask: str, batch: Batch) -> None:
    outputs = verify(make_case(spec_of(mask=mask), batch, seed=9))
    assert outputs.lse is not None
    empty = torch.isneginf(outputs.lse.view)
    assert int(empty.sum()) > 100
    assert bool((outputs.out.view[empty] == 0).all())


def test_sink_leaves_an_empty_row_empty() -> None:
    outputs = verify(
        make_case(spec_of(mask="causal", sink="yes"), Batch((300, 64), (7, 0)), seed=9)
    )
    assert outputs.lse is not None
    assert bool(torch.isneginf(outputs.lse.view[:293]).all())
    assert bool((outputs.out.view[:293] == 0).all())


@pytest.mark.parametrize("sink", [-60_000.0, -20.0, 0.0, 20.0, 60_000.0])
def test_sinks_far_from_the_logits(sink: float) -> None:
    spec = spec_of(mask="causal", sink="yes")
    batch = Batch((256, 100), (300, 700))
    operands = draw_operands(spec, fit_batch(spec, batch), seed=4)
    operands = replace(operands, sinks=torch.full_like(operands.sinks, sink))
    verify(make_case(spec, batch, seed=4, operands=operands))
