"""fp8 on Hopper in the simulator, whose tensor cores cut sums of 8-bit products as an H200 does, to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: fields of a spec, and tensors by name

import ml_dtypes
import numpy as np
import pytest

from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulator
from mlagen.verify.compare import compare
from tests.plan.kernels import spec
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from numpy.typing import NDArray

FP8 = {"dtype": "float8_e4m3fn"}
PAGES = {"layout": "paged", "page_size": 64}
UNION = {
    "any": [{"kind": "sliding_window", "left": 60, "right": 0}, {"kind": "chunked", "size": 90}]
}
FIELDS: dict[str, dict[str, Any]] = {
    "causal": {"mask": "causal", "lse": True},
    "dense": {"q_layout": "dense", "kv": "dense", "lse": True},
    "window, sink": {"mask": {"kind": "sliding_window", "left": 70, "right": 30}, "sink": True},
    "chunked, softcap": {
        "mask": {"kind": "chunked", "size": 150},
        "score_mod": {"kind": "softcap", "cap": 4.0},
    },
    "union, alibi, parts": {"mask": UNION, "score_mod": "alibi", "partition": "split_kv"},
    "pages": {"mask": "causal", "kv": PAGES, "k_rope": PAGES, "output_dtype": "float16"},
    "rope in pages": {"mask": "causal", "q_form": "split", "k_rope": PAGES},
    "padding, persistent": {"mask": {"all": ["causal", "padding"]}, "scheduler": "persistent"},
    "bias, transient": {"score_mod": {"kind": "bias", "rank": 4}, "scheduler": "transient"},
}
WIDE = spec("256x256", **FP8, mask="causal", lse=True)
KERNELS = {name: spec(**FP8, **fields) for name, fields in FIELDS.items()} | {"256x256": WIDE}
OTHERS = (
    "random",
    "leading key",
    "huge rising walk",
    "three blocks walk",
    "more queries than keys",
)


@pytest.mark.parametrize(("index", "kernel"), list(enumerate(KERNELS)), ids=list(KERNELS))
def test_kernels(index: int, kernel: str) -> None:
    assert_passes(KERNELS[kernel], WALK)
    assert_passes(KERNELS[kernel], OTHERS[index % len(OTHERS)], f"pct:{index}")


def quantised(values: NDArray[Any]) -> NDArray[np.float64]:
    """The values as e4m3 holds them."""
    return values.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


@pytest.mark.parametrize("mean", [0.0, 1.0], ids=["V around 0", "V around 1"])
def test_error_is_that_of_rounding_probabilities(mean: float) -> None:
    # 1024 keys of normal operands. Only probabilities are rounded: relative to the row's largest and scaled by 2^8, as
    # the range of e4m3 wants it. Without promotion, V around 1 would have five times the error.
    random = np.random.default_rng(3)
    rows, keys = 128, 1024
    q, k = (quantised(random.standard_normal((count, 192))) for count in (rows, keys))
    v = quantised(random.standard_normal((keys, 128)) + mean)
    scores = q @ k.T / np.sqrt(192)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    total = weights.sum(axis=1, keepdims=True)
    exact = weights @ v / total
    least = compare(quantised(256 * weights) / 256 @ v / total, exact).relative_l2

    kernel = spec(**FP8, q_layout="dense", kv="dense", output_dtype="float16")
    tensors = {
        name: values.astype(ml_dtypes.float8_e4m3fn)[None, :, None]
        for name, values in (("q", q), ("k", k), ("v", v))
    }
    out = np.zeros((1, rows, 1, 128), np.float16)
    call = {**tensors, "softmax_scale": 192**-0.5, "out": out}
    load(kernel).simulate(call, simulator=Simulator("eager"))
    assert compare(out[0, :, 0], exact).relative_l2 <= 1.2 * least
