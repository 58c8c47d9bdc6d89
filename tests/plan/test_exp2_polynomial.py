"""The polynomial that replaces the exp2 unit: its coefficients derived, the device function measured."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlagen.render import render_kernel
from tests.plan.kernels import plan
from tests.sim.cuda import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]  # Any: float32 and float64

LARGEST_ERROR = 2.9e-6
FUNCTIONS = ("add", "multiply_add", "multiply", "max_or_nan", "exp2_polynomial")
KERNEL = """
extern "C" __global__ void kernel(float* values) {
  float* pair = values + 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  exp2_polynomial(pair[0], pair[1]);
}
"""


def rendered() -> str:
    return render_kernel(plan(arch="sm_100a", config={"exp2_emulation_share": 0.25}))


def rendered_coefficients() -> Array:
    (text,) = re.findall(r"kExp2Coefficients\[4\] = \{(.*)\};", rendered())
    return np.array([float(one.strip().rstrip("f")) for one in text.split(",")], dtype=np.float32)


def best_coefficients(count: int, points: int = 4001, rounds: int = 200) -> tuple[Array, float]:
    """Coefficients c of 1 + f (c[0] + f (c[1] + ...)) with the least largest relative error on [-1/2, 1/2], and it.

    Least squares whose weights are multiplied by the error until it is level (Lawson, 1961): unlike Remez's exchange
    it allows the value at 0 to be fixed.
    """
    f = 0.5 * np.cos(np.linspace(0, np.pi, points))
    powers = np.stack([f**power for power in range(1, count + 1)], axis=1) / np.exp2(f)[:, None]
    target = 1 - 1 / np.exp2(f)
    weight = np.full(points, 1 / points)
    for _ in range(rounds):
        root = np.sqrt(weight)
        found = np.linalg.lstsq(powers * root[:, None], target * root, rcond=None)[0]
        error = np.abs(powers @ found - target)
        weight *= error
        weight /= weight.sum()
    return found, float(error.max())


def on_device(x: Array) -> Array:
    """What the rendered function gives for float32 values."""
    text = rendered()
    parts = ["using uint32 = unsigned int;", *re.findall(r"constexpr float kExp2.*\n", text)]
    for name in FUNCTIONS:
        parts += re.findall(
            rf"^__device__ [^\n]* {name}\(float.*?^}}\n", text, re.DOTALL | re.MULTILINE
        )
    values = np.concatenate([x, np.zeros(-len(x) % 64, np.float32)]).astype(np.float32)
    result = run("\n".join(parts) + KERNEL, values, grid=len(values) // 64, arch="sm_100a")
    assert not result.findings
    return values[: len(x)]


def test_coefficients_are_the_best_in_float32() -> None:
    coefficients, error = best_coefficients(4)
    assert rendered_coefficients() == pytest.approx(coefficients, rel=1e-6)
    assert error < LARGEST_ERROR


def test_three_coefficients_would_not_hold_the_bound_of_an_lse() -> None:
    # 1e-5 is what verify/compare.py allows an LSE; all exponentials may err to one side.
    assert best_coefficients(3)[1] > 1e-4
    assert best_coefficients(4)[1] < 1e-5


def test_the_device_function_errs_as_the_coefficients_do() -> None:
    x = np.random.default_rng(0).uniform(-125.9, 60.0, 4096).astype(np.float32)
    exact = np.exp2(x.astype(np.float64))
    error = np.abs(on_device(x) / exact - 1)
    assert error.max() < LARGEST_ERROR
    assert error.max() > LARGEST_ERROR / 2  # it is this polynomial


def test_whole_powers_are_exact() -> None:
    x = np.arange(-126, 61, dtype=np.float32)
    assert (on_device(x) == np.exp2(x)).all()


def test_what_is_negligible_is_exactly_zero_and_nan_stays() -> None:
    x = np.array([-np.inf, -3e38, -1e4, -127.0, -126.6, np.nan], dtype=np.float32)
    found = on_device(x)
    assert (found[:-1] == 0).all()
    assert np.isnan(found[-1])
