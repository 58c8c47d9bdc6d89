"""The JSON Schema of spec files as a page for people, `docs/spec.md`."""

from __future__ import annotations

import json
from typing import Any  # Any: JSON Schema is a dict of anything

from mlagen.spec.model import KernelSpec
from mlagen.spec.schema import json_schema

Schema = dict[str, Any]

_HEAD = """\
# The spec

Every field of a spec file. This page is generated: `make docs` renews it, and a test checks that it is current.

A spec says what shall be computed, in the words of a model's own `config.json`; how it is computed is derived. Options
of a group of kernels that are given as a list expand to their cross product, less `exclude`. Not every option has a
kernel yet: `mlagen list` says which have, and `mlagen build` refuses the others with the reason.

```yaml
# yaml-language-server: $schema=mlagen.schema.json     (mlagen schema > mlagen.schema.json)
spec: 1
name: my-model
geometry: {num_heads: 128, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: sm_90a
kernels:
  - op: prefill
    dtype: [bfloat16, float16]
    mask: [causal, {kind: sliding_window, left: 4095, right: 0}]
    k_rope: {layout: paged, page_size: 64}
    lse: true
    exclude:
      - {dtype: float16, mask: sliding_window}
```
"""

# Heading -> definitions below it, in the order of the page.
_SECTIONS = {
    "Geometry": ("Geometry", "RopeScaling"),
    "Kernels": ("KernelGroup",),
    "Masks": (
        "NoMask", "Causal", "SlidingWindow", "Chunked", "Padding", "PrefixLM", "Document", "Tree",
        "BlockSparse", "AllOf", "AnyOf", "MaskExpression",
    ),
    "Score mods": (
        "Identity", "Softcap", "Alibi", "Bias", "RelativeBias", "Temperature", "ScoreExpression",
        "Chain", "Parameter",
    ),
    "Keys and values": ("KV", "KRope"),
    "Partition": ("NoPartition", "SplitKV"),
    "Scheduler": ("Scheduler",),
    "Configuration": ("FA4Config",),
}  # fmt: skip

_SECTION_OF = {name: section for section, names in _SECTIONS.items() for name in names} | {
    "Mask": "Masks",
    "ScoreMod": "Score mods",
}


def spec_page() -> str:
    """Return the page, Markdown.

    Raises:
        KeyError: The schema has a definition that no section shows.
    """
    schema = json_schema()
    definitions: Schema = schema["$defs"]
    unplaced = set(definitions) - set(_SECTION_OF)
    if unplaced:
        raise KeyError(f"no section of docs/spec.md shows {sorted(unplaced)}")
    parts = [_HEAD, "## The file\n", _table(schema)]
    for section, names in _SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            has_title = name != section and len(names) > 1
            parts += _definition(name, definitions[name], has_title=has_title)
    return "\n".join(parts)


def _definition(name: str, definition: Schema, *, has_title: bool) -> list[str]:
    """Return the paragraph and table of one definition; kinds go by the word that selects them."""
    kind = definition["properties"].get("kind", {}).get("const")
    title = [f"### `{kind}`\n" if kind else f"### {name}\n"] if has_title else []
    return [
        *title,
        _text(definition) + "\n",
        *([_table(definition)] if _fields(definition) else []),
    ]


def _fields(definition: Schema) -> Schema:
    """Return the properties to show: not the word that only selects a kind."""
    fields: Schema = definition["properties"]
    return {n: f for n, f in fields.items() if not (n == "kind" and "const" in f)}


def _table(definition: Schema) -> str:
    required = definition.get("required", [])
    rows = ["| field | values | default | meaning |", "|---|---|---|---|"]
    for name, field in _fields(definition).items():
        default = "required" if name in required else _default(field)
        meaning = _text(field) or _model_description(name)
        rows.append(f"| `{name}` | {_values(field)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _model_description(name: str) -> str:
    """Return the model's own words where the schema shares a type and so lost them."""
    field = KernelSpec.model_fields.get(name)
    return (field.description if field else None) or ""


def _text(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|")


def _default(field: Schema) -> str:
    if "default" not in field or field["default"] is None:
        return "derived"
    value = field["default"]
    if isinstance(value, dict):
        value = value.get("kind") or value.get("layout") or value
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _values(schema: Schema) -> str:
    """Return a type in a few words."""
    if "$ref" in schema:
        section = _SECTION_OF[schema["$ref"].split("/")[2]]
        return f"[{section.lower()}](#{section.lower().replace(' ', '-')})"
    if "const" in schema:
        return f"`{json.dumps(schema['const']).strip(chr(34))}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        return _alternatives(schema.get("anyOf") or schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_values(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object":
        return "mapping"
    return f"{schema.get('type', 'any')}{_range(schema)}"


def _alternatives(alternatives: list[Schema]) -> str:
    """Return alternatives in words; a value or a list of such values is `..., or a list`."""
    single, *rest = alternatives
    if len(rest) == 1 and rest[0].get("type") == "array" and rest[0].get("items") == single:
        return f"{_values(single)}; or a list"
    return " or ".join(dict.fromkeys(map(_values, alternatives)))


def _range(schema: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[key]}" for key, sign in signs.items() if key in schema]
    return f" {', '.join(bounds)}" if bounds else ""
