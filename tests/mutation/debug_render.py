"""A rendered kernel whose wait loops trap at a clock limit, for runs of deadlocks on a GPU.

`mbarrier` waits look at the clock between two tries. A named barrier cannot time out, so arrivals are counted in shared
memory instead, and whoever waits for them polls. ptxas serialises wgmma in such a kernel (C7512): it is never shipped.
What still cannot time out: `setmaxnreg.inc` without registers, and collective operations that not all warps come to.
"""

from __future__ import annotations

import re

# A wait of a correct kernel on a small problem takes microseconds.
LIMIT_CYCLES = 1 << 31

_WAIT_LIMIT = (
    r'"mov.u64 now, %%clock64; sub.u64 now, now, begin; setp.gt.u64 late, now, '
    rf"{LIMIT_CYCLES}; @late trap;\\n"
)
# Barriers 0 to 15 count all arrivals since the start; a barrier's n-th use is over after n times its threads.
_NAMED_BARRIERS = f"""\
__shared__ volatile uint32 named_arrivals[16];
__device__ __forceinline__ uint32 arrive_at_named(int id) {{
  __threadfence_block();
  return atomicAdd(const_cast<uint32*>(&named_arrivals[id]), 1);
}}
__device__ __forceinline__ void wait_for_named(int id, uint32 arrivals) {{
  const int64 begin = clock64();
  while (named_arrivals[id] < arrivals) {{
    if (clock64() - begin > {LIMIT_CYCLES}ll) __trap();
  }}
  __threadfence_block();
  __syncwarp();
}}
"""

# What the render expects in a kernel, and what it makes of it.
_EDITS = (
    (
        r'"\{\.reg \.pred ended;\\n"',
        r'"{.reg .pred ended, late; .reg .u64 begin, now; mov.u64 begin, %%clock64;\\n"',
    ),
    (r'^( *)(?="bra WAIT;\\n"$)', rf'\1{_WAIT_LIMIT}"\n\1'),
    (r"(?=^// Waits until `threads` threads have come to named barrier)", _NAMED_BARRIERS),
    (
        r'asm volatile\("bar\.sync %0, %1;" ::"r"\(id\), "r"\(threads\) : "memory"\);',
        "wait_for_named(id, (arrive_at_named(id) / threads + 1) * threads);",
    ),
    (
        r'asm volatile\("bar\.arrive %0, %1;" ::"r"\(id\), "r"\(threads\) : "memory"\);',
        "arrive_at_named(id);",
    ),
    (
        r"^  const int warp = uniform\(threadIdx\.x / 32\);",
        "  if (threadIdx.x < 16) named_arrivals[threadIdx.x] = 0;\n\\g<0>",
    ),
)


def debug_render(source: str) -> str:
    """The same kernel, or a mutant of it, with limits in its wait loops.

    Args:
        source: A rendered sm_90a kernel. Where a fault has removed a wait loop, nothing needs a limit.
    """
    for pattern, text in _EDITS:
        source = re.sub(pattern, text, source, flags=re.MULTILINE)
    return source
