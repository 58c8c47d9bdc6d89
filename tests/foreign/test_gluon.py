"""Gluon kernels: each shape of tensor-memory load, both places of A, CTA pairs, as Triton's own layouts have them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np
import pytest

from mlagen.sim.schedule import parse_schedule
from tests.foreign.reference import DTYPES, integers, matmul, rounded

if importlib.util.find_spec("triton") is None:
    pytest.skip(
        "needs Triton, which exists for Linux on x86-64 (the dev extra)", allow_module_level=True
    )

from triton.experimental.gluon import language as gl

from tests.foreign import gluon_kernels as kernels
from tests.foreign.compile import Tensor, compile_kernel, run_kernel

TYPES = {"bf16": gl.bfloat16, "fp8e4nv": gl.float8e4nv, "fp32": gl.float32}


@dataclass(frozen=True)
class Tile:
    """A shape of `kernels.tile_product`; `variant` is how D is read back."""

    m: int = 128
    n: int = 64
    k: int = 64
    dtype: str = "bf16"
    variant: str = "32x32b"
    is_a_in_tensor_memory: bool = False
    swizzle: int = 128
    is_b_by_columns: bool = False


CASES = {
    "loads of 32x32b": Tile(),
    "loads of 16x64b": Tile(variant="16x64b"),
    "loads of 16x128b": Tile(variant="16x128b"),
    "loads of 16x256b": Tile(variant="16x256b", n=128),
    "A in tensor memory": Tile(is_a_in_tensor_memory=True, k=128),
    "64 rows, loads of 16x32bx2": Tile(m=64, swizzle=64),
    "64 rows, loads of 16x256b": Tile(m=64, variant="16x256b"),
    "64 rows, A in tensor memory": Tile(m=64, is_a_in_tensor_memory=True, swizzle=32),
    "fp8, B by rows": Tile(dtype="fp8e4nv", swizzle=64),
    "fp8, B by columns": Tile(dtype="fp8e4nv", k=128, is_b_by_columns=True, variant="16x128b"),
    "fp8, A in tensor memory": Tile(dtype="fp8e4nv", is_a_in_tensor_memory=True, swizzle=64),
    "tf32": Tile(dtype="fp32", k=32, is_b_by_columns=True),
    "256 columns": Tile(n=256, k=32, swizzle=64),
}


@pytest.mark.parametrize("name", CASES)
def test_tiles(name: str) -> None:
    case = CASES[name]
    a = integers(1, (case.m, case.k), case.dtype)
    b = integers(2, (case.n, case.k) if case.is_b_by_columns else (case.k, case.n), case.dtype)
    out = np.zeros((case.m, case.n), np.float32)
    kernel = compile_kernel(
        kernels.tile_product,
        {"a": f"*{case.dtype}", "b": f"*{case.dtype}", "out": "*fp32"},
        {
            "M": case.m,
            "N": case.n,
            "K": case.k,
            "DTYPE": TYPES[case.dtype],
            "VARIANT": case.variant,
            "A_IN_TENSOR_MEMORY": case.is_a_in_tensor_memory,
            "SWIZZLE": case.swizzle,
            "B_BY_COLUMNS": case.is_b_by_columns,
        },
        arch=100,
    )
    assert run_kernel(kernel, (1, 1, 1), [a, b, out]).errors == ()
    np.testing.assert_array_equal(out, matmul(a, b.T if case.is_b_by_columns else b))


@pytest.mark.parametrize("rows", [128, 256])
def test_pairs(rows: int) -> None:
    a, b = integers(1, (rows, 64), "bf16"), integers(2, (64, 128), "bf16")
    out = np.zeros((rows, 128), np.float32)
    kernel = compile_kernel(
        kernels.pair_product,
        {"a": "*bf16", "b": "*bf16", "out": "*fp32"},
        {"M": rows, "N": 128, "K": 64, "DTYPE": gl.bfloat16},
        arch=100,
        num_ctas=2,
    )
    assert "cta_group::2" in kernel.ptx
    assert run_kernel(kernel, (1, 1, 1), [a, b, out]).errors == ()
    np.testing.assert_array_equal(out, matmul(a, b))


@pytest.mark.parametrize("swizzle", [64, 128])
def test_copies_into_tensor_memory(swizzle: int) -> None:
    x = integers(1, (128, 32), "fp32", most=1000)
    out = np.zeros_like(x)
    kernel = compile_kernel(
        kernels.copied_tile,
        {"x": "*fp32", "out": "*fp32"},
        {"M": 128, "N": 32, "SWIZZLE": swizzle},
        arch=100,
    )
    assert "tcgen05.cp.cta_group::1.128x256b" in kernel.ptx
    assert run_kernel(kernel, (1, 1, 1), [x, out]).errors == ()
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("schedule", ["lazy", "pct:1", "pct:2", "pct:3"])
def test_warps_in_roles(schedule: str) -> None:
    a, b = integers(1, (256, 320), "bf16"), integers(2, (128, 320), "bf16")
    c = np.zeros((256, 128), DTYPES["bf16"])
    layout = gl.NVMMASharedLayout(128, 16, 2)
    kernel = compile_kernel(
        kernels.product_in_roles,
        {
            "a": f"tensordesc<bf16[128, 64],{layout!r}>",
            "b": f"tensordesc<bf16[128, 64],{layout!r}>",
            "c": f"tensordesc<bf16[128, 128],{layout!r}>",
            "panels": "i32",
        },
        {"STAGES": 3},
        arch=100,
    )
    outcome = run_kernel(
        kernel,
        (2, 1, 1),
        [Tensor(a), Tensor(b), Tensor(c), 5],
        schedule=parse_schedule(schedule),
    )
    assert outcome.errors == ()
    np.testing.assert_array_equal(c.astype(np.float64), rounded(matmul(a, b.T), "bf16"))
