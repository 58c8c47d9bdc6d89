"""Pitfall 28 of the kernels: the rank of a cluster's block in a matrix descriptor."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mlagen.render import render_kernel
from tests.mutation.catalogue import RULES
from tests.mutation.cluster_kernel import COLUMNS, CTAS, KEYS, ROWS, cluster_kernel, expected
from tests.plan.kernels import plan
from tests.sim.cuda import kinds, run

SOURCE = cluster_kernel(render_kernel(plan()))
V = np.random.default_rng(28).integers(-8, 9, (CTAS, KEYS, COLUMNS)).astype(np.float32)


def multiply(source: str) -> tuple[list[str], np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    out = np.zeros((CTAS, ROWS, COLUMNS), np.float32)
    v = V.astype(ml_dtypes.bfloat16).view(np.uint16)
    result = run(source, v, out, grid=CTAS, block=128, cluster=CTAS)
    return kinds(result), out


def test_both_blocks_of_a_cluster_multiply_right() -> None:
    findings, out = multiply(SOURCE)
    assert findings == []
    np.testing.assert_array_equal(out, expected(V))


def test_a_rank_in_a_descriptor_is_caught_in_the_second_block_only() -> None:
    (rule,) = (rule for rule in RULES if rule.name == "address-unmasked")
    (mutant,) = rule.sites(SOURCE)
    findings, out = multiply(mutant.source)
    np.testing.assert_array_equal(out[0], expected(V)[0])
    assert findings or not np.array_equal(out[1], expected(V)[1])
