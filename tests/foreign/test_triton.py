"""Kernels that Triton compiles for sm_90a and sm_100a give the right numbers and no error finding."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.foreign.reference import (
    DTYPES,
    LOG2_E,
    attention,
    integers,
    matmul,
    normal,
    rounded,
)

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "needs Triton, which exists for Linux on x86-64 (the dev extra)", allow_module_level=True
    )

from tests.foreign import triton_kernels as kernels
from tests.foreign.compile import Tensor, compile_kernel, run_kernel

if TYPE_CHECKING:
    from mlagen.sim.simulate import SimulationResult
    from tests.foreign.compile import Argument

ARCHITECTURES = (90, 100)


def assert_clean(outcome: SimulationResult) -> None:
    assert outcome.errors == ()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_softmax_of_rows(arch: int) -> None:
    x = np.random.default_rng(1).standard_normal((3, 500)).astype(np.float32)
    out = np.zeros_like(x)
    kernel = compile_kernel(
        kernels.softmax_rows,
        {"x": "*fp32", "out": "*fp32", "columns": "i32", "row_stride": "i32"},
        {"BLOCK": 512},
        arch=arch,
    )
    assert_clean(run_kernel(kernel, (3, 1, 1), [x, out, 500, 500]))
    weights = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-5, atol=0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_running_sums(arch: int) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (2, 200)).astype(np.int32)
    out = np.zeros_like(x)
    signature = {"x": "*i32", "out": "*i32", "columns": "i32"}
    kernel = compile_kernel(kernels.running_sums, signature, {"BLOCK": 256}, arch=arch)
    assert_clean(run_kernel(kernel, (2, 1, 1), [x, out, 200]))
    np.testing.assert_array_equal(out, np.cumsum(x, axis=1))


@dataclass(frozen=True)
class Product:
    """A shape of `kernels.product`; not multiples of 16 unless `aligned`, which brings `cp.async` in."""

    dtype: str
    m: int
    n: int
    k: int
    block: tuple[int, int, int]
    is_b_by_columns: bool = False
    aligned: bool = True
    warps: int = 4
    stages: int = 3


PRODUCTS = {
    "bf16": Product("bf16", 256, 128, 256, (128, 128, 64)),
    "bf16, ragged": Product("bf16", 150, 100, 90, (128, 64, 32), aligned=False),
    "bf16, 8 warps": Product("bf16", 128, 256, 128, (128, 256, 64), warps=8, stages=2),
    "fp16, B by columns": Product("fp16", 128, 128, 192, (128, 128, 64), is_b_by_columns=True),
    "fp16, 64 rows": Product("fp16", 64, 128, 128, (64, 128, 64), stages=4),
    "fp8": Product("fp8e4nv", 128, 128, 256, (128, 128, 128), is_b_by_columns=True),
    "tf32": Product("fp32", 128, 64, 96, (128, 64, 32), is_b_by_columns=True),
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, arch: int) -> None:
    case = PRODUCTS[name]
    a = integers(1, (case.m, case.k), case.dtype)
    b = integers(2, (case.n, case.k) if case.is_b_by_columns else (case.k, case.n), case.dtype)
    c = np.zeros((case.m, case.n), np.float32)
    pointer = f"*{case.dtype}"
    stride, unit = ("b_column", "b_row") if case.is_b_by_columns else ("b_row", "b_column")
    numbers = ("m", "n", "k", "a_row", stride, "c_row")
    signature = {"a": pointer, "b": pointer, "c": "*fp32"} | dict.fromkeys(numbers, "i32")
    block_m, block_n, block_k = case.block
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
    kernel = compile_kernel(
        kernels.product,
        signature,
        constants | {"a_column": 1, unit: 1},
        arch=arch,
        aligned=("a", "b", "c", *numbers) if case.aligned else ("a", "b", "c"),
        num_warps=case.warps,
        num_stages=case.stages,
    )
    grid = (-(-case.m // block_m), -(-case.n // block_n), 1)
    arguments: list[Argument] = [a, b, c, case.m, case.n, case.k, case.k, b.shape[1], case.n]
    assert_clean(run_kernel(kernel, grid, arguments))
    np.testing.assert_array_equal(c, matmul(a, b.T if case.is_b_by_columns else b))


TILES = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
TENSORS = {
    "a": "tensordesc<bf16[128, 64]>",
    "b": "tensordesc<bf16[128, 64]>",
    "c": "tensordesc<bf16[128, 128]>",
}


@pytest.mark.parametrize(
    ("arch", "specialize"), [(90, False), (100, False), (100, True)], ids=["90", "100", "100 roles"]
)
def test_products_by_tma(arch: int, specialize: bool) -> None:
    a, b = integers(1, (256, 320), "bf16"), integers(2, (256, 320), "bf16")
    c = np.zeros((256, 256), DTYPES["bf16"])
    kernel = compile_kernel(
        kernels.product_by_tma,
        TENSORS | {"k": "i32"},
        TILES | {"SPECIALIZE": specialize},
        arch=arch,
        num_stages=3,
    )
    assert_clean(run_kernel(kernel, (2, 2, 1), [Tensor(a), Tensor(b), Tensor(c), 320]))
    np.testing.assert_array_equal(c.astype(np.float64), rounded(matmul(a, b.T), "bf16"))


@pytest.mark.parametrize(
    ("arch", "specialize"), [(90, False), (100, False), (100, True)], ids=["90", "100", "100 roles"]
)
def test_persistent_products(arch: int, specialize: bool) -> None:
    a, b = integers(1, (384, 128), "bf16"), integers(2, (256, 128), "bf16")
    c = np.zeros((384, 256), DTYPES["bf16"])
    kernel = compile_kernel(
        kernels.product_persistent,
        TENSORS | dict.fromkeys(("m", "n", "k"), "i32"),
        TILES | {"CTAS": 2, "SPECIALIZE": specialize},
        arch=arch,
    )
    arguments: list[Argument] = [Tensor(a), Tensor(b), Tensor(c), 384, 256, 128]
    assert_clean(run_kernel(kernel, (2, 1, 1), arguments))
    np.testing.assert_array_equal(c.astype(np.float64), rounded(matmul(a, b.T), "bf16"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_by_descriptors_that_the_kernel_makes(arch: int) -> None:
    a, b = integers(1, (256, 192), "bf16"), integers(2, (128, 192), "bf16")
    c = np.zeros((256, 128), DTYPES["bf16"])
    kernel = compile_kernel(
        kernels.product_by_made_descriptors,
        dict.fromkeys(("a", "b", "c"), "*bf16") | dict.fromkeys(("m", "n", "k"), "i32"),
        {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64},
        arch=arch,
    )
    assert_clean(run_kernel(kernel, (2, 2, 1), [a, b, c, 256, 128, 192]))
    np.testing.assert_array_equal(c.astype(np.float64), rounded(matmul(a, b.T), "bf16"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_split_over_k_add_up_by_atomics(arch: int) -> None:
    a, b = integers(1, (64, 512), "fp16"), integers(2, (128, 512), "fp16")
    c = np.zeros((64, 128), np.float32)
    numbers = ("m", "n", "k")
    kernel = compile_kernel(
        kernels.product_split,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32"} | dict.fromkeys(numbers, "i32"),
        {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "SPLIT": 2},
        arch=arch,
        aligned=("a", "b", "c", *numbers),
    )
    assert_clean(run_kernel(kernel, (1, 2, 2), [a, b, c, 64, 128, 512]))
    np.testing.assert_array_equal(c, matmul(a, b.T))


def assert_near(out: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
    excess = np.abs(out.astype(np.float64) - expected) / bound
    worst = np.unravel_index(excess.argmax(), excess.shape)
    assert excess[worst] <= 1, f"at {worst}: {out[worst]}, expected {expected[worst]}"


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("causal", "head", "warps"), [(True, 64, 4), (False, 128, 4), (True, 64, 8)]
)
def test_attention(arch: int, causal: bool, head: int, warps: int) -> None:
    queries, keys, heads = 150, 200, 2
    q, k, v = (
        normal(seed, (heads, length, head)) for seed, length in enumerate((queries, keys, keys))
    )
    out, lse = np.zeros_like(q), np.zeros((heads, queries), np.float32)
    kernel = compile_kernel(
        kernels.attention,
        dict.fromkeys(("q", "k", "v", "out"), "*bf16")
        | {"lse": "*fp32", "queries": "i32", "keys": "i32", "scale_log2": "fp32"},
        {"HEAD": head, "BLOCK_Q": 128, "BLOCK_K": 64, "CAUSAL": causal},
        arch=arch,
        aligned=("q", "k", "v", "out"),
        num_warps=warps,
        num_stages=2,
    )
    scale = LOG2_E / head**0.5
    assert_clean(
        run_kernel(kernel, (2, heads, 1), [q, k, v, out, lse, queries, keys, float(scale)])
    )
    expected, bound, expected_lse = attention(q, k, v, scale, causal=causal)
    assert_near(out, expected, bound)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "specialize"), [(90, False), (100, False), (100, True)], ids=["90", "100", "100 roles"]
)
def test_attention_by_tma(arch: int, specialize: bool) -> None:
    queries, keys, heads, head = 128, 192, 2, 64
    q, k, v = (
        normal(seed, (heads * length, head)) for seed, length in enumerate((queries, keys, keys))
    )
    out, lse = np.zeros_like(q), np.zeros((heads, queries), np.float32)
    rows, columns = "tensordesc<bf16[128, 64]>", "tensordesc<bf16[64, 64]>"
    kernel = compile_kernel(
        kernels.attention_by_tma,
        {"q": rows, "k": columns, "v": columns, "out": rows, "lse": "*fp32"}
        | {"queries": "i32", "keys": "i32", "scale_log2": "fp32"},
        {"HEAD": head, "BLOCK_Q": 128, "BLOCK_K": 64, "SPECIALIZE": specialize},
        arch=arch,
        num_stages=2,
    )
    scale = LOG2_E / head**0.5
    tensors = [Tensor(one) for one in (q, k, v, out)]
    arguments: list[Argument] = [*tensors, lse, queries, keys, float(scale)]
    assert_clean(run_kernel(kernel, (1, heads, 1), arguments))
    q, k, v = (one.reshape(heads, -1, head) for one in (q, k, v))
    expected, bound, expected_lse = attention(q, k, v, scale, causal=False)
    assert_near(out.reshape(heads, queries, head), expected, bound)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-6, atol=1e-5)
