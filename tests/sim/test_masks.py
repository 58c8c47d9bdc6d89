"""Combined and padded masks in whole kernels of both architectures, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes

MASKS: dict[str, Any] = {
    "causal, padded": {"all": ["causal", "padding"]},
    # Beside the window a prefix is seen: between both lie keys that nobody sees.
    "a window or a prefix": {
        "any": [
            {"kind": "sliding_window", "left": 40, "right": 3},
            {"all": [{"kind": "chunked", "size": 300, "causal": False}, "padding"]},
        ]
    },
}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_combined_masks(arch: str, mask: Any) -> None:
    kernel = spec(arch=arch, mask=mask, lse=True)
    assert_passes(kernel, WALK)
    assert_passes(kernel, "valid lengths", "pct:1")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_hostile_valid_lengths(arch: str) -> None:
    assert_passes(
        spec(arch=arch, mask="padding", lse=True, q_layout="dense", kv="dense"), "hostile values"
    )
