"""Rows of the LSE 2^31 elements apart: too far for a problem that everybody runs, cheap where memory is lazy."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlagen.compile.resources import Resources
from mlagen.kernel_compiler import BuiltKernel
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.simulator import Simulator, run_simulated
from mlagen.verify.compare import compare, lse_bound
from mlagen.verify.problems import make_problem
from mlagen.verify.reference import reference
from tests.mutation.bench import Bench, compile_ptx
from tests.mutation.catalogue import RULES
from tests.plan.kernels import shipped_specs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.verify.problems import Problem

# The third row lies 2^31 elements behind the first.
ROW_STRIDE = 2**30
# Linux: pages count when they are touched (mman.h; Python has no name for it).
MAP_NORESERVE = 0x4000
# The simulator's own notes about 8 GiB are as lazy, but the system promises no more than there is.
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

(NARROW,) = (rule for rule in RULES if rule.name == "lse-narrow")
# One an architecture.
KERNELS = [
    Bench(next(one for one in shipped_specs(arch) if one.lse and one.q_layout == "ragged"))
    for arch in ("sm_90a", "sm_100a")
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.plan.arch.name)


def problem_of(bench: Bench) -> Problem:
    return make_problem(bench.spec, "many keys")


def far_rows(rows: int, heads: int) -> NDArray[np.float32]:
    size = ((rows - 1) * ROW_STRIDE + heads) * 4
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory: NDArray[np.float32] = np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.float32)
    return np.lib.stride_tricks.as_strided(memory, (rows, heads), (4 * ROW_STRIDE, 4))


def run(bench: Bench, source: str) -> tuple[list[str], NDArray[np.float32]]:
    """Kinds of the findings, and the LSE."""
    problem = problem_of(bench)
    lse = far_rows(*problem.tensors["q"].shape[:2])
    ptx = compile_ptx(source, bench.plan)
    kernel = BuiltKernel(
        plan=bench.plan,
        source=source,
        cubin=b"",
        ptx=ptx,
        resources=Resources(0, 0, 0, 0, 0, 0),
        key="",
        cached=False,
        seconds=0.0,
        lint="skipped",
    )
    arguments: dict[str, Any] = {**problem.tensors, **problem.options}
    call = parse_call({**arguments, "lse": lse, "return_lse": True})
    simulated = run_simulated(kernel, call, Simulator(ctas=1))
    assert simulated.result is not None
    return [error.kind for error in simulated.result.errors], lse


needs_memory = pytest.mark.skipif(
    MEMORY_BYTES < 10 * 2**30,
    reason="less than 10 GiB of memory: none of 8 GiB, not even a lazy one",
)


@needs_memory
@every_kernel
def test_the_lse_reaches_rows_that_32_bits_do_not(kernel: Bench) -> None:
    problem = problem_of(kernel)
    assert len(problem.tensors["q"]) * ROW_STRIDE > 2**31
    findings, lse = run(kernel, kernel.source)
    assert findings == []
    _, wanted = reference(
        kernel.spec, problem.tensors, softmax_scale=problem.options["softmax_scale"]
    )
    found = compare(lse, wanted, bound=lse_bound(wanted))
    assert found.misplaced + found.beyond == 0, found


@needs_memory
@every_kernel
def test_a_place_in_32_bits_is_caught(kernel: Bench) -> None:
    (mutant,) = NARROW.sites(kernel.source)
    findings, _ = run(kernel, mutant.source)
    assert "out-of-bounds" in findings
