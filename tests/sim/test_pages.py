"""K and V in pages, in whole kernels of both architectures: strict, against float64.

Page sizes below, at and above the key tile; with rope columns in K, and in pages that the same table finds.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes


def pages(size: int) -> dict[str, Any]:
    return {"layout": "paged", "page_size": size}


KERNELS: dict[str, dict[str, Any]] = {
    "8, dense queries": {"kv": pages(8), "q_layout": "dense", "mask": "causal"},
    "64, rope too, prefix": {
        "kv": pages(64),
        "k_rope": pages(64),
        "kv_length_counts": "prefix",
        "mask": {"kind": "sliding_window", "left": 100, "right": 0},
        "lse": True,
    },
    "256": {"kv": pages(256), "mask": {"all": ["causal", "padding"]}, "lse": True},
}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)
def test_pages_of_keys_and_values(arch: str, options: dict[str, Any]) -> None:
    kernel = spec(arch=arch, **options)
    assert_passes(kernel, WALK)
    assert_passes(kernel, "shared pages", "pct:1")
    assert_passes(kernel, "hostile values")
