"""Specs made from published model configurations."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any  # Any: parsed config.json files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.errors import SpecError
from mlagen.spec.hugging_face import spec_text_from_config
from mlagen.spec.yaml import parse_spec

if TYPE_CHECKING:
    from mlagen.spec.model import SpecFile


def config(
    model_type: str, heads: int, rank: int, dims: tuple[int, int, int], **more: Any
) -> dict[str, Any]:
    """The fields of a published config.json that matter here, with some that do not."""
    nope, rope, value = dims
    return {
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "hidden_size": 7168,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "max_position_embeddings": 163840,
        "rope_theta": 10000,
        **more,
    }


def yarn(factor: float, mscale_all_dim: float) -> dict[str, Any]:
    """`rope_scaling` as DeepSeek writes it."""
    return {
        "type": "yarn",
        "factor": factor,
        "mscale": mscale_all_dim,
        "mscale_all_dim": mscale_all_dim,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    }


NORMAL = (128, 64, 128)
SPARSE = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
MODELS: dict[str, tuple[dict[str, Any], float, list[int]]] = {
    "DeepSeek-V2": (
        config("deepseek_v2", 128, 512, NORMAL, rope_scaling=yarn(40, 0.707)),
        0.114721,
        [128, 64, 32, 16],
    ),
    "DeepSeek-V2-Lite": (
        config("deepseek_v2", 16, 512, NORMAL, rope_scaling=yarn(40, 0.707)),
        0.114721,
        [16, 8, 4, 2],
    ),
    "DeepSeek-V3": (
        config("deepseek_v3", 128, 512, NORMAL, rope_scaling=yarn(40, 1.0)),
        0.135234,
        [128, 64, 32, 16],
    ),
    "DeepSeek-V3.2": (
        config("deepseek_v32", 128, 512, NORMAL, rope_scaling=yarn(40, 1.0), **SPARSE),
        0.135234,
        [128, 64, 32, 16],
    ),
    "Kimi-K2": (
        config("kimi_k2", 64, 512, NORMAL, rope_scaling=yarn(32, 1.0)),
        0.130861,
        [64, 32, 16, 8],
    ),
    "Kimi-K2-0905": (
        config("kimi_k2", 64, 512, NORMAL, rope_scaling=yarn(64, 1.0)),
        0.144680,
        [64, 32, 16, 8],
    ),
    "Kimi-K2.5": (
        {
            "model_type": "kimi_k25",
            "text_config": config("kimi_k2", 64, 512, NORMAL, rope_scaling=yarn(64, 1.0)),
            "vision_config": {"num_attention_heads": 16},
        },
        0.144680,
        [64, 32, 16, 8],
    ),
    "Kimi-Linear": (
        config(
            "kimi_linear", 32, 512, NORMAL, rope_scaling=None, mla_use_nope=True, q_lora_rank=None
        ),
        0.072169,
        [32, 16, 8, 4],
    ),
    "LongCat-Flash": (
        config("longcat_flash", 64, 512, NORMAL, rope_scaling=None),
        0.072169,
        [64, 32, 16, 8],
    ),
    "GLM-5": (
        config(
            "glm_moe_dsa",
            64,
            512,
            (192, 64, 256),
            rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
            **SPARSE,
        ),
        0.0625,
        [64, 32, 16, 8],
    ),
    "GLM-4.7-Flash": (config("glm4_moe_lite", 20, 512, (192, 64, 256)), 0.0625, [20, 10, 5]),
    "GLM-5.3-Flash": (
        config("glm5_flash", 64, 512, (256, 0, 256), **SPARSE),
        0.0625,
        [64, 32, 16, 8],
    ),
    "Mistral-Small-4": (
        {
            "model_type": "mistral3",
            "text_config": config(
                "mistral4",
                32,
                256,
                (64, 64, 128),
                rope_parameters={
                    "rope_type": "yarn",
                    "factor": 128.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            ),
        },
        0.194969,
        [32, 16, 8, 4],
    ),
}


def made(values: dict[str, Any], name: str | None = None) -> tuple[SpecFile, str, list[str]]:
    """The spec made from a configuration, its text and the warnings."""
    text, warnings = spec_text_from_config(values, name=name)
    return parse_spec(text), text, warnings


@pytest.mark.parametrize("name", MODELS)
def test_every_published_model_becomes_a_spec(name: str) -> None:
    values, scale, heads = MODELS[name]
    file, text, warnings = made(values, name)
    assert file.name == name.lower()
    assert file.geometry.softmax_scale == pytest.approx(scale, abs=5e-7)
    assert list(file.geometry.num_heads) == heads
    assert {spec.k_rope.layout for spec in file.expand()} >= (
        {"fused"} if file.geometry.qk_rope_head_dim == 0 else {"fused", "ragged", "paged"}
    )
    assert all(spec.arch == "sm_90a" for spec in file.expand())
    flat = " ".join(line.strip("# ") for line in text.splitlines())
    for warning in warnings:
        assert warning in flat


@pytest.mark.parametrize("name", MODELS)
def test_what_a_spec_cannot_say_is_a_warning(name: str) -> None:
    _, _, warnings = made(MODELS[name][0], name)
    assert any(warning.startswith("decode (absorbed") for warning in warnings)
    assert any("sparse index (top 2048" in warning for warning in warnings) == (
        name in {"DeepSeek-V3.2", "GLM-5", "GLM-5.3-Flash"}
    )
    assert any("query factor" in warning for warning in warnings) == (name == "Mistral-Small-4")


def test_names_come_from_the_configuration_and_are_made_safe() -> None:
    values = MODELS["DeepSeek-V3"][0]
    assert made(values)[0].name == "deepseek_v3"
    assert made({**values, "_name_or_path": "deepseek-ai/DeepSeek-V3"})[0].name == "deepseek-v3"
    assert made(values, "My Model: #1\nevil: yes")[0].name == "my-model-1-evil-yes"
    assert made(values, "…")[0].name == "model"
    assert made(values, "null")[0].name == "null"


def test_text_of_a_configuration_cannot_break_out_of_a_comment() -> None:
    values = {
        **MODELS["DeepSeek-V3.2"][0],
        "model_type": "x\nkernels: []\n#",
        "index_n_heads": "1\nspec: 3",
    }
    file, text, _ = made(values)
    assert len(file.expand()) > 1
    assert all(
        line.startswith("#")
        for line in text.splitlines()
        if "kernels: []" in line or "spec: 3" in line
    )


@pytest.mark.parametrize(
    ("rope", "scale"),
    [
        ({"rope_scaling": yarn(40, 1.0)}, 0.135234),
        ({"rope_scaling": {**yarn(40, 1.0), "rope_type": "yarn"}}, 0.135234),
        ({"rope_parameters": {**yarn(40, 1.0), "rope_type": "yarn", "rope_theta": 1e4}}, 0.135234),
        ({"rope_parameters": {"full_attention": {**yarn(40, 1.0), "rope_type": "yarn"}}}, 0.135234),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": None},
            0.072169,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, 0.072169),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 0.072169),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 4096,
                },
                "max_position_embeddings": 163840,
            },
            0.135234,
        ),
        ({}, 0.072169),
    ],
)
def test_both_spellings_of_rope_scaling(rope: dict[str, Any], scale: float) -> None:
    file, _, _ = made(config("deepseek_v3", 128, 512, NORMAL, **rope))
    assert file.geometry.softmax_scale == pytest.approx(scale, abs=5e-7)


def test_scaling_that_no_spec_knows_is_a_warning() -> None:
    scaling = {"type": "dynamic", "factor": 4, "mscale_all_dim": 1.0}
    _, _, warnings = made(config("deepseek_v3", 128, 512, NORMAL, rope_scaling=scaling))
    assert any("dynamic" in warning and "softmax_scale" in warning for warning in warnings)


def test_a_sliding_window_counts_the_query_itself() -> None:
    file, _, _ = made(config("deepseek_v3", 16, 512, NORMAL, sliding_window=4096))
    assert {"kind": "sliding_window", "left": 4095, "right": 0} in [
        spec.canonical["mask"] for spec in file.expand()
    ]


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "float16"), ("float32", "bfloat16")])
def test_dtype_is_taken_over_or_warned_about(dtype: str, expected: str) -> None:
    file, _, warnings = made(config("deepseek_v3", 16, 512, NORMAL, torch_dtype=dtype))
    assert {spec.dtype for spec in file.expand()} == {expected}
    assert any("dtype" in warning for warning in warnings) == (dtype != expected)


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8},
        {
            "model_type": "deepseek_v4",
            "head_dim": 512,
            "num_key_value_heads": 1,
            "sliding_window": 128,
        },
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "head_dim": 256}},
        {},
    ],
    ids=lambda values: str(values.get("model_type")),
)
def test_other_attention_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="no multi-head latent attention") as caught:
        spec_text_from_config(values)
    assert str(values.get("model_type", "none given")) in str(caught.value)


def test_missing_and_wrong_fields_are_all_named() -> None:
    values = config(
        "deepseek_v3", 128, 512, NORMAL, v_head_dim="128", rope_scaling={"type": "yarn"}
    )
    del values["qk_nope_head_dim"], values["max_position_embeddings"]
    with pytest.raises(SpecError) as caught:
        spec_text_from_config(values)
    text = str(caught.value)
    assert "config.json: qk_nope_head_dim: missing" in text
    assert "config.json: v_head_dim: expected a whole number, 1 or more, found '128'" in text
    assert "config.json: rope scaling factor: expected a number, 1 or more, found None" in text
    assert text.splitlines()[-1].strip().startswith("complete the config.json")


@pytest.mark.parametrize("values", [[], "text", None, 3])
def test_a_file_that_holds_no_object_is_refused(values: Any) -> None:
    with pytest.raises(SpecError, match="expected an object"):
        spec_text_from_config(values)


ODD: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.just({})
    | st.just([1])
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [
                *config("x", 1, 1, NORMAL),
                "rope_scaling",
                "rope_parameters",
                "index_topk",
                "sliding_window",
            ]
        ),
        ODD | st.just(yarn(40, 1.0)) | st.just({"type": "yarn", "factor": math.inf}),
        max_size=3,
    )
)
@settings(max_examples=80, deadline=None)
def test_odd_configurations_give_a_spec_or_a_spec_error(changes: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):  # any other exception fails the test
        made({**config("deepseek_v3", 128, 512, NORMAL), **changes})
