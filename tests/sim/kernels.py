"""Kernels for tests of the front end: shipped ones, and small ones in PTX."""

from __future__ import annotations

import functools
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse

if TYPE_CHECKING:
    from mlagen.sim.program import Program

_GENERATED = FilePath(__file__).parents[2] / "generated" / "deepseek-v3" / "sm_90a"
KERNELS = (
    "*bf16_causal_ragged_fused_lse_*",
    "*causal_softcap_ragged_fused_*",
    "*causal_ragged_splitq_paged16_lse_*",
)


@functools.cache
def shipped_ptx(pattern: str) -> str:
    """PTX of the shipped kernel whose name matches."""
    (path,) = _GENERATED.glob(pattern + ".cu")
    return compile_cuda(
        path.read_text(), name=path.stem, arch="compute_90a", options=LINE_OPTIONS
    ).ptx


def lower_kernel(body: str, *, declarations: str = "", head: str = "") -> Program:
    """A kernel of PTX statements on `%p0..9`, `%h0..9`, `%r0..99`, `%d0..9`."""
    text = f""".version 8.6
.target sm_90a
.address_size 64
{declarations}
.visible .entry kernel(.param .b64 first)
{head}
{{
.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<100>; .reg .b64 %d<10>;
{body}
}}
"""
    return lower(parse(text))
