"""Kernels to time in tests: a spec with one of each kind that rows name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlagen.spec.yaml import spec_from_dict

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

GEOMETRY = {
    "num_heads": 8,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
}


def kernels(*groups: dict[str, Any], arch: str = "sm_90a") -> tuple[KernelSpec, ...]:
    """The kernels of these groups of options."""
    values = {"spec": 1, "name": "timed", "geometry": GEOMETRY, "arch": arch}
    return spec_from_dict(
        {**values, "kernels": [{"op": "prefill"} | group for group in groups]}
    ).expand()


DENSE = {"q_layout": "dense", "kv": "dense"}
