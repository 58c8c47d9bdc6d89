from __future__ import annotations

import numpy as np
import pytest

from tests.sim.cuda import kinds, run

FLAG = """
extern "C" __global__ void kernel(int* data, int* flag, int* out) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    data[0] = 42;
    asm volatile("RELEASE [%0], 1;" :: "l"(flag) : "memory");
  } else {
    int seen;
    do asm volatile("ACQUIRE %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); while (!seen);
    out[0] = data[0];
  }
}
"""


@pytest.mark.parametrize(
    ("release", "acquire", "expected"),
    [
        ("st.release.gpu.global.s32", "ld.acquire.gpu.global.s32", []),
        ("fence.acq_rel.gpu; st.relaxed.gpu.global.s32", "ld.acquire.gpu.global.s32", []),
        ("membar.gl; st.volatile.global.s32", "ld.acquire.sys.global.s32", []),
        ("red.release.gpu.global.add.s32", "ld.acquire.gpu.global.s32", []),
        ("st.relaxed.gpu.global.s32", "ld.acquire.gpu.global.s32", ["race"]),
        ("st.release.gpu.global.s32", "ld.relaxed.gpu.global.s32", ["race"]),
        ("st.release.cta.global.s32", "ld.acquire.gpu.global.s32", ["race"]),
        ("st.release.gpu.global.s32", "ld.acquire.cta.global.s32", ["race"]),
    ],
)
def test_a_flag_needs_release_and_acquire(release: str, acquire: str, expected: list[str]) -> None:
    data, flag, out = (np.zeros(1, dtype=np.int32) for _ in range(3))
    source = FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire)
    result = run(source, data, flag, out, grid=2)
    assert kinds(result) == expected
    assert out[0] == 42


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    data, flag, out = (np.zeros(1, dtype=np.int32) for _ in range(3))
    source = FLAG.replace("RELEASE", "// ").replace("ACQUIRE", "ld.acquire.gpu.global.s32")
    result = run(source, data, flag, out, grid=2)
    assert kinds(result) == ["deadlock"]
    assert "a write to byte 0 of 4 of argument 1" in result.findings[0].message
