"""All pairs of query and key lengths in one ragged batch, and dense batches of odd shapes."""

from __future__ import annotations

import itertools

import pytest

from tests.gpu.calls import make_case, verify
from tests.gpu.kernels import spec_of
from tests.gpu.workloads import Batch

LENGTHS = (0, 1, 63, 64, 65, 127, 128, 129, 1000, 4096)
PAIRS = tuple(itertools.product(LENGTHS, LENGTHS))
ALL_PAIRS = Batch(tuple(q for q, _ in PAIRS), tuple(kv for _, kv in PAIRS), heads=2)

KERNELS = {
    "none": spec_of(),
    "causal": spec_of(mask="causal"),
    "window": spec_of(mask="window_left"),
    "chunked": spec_of(mask="chunked"),
    "causal, pages of 64": spec_of(mask="causal", k_rope="paged_64"),
    "causal, pages of 8": spec_of(mask="causal", k_rope="paged_8"),
    "128x128": spec_of(geometry="128x128"),
    "256x256": spec_of(geometry="256x256"),
    "256x256 without rope": spec_of(geometry="256x256_no_rope"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_pair_of_lengths_in_one_batch(name: str) -> None:
    verify(make_case(KERNELS[name], ALL_PAIRS, seed=len(name)))


@pytest.mark.parametrize(
    "lengths", [(1, 1), (129, 64), (64, 129), (1000, 63), (4096, 4096)], ids=str
)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_dense_batch(mask: str, lengths: tuple[int, int]) -> None:
    q, kv = lengths
    spec = spec_of(mask=mask, q_layout="dense", kv="dense")
    verify(make_case(spec, Batch((q,) * 3, (kv,) * 3, heads=3), seed=q + kv))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 16, 20, 128])
def test_any_number_of_heads(heads: int) -> None:
    """Head counts of every tensor-parallel degree of the models, and odd ones."""
    verify(make_case(spec_of(mask="causal"), Batch((150, 31), (150, 200), heads=heads), seed=heads))


@pytest.mark.parametrize(
    "batch", [Batch((), ()), Batch((0, 0), (0, 5)), Batch((0,), (0,))], ids=str
)
@pytest.mark.parametrize("name", ["none", "causal", "causal, pages of 64"])
def test_batch_without_queries_returns_empty_tensors(name: str, batch: Batch) -> None:
    outputs = verify(make_case(KERNELS[name], batch, seed=0))
    assert outputs.out.view.shape[0] == 0


def test_longest_query_length_may_be_given() -> None:
    """`max_seqlen_q` only bounds the grid: an exact and a generous one give the bits of none at all."""
    batch = Batch((5, 300, 129), (100, 300, 64))
    spec = spec_of(mask="causal")
    plain = verify(make_case(spec, batch, seed=3))
    for longest in (300, 5000):
        given = verify(make_case(spec, batch, seed=3, options={"max_seqlen_q": longest}))
        assert all((a == b).all() for a, b in zip(plain.bits(), given.bits(), strict=True))
