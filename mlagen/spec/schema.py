"""The JSON Schema of spec files, for editors and for people."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any  # Any: JSON Schema is a dict of anything

from pydantic.json_schema import GenerateJsonSchema

from mlagen.spec.base import SAME_AS
from mlagen.spec.model import KernelSpec, SpecFile

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """Without a title for every field that only repeats its name."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a spec file; every field has a description and, where it has one, its default.

    It checks names, types and ranges. What only the models know (rules between fields, `exclude` entries that match
    nothing) is found when the file is loaded.
    """
    schema = SpecFile.model_json_schema(schema_generator=_Untitled)
    for definition in schema["$defs"].values():
        _require_kind(definition)
    _show_defaults(schema["$defs"]["KernelGroup"])
    _link(schema)
    _share(schema)
    return {"$schema": DIALECT, **schema, "title": "mlagen spec"}


def schema_text() -> str:
    """The schema as `mlagen schema` prints it and as it is committed beside the specs."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _link(schema: object) -> None:
    """Turn the marks of the short forms into references."""
    if isinstance(schema, dict):
        if SAME_AS in schema:
            schema["$ref"] = f"#/$defs/{schema.pop(SAME_AS)}"
        for item in schema.values():
            _link(item)
    elif isinstance(schema, list):
        for item in schema:
            _link(item)


def _share(schema: dict[str, Any]) -> None:
    """Write the two unions that contain themselves once, as definitions of their own."""
    shared = {}
    for name, member in (("Mask", "AllOf"), ("ScoreMod", "Chain")):
        union = schema["$defs"][member]["properties"]["of"]["items"]
        shared[_without_description(union)] = name
        schema["$defs"][name] = copy.deepcopy(union)

    def refer(value: object) -> object:
        if isinstance(value, list):
            return [refer(item) for item in value]
        if not isinstance(value, dict):
            return value
        name = shared.get(_without_description(value))
        if name is not None:
            return {"$ref": f"#/$defs/{name}"}
        return {key: refer(item) for key, item in value.items()}

    for name, definition in schema["$defs"].items():
        if name not in shared.values():
            schema["$defs"][name] = refer(definition)


def _without_description(schema: dict[str, Any]) -> str:
    """A text that is equal for equal schemas, whatever their union is described as."""
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        alternatives = [{**one, "description": ""} for one in alternatives]
    return json.dumps({**schema, "anyOf": alternatives}, sort_keys=True)


def _require_kind(definition: dict[str, Any]) -> None:
    """The long form of a union names its kind; only `{expr: ...}` does without."""
    kind = definition.get("properties", {}).get("kind", {}).get("const")
    if kind not in (None, "expr"):
        definition["required"] = ["kind", *definition.get("required", [])]


def _show_defaults(group: dict[str, Any]) -> None:
    """An option left out of a group has the default of a kernel, not the empty tuple of the group's model."""
    for name, definition in group["properties"].items():
        definition.pop("default", None)
        if name in group["required"]:
            continue
        field = KernelSpec.model_fields.get(name)
        if field is not None and not field.is_required() and field.default is not None:
            default = field.default
            definition["default"] = (
                default.model_dump(mode="json", exclude_none=True)
                if hasattr(default, "model_dump")
                else default
            )
