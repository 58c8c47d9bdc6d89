"""Identity: what changes a kernel's hash and what does not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: specs before validation

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlagen
from mlagen.spec.yaml import kernel_from_dict, parse_spec
from tests.spec.writing import DEEPSEEK_HEAD, HEAD, kernel, kernels

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

MASKS = st.sampled_from(
    [
        "none",
        "causal",
        {"kind": "sliding_window", "left": 4095, "right": 0},
        {"kind": "sliding_window", "left": 3, "right": 5},
        {"kind": "sliding_window", "left": 3, "right": None},
        {"kind": "chunked", "size": 8192},
        {"kind": "chunked", "size": 8192, "causal": False},
        "padding",
        "tree",
        {"all": ["causal", "document"]},
        {"any": ["causal", "document"]},
        {"expr": "k <= q + w", "params": {"w": "int32"}},
        {"expr": "k <= q + w", "params": {"w": {"dtype": "float32", "rank": 1}}},
    ]
)
SCORE_MODS = st.sampled_from(
    [
        "identity",
        "alibi",
        {"kind": "alibi", "slopes": "tensor"},
        {"kind": "softcap", "cap": 30},
        {"kind": "softcap", "cap": 50},
        ["alibi", {"kind": "softcap", "cap": 30}],
        {"kind": "bias", "rank": 3},
        {"kind": "relative_bias", "extent": 128},
        {"kind": "temperature", "per": "query"},
    ]
)
K_ROPES = st.sampled_from(
    ["fused", "ragged", "dense", {"layout": "dense", "row_width": 64}]
    + [{"layout": "paged", "page_size": size} for size in (16, 64)]
)
CONFIGS = st.sampled_from(
    [
        {},
        {"tile_n": 64},
        {"tile_n": 128},
        {"rescale_threshold": 8},
        {"ping_pong": False},
        {"cta_group": 2},
    ]
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "arch": st.sampled_from(["sm_90a", "sm_100a"]),
        "dtype": st.sampled_from(["bfloat16", "float16", "float8_e4m3fn"]),
        "output_dtype": st.sampled_from(["bfloat16", "float16"]),
        "q_form": st.sampled_from(["fused", "split"]),
        "mask": MASKS,
        "score_mod": SCORE_MODS,
        "k_rope": K_ROPES,
        "kv_length_counts": st.sampled_from(["total", "prefix"]),
        "sink": st.booleans(),
        "lse": st.booleans(),
        "max_seqlen": st.sampled_from(["dynamic", 1, 4096]),
        "partition": st.sampled_from(["none", "split_kv", {"kind": "split_kv", "splits": 4}]),
        "scheduler": st.sampled_from(["queued", "persistent", {"order": "rotate"}]),
        "config": CONFIGS,
    },
)


def shuffled(value: object, random: Any) -> object:
    """The same data with the keys of every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


def without_some(value: dict[str, Any], default: dict[str, Any], random: Any) -> dict[str, Any]:
    """The same kernel with some of the options left out that have their defaults."""
    return {
        key: item
        for key, item in value.items()
        if key not in default or item != default[key] or random.random() < 0.5
    }


@given(options=OPTIONS, random=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_order_of_keys_and_written_defaults_do_not_count(
    options: dict[str, Any], random: Any
) -> None:
    spec = kernel(**options)
    full = shuffled(spec.canonical, random)
    assert isinstance(full, dict)
    assert kernel_from_dict(full) == spec
    assert kernel_from_dict(full).hash == spec.hash
    fewer = without_some(full, kernel().canonical, random)
    fewer |= {key: full[key] for key in ("arch", "geometry", "output_dtype")}
    assert kernel_from_dict(fewer).hash == spec.hash


@given(first=OPTIONS, second=OPTIONS)
@settings(max_examples=150, deadline=None)
def test_equal_hash_means_equal_kernel(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = kernel(**first), kernel(**second)
    assert (one.hash == other.hash) == (one == other)


@given(options=OPTIONS)
@settings(max_examples=30, deadline=None)
def test_anyone_can_recompute_the_hash(options: dict[str, Any]) -> None:
    spec = kernel(**options)
    text = json.dumps(spec.canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == spec.hash
    assert text == spec.canonical_json


CHANGES: list[dict[str, Any]] = [
    {"arch": "sm_100a"},
    *({"geometry": {**DEEPSEEK_HEAD, key: value + 16}} for key, value in DEEPSEEK_HEAD.items()),
    {"geometry": {**DEEPSEEK_HEAD, "rope_scaling": {"type": "yarn", "factor": 40}}},
    {
        "geometry": {
            **DEEPSEEK_HEAD,
            "rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1},
        }
    },
    {"dtype": "float16"},
    {"output_dtype": "float16"},
    {"q_form": "split"},
    {"q_layout": "dense"},
    {"mask": "causal"},
    {"mask": {"kind": "sliding_window", "left": 4095, "right": 0}},
    {"mask": {"kind": "sliding_window", "left": 4096, "right": 0}},
    {"mask": {"kind": "sliding_window", "left": 4095, "right": 1}},
    {"mask": {"kind": "sliding_window", "left": 4095, "right": None}},
    {"mask": {"kind": "chunked", "size": 8192}},
    {"mask": {"kind": "chunked", "size": 8192, "causal": False}},
    {"mask": {"all": ["causal", "padding"]}},
    {"mask": {"any": ["causal", "padding"]}},
    {"mask": {"expr": "k <= q"}},
    {"mask": {"expr": "k < q"}},
    {"score_mod": "alibi"},
    {"score_mod": {"kind": "alibi", "slopes": "tensor"}},
    {"score_mod": {"kind": "softcap", "cap": 30}},
    {"score_mod": {"kind": "softcap", "cap": 30.5}},
    {"score_mod": {"expr": "k <= q"}},
    {"kv": "dense"},
    {"kv": {"layout": "dense", "seqlens": True}},
    {"kv": {"layout": "ragged", "row_offsets": False}},
    {"kv": {"layout": "paged", "page_size": 64}},
    {"kv": {"layout": "paged", "page_size": 64, "row": "fp8"}},
    {"k_rope": "ragged"},
    {"k_rope": {"layout": "ragged", "num_heads": 2}},
    {"k_rope": "dense"},
    {"k_rope": {"layout": "dense", "row_width": 64}},
    {"k_rope": {"layout": "paged", "page_size": 64}},
    {"k_rope": {"layout": "paged", "page_size": 16}},
    {"kv_length_counts": "prefix"},
    {"sink": True},
    {"lse": True},
    {"max_seqlen": 1},
    {"max_seqlen": 2},
    {"partition": "split_kv"},
    {"partition": {"kind": "split_kv", "splits": 1}},
    {"scheduler": "persistent"},
    {"scheduler": {"order": "natural"}},
    {"config": {"tile_n": 128}},
    {"config": {"tile_n": 64}},
    {"config": {"tile_m": 64}},
    {"config": {"rescale_threshold": 0}},
    {"config": {"ping_pong": False}},
    {"config": {"half_diagonal": False}},
]


def test_every_change_of_meaning_changes_the_hash() -> None:
    hashes = {kernel(**change).hash: change for change in [{}, *CHANGES]}
    assert len(hashes) == len(CHANGES) + 1


def spelled(cap: str) -> KernelSpec:
    """The kernel of a text in which a number is spelled in a given way."""
    text = f"  - op: prefill\n    score_mod: {{kind: softcap, cap: {cap}}}\n"
    return parse_spec(HEAD + text).expand()[0]


@pytest.mark.parametrize(
    "cap", ["30", "30.0", "3e1", "3.0e+1", "30.", "+30", "0x1E", "0.3e2", "030"]
)
def test_spelling_of_a_number_does_not_count(cap: str) -> None:
    assert (
        spelled(cap).hash
        == spelled("30").hash
        == kernel(score_mod={"kind": "softcap", "cap": 30}).hash
    )


@pytest.mark.parametrize("threshold", [0, 0.0, -0.0])
def test_zero_has_one_spelling(threshold: float) -> None:
    assert (
        kernel(config={"rescale_threshold": threshold}).hash
        == kernel(config={"rescale_threshold": 0}).hash
    )


def test_the_file_around_a_kernel_does_not_count() -> None:
    group = {"mask": "causal"}
    (plain,) = kernels(group)
    (other,) = kernels(group, name="other", geometry={**DEEPSEEK_HEAD, "num_heads": 7})
    assert plain.hash == other.hash


def test_config_counts_as_written_and_null_is_not_written() -> None:
    assert kernel(config={"tile_n": None}).hash == kernel().hash
    assert kernel(config={"tile_n": 128}).canonical["config"] == {"tile_n": 128}


def test_hash_does_not_depend_on_process_locale_or_folder(tmp_path: Path) -> None:
    program = (
        "from mlagen.spec.yaml import kernel_from_dict\n"
        f"print(kernel_from_dict({{'arch': 'sm_90a', 'geometry': {DEEPSEEK_HEAD!r}, 'mask': 'causal'}}).hash)"
    )
    environment = {"PYTHONHASHSEED": "7", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo"}
    folder = str(Path(mlagen.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": folder},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == kernel(mask="causal").hash


def test_hash_of_a_known_kernel_has_not_moved() -> None:
    # A change here renames every kernel that anybody has built: only with a new spec version.
    assert kernel(mask="causal").hash.startswith("e04c7c8250959a55")
