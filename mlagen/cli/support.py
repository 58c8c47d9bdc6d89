"""Which options have a kernel: found by planning one kernel an option, so that it cannot be out of date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: the values of a spec, as in YAML

from mlagen.errors import MlagenError
from mlagen.plan import plan_kernel
from mlagen.plan.support import HEAD_DIMS
from mlagen.spec.yaml import spec_from_dict

# Everything that the options below do not change.
_GEOMETRY = {
    "num_heads": 16,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
}

# Option -> the values to try: what a table shows -> fields of a kernel (of a group in a spec file).
_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "op": {"prefill": {}, "decode": {"op": "decode"}},
    "arch": {"sm_90a": {}, "sm_100a (proven in the simulator only)": {"arch": "sm_100a"}},
    "dtype": {name: {"dtype": name} for name in ("bfloat16", "float16", "float8_e4m3fn")},
    "output_dtype": {
        "as dtype": {},
        "another": {"dtype": "float16", "output_dtype": "bfloat16"},
    },
    "qk_nope + qk_rope / v": {
        f"{nope}+{rope}/{v}": {
            "geometry": _GEOMETRY
            | {"qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v}
        }
        for nope, rope, v in HEAD_DIMS
    },
    "q_form": {name: {"q_form": name} for name in ("fused", "split")},
    "q_layout": {"ragged": {}, "dense": {"q_layout": "dense", "kv": "dense"}},
    "kv": {
        "ragged": {"kv": "ragged"},
        "ragged, offsets of q": {"kv": {"layout": "ragged", "row_offsets": False}},
        "dense": {"kv": "dense"},
        "dense, lengths": {"kv": {"layout": "dense", "seqlens": True}},
        "paged": {"kv": {"layout": "paged", "page_size": 64}},
        "fp8": {"q_layout": "dense", "kv": {"layout": "dense", "row": "fp8"}},
        "fp8_grouped": {
            "q_layout": "dense",
            "kv": {"layout": "dense", "row": "fp8_grouped"},
        },
    },
    "k_rope": {
        "fused": {},
        "ragged": {"k_rope": "ragged"},
        "dense": {"k_rope": "dense"},
        **{
            f"paged {size}": {"k_rope": {"layout": "paged", "page_size": size}}
            for size in (1, 4, 8, 16, 32, 64, 128, 256, 512)
        },
        "several rope heads": {"k_rope": {"layout": "ragged", "num_heads": 4}},
    },
    "kv_length_counts": {"total": {}, "prefix": {"kv_length_counts": "prefix"}},
    "mask": {
        "none": {},
        "causal": {"mask": "causal"},
        "sliding_window": {"mask": {"kind": "sliding_window", "left": 1023, "right": 0}},
        "chunked": {"mask": {"kind": "chunked", "size": 1024}},
        **{kind: {"mask": kind} for kind in ("padding", "prefix_lm", "document", "tree")},
        "block_sparse": {"mask": "block_sparse"},
        "all": {"mask": {"all": ["causal", "padding"]}},
        "any": {"mask": {"any": ["causal", "padding"]}},
        "expr": {"mask": {"expr": "k <= q"}},
    },
    "score_mod": {
        "identity": {},
        "softcap": {"score_mod": {"kind": "softcap", "cap": 30.0}},
        "alibi": {"score_mod": "alibi"},
        "bias": {"score_mod": {"kind": "bias", "rank": 2}},
        "relative_bias": {"score_mod": {"kind": "relative_bias", "extent": 128}},
        "temperature": {"score_mod": "temperature"},
        "expr": {"score_mod": {"expr": "score * 2"}},
        "chain": {"score_mod": [[{"kind": "softcap", "cap": 30.0}, "alibi"]]},
    },
    "sink": {"false": {}, "true": {"sink": True}},
    "lse": {"false": {}, "true": {"lse": True}},
    "max_seqlen": {"dynamic": {}, "a number": {"max_seqlen": 4096}},
    "partition": {"none": {}, "split_kv": {"partition": "split_kv"}},
    "scheduler.kind": {
        kind: {"scheduler": {"kind": kind}} for kind in ("queued", "persistent", "transient")
    },
    "scheduler.order": {
        order: {"scheduler": {"order": order}} for order in ("longest_first", "natural", "rotate")
    },
}


@dataclass(frozen=True, slots=True)
class Support:
    """Whether one value of one option has a kernel.

    Attributes:
        option: The field of a spec.
        value: Its value, in the words of a table.
        reason: Why it has none, None if it has one.
    """

    option: str
    value: str
    reason: str | None


def known_options() -> list[Support]:
    """Return every option that a spec knows, in the order of a spec, for prefill on sm_90a."""
    return [
        Support(option, value, _refusal(fields))
        for option, values in _OPTIONS.items()
        for value, fields in values.items()
    ]


def support_table() -> str:
    """Return all options as a Markdown table, one line an option: what README.md shows."""
    lines = ["| option | has kernels | not yet |", "|---|---|---|"]
    options = known_options()
    for option in _OPTIONS:
        here = [one for one in options if one.option == option]
        ready = ", ".join(one.value for one in here if one.reason is None)
        missing = ", ".join(one.value for one in here if one.reason is not None)
        lines.append(f"| {option} | {ready} | {missing} |")
    return "\n".join(lines) + "\n"


def _refusal(fields: dict[str, Any]) -> str | None:
    """Return why a kernel with these fields is refused, in one line; None if it is not."""
    group = {"op": "prefill"} | {
        name: value for name, value in fields.items() if name not in {"arch", "geometry"}
    }
    values = {
        "spec": 1,
        "name": "probe",
        "geometry": fields.get("geometry", _GEOMETRY),
        "arch": fields.get("arch", "sm_90a"),
        "kernels": [group],
    }
    try:
        for spec in spec_from_dict(values).expand():
            plan_kernel(spec)
    except MlagenError as error:
        return one_line(error)
    return None


def one_line(error: MlagenError) -> str:
    """Return a refusal without its indentation and place."""
    text = "; ".join(line.strip() for line in str(error).splitlines())
    return text.removeprefix("spec: ").replace(":;", ":")
