"""Small spec texts and dicts, so that a test shows only what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: specs before validation

from mlagen.errors import SpecError
from mlagen.spec.yaml import kernel_from_dict, parse_spec, spec_from_dict

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

DEEPSEEK_HEAD: dict[str, Any] = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
}

# Five lines: a group written after it starts in line 6.
HEAD = """\
spec: 1
name: test
geometry: {num_heads: [16, 8], qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: sm_90a
kernels:
"""


def kernel(**options: Any) -> KernelSpec:
    """A kernel of DeepSeek's dimensions on sm_90a with the given options."""
    return kernel_from_dict({"arch": "sm_90a", "geometry": DEEPSEEK_HEAD, **options})


def spec_dict(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A spec file of DeepSeek's dimensions with the given groups, each a prefill."""
    return {
        "spec": 1,
        "name": "test",
        "geometry": {**DEEPSEEK_HEAD, "num_heads": [16, 8]},
        "arch": ["sm_90a"],
        "kernels": [{"op": "prefill", **group} for group in groups],
        **fields,
    }


def kernels(*groups: dict[str, Any], **fields: Any) -> tuple[KernelSpec, ...]:
    """The kernels that the given groups expand to."""
    return spec_from_dict(spec_dict(*groups, **fields)).expand()


def errors_of(groups: str, head: str = HEAD) -> list[str]:
    """The errors of a spec text, one entry an error."""
    try:
        parse_spec(head + groups, "test.yaml")
    except SpecError as error:
        return str(error).split("\n\n")
    return []


def error_of(groups: str, head: str = HEAD) -> str:
    """The only error of a spec text."""
    errors = errors_of(groups, head)
    assert len(errors) == 1, "\n\n".join(errors) or "no error"
    return errors[0]
