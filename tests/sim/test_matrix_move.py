from __future__ import annotations

import numpy as np
import pytest

from tests.sim.cuda import kinds, run
from tests.sim.ptx_kernel import launch

RANDOM = np.random.default_rng(25)


MATRIX = """
extern "C" __global__ void kernel(const unsigned short* in, unsigned short* out, unsigned* seen) {
  __shared__ alignas(16) unsigned short a[256], b[256];
  int lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) a[lane * 8 + i] = in[lane * 8 + i];
  __syncwarp();
  unsigned from = __cvta_generic_to_shared(a + 8 * lane), to = __cvta_generic_to_shared(b + 8 * lane);
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4LOADED.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
  for (int i = 0; i < 4; ++i) seen[i * 32 + lane] = r[i];
  asm volatile("stmatrix.sync.aligned.m8n8.x4STORED.shared.b16 [%4], {%0, %1, %2, %3};"
               :: "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(to) : "memory");
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = b[lane * 8 + i];
}
"""


@pytest.mark.parametrize("loaded", ["", ".trans"])
@pytest.mark.parametrize("stored", ["", ".trans"])
def test_matrices_of_a_warp(loaded: str, stored: str) -> None:
    given = RANDOM.integers(0, 2**16, size=(4, 8, 8), dtype=np.uint16)
    out = np.zeros_like(given)
    seen = np.zeros((4, 32), dtype=np.uint32)
    source = MATRIX.replace("LOADED", loaded).replace("STORED", stored)
    assert kinds(run(source, given, out, seen)) == []
    for matrix in range(4):
        for lane in range(32):
            row, column = lane // 4, 2 * (lane % 4)
            low, high = (
                (given[matrix, column, row], given[matrix, column + 1, row])
                if loaded
                else (given[matrix, row, column], given[matrix, row, column + 1])
            )
            assert seen[matrix, lane] == int(low) | int(high) << 16
    turned = given if loaded == stored else given.swapaxes(1, 2)
    np.testing.assert_array_equal(out, turned)


@pytest.mark.parametrize(
    "moved",
    [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2], {%r1};",
    ],
)
def test_matrices_take_whole_warps(moved: str) -> None:
    body = f"setp.gt.u32 %p1, %r0, LAST; @%p1 ret; mov.u32 %r2, memory; st.shared.u32 [%r2], 1; {moved}"
    assert kinds(launch(body.replace("LAST", "20"), {})) == ["diverged-aligned"]
