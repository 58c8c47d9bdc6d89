"""The chosen kernels: all template blocks, and none of them for nothing."""

from __future__ import annotations

import pytest

from mlagen.plan import plan_kernel
from tests.mutation.campaign import ARCHITECTURES, chosen_kernels
from tests.mutation.cover import cover, template_blocks
from tests.plan.kernels import shipped_specs

each_arch = pytest.mark.parametrize("arch", ARCHITECTURES)


@each_arch
def test_chosen_kernels_use_every_block_that_a_shipped_kernel_uses(arch: str) -> None:
    blocks = template_blocks(plan_kernel(spec) for spec in shipped_specs(arch))
    chosen = [plan_kernel(spec).name for spec in chosen_kernels() if spec.arch == arch]
    assert frozenset().union(*(blocks[name] for name in chosen)) == frozenset().union(
        *blocks.values()
    )


@each_arch
def test_no_chosen_kernel_could_be_left_out(arch: str) -> None:
    blocks = template_blocks(plan_kernel(spec) for spec in chosen_kernels() if spec.arch == arch)
    for name, own in blocks.items():
        others = frozenset().union(*(used for other, used in blocks.items() if other != name))
        assert own - others, name


def test_blocks_are_branches_of_the_templates() -> None:
    plan, _ = [plan_kernel(spec) for spec in chosen_kernels() if spec.score_mod.kind == "softcap"]
    blocks = template_blocks([plan])[plan.name]
    mods = {block for block in blocks if block.startswith("device/score_mod")}
    assert mods == {"device/score_mod.cuh.j2:1 if"}


def test_a_cover_takes_the_largest_first() -> None:
    assert cover({"a": frozenset("xy"), "b": frozenset("xyz"), "c": frozenset("zw")}) == ["b", "c"]
