"""Names of rows, the kernel that runs a row, and what its FLOPs count."""

from __future__ import annotations

import pytest

from benchmarks.host_overhead import FORMS
from benchmarks.prefill import SPEC
from mlagen.bench.rows import (
    MIX,
    PLAIN,
    SETS,
    WORDS,
    Shape,
    find_kernel,
    flops,
    names_of,
    parse_row,
    visible_pairs,
)
from mlagen.errors import InputError
from mlagen.plan import plan_kernel
from mlagen.spec.mask import Causal, Chunked, NoMask, SlidingWindow
from mlagen.spec.yaml import load_spec_file
from tests.bench.kernels import DENSE, kernels

OWN = load_spec_file(SPEC).expand()


def test_a_name_says_sizes_mask_and_options() -> None:
    row = parse_row("b4,s2048,k8192,h16,causal,lse,rope_paged64")
    assert row.shape == Shape((2048,) * 4, (8192,) * 4, 16)
    assert row.wanted["mask.kind"] == "causal"
    assert row.wanted["lse"] is True
    assert row.wanted["k_rope.page_size"] == 64
    assert row.wanted["score_mod.kind"] == "identity"


def test_keys_are_as_many_as_queries_unless_named() -> None:
    assert parse_row("s64,h2,none").shape == Shape((64,), (64,), 2)
    assert parse_row("mix,h2,none").shape == Shape(MIX, MIX, 2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("b1,s64,h2,casual", "did you mean 'causal'"),
        ("b1,s64,h2", "names no mask"),
        ("b1,h2,causal", "says no s"),
        ("b1,s64,causal", "says no h"),
        ("mix,b2,h2,causal", "stands for b, s and k"),
        ("b0,s64,h2,causal", "'b0' is no word"),
        ("", "'' is no word"),
    ],
)
def test_a_wrong_name_is_answered_with_the_names(name: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_row(name)
    assert reason in str(caught.value)
    assert f"--row {name}: " in str(caught.value)
    for row in names_of(list(SETS)):
        assert f"    {row}\n" in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", [*names_of(list(SETS)), *FORMS.values()])
def test_each_row_of_ours_has_a_kernel_as_plain_as_it_lets_it_be(name: str, arch: str) -> None:
    row = parse_row(name)
    found = find_kernel([spec for spec in OWN if spec.arch == arch], row)
    assert found is not None
    assert plan_kernel(found).arch.name == arch
    assert found.mask.kind in name.split(",")
    assert (found.lse, found.sink) == ("lse" in name, "sink" in name)
    assert found.dtype == ("float16" if "fp16" in name else "bfloat16")
    assert found.q_form == ("split" if "split" in name else "fused")
    is_ragged = any(word in name for word in ("mix", "ragged", "rope"))
    assert found.q_layout == ("ragged" if is_ragged else "dense")
    assert found.k_rope.layout == next(
        (word for word in ("paged", "rows") if word in name), "fused"
    ).replace("rows", "ragged")


def test_standard_rows_have_one_kernel_each() -> None:
    hopper = [spec for spec in OWN if spec.arch == "sm_90a"]
    found = [find_kernel(hopper, parse_row(name)) for name in names_of(list(SETS))]
    assert {spec.hash for spec in found if spec} == {
        spec.hash for spec in hopper if not (spec.q_layout == "ragged" and spec.mask.kind == "none")
    }


def test_words_name_fields_that_kernels_have() -> None:
    (spec,) = kernels({"mask": "causal", "k_rope": {"layout": "paged", "page_size": 64}})
    for path in (*PLAIN, *(path for fields in WORDS.values() for path in fields)):
        found: object = spec
        for name in path.split("."):
            found = getattr(found, name)


def test_the_plainest_kernel_that_fits_is_taken() -> None:
    specs = kernels(
        {**DENSE, "mask": "causal", "lse": True},
        {**DENSE, "mask": "causal"},
        {"mask": "causal", "dtype": "float16"},
    )
    assert find_kernel(specs, parse_row("b1,s64,h8,causal")) is specs[1]
    assert find_kernel(specs, parse_row("b1,s64,h8,causal,lse")) is specs[0]
    assert find_kernel(specs, parse_row("mix,h8,causal")) is specs[2]  # no dense tensor holds it
    assert find_kernel(specs, parse_row("b1,s64,h8,none")) is None


def test_a_row_without_a_score_mod_is_not_run_with_one() -> None:
    specs = kernels(
        {"mask": "causal", "score_mod": {"kind": "softcap", "cap": 30.0}},
        {"mask": "causal", "sink": True},
    )
    assert find_kernel(specs, parse_row("b1,s64,h8,causal")) is None
    assert find_kernel(specs, parse_row("b1,s64,h8,causal,softcap")) is specs[0]


def test_lengths_that_a_kernel_cannot_be_told_are_not_its_rows() -> None:
    (short,) = kernels({"mask": "causal", "max_seqlen": 128})
    assert find_kernel([short], parse_row("b1,s128,h8,causal")) is short
    assert find_kernel([short], parse_row("b1,s129,h8,causal")) is None
    (square,) = kernels({"mask": "causal", "kv": {"layout": "ragged", "row_offsets": False}})
    assert find_kernel([square], parse_row("b1,s64,k65,h8,causal")) is None
    (shared,) = kernels({"mask": "causal", "k_rope": {"layout": "ragged", "num_heads": 4}})
    assert find_kernel([shared], parse_row("b1,s64,h8,causal")) is shared
    assert find_kernel([shared], parse_row("b1,s64,h6,causal")) is None


@pytest.mark.parametrize("lengths", [(1, 1), (5, 5), (2, 5), (5, 2), (1, 9), (64, 200)], ids=str)
def test_causal_pairs_are_those_that_a_loop_counts(lengths: tuple[int, int]) -> None:
    q, kv = lengths
    pairs = sum(k <= i + kv - q for i in range(q) for k in range(kv))
    assert visible_pairs(Causal(), Shape((q,), (kv,), 1)) == pairs


def test_window_and_chunk_count_visible_pairs_only() -> None:
    shape, n = Shape((300,), (300,), 1), 300
    window = visible_pairs(SlidingWindow(left=63, right=0), shape)
    assert window == sum(min(i + 1, 64) for i in range(n))
    assert visible_pairs(Chunked(size=128), shape) == sum(i % 128 + 1 for i in range(n))


def test_sequences_count_each() -> None:
    assert visible_pairs(NoMask(), Shape((3, 5, 3), (4, 5, 4), 1)) == 2 * 3 * 4 + 5 * 5


def test_flops_of_the_published_rows() -> None:
    causal, dense = (find_kernel(OWN, parse_row(SETS["figures"][i])) for i in (0, -1))
    assert causal is not None
    assert dense is not None
    assert flops(causal, parse_row(SETS["figures"][0]).shape) == 2 * 320 * 128 * 2048 * 2049 / 2
    assert flops(dense, parse_row(SETS["figures"][-1]).shape) == 2 * 320 * 128 * 8192 * 8192
