"""Expansion: cross product, order, exclusions, duplicates, limits."""

from __future__ import annotations

import itertools
from typing import Any  # Any: groups before validation

import pytest

from mlagen.errors import SpecError
from mlagen.spec.yaml import spec_from_dict
from tests.spec.writing import kernels, spec_dict

WINDOW = {"kind": "sliding_window", "left": 4095, "right": 0}


def test_lists_expand_to_their_cross_product() -> None:
    specs = kernels(
        {
            "dtype": ["bfloat16", "float16"],
            "mask": ["causal", "none", WINDOW],
            "lse": [True, False],
        },
        arch=["sm_90a", "sm_100a"],
    )
    found = {(spec.arch, spec.dtype, spec.mask.kind, spec.lse) for spec in specs}
    wanted = itertools.product(
        ["sm_90a", "sm_100a"],
        ["bfloat16", "float16"],
        ["causal", "none", "sliding_window"],
        [True, False],
    )
    assert found == set(wanted)
    assert len(specs) == 24


def test_order_is_that_of_lists_and_fields_not_of_keys() -> None:
    group = {"lse": [True, False], "mask": ["none", "causal"]}
    backwards = dict(reversed(group.items()))
    found = [(spec.mask.kind, spec.lse) for spec in kernels(group)]
    assert found == [("none", True), ("none", False), ("causal", True), ("causal", False)]
    assert kernels(group) == kernels(backwards)


def test_groups_follow_each_other_within_an_architecture() -> None:
    specs = kernels({"mask": "causal"}, {"mask": "none"}, arch=["sm_100a", "sm_90a"])
    assert [(spec.arch, spec.mask.kind) for spec in specs] == [
        ("sm_100a", "causal"),
        ("sm_100a", "none"),
        ("sm_90a", "causal"),
        ("sm_90a", "none"),
    ]


def test_a_list_in_a_list_of_score_mods_is_a_sequence() -> None:
    single, pair = kernels({"score_mod": ["alibi", ["alibi", "temperature"]]})
    assert [part.kind for part in single.score_mods] == ["alibi"]
    assert [part.kind for part in pair.score_mods] == ["alibi", "temperature"]


GROUP: dict[str, Any] = {
    "mask": ["causal", "none", WINDOW, {"kind": "chunked", "size": 64}],
    "lse": [True, False],
    "k_rope": [
        "ragged",
        {"layout": "paged", "page_size": 64},
        {"layout": "paged", "page_size": 16},
    ],
}


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ({"mask": "causal"}, 18),
        ({"mask": "sliding_window"}, 18),
        ({"mask": {"kind": "chunked"}}, 18),
        ({"mask": {"left": 4095}}, 18),
        ({"mask": ["causal", "none"]}, 12),
        ({"mask": ["causal", "none"], "lse": False}, 18),
        ({"k_rope": "paged"}, 8),
        ({"k_rope": {"layout": "paged", "page_size": 16}}, 16),
        ({"k_rope": {"row_width": 576}}, 8),
        ({"lse": True}, 12),
        ({"arch": "sm_90a", "lse": True}, 12),
        ([{"lse": True}, {"mask": "none"}], 9),
    ],
    ids=str,
)
def test_exclude_matches_parts_of_options(entry: Any, left: int) -> None:
    assert len(kernels({**GROUP, "exclude": entry})) == left


@pytest.mark.parametrize(
    ("entry", "place", "advice"),
    [
        ({"mask": "casual"}, "exclude.mask", "did you mean 'causal'?"),
        ({"k_rope": {"page_size": 32}}, "exclude.k_rope", "k_rope is here"),
        ({"lse": 1}, "exclude.lse", "lse is here true, false"),
        ({"msk": "causal"}, "exclude.msk", "did you mean 'mask'?"),
        ([{"lse": True}, {"mask": "none", "sink": True}], "exclude[1].sink", "sink is here false"),
        ({}, "exclude", "name an option"),
        ({"geometry": {}}, "exclude.geometry", "Options: "),
    ],
    ids=str,
)
def test_exclude_entries_that_match_nothing_are_errors(entry: Any, place: str, advice: str) -> None:
    with pytest.raises(SpecError) as caught:
        kernels({**GROUP, "exclude": entry})
    assert str(caught.value).startswith(f"spec: kernels[0].{place}: ")
    assert advice in str(caught.value)


def test_exclude_entry_whose_parts_never_meet_is_an_error() -> None:
    group = {
        **GROUP,
        "exclude": [{"mask": "causal", "lse": True}, {"mask": "causal"}, {"lse": True}],
    }
    assert len(kernels(group)) == 9
    never = {
        "mask": ["causal", "none"],
        "sink": [True, False],
        "exclude": {"mask": "none", "lse": True},
    }
    with pytest.raises(SpecError, match=r"exclude\.lse: no kernel of this group has lse true"):
        kernels(never)


def test_excluding_everything_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"kernels\[0\]\.exclude: leaves nothing"):
        kernels({"lse": [True, False], "exclude": {"mask": "none"}})


def test_excluded_combinations_need_not_be_valid() -> None:
    group = {
        "q_layout": ["ragged", "dense"],
        "kv": ["ragged", "dense"],
        "k_rope": "ragged",
        "exclude": [{"kv": "dense"}],
    }
    assert [(spec.q_layout, spec.kv.layout) for spec in kernels(group)] == [
        ("ragged", "ragged"),
        ("dense", "ragged"),
    ]


@pytest.mark.parametrize(
    ("option", "values", "second"),
    [
        ("mask", ["causal", {"kind": "causal"}], 1),
        ("lse", [True, False, True], 2),
        ("score_mod", [{"kind": "softcap", "cap": 30}, {"kind": "softcap", "cap": 30.0}], 1),
        ("k_rope", ["ragged", "fused", {"layout": "ragged"}], 2),
        ("config", [{}, {"tile_n": None}], 1),
    ],
)
def test_equal_entries_of_a_list_are_an_error(
    option: str, values: list[object], second: int
) -> None:
    with pytest.raises(
        SpecError, match=rf"kernels\[0\]\.{option}\[{second}\]: means the same as entry 0"
    ):
        kernels({option: values})


def test_entries_that_become_equal_are_an_error() -> None:
    with pytest.raises(
        SpecError, match=r"the same kernel arises from kernels\[0\] twice: .*k_rope"
    ):
        kernels({"k_rope": ["dense", {"layout": "dense", "row_width": 576}]})


def test_the_same_kernel_in_two_groups_names_both() -> None:
    with pytest.raises(SpecError) as caught:
        kernels({"mask": "causal"}, {"mask": "none"}, {"lse": [False, True], "mask": ["causal"]})
    assert "kernels[2]: the same kernel arises from kernels[0] and kernels[2]" in str(caught.value)
    assert len(kernels({"mask": "causal"}, {"mask": "causal", "lse": True})) == 2


def test_a_config_written_as_derived_is_still_another_kernel() -> None:
    assert len(kernels({"config": [{}, {"tile_n": 128}]})) == 2


@pytest.mark.parametrize(
    "group",
    [
        {
            "max_seqlen": list(range(1, 102)),
            "mask": [{"kind": "chunked", "size": n} for n in range(1, 102)],
        },
        {
            "max_seqlen": list(range(1, 1001)),
            "dtype": ["bfloat16", "float16"],
            "lse": [True, False],
            "sink": [True, False],
            "q_form": ["fused", "split"],
        },
    ],
    ids=["two lists", "many lists"],
)
def test_runaway_products_are_refused_before_they_are_made(group: dict[str, Any]) -> None:
    with pytest.raises(
        SpecError, match=r"kernels\[0\]: .*10,000 is the limit\n  shorten the lists \(here "
    ):
        kernels(group)


def test_overlong_lists_are_refused() -> None:
    with pytest.raises(SpecError, match="1,001 values, 1,000 is the limit"):
        kernels({"max_seqlen": list(range(1, 1002))})


def test_expansion_is_repeatable() -> None:
    first, second = (spec_from_dict(spec_dict(GROUP)).expand() for _ in range(2))
    assert [spec.hash for spec in first] == [spec.hash for spec in second]
