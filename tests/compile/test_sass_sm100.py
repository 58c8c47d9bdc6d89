"""A Blackwell kernel as compiled: its machine code shows what the plan says."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mlagen.compile.nvrtc import KERNEL_OPTIONS, Compiled, compile_cuda
from mlagen.compile.resources import parse_resources
from mlagen.compile.sass import Sass, disassemble, lint_sass
from mlagen.render import render_kernel
from mlagen.sass_facts import SassFacts, SassLoop
from tests.plan.kernels import plan

PLAN = plan(arch="sm_100a", mask="causal")


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    source = render_kernel(PLAN)
    return compile_cuda(source, name=PLAN.name, arch="sm_100a", options=KERNEL_OPTIONS)


@pytest.fixture(scope="module")
def sass(compiled: Compiled) -> Sass:
    return disassemble(compiled.cubin)


def test_loops_and_registers_are_those_of_the_plan(sass: Sass) -> None:
    assert PLAN.sass.loops
    assert lint_sass(sass, PLAN.sass) == []


def one_less(loop: SassLoop) -> SassLoop:
    (name, count), *others = loop.counts
    return replace(loop, counts=((name, count - 1), *others))


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        pytest.param(replace(PLAN.sass, registers=(184, 96, 48)), "registers", id="registers"),
        *(
            pytest.param(SassFacts((one_less(loop),)), "loop count", id=loop.role)
            for loop in PLAN.sass.loops
        ),
    ],
)
def test_other_numbers_are_refused(sass: Sass, expected: SassFacts, found: str) -> None:
    (finding,) = lint_sass(sass, expected)
    assert finding.rule == found
    assert finding.evidence


def test_memory_is_that_of_the_plan(compiled: Compiled) -> None:
    resources = parse_resources(compiled.log)
    assert (resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes) == (
        0,
        0,
        0,
    )
    assert resources.registers == 4 * 128 * 128 // PLAN.threads
    # All shared memory is dynamic: a static_assert in the source holds its layout against the plan.
    assert resources.shared_bytes == 0
    (taken,) = re.findall(r"tcgen05\.alloc\S* \[\S+\], (\d+);", compiled.ptx)
    assert int(taken) == max(one.first_column + one.columns for one in PLAN.tensor_regions)
