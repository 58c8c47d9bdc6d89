"""Canonical form and identity: equal meaning, equal hash, whatever the text looked like.

The canonical form is JSON of the model with every default filled in, keys sorted, no spaces, UTF-8, numbers as Python
writes them (a float always with a point or an exponent). The identity is its SHA-256, in hexadecimal. Of `config`
only what was written counts: what `plan` derives is no default of a spec.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any  # Any: JSON values

if TYPE_CHECKING:
    from mlagen.spec.base import SpecModel


def canonical_value(model: SpecModel) -> dict[str, Any]:
    """The model as JSON values, keys sorted at every level."""
    value: dict[str, Any] = model.model_dump(mode="json")
    if "config" in value:
        value["config"] = {name: item for name, item in value["config"].items() if item is not None}
    normal = _normal(value)
    assert isinstance(normal, dict)
    return normal


def canonical_json(model: SpecModel) -> str:
    """The text that is hashed."""
    return json.dumps(
        canonical_value(model),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def sha256_of(model: SpecModel) -> str:
    """The identity of a model: 64 hexadecimal digits that anyone can recompute from `canonical_json`."""
    return hashlib.sha256(canonical_json(model).encode()).hexdigest()


def _normal(value: object) -> object:
    match value:
        case dict():
            return {key: _normal(value[key]) for key in sorted(value)}
        case list():
            return [_normal(item) for item in value]
        case float():
            return value + 0.0  # -0.0 becomes 0.0
        case _:
            return value
