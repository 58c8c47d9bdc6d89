"""The shipped specs: valid, small, linked to the schema, and with what engines and benchmarks need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlagen.spec.config import FA4Config
from mlagen.spec.yaml import load_spec_file
from tests.spec.shipped import SPECS

if TYPE_CHECKING:
    from pathlib import Path

    from mlagen.spec.model import KernelSpec

FILES = sorted(SPECS.glob("*.yaml"))


@pytest.fixture(scope="module")
def deepseek() -> tuple[KernelSpec, ...]:
    specs = load_spec_file(SPECS / "deepseek.yaml").expand()
    return tuple(spec for spec in specs if spec.arch == "sm_90a")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_spec_loads_and_links_the_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=mlagen.schema.json"
    specs = load_spec_file(path).expand()
    assert 2 <= len(specs) <= (100 if path.stem == "deepseek" else 10)
    assert len({spec.hash for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("stem", "qk", "v", "rope", "scale"),
    [
        ("deepseek", 192, 128, 64, 0.135234),
        ("kimi", 192, 128, 64, 0.144680),
        ("glm", 256, 256, 64, 0.0625),
        ("glm_flash", 256, 256, 0, 0.0625),
        ("mistral", 128, 128, 64, 0.194969),
    ],
)
def test_geometry_is_the_published_one(stem: str, qk: int, v: int, rope: int, scale: float) -> None:
    geometry = load_spec_file(SPECS / f"{stem}.yaml").geometry
    assert (geometry.qk_head_dim, geometry.v_head_dim, geometry.qk_rope_head_dim) == (qk, v, rope)
    assert geometry.softmax_scale == pytest.approx(scale, abs=5e-7)


def test_deepseek_has_the_same_kernels_on_both_architectures_but_for_fp8_and_configurations() -> (
    None
):
    specs = load_spec_file(SPECS / "deepseek.yaml").expand()
    kernels = {
        arch: [
            spec.model_copy(update={"arch": "sm_90a"})
            for spec in specs
            if spec.arch == arch and spec.dtype != "float8_e4m3fn" and spec.config == FA4Config()
        ]
        for arch in ("sm_90a", "sm_100a")
    }
    assert kernels["sm_90a"] == kernels["sm_100a"]


DENSE = {"q_layout": "dense", "kv.layout": "dense", "q_form": "fused", "k_rope.layout": "fused"}
BENCHMARK_ROWS: list[dict[str, object]] = [
    {**DENSE, "mask.kind": "causal", "lse": False},
    {**DENSE, "mask.kind": "causal", "lse": True},
    {**DENSE, "mask.kind": "none", "lse": False},
    {**DENSE, "mask.kind": "none", "lse": True},
    {
        "q_layout": "ragged",
        "kv.layout": "ragged",
        "q_form": "fused",
        "k_rope.layout": "fused",
        "mask.kind": "causal",
        "lse": True,
    },
    {"q_form": "split", "k_rope.layout": "ragged", "mask.kind": "causal", "lse": True},
    {
        "q_form": "split",
        "k_rope.layout": "paged",
        "k_rope.page_size": 64,
        "mask.kind": "causal",
        "lse": True,
    },
    {
        "q_form": "split",
        "k_rope.layout": "paged",
        "k_rope.page_size": 16,
        "mask.kind": "causal",
        "lse": True,
    },
]
OPTIONS_SHOWN: list[dict[str, object]] = [
    {"dtype": "float16"},
    {"mask.kind": "sliding_window", "mask.left": 4095, "mask.right": 0},
    {"mask.kind": "chunked", "mask.size": 8192},
    {"score_mod.kind": "softcap"},
    {"score_mod.kind": "alibi"},
    {"score_mod.kind": "bias"},
    {"score_mod.kind": "relative_bias"},
    {"sink": True},
    {"k_rope.layout": "dense", "k_rope.row_width": 576},
    {"kv_length_counts": "prefix"},
    {"kv.layout": "paged", "kv.page_size": 64},
]


def has(spec: KernelSpec, wanted: dict[str, object]) -> bool:
    """Whether the kernel has all the values, by dotted paths."""

    def value(path: str) -> object:
        found: object = spec
        for step in path.split("."):
            found = getattr(found, step, None)
        return found

    return all(value(path) == item for path, item in wanted.items())


@pytest.mark.parametrize("row", [{"dtype": "bfloat16", **row} for row in BENCHMARK_ROWS], ids=str)
def test_deepseek_has_the_rows_of_the_benchmark(
    deepseek: tuple[KernelSpec, ...], row: dict[str, object]
) -> None:
    plain = {"sink": False, "score_mod.kind": "identity", "kv_length_counts": "total"}
    assert sum(has(spec, {**plain, **row}) for spec in deepseek) == 1


@pytest.mark.parametrize("option", OPTIONS_SHOWN, ids=str)
def test_deepseek_shows_every_option(
    deepseek: tuple[KernelSpec, ...], option: dict[str, object]
) -> None:
    assert any(has(spec, option) for spec in deepseek)
