"""Specs to plan: every shipped kernel, and kernels with chosen options."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: options before validation

from mlagen.plan import KernelPlan, plan_kernel
from mlagen.spec.yaml import kernel_from_dict, load_spec_file

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

SPECS = Path(__file__).parents[2] / "specs"
HEADS: dict[str, dict[str, Any]] = {
    "192x128": {
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
    },
    "128x128": {
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "kv_lora_rank": 256,
    },
    "256x256": {
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "kv_lora_rank": 512,
    },
    "256+0x256": {
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "kv_lora_rank": 512,
    },
}


def spec(heads: str = "192x128", **options: Any) -> KernelSpec:
    """A prefill with the given options, for sm_90a unless `arch` is one of them."""
    return kernel_from_dict({"arch": "sm_90a", "op": "prefill", "geometry": HEADS[heads]} | options)


def plan(heads: str = "192x128", **options: Any) -> KernelPlan:
    """The plan of `spec(heads, **options)`."""
    return plan_kernel(spec(heads, **options))


def shipped_specs(arch: str = "sm_90a") -> list[KernelSpec]:
    """Every kernel of specs/ for an architecture, each once."""
    return [kernel for kernel in _all_shipped_specs() if kernel.arch == arch]


@functools.cache
def _all_shipped_specs() -> tuple[KernelSpec, ...]:
    """Those of all architectures."""
    found = {
        kernel.hash: kernel
        for path in sorted(SPECS.glob("*.yaml"))
        for kernel in load_spec_file(path).expand()
    }
    return tuple(found.values())
