"""What a row must not depend on leaves its bits alone: foreign sequences, other heads, hidden keys, unused memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.gpu.calls import Case, Outputs, launch, make_case, make_outputs
from tests.gpu.kernels import grid_specs, spec_of
from tests.gpu.workloads import Batch, Operands, draw_operands, fit_batch, lay_out

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

GRID = grid_specs()
BATCH = Batch(q_lens=(70, 1, 200, 129), kv_lens=(13, 65, 300, 127))

KERNELS = {
    "none": spec_of(),
    "causal": spec_of(mask="causal"),
    "chunked": spec_of(mask="chunked"),
    "pages of 8": spec_of(mask="causal", k_rope="paged_8"),
    "pages of 64": spec_of(mask="causal", k_rope="paged_64"),
    "dense": spec_of(kv="dense_lengths"),
    "256x256": spec_of(geometry="256x256"),
}
SCORE_MODS = {
    mod: spec_of(mask="causal", score_mod=mod) for mod in ("identity", "softcap_1", "alibi")
}


def run(case: Case, *, blocks: int | None = None) -> Outputs:
    outputs = make_outputs(case)
    launch(case, outputs, blocks=blocks)
    outputs.check_guards(case.context)
    return outputs


def operands_of(spec: KernelSpec) -> tuple[Batch, Operands]:
    batch = fit_batch(spec, BATCH)
    return batch, draw_operands(spec, batch, seed=5)


@pytest.mark.parametrize("label", GRID)
def test_unused_memory_changes_nothing(label: str) -> None:
    """Slots past the last key of a page, spare pages, latent columns, rows behind a sequence: NaN and Inf against 0."""
    spec = GRID[label]
    batch, operands = operands_of(spec)
    bits = []
    for filler in (0.0, math.nan, math.inf, -math.inf):
        tensors = lay_out(spec, batch, operands, filler=filler, padding=70)
        rows = sum(batch.q_lens) if spec.q_layout == "ragged" else None
        bits.append(run(Case(spec, batch, tensors, 5, written_rows=rows)).bits())
    for other in bits[1:]:
        assert all(torch.equal(a, b) for a, b in zip(bits[0], other, strict=True))


@pytest.mark.parametrize("poison", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("victim", range(len(BATCH.q_lens)))
@pytest.mark.parametrize("kernel", KERNELS)
def test_one_sequence_does_not_reach_the_others(kernel: str, victim: int, poison: float) -> None:
    """Sequence `victim` holds nothing but NaN or Inf in q, k, k_rope and v; the others keep their bits."""
    spec = KERNELS[kernel]
    batch, clean = operands_of(spec)
    dirty = Operands(*(getattr(clean, name).clone() for name in clean.__dataclass_fields__))
    queries, keys = rows_of(batch.q_lens, victim), rows_of(batch.kv_lens, victim)
    dirty.q[queries] = poison
    for tensor in (dirty.k_nope, dirty.k_rope, dirty.v):
        tensor[keys] = poison
    for blocks in (None, 3):
        left = run(make_case(spec, BATCH, seed=5, operands=clean), blocks=blocks)
        right = run(make_case(spec, BATCH, seed=5, operands=dirty), blocks=blocks)
        for name, one, other in zip(("out", "lse"), left.bits(), right.bits(), strict=False):
            same = one == other
            same[queries] = True
            assert bool(same.all()), (
                f"{name}: {int((~same).sum())} elements of other sequences changed"
            )


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_head_does_not_reach_the_others(kernel: str) -> None:
    spec = KERNELS[kernel]
    _, clean = operands_of(spec)
    dirty = replace(clean, q=clean.q.clone(), k_nope=clean.k_nope.clone(), v=clean.v.clone())
    for tensor in (dirty.q, dirty.k_nope, dirty.v):
        tensor[:, 1] = math.nan
    left = run(make_case(spec, BATCH, seed=5, operands=clean))
    right = run(make_case(spec, BATCH, seed=5, operands=dirty))
    for one, other in zip(left.bits(), right.bits(), strict=True):
        same = one == other
        same[:, 1] = True
        assert bool(same.all())


@pytest.mark.parametrize("score_mod", SCORE_MODS)
def test_future_keys_change_nothing(score_mod: str) -> None:
    """Case 11: under a causal mask later keys and values, however large, leave earlier rows as they are."""
    spec = SCORE_MODS[score_mod]
    batch = Batch((160,), (160,))
    clean = draw_operands(spec, batch, seed=8)
    for changed_from in (32, 64, 100, 128):
        dirty = replace(clean, k_nope=clean.k_nope.clone(), v=clean.v.clone())
        dirty.k_nope[changed_from:] *= 20
        dirty.v[changed_from:] = 1e4
        left = run(make_case(spec, batch, seed=8, operands=clean))
        right = run(make_case(spec, batch, seed=8, operands=dirty))
        for one, other in zip(left.bits(), right.bits(), strict=True):
            assert torch.equal(one[:changed_from], other[:changed_from])


def rows_of(lengths: tuple[int, ...], index: int) -> slice:
    """Rows of one sequence among packed ones."""
    start = sum(lengths[:index])
    return slice(start, start + lengths[index])
