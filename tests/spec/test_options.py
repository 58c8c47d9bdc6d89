"""What a kernel's options mean: defaults, short and long forms, rules between fields."""

from __future__ import annotations

import math
from typing import Any  # Any: options before validation

import pytest
from pydantic import BaseModel, ValidationError

from mlagen.errors import SpecError
from mlagen.spec import mask, score_mod
from mlagen.spec.config import FA4Config
from mlagen.spec.geometry import Geometry, HeadGeometry, RopeScaling
from mlagen.spec.kv_layout import KV, KRope
from mlagen.spec.model import KernelGroup, KernelSpec, SpecFile
from mlagen.spec.partition import NoPartition, SplitKV
from mlagen.spec.scheduler import Scheduler
from tests.spec.writing import DEEPSEEK_HEAD, kernel, kernels

SHORT_AND_LONG = [
    ("mask", "causal", {"kind": "causal"}),
    (
        "mask",
        {"all": ["causal", "padding"]},
        {"kind": "all", "of": [{"kind": "causal"}, {"kind": "padding"}]},
    ),
    ("mask", {"any": ["tree", "document"]}, {"kind": "any", "of": ["tree", "document"]}),
    ("mask", {"kind": "chunked", "size": 64}, {"kind": "chunked", "size": 64, "causal": True}),
    ("mask", {"expr": "k <= q"}, {"kind": "expr", "expr": "k <= q", "params": {}}),
    (
        "mask",
        {"expr": "q - k < w", "params": {"w": "int32"}},
        {"kind": "expr", "expr": "q - k < w", "params": {"w": {"dtype": "int32", "rank": 0}}},
    ),
    ("score_mod", "alibi", {"kind": "alibi", "slopes": "geometric"}),
    (
        "score_mod",
        ["alibi", "temperature"],
        {"kind": "chain", "of": ["alibi", {"kind": "temperature"}]},
    ),
    ("score_mod", {"expr": "score * 2"}, {"kind": "expr", "expr": "score * 2"}),
    ("kv", "dense", {"layout": "dense"}),
    ("k_rope", "ragged", {"layout": "ragged", "row_width": 64, "num_heads": 1}),
    ("k_rope", "dense", {"layout": "dense", "row_width": 576}),
    ("partition", "split_kv", {"kind": "split_kv", "splits": "auto"}),
    ("scheduler", "persistent", {"kind": "persistent", "order": "longest_first"}),
]


@pytest.mark.parametrize(
    ("option", "short", "long"), SHORT_AND_LONG, ids=lambda value: str(value)[:40]
)
def test_short_and_long_form_are_the_same_kernel(option: str, short: object, long: object) -> None:
    assert kernel(**{option: short}) == kernel(**{option: long})
    assert kernel(**{option: short}).hash == kernel(**{option: long}).hash


def test_defaults_are_a_plain_dense_attention_over_ragged_batches() -> None:
    spec = kernel()
    assert (spec.op, spec.dtype, spec.output_dtype) == ("prefill", "bfloat16", "bfloat16")
    assert (spec.q_form, spec.q_layout, spec.max_seqlen) == ("fused", "ragged", "dynamic")
    assert spec.mask == mask.NoMask()
    assert spec.score_mod == score_mod.Identity()
    assert spec.kv == KV(layout="ragged", row_offsets=True)
    assert spec.k_rope == KRope(layout="fused")
    assert (spec.kv_length_counts, spec.sink, spec.lse) == ("total", False, False)
    assert spec.partition == NoPartition()
    assert spec.scheduler == Scheduler(kind="queued", order="longest_first")
    assert spec.config == FA4Config()
    assert spec.canonical["config"] == {}


@pytest.mark.parametrize(
    ("dtype", "output"),
    [("bfloat16", "bfloat16"), ("float16", "float16"), ("float8_e4m3fn", "bfloat16")],
)
def test_output_dtype_follows_dtype(dtype: str, output: str) -> None:
    assert kernel(dtype=dtype).output_dtype == output
    assert kernel(dtype=dtype, output_dtype=None).output_dtype == output
    assert kernel(dtype="bfloat16", output_dtype="float16").output_dtype == "float16"


@pytest.mark.parametrize(
    ("written", "simple"),
    [
        ({"kind": "sliding_window", "left": None, "right": 0}, "causal"),
        ({"kind": "sliding_window", "left": None, "right": None}, "none"),
        ({"all": ["causal"]}, "causal"),
        ({"all": ["causal", {"all": ["padding", "causal"]}]}, {"all": ["causal", "padding"]}),
        ({"any": [{"any": ["tree"]}, "tree"]}, "tree"),
    ],
)
def test_masks_of_equal_meaning_are_one_kernel(written: object, simple: object) -> None:
    assert kernel(mask=written).hash == kernel(mask=simple).hash


@pytest.mark.parametrize(
    ("written", "simple"),
    [
        (["identity"], "identity"),
        (["alibi"], "alibi"),
        (["identity", "alibi", ["identity", "temperature"]], ["alibi", "temperature"]),
    ],
)
def test_score_mods_of_equal_meaning_are_one_kernel(written: object, simple: object) -> None:
    assert kernel(score_mod=written).hash == kernel(score_mod=simple).hash


def test_score_mods_keep_their_order() -> None:
    spec = kernel(score_mod=[{"kind": "softcap", "cap": 30}, "alibi"])
    assert [part.kind for part in spec.score_mods] == ["softcap", "alibi"]
    assert kernel().score_mods == ()
    assert spec.hash != kernel(score_mod=["alibi", {"kind": "softcap", "cap": 30}]).hash


@pytest.mark.parametrize(
    ("nope", "rope", "factor", "mscale", "scale"),
    [
        (128, 64, 40, 0.707, 0.114721),  # DeepSeek-V2
        (128, 64, 40, 1.0, 0.135234),  # DeepSeek-V3
        (128, 64, 32, 1.0, 0.130861),  # Kimi K2
        (128, 64, 64, 1.0, 0.144680),  # Kimi K2-0905
        (128, 64, None, 0.0, 0.072169),  # LongCat-Flash, Kimi Linear
        (192, 64, None, 0.0, 0.062500),  # GLM-5
        (256, 0, None, 0.0, 0.062500),  # GLM-5.3-Flash
        (64, 64, 128, 1.0, 0.194969),  # Mistral Small 4
        (128, 64, 40, 0.0, 0.072169),  # YaRN without mscale_all_dim
        (128, 64, 1, 1.0, 0.072169),  # no extension
    ],
)
def test_softmax_scale_of_published_models(
    nope: int, rope: int, factor: int | None, mscale: float, scale: float
) -> None:
    scaling = RopeScaling(type="yarn", factor=factor, mscale_all_dim=mscale) if factor else None
    head = HeadGeometry(
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=128,
        kv_lora_rank=512,
        rope_scaling=scaling,
    )
    assert head.softmax_scale == pytest.approx(scale, abs=5e-7)
    assert head.qk_head_dim == nope + rope


def test_head_counts_are_no_part_of_a_kernel() -> None:
    geometry = Geometry(**DEEPSEEK_HEAD, num_heads=(128, 16))
    assert KernelSpec(arch="sm_90a", geometry=geometry) == kernel()


# Each: options, where the error points, what it says, what it advises.
BROKEN_RULES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"kv": {"layout": "ragged", "page_size": 64}}, "kv.page_size", "no meaning", "layout: paged"),
    ({"kv": {"layout": "paged"}}, "kv.page_size", "missing", "page_size: 64"),
    ({"k_rope": {"layout": "paged"}}, "k_rope.page_size", "missing", "page_size: 64"),
    (
        {"kv": {"layout": "paged", "page_size": 8}, "k_rope": {"layout": "paged", "page_size": 64}},
        "k_rope.page_size",
        "one block_table finds the pages of both",
        "write page_size: 8",
    ),
    ({"k_rope": {"layout": "dense", "page_size": 4}}, "k_rope.page_size", "no meaning", "remove"),
    ({"kv": {"layout": "dense", "row_offsets": False}}, "kv.row_offsets", "no meaning", "ragged"),
    ({"kv": {"layout": "ragged", "seqlens": True}}, "kv.seqlens", "no meaning", "layout: dense"),
    (
        {"kv": {"layout": "paged", "page_size": 8, "seqlens": True}},
        "kv.seqlens",
        "no meaning",
        "always has",
    ),
    ({"kv": {"layout": "ragged", "row": "fp8"}}, "kv.row", "no cache", "plain"),
    ({"k_rope": {"layout": "fused", "row_width": 64}}, "k_rope.row_width", "no row", "remove"),
    ({"k_rope": {"layout": "fused", "num_heads": 2}}, "k_rope.num_heads", "no meaning", "layout"),
    (
        {"k_rope": {"layout": "ragged", "row_width": 32}},
        "k_rope.row_width",
        "less than",
        "write 64, or 576",
    ),
    ({"k_rope": "ragged", "kv": "dense"}, "k_rope", "offsets of ragged keys", "kv: ragged"),
    ({"q_layout": "dense", "max_seqlen": 64}, "max_seqlen", "length from the tensor", "remove"),
    (
        {"q_layout": "dense", "kv": {"layout": "ragged", "row_offsets": False}},
        "kv.row_offsets",
        "has none",
        "true",
    ),
    (
        {"kv_length_counts": "prefix", "kv": {"layout": "ragged", "row_offsets": False}},
        "kv_length_counts",
        "offsets of their own",
        "row_offsets: true",
    ),
    (
        {"kv_length_counts": "prefix", "kv": "dense"},
        "kv_length_counts",
        "cache_seqlens",
        "seqlens: true",
    ),
    ({"max_seqlen": 0}, "max_seqlen", "found 0", "dynamic"),
    ({"max_seqlen": True}, "max_seqlen", "found true", "dynamic"),
    ({"max_seqlen": "static"}, "max_seqlen", "found 'static'", "dynamic"),
    ({"partition": {"kind": "split_kv", "splits": 0}}, "partition.splits", "found 0", "auto"),
    (
        {"mask": {"kind": "sliding_window", "left": -1, "right": 0}},
        "mask.left",
        "less than 0",
        "at least 0",
    ),
    ({"mask": {"kind": "chunked", "size": 0}}, "mask.size", "less than 1", "at least 1"),
    ({"mask": {"expr": "k < s", "params": {"q": "int32"}}}, "mask.params.q", "variable", "rename"),
    (
        {"mask": {"expr": "k < s", "params": {"score": "int32"}}},
        "mask.params.score",
        "score mods",
        "rename",
    ),
    (
        {"mask": {"expr": "k < s", "params": {"S;": "int32"}}},
        "mask.params.S;",
        "not a name",
        "letters",
    ),
    ({"score_mod": {"kind": "softcap", "cap": 0}}, "score_mod.cap", "not above 0", "above 0"),
    ({"score_mod": {"kind": "softcap", "cap": math.inf}}, "score_mod.cap", "finite", "finite"),
    ({"score_mod": {"kind": "softcap", "cap": math.nan}}, "score_mod.cap", "nan", "above 0"),
    (
        {"score_mod": {"kind": "bias", "rank": 5}},
        "score_mod.rank",
        "not one of 2, 3, 4",
        "Dimensions",
    ),
    ({"config": {"tile_n": 100}}, "config.tile_n", "multiple of 16", "BN"),
    ({"config": {"tile_m": 0}}, "config.tile_m", "less than 16", "BM"),
    (
        {"config": {"producer_registers": 25}},
        "config.producer_registers",
        "multiple of 8",
        "24 to 256",
    ),
    (
        {"config": {"exp2_emulation_share": 1.5}},
        "config.exp2_emulation_share",
        "more than 1",
        "0 to 1",
    ),
    ({"config": {"rescale_threshold": -8.0}}, "config.rescale_threshold", "less than 0", "origin"),
    ({"op": "decode"}, "op", "decode is not available yet", "available: prefill"),
    ({"dtype": "bf16"}, "dtype", "'bf16' is not one of", "did you mean 'bfloat16'?"),
    (
        {"dtype": "float8_e4m3fn", "output_dtype": "float8_e4m3fn"},
        "output_dtype",
        "not one of",
        "bfloat16",
    ),
    ({"arch": "sm_90"}, "arch", "'sm_90' is not one of", "did you mean 'sm_90a'?"),
    ({"lse": 1}, "lse", "1 is not true or false", "true or false"),
    ({"sink": "yes"}, "sink", "'yes' is not true or false", "write true"),
]


@pytest.mark.parametrize(
    ("options", "field", "message", "advice"), BROKEN_RULES, ids=lambda v: str(v)[:50]
)
def test_broken_rule_names_field_and_advice(
    options: dict[str, Any], field: str, message: str, advice: str
) -> None:
    with pytest.raises(SpecError) as caught:
        kernel(**options)
    first, last = str(caught.value).splitlines()
    assert first.startswith(f"kernel: {field}: ")
    assert message in first
    assert advice in last


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"q_form": "split"}, "q_form"),
        ({"k_rope": "ragged"}, "k_rope"),
        ({"k_rope": "dense"}, "k_rope"),
    ],
)
def test_rope_width_zero_leaves_nothing_to_split(options: dict[str, str], field: str) -> None:
    geometry = {**DEEPSEEK_HEAD, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0}
    assert kernel(geometry=geometry).k_rope.layout == "fused"
    with pytest.raises(SpecError, match=rf"^kernel: {field}: .*qk_rope_head_dim is 0"):
        kernel(geometry=geometry, **options)


def test_grouped_rows_need_a_rank_of_whole_groups() -> None:
    rows = {"layout": "paged", "page_size": 64, "row": "fp8_grouped"}
    kernel(kv=rows)
    with pytest.raises(SpecError, match=r"kv\.row: fp8_grouped has a scale for 128 columns each"):
        kernel(kv=rows, geometry={**DEEPSEEK_HEAD, "kv_lora_rank": 320})


@pytest.mark.parametrize("name", list(DEEPSEEK_HEAD))
@pytest.mark.parametrize("value", [-16, 8, 100, 1 << 20, 128.0, "128", None, True])
def test_dimensions_are_positive_multiples_of_16(name: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"^kernel: geometry\.{name}: "):
        kernel(geometry={**DEEPSEEK_HEAD, name: value})


def test_rope_heads_divide_every_head_count() -> None:
    group = {"k_rope": {"layout": "ragged", "num_heads": 8}}
    assert kernels(group)[0].k_rope.num_heads == 8
    with pytest.raises(
        SpecError, match=r"kernels\[0\]\.k_rope\.num_heads: 16 does not divide num_heads 8"
    ):
        kernels({"k_rope": {"layout": "ragged", "num_heads": 16}})


def test_a_list_inside_a_value_does_not_expand_and_the_error_says_how() -> None:
    with pytest.raises(SpecError, match="a list expands only as the whole value of an option"):
        kernels({"k_rope": {"layout": "paged", "page_size": [16, 64]}})


def all_models(model: type[BaseModel] = BaseModel) -> list[type[BaseModel]]:
    """Every model of the spec stage."""
    found = [one for child in model.__subclasses__() for one in [child, *all_models(child)]]
    return [one for one in found if one.__module__.startswith("mlagen.spec.")]


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_every_model_is_documented_strict_and_frozen(model: type[BaseModel]) -> None:
    assert model.__doc__
    settings = model.model_config
    assert (settings["strict"], settings["frozen"], settings["extra"]) == (True, True, "forbid")


def test_every_field_is_described() -> None:
    schema = SpecFile.model_json_schema()
    for name, definition in {"SpecFile": schema, **schema["$defs"]}.items():
        for field, content in definition.get("properties", {}).items():
            assert field == "kind" or "description" in str(content), f"{name}.{field}"


def test_a_group_has_every_option_of_a_kernel() -> None:
    options = set(KernelSpec.model_fields) - {"arch", "geometry"}
    assert set(KernelGroup.model_fields) == options | {"exclude"}


def test_kernels_are_frozen_and_usable_as_keys() -> None:
    spec = kernel(mask={"expr": "k <= q + w", "params": {"w": "int32"}})
    assert {spec: 1}[kernel(mask={"expr": "k <= q + w", "params": {"w": "int32"}})] == 1
    with pytest.raises(ValidationError, match="frozen"):
        spec.lse = True  # type: ignore[misc]  # what the test is about


def test_split_count_is_kept() -> None:
    assert kernel(partition={"kind": "split_kv", "splits": 4}).partition == SplitKV(splits=4)
