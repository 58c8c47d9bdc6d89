"""Where the simulator and an H200 are known to differ, and how far approximations may lie apart."""

from __future__ import annotations

# By the beginning of a case's name. `replay` must refuse these, or give another answer.
REFUSED = {
    "alu/fns.b32": "no kernel uses it",
    "alu/add.rz.f64": "directed rounding of f64: no kernel uses it",
    "alu/sub.rz.f64": "directed rounding of f64: no kernel uses it",
    "alu/mul.rz.f64": "directed rounding of f64: no kernel uses it",
    **{
        f"alu/{name}.{mode}{flush}.f32": "directed rounding of quotients and roots: no kernel uses it"
        for name in ("div", "rcp", "sqrt")
        for mode in ("rz", "rm", "rp")
        for flush in ("", ".ftz")
    },
    **{
        f"alu/cvt.pack.sat.{kinds}": "packing of integers: no kernel uses it"
        for kinds in ("u16.s32", "s16.s32", "u8.s32.b32", "s8.s32.b32", "u4.s32.b32", "s4.s32.b32")
    },
    "matrix/movmatrix.sync.aligned.m8n8.trans.b16": "no kernel uses it",
}
DIFFERENT = {"alu/fma.rn.f64": "results near the subnormals of f64 are rounded twice"}

# Largest distance in ulps among 65,536 operands, half of them special or random bits, on an H200; the others' is 0.
LARGEST_ULP = {
    "alu/div.full.f32": 2,
    "alu/div.full.ftz.f32": 2,
    "alu/div.approx.f32": 2,
    "alu/div.approx.ftz.f32": 2,
    "alu/sqrt.approx.f32": 1,
    "alu/sqrt.approx.ftz.f32": 1,
    "alu/rsqrt.approx.f32": 1,
    "alu/rsqrt.approx.ftz.f32": 1,
    "alu/ex2.approx.f16": 1,
    "alu/ex2.approx.f16x2": 1,
    "alu/ex2.approx.ftz.bf16": 1,
    "alu/ex2.approx.ftz.bf16x2": 1,
    "alu/tanh.approx.f32": 124,
    "alu/tanh.approx.f16": 1,
    "alu/tanh.approx.f16x2": 1,
    "alu/tanh.approx.bf16": 1,
    "alu/tanh.approx.bf16x2": 1,
}
# Where results near zero have few right bits: the largest error, absolute below 1 and relative above; of sine and
# cosine for arguments up to pi, beyond which the hardware loses more and more.
LARGEST_ERROR = {
    "alu/sin.approx.f32": 2.0**-21.4,
    "alu/sin.approx.ftz.f32": 2.0**-21.4,
    "alu/cos.approx.f32": 2.0**-21.3,
    "alu/cos.approx.ftz.f32": 2.0**-21.3,
}
