"""Products that ptxas might fuse are found; those with a rounding of their own are not."""

from __future__ import annotations

import pytest

from mlagen.compile.contraction import check_contraction
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda

KERNEL = """
extern "C" __global__ void kernel(float* x) {{
  float product = {product};
  asm volatile("" : "+f"(x[3]));
  x[2] = {total};
}}
"""


def ptx_of(product: str, total: str) -> str:
    source = KERNEL.format(product=product, total=total)
    return compile_cuda(source, name="kernel", arch="compute_90a", options=KERNEL_OPTIONS).ptx


@pytest.mark.parametrize(
    "statements",
    [
        "mul.f32 %f3, %f1, %f2;\n\tadd.f32 %f4, %f3, %f1;",
        "mul.f32 %f3, %f1, 0f3FB8AA3B;\nmov.u32 %r1, %r2;\nsub.f32 %f4, %f3, %f1;",
        "mul.ftz.f32 \t%f3, %f1, %f2;\nsub.ftz.f32 \t%f4, %f1, %f3;",
    ],
)
def test_a_product_that_goes_into_a_sum_is_found(statements: str) -> None:
    (finding,) = check_contraction(statements)
    assert finding.rule == "contraction"
    assert "1 products" in finding.message
    assert "mul" in finding.evidence[0]
    assert "%f4" in finding.evidence[0]


@pytest.mark.parametrize(
    "statements",
    [
        "mul.rn.f32 %f3, %f1, %f2;\nadd.f32 %f4, %f3, %f1;",
        "mul.f32 %f3, %f1, %f2;\nadd.rn.f32 %f4, %f3, %f1;",
        "mul.f32 %f3, %f1, %f2;\nmul.f32 %f4, %f3, %f1;",
        "mul.f32 %f3, %f1, %f2;\nadd.f32 %f4, %f30, %f1;",
        "fma.rn.f32 %f3, %f1, %f2, %f1;\nadd.f32 %f4, %f3, %f1;",
    ],
)
def test_what_is_rounded_as_written_is_not(statements: str) -> None:
    assert check_contraction(statements) == []


def test_the_intrinsics_keep_ptxas_from_it() -> None:
    assert check_contraction(ptx_of("__fmul_rn(x[0], x[1])", "product + x[1]")) == []
    assert check_contraction(ptx_of("fmaf(x[0], x[1], x[1])", "product + x[1]")) == []
