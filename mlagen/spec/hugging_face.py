"""From a model's `config.json`, as published on Hugging Face, to the text of a spec."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlagen.errors import SpecError
from mlagen.spec.yaml import parse_spec

# Multimodal configurations keep the language model in one of these.
_NESTED = ("text_config", "language_config", "llm_config")
_DIMENSIONS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
_TENSOR_PARALLEL = (1, 2, 4, 8)
_COMMENT_COLUMNS = 110


@dataclass(frozen=True, slots=True)
class _Model:
    """What a configuration says about attention.

    Attributes:
        name: Name of the spec.
        title: What the head of the spec calls the model.
        heads: Tensor-parallel degree to query heads of one GPU, for the usual degrees that divide them.
        dimensions: The four dimensions, by their names.
        yarn: `factor` and `mscale_all_dim`, or None.
        dtype: Element type.
        window: Tokens that a query sees, its own included, or None.
        warnings: What the spec cannot say yet.
    """

    name: str
    title: str
    heads: dict[int, int]
    dimensions: dict[str, int]
    yarn: tuple[float, float] | None
    dtype: str
    window: int | None
    warnings: list[str] = field(default_factory=list)


def spec_text_from_config(
    config: Mapping[str, object], *, name: str | None = None, source: str = "config.json"
) -> tuple[str, list[str]]:
    """Write a commented spec for a model's configuration.

    Args:
        config: The parsed `config.json`; nested language models and both spellings of rope scaling are understood.
        name: Name of the spec; by default made from the configuration's own name or type.
        source: What messages call the configuration: the path of its file.

    Returns:
        The YAML text, which `parse_spec` accepts, and a warning for everything that the model does and a spec cannot
        say yet; each warning also stands in the text as a comment.

    Raises:
        SpecError: Not a configuration of multi-head latent attention, or a field is missing or of the wrong type.
    """
    model = _read(config, name, source)
    text = _write(model)
    parse_spec(text, f"spec made from the configuration of {model.title}")
    return text, model.warnings


def _read(config: Mapping[str, object], name: str | None, source: str) -> _Model:
    attention = _attention_config(config, source)
    problems: list[str] = []
    heads = _whole_number(attention, "num_attention_heads", problems, least=1)
    dimensions = {
        dimension: _whole_number(
            attention, dimension, problems, least=0 if "rope" in dimension else 1
        )
        for dimension in _DIMENSIONS
    }
    warnings: list[str] = []
    rope = _rope_config(attention, warnings)
    yarn = _yarn(rope, attention, problems, warnings)
    window = attention.get("sliding_window")
    if problems:
        advice = "complete the config.json; mlagen reads the names that the model's own code reads"
        raise SpecError("\n".join(f"{source}: {problem}" for problem in problems) + f"\n  {advice}")
    warnings += _not_expressible(attention, rope)
    return _Model(
        name=_slug(name or _first_text(config, "_name_or_path", "model_type") or "model"),
        title=json.dumps(
            _first_text(config, "_name_or_path", "model_type") or "unnamed", ensure_ascii=True
        ),
        heads={degree: heads // degree for degree in _TENSOR_PARALLEL if heads % degree == 0},
        dimensions=dimensions,
        yarn=yarn,
        dtype=_dtype(config, attention, warnings),
        window=window if isinstance(window, int) and window > 0 else None,
        warnings=warnings,
    )


def _attention_config(config: Mapping[str, object], source: str) -> Mapping[str, object]:
    if not isinstance(config, Mapping):
        raise SpecError(
            f"{source}: expected an object, found {type(config).__name__}\n  give a model's config.json"
        )
    nested = [part for key in _NESTED if isinstance(part := config.get(key), Mapping)]
    for candidate in (config, *nested):
        if candidate.get("kv_lora_rank") is not None:
            return candidate
    kind = json.dumps(_first_text(config, "model_type") or "none given", ensure_ascii=True)
    raise SpecError(
        f"{source}: kv_lora_rank: missing, so this is no multi-head latent attention (model_type {kind})\n"
        "  mlagen generates MLA kernels: give the config.json of a DeepSeek-V2/V3, Kimi K2, GLM-5 or similar model"
    )


def _whole_number(
    config: Mapping[str, object], key: str, problems: list[str], *, least: int
) -> int:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    found = (
        "missing" if value is None else f"expected a whole number, {least} or more, found {value!r}"
    )
    problems.append(f"{key}: {found}")
    return 0


def _rope_config(config: Mapping[str, object], warnings: list[str]) -> Mapping[str, object]:
    """The rope scaling: `rope_parameters` of newer transformers, else `rope_scaling`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return {}
    by_layer = {key: part for key, part in rope.items() if isinstance(part, Mapping)}
    if not by_layer:
        return rope
    key = "full_attention" if "full_attention" in by_layer else next(iter(by_layer))
    if any(part != by_layer[key] for part in by_layer.values()):
        warnings.append(
            f"layers differ in their rope parameters; the spec has those of {_slug(key)}"
        )
    return by_layer[key]


def _yarn(
    rope: Mapping[str, object],
    config: Mapping[str, object],
    problems: list[str],
    warnings: list[str],
) -> tuple[float, float] | None:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    mscale = _number(rope.get("mscale_all_dim")) or 0.0
    if kind not in ("yarn", "deepseek_yarn"):
        if mscale:
            warnings.append(
                f"rope scaling {_slug(kind)} with mscale_all_dim: the default softmax_scale leaves it out, "
                "so give softmax_scale to run"
            )
        return None
    factor = _number(rope.get("factor")) or _length_ratio(rope, config)
    if factor is None or factor < 1:
        problems.append(
            f"rope scaling factor: expected a number, 1 or more, found {rope.get('factor')!r}"
        )
        return None
    if mscale < 0:
        problems.append(f"mscale_all_dim: expected a number, 0 or more, found {mscale!r}")
    return factor, mscale


def _length_ratio(rope: Mapping[str, object], config: Mapping[str, object]) -> float | None:
    longest = _number(config.get("max_position_embeddings"))
    original = _number(rope.get("original_max_position_embeddings"))
    return longest / original if longest and original else None


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _not_expressible(config: Mapping[str, object], rope: Mapping[str, object]) -> list[str]:
    warnings = []
    top_k = config.get("index_topk")
    if top_k:
        heads, columns = (
            _slug(str(config.get(key))) for key in ("index_n_heads", "index_head_dim")
        )
        warnings.append(
            f"sparse index (top {_slug(str(top_k))} keys of an indexer with {heads} heads of {columns}): not "
            "available yet; these kernels attend to all keys that the mask shows"
        )
    scaling = config.get("llama_4_scaling")
    beta = rope.get("llama_4_scaling_beta") or (
        scaling.get("beta") if isinstance(scaling, Mapping) else None
    )
    if beta:
        warnings.append(
            f"query factor that grows with the position (beta {_slug(str(beta))}): not available yet; multiply q by it "
            "before the call"
        )
    rank, width = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if isinstance(rank, int) and isinstance(width, int):
        warnings.append(
            f"decode (absorbed, one latent head of {rank + width} columns, values its first {rank}): not available yet"
        )
    return warnings


def _dtype(
    config: Mapping[str, object], attention: Mapping[str, object], warnings: list[str]
) -> str:
    written = next(
        (
            text
            for part in (attention, config)
            if (text := _first_text(part, "dtype", "torch_dtype")) is not None
        ),
        "bfloat16",
    )
    if written in ("bfloat16", "float16"):
        return written
    warnings.append(f"dtype {_slug(written)}: not available; the spec has bfloat16")
    return "bfloat16"


def _first_text(config: Mapping[str, object], *keys: str) -> str | None:
    return next(
        (value for key in keys if isinstance(value := config.get(key), str) and value), None
    )


def _slug(text: str) -> str:
    """Only what may stand in a name; so text of a configuration can break neither YAML nor a comment."""
    last = text.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^a-z0-9._]+", "-", last.lower()).strip("-._")[:100] or "model"


def _plain(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _write(model: _Model) -> str:
    width = model.dimensions["qk_rope_head_dim"]
    degrees = ", ".join(map(str, model.heads))
    lines = [
        "# yaml-language-server: $schema=mlagen.schema.json",
        "# (the line above is for editors: mlagen schema > mlagen.schema.json)",
        "#",
        f"# Made by `mlagen init` from the configuration of {model.title}.",
        "",
        "spec: 1",
        f"name: {json.dumps(model.name)}",
        "geometry:",
        f"  num_heads: {list(model.heads.values())}   # of one GPU, at tensor-parallel degree {degrees}",
        *(f"  {key}: {value}" for key, value in model.dimensions.items()),
    ]
    if model.yarn is not None:
        factor, mscale = model.yarn
        scaling = f"{{type: yarn, factor: {_plain(factor)}, mscale_all_dim: {_plain(mscale)}}}"
        lines.append(f"  rope_scaling: {scaling}   # only sets the default softmax_scale")
    lines += ["arch: [sm_90a]", "", "kernels:"]
    lines += _groups(model, has_rope=width > 0)
    if model.warnings:
        lines += ["", "# The model also has what a spec cannot say yet:"]
        for warning in model.warnings:
            lines += textwrap.wrap(
                warning, _COMMENT_COLUMNS, initial_indent="#   - ", subsequent_indent="#     "
            )
    return "\n".join(lines) + "\n"


def _groups(model: _Model, *, has_rope: bool) -> list[str]:
    window = f"{{kind: sliding_window, left: {(model.window or 1) - 1}, right: 0}}"
    masks = ["causal", "none", *([window] if model.window else [])]
    lines = [
        "  # Ragged batches, q and k with all their columns: [total, num_heads, "
        f"{model.dimensions['qk_nope_head_dim'] + model.dimensions['qk_rope_head_dim']}].",
        "  - op: prefill",
        f"    dtype: {model.dtype}",
        f"    mask: [{', '.join(masks)}]",
        "    lse: [false, true]   # with it, states over parts of the keys can be merged",
    ]
    if has_rope:
        lines += [
            "",
            "  # Rope columns apart: rows of their own, or straight from the pages of the latent cache.",
            "  - op: prefill",
            f"    dtype: {model.dtype}",
            "    q_form: split",
            "    mask: causal",
            "    k_rope: [ragged, {layout: paged, page_size: 64}]",
            "    lse: [false, true]",
        ]
    return lines
