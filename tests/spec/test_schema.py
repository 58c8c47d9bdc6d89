"""The JSON Schema agrees with the loader on names, types and ranges."""

from __future__ import annotations

from typing import Any  # Any: specs before validation

import jsonschema  # type: ignore[import-untyped]  # has no types
import pytest

from mlagen.errors import SpecError
from mlagen.spec.schema import json_schema, schema_text
from mlagen.spec.yaml import spec_from_dict
from tests.spec.shipped import SPECS
from tests.spec.writing import spec_dict


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


GOOD: list[dict[str, Any]] = [
    {},
    {"mask": "causal"},
    {"mask": ["causal", {"kind": "sliding_window", "left": None, "right": 3}]},
    {"mask": {"all": ["causal", {"any": ["tree", {"kind": "document"}]}]}},
    {"mask": {"expr": "k <= q", "params": {"w": "int32", "t": {"dtype": "float32", "rank": 2}}}},
    {"score_mod": ["identity", ["alibi", {"kind": "softcap", "cap": 30}]]},
    {"kv": {"layout": "paged", "page_size": 64}},
    {"k_rope": ["ragged", "dense", {"layout": "paged", "page_size": 16, "num_heads": 2}]},
    {"partition": {"kind": "split_kv", "splits": 4}, "scheduler": "persistent"},
    {"max_seqlen": ["dynamic", 128]},
    {"config": {"tile_n": 64, "rescale_threshold": 8}},
    {"lse": [True, False], "exclude": {"lse": True}},
    {"output_dtype": None},
]
BAD: list[dict[str, Any]] = [
    {"mask": "casual"},
    {"mask": {"size": 3}},
    {"mask": {"kind": "chunked"}},
    {"mask": {"kind": "chunked", "size": 0}},
    {"mask": {"kind": "chunked", "size": 4, "sise": 4}},
    {"mask": []},
    {"mask": {"all": "tree"}},
    {"mask": {"all": ["casual"]}},
    {"mask": None},
    {"score_mod": {"kind": "softcap", "cap": "30"}},
    {"score_mod": [["softcap"]]},
    {"kv": "packed"},
    {"k_rope": {"layout": "paged", "page_size": [16]}},
    {"lse": "yes"},
    {"max_seqlen": 0},
    {"config": {"tile_n": 100}},
    {"config": {"BN": 64}},
    {"exclude": {"msk": "causal"}},
    {"op": "decode"},
    {"lsee": True},
]


@pytest.mark.parametrize("group", GOOD, ids=str)
def test_what_loads_satisfies_the_schema(
    validator: jsonschema.Draft202012Validator, group: dict[str, Any]
) -> None:
    spec_from_dict(spec_dict(group))
    validator.validate(spec_dict(group))


@pytest.mark.parametrize("group", BAD, ids=str)
def test_what_the_schema_refuses_does_not_load(
    validator: jsonschema.Draft202012Validator, group: dict[str, Any]
) -> None:
    assert not validator.is_valid(spec_dict(group))
    with pytest.raises(SpecError):
        spec_from_dict(spec_dict(group))


@pytest.mark.parametrize(
    "fields", [{"spec": 2}, {"name": "A"}, {"arch": "sm_80"}, {"kernels": []}, {"x": 1}], ids=str
)
def test_the_schema_refuses_wrong_files(
    validator: jsonschema.Draft202012Validator, fields: dict[str, Any]
) -> None:
    assert not validator.is_valid({**spec_dict({}), **fields})


def test_the_committed_schema_is_current() -> None:
    committed = (SPECS / "mlagen.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "renew it with: mlagen schema > specs/mlagen.schema.json"


def test_defaults_in_the_schema_are_those_of_a_kernel() -> None:
    options = json_schema()["$defs"]["KernelGroup"]["properties"]
    assert options["q_layout"]["default"] == "ragged"
    assert options["scheduler"]["default"] == {"kind": "queued", "order": "longest_first"}
    assert "default" not in options["exclude"]
    assert "default" not in options["op"]
