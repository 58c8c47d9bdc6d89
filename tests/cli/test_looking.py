"""The verbs that look and change nothing: list, show, key, schema, init."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlagen.errors import MissingDependencyError
from mlagen.spec.schema import schema_text
from mlagen.spec.yaml import parse_spec

if TYPE_CHECKING:
    from tests.cli.conftest import Command

CAUSAL = "mla_prefill_sm90a_192x128_bf16_causal"
CONFIG = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}


def test_list_tells_built_from_not_built(mlagen: Command, built: Path, tmp_path: Path) -> None:
    states = [row["state"] for row in json.loads(mlagen("list", built, "--json").out)]
    assert states == ["built", "built"]


def test_list_says_which_kernels_no_gpu_has_run(mlagen: Command, spec: Path) -> None:
    text = spec.read_text(encoding="utf-8")
    assert "simulator" not in mlagen("list", spec).err
    spec.write_text(text.replace("sm_90a", "sm_100a"), encoding="utf-8")
    assert "proven in the simulator only" in mlagen("list", spec).err
    assert json.loads(mlagen("list", spec, "--json").out)[0]["proven_on"] == "simulator"


def test_list_compiles_nothing(mlagen: Command, spec: Path, cache_folder: Path) -> None:
    states = [row["state"] for row in json.loads(mlagen("list", spec, "--json").out)]
    assert states == ["not built", "not built"]
    assert not cache_folder.exists()


def test_list_shows_refused_kernels_with_the_reason(mlagen: Command, spec: Path) -> None:
    text = spec.read_text(encoding="utf-8")
    spec.write_text(text.replace("[causal, none]", "[causal, tree]"), encoding="utf-8")
    (row,) = json.loads(mlagen("list", spec, "--unsupported", "--json").out)
    assert row["state"] == "refused"
    assert "tree" in row["reason"]


def test_list_without_a_spec_shows_options(mlagen: Command) -> None:
    options = json.loads(mlagen("list", "--json").out)
    assert {"option": "mask", "value": "causal", "available": True, "reason": None} in options
    missing = json.loads(mlagen("list", "--unsupported", "--json").out)
    assert all(row["reason"] for row in missing)
    assert "decode" in [row["value"] for row in missing]
    assert mlagen("list", "-k", "causal").status == 2


@pytest.mark.parametrize("length", [5, len("mla_prefill_sm90a_192x128_bf16_c")])
def test_any_unambiguous_beginning_names_a_kernel(
    mlagen: Command, built: Path, length: int
) -> None:
    spec_hash = json.loads(mlagen("key", built, CAUSAL, "--json").out)["spec_hash"]
    for beginning in (spec_hash[:6], spec_hash, CAUSAL[: max(length, 32)]):
        found = json.loads(mlagen("key", built, beginning, "--json").out)
        assert found["spec_hash"] == spec_hash


def test_ambiguous_beginning_is_answered_with_the_choices(mlagen: Command, spec: Path) -> None:
    outcome = mlagen("show", spec, "mla_prefill")
    assert outcome.status == 2
    assert outcome.err.count("mla_prefill_sm90a_192x128_bf16") == 2
    assert mlagen("show", spec, "zzz").status == 2
    assert mlagen("show", spec).status == 2


def test_kernel_of_a_shipped_spec_is_found_without_naming_it(mlagen: Command, spec: Path) -> None:
    rows = json.loads(mlagen("list", "specs/deepseek.yaml", "--json").out or "[]")
    assert not rows  # not here: the current folder holds small.yaml only
    outcome = mlagen("show", "mla_prefill_sm90a_192x128_bf16_causal_softcap", "--json")
    assert json.loads(outcome.out)["spec"]["score_mod"]["kind"] == "softcap"


def test_show_has_plan_budgets_and_machine_code(mlagen: Command, built: Path) -> None:
    outcome = mlagen("show", built, CAUSAL)
    assert outcome.status == 0
    parts = (
        "shared memory",
        "k_full",
        "Tensor maps",
        "cu_seqlens_q",
        "loop of math",
        "build key",
        "Predicted",
    )
    for part in parts:
        assert part in outcome.out


def test_show_of_a_kernel_that_is_not_built_compiles_nothing(
    mlagen: Command, spec: Path, cache_folder: Path
) -> None:
    document = json.loads(mlagen("show", spec, CAUSAL, "--json").out)
    assert document["compiled"] is None
    assert document["tile_m"] == 128
    assert [launch["device"] for launch in document["predicted"]["launches"]] == ["H200"] * 3
    assert not cache_folder.exists()


@pytest.mark.parametrize(
    ("option", "sign"),
    [("--source", "__global__"), ("--ptx", ".visible .entry"), ("--sass", "EXIT")],
)
def test_show_prints_each_form_of_the_code(
    mlagen: Command, built: Path, option: str, sign: str
) -> None:
    assert sign in mlagen("show", built, CAUSAL, option).out
    assert mlagen("show", built, CAUSAL, option, "--json").status == 2


def test_key_can_be_redone_by_hand(mlagen: Command, spec: Path) -> None:
    document = json.loads(mlagen("key", spec, CAUSAL, "--json").out)
    for text, digest in (("canonical_json", "spec_hash"), ("build_key_json", "build_key")):
        assert hashlib.sha256(document[text].encode()).hexdigest() == document[digest]
    assert document["spec_hash"] in mlagen("key", spec, CAUSAL).out


def test_key_without_a_compiler_still_has_the_spec(
    mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError("no NVRTC")

    monkeypatch.setattr("mlagen.kernel_compiler.nvrtc_identity", missing)
    document = json.loads(mlagen("key", spec, CAUSAL, "--json").out)
    assert document["build_key"] is None
    assert mlagen("key", spec, CAUSAL).status == 0
    assert mlagen("show", spec, CAUSAL).status == 0
    assert mlagen("list", spec).status == 0


def test_schema_is_the_schema(mlagen: Command) -> None:
    assert mlagen("schema").out == mlagen("schema", "--json").out == schema_text()
    assert mlagen("schema", "--markdown", "--json").status == 2


def test_init_writes_a_spec_that_build_accepts(
    mlagen: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG | {"index_topk": 2048}), encoding="utf-8")
    outcome = mlagen("init", "config.json")
    assert outcome.status == 0
    assert "warning: " in outcome.err
    assert parse_spec(outcome.out).expand()
    Path("model.yaml").write_text(outcome.out, encoding="utf-8")
    assert mlagen("build", "model.yaml", "--no-compile").status == 0
    document = json.loads(mlagen("init", "config.json", "--json").out)
    assert document["spec"] == outcome.out
    assert document["warnings"]


def test_init_takes_a_name(mlagen: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    for written, made in (("my-model", "my-model"), ("My Model", "my-model")):
        assert parse_spec(mlagen("init", path, "--name", written).out).name == made


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", "\udcff", '{"model_type": "llama"}'],
    ids=["missing", "not JSON", "not an object", "not UTF-8", "not MLA"],
)
def test_init_of_something_else_says_what_it_needs(
    mlagen: Command, tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    outcome = mlagen("init", path)
    assert outcome.status == 2
    assert "config.json" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_init_names_the_file_that_lacks_something(mlagen: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"kv_lora_rank": 512}', encoding="utf-8")
    places = [line.split(": ")[0] for line in mlagen("init", path).err.splitlines()[:-1]]
    assert set(places) == {str(path)}
