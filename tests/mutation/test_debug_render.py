"""Debug renders: they compile, run clean, and no wait loop is without a limit."""

from __future__ import annotations

import re

from tests.mutation.bench import compile_ptx
from tests.mutation.campaign import bench
from tests.mutation.debug_render import LIMIT_CYCLES, debug_render


def test_every_loop_that_waits_has_a_limit() -> None:
    source = debug_render(bench(0).source)
    assert source.count("bra WAIT") == source.count("@late trap") == 1
    assert f"setp.gt.u64 late, now, {LIMIT_CYCLES};" in source
    assert "bar.sync" not in source
    assert "bar.arrive" not in source


def test_a_debug_render_is_the_same_kernel() -> None:
    kernel = bench(0)
    source = debug_render(kernel.source)
    ptx = compile_ptx(source, kernel.plan)
    assert re.search(r"mov\.u64\s+begin, %clock64", ptx)
    assert kernel.simulate(source, ptx, "integer walk") == []
