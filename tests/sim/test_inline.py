"""Functions that are called: put in place, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.ptx import Label
from tests.sim.cuda import kinds, run

_CALLS = r"""
struct Three { int a; float b; char c; };
__device__ __noinline__ float choose(int x, float y, signed char z, Three s) {
  if (x > 3) return y * z + s.a;
  return s.b - y + s.c;
}
__device__ __noinline__ double sum_of_squares(int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += i * i;
  return sum;
}
__device__ __noinline__ float both(int n) {
  return choose(n, 1.5f, -3, Three{n, 2.5f, (char)-n}) + (float)sum_of_squares(n);
}
extern "C" __global__ void kernel(float* out) {
  int t = threadIdx.x;
  out[t] = both(t % 7) + choose(t, 2.0f, 4, Three{t, -1.f, 9});
  if (t == 5) out[t] = both(4);
}
"""


def _choose(x: int, y: float, z: int, a: int, b: float, c: int) -> float:
    return y * z + a if x > 3 else b - y + c


def _both(n: int) -> float:
    return _choose(n, 1.5, -3, n, 2.5, -n) + sum(i * i for i in range(n))


def test_functions_that_call_functions_are_put_in_place() -> None:
    out = np.zeros(64, np.float32)
    result = run(_CALLS, out, block=64)
    assert kinds(result) == []
    expected = [_both(t % 7) + _choose(t, 2.0, 4, t, -1.0, 9) for t in range(64)]
    expected[5] = _both(4)
    assert out.tolist() == expected


def test_printing_prints_nothing() -> None:
    source = r"""
    extern "C" int printf(const char*, ...);
    extern "C" __global__ void kernel(int* out) { out[threadIdx.x] = printf("%d\n", threadIdx.x) + 3; }
    """
    out = np.zeros(32, np.int32)
    assert kinds(run(source, out)) == []
    assert (out == 3).all()


_PTX = """.version 8.6
.target sm_90a
.address_size 64
.extern .func missing ();
.func (.param .b32 func_retval0) again(.param .b32 again_param_0) {{
.reg .b32 %r<3>;
{body}
ret;
}}
.visible .entry kernel() {{
.reg .b32 %r<3>; .reg .pred %p;
.param .b32 param0; .param .b32 retval0;
st.param.b32 [param0+0], 5;
{call}
ret;
}}
"""
_CALL = "call.uni (retval0), again, (param0);"


@pytest.mark.parametrize(
    ("body", "call", "message"),
    [
        ("call (func_retval0), again, (again_param_0);", _CALL, "again calls itself"),
        ("", "call.uni missing;", "missing, which the PTX does not define"),
        ("", "call.uni (retval0), %r1, (param0), again;", "known at run time only"),
        ("ld.param.b32 %r1, [again_param_0+4];", _CALL, "not read as it was written"),
        ("mov.u32 %r1, again_param_0;", _CALL, "address of parameter again_param_0"),
    ],
)
def test_calls_that_cannot_be_put_in_place_are_refused(body: str, call: str, message: str) -> None:
    with pytest.raises(UnsupportedPtxError, match=message):
        lower(parse(_PTX.format(body=body, call=call)))


def test_a_guarded_call_is_branched_around() -> None:
    program = lower(parse(_PTX.format(body="trap;", call=f"@!%p {_CALL} st.shared.b32 [1024], 0;")))
    opcodes = [one.opcode for one in program.function.instructions]
    assert opcodes == ["mov.b32", "bra", "trap", "bra", "st.shared.b32", "ret"]
    around = program.function.instructions[1]
    assert around.guard is not None
    assert not around.guard[1]
    branches = [one.operands for one in program.function.instructions if one.opcode == "bra"]
    assert branches == [(Label("behind", 4),), (Label("end", 4),)]
