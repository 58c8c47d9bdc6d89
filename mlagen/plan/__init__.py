"""Plan: how a `KernelSpec` becomes a kernel on one architecture.

Here: resolved tiles, memory maps, barriers, roles, tensor maps, arguments, cost. Not here: CUDA text (`render`),
compilers, tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.errors import UnsupportedError
from mlagen.plan.plan import KernelPlan
from mlagen.plan.prefill_sm90 import plan_prefill_sm90
from mlagen.plan.prefill_sm100 import plan_prefill_sm100

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

__all__ = ["KernelPlan", "plan_kernel"]

FAMILIES = {
    ("prefill", "sm_90a"): plan_prefill_sm90,
    ("prefill", "sm_100a"): plan_prefill_sm100,
}


def plan_kernel(spec: KernelSpec) -> KernelPlan:
    """Resolve a spec into the plan of its kernel.

    Raises:
        UnsupportedError: No kernel implements an option of the spec yet.
        PlanError: The spec does not fit its architecture.
    """
    family = FAMILIES.get((spec.op, spec.arch))
    if family is None:
        available = ", ".join(f"{op} on {arch}" for op, arch in FAMILIES)
        message = f"not available yet: {spec.op} on {spec.arch}\n  available: {available}"
        raise UnsupportedError(message)
    return family(spec)
