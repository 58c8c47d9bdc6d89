"""Which kernel a call means, and what is said when it means none or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from mlagen.errors import InputError, NoKernelError
from mlagen.plan import plan_kernel
from mlagen.plan.name import kernel_name
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.dispatch import select
from mlagen.runtime.preference import reluctance
from tests.runtime.calls import GLM_FLASH, PAGED_64, make_spec, make_tensors

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec
    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

MASKS: dict[str, Any] = {
    "none": "none",
    "causal": "causal",
    "window": {"kind": "sliding_window", "left": 3, "right": 0},
    "both sides": {"kind": "sliding_window", "left": 3, "right": 2},
    "chunked": {"kind": "chunked", "size": 64},
}


@pytest.mark.parametrize(
    ("arguments", "mask"),
    [
        ({"mask": "none"}, "none"),
        ({"mask": {"kind": "causal"}}, "causal"),
        ({"causal": False}, "none"),
        ({"causal": True}, "causal"),
        ({"causal": True, "window_size": (-1, -1)}, "causal"),
        ({"causal": True, "window_size": (3, 7)}, "window"),
        ({"window_size": (3, 0)}, "window"),
        ({"window_size": (None, 0)}, "causal"),
        ({"window_size": (3, 2)}, "both sides"),
        ({"window_size": (-1, -1)}, "none"),
        ({"mask": {"kind": "sliding_window", "left": None, "right": 0}}, "causal"),
        ({"mask": MASKS["both sides"]}, "both sides"),
        ({"causal": True, "attention_chunk": 64}, "chunked"),
        ({"causal": True, "attention_chunk": 0}, "causal"),
    ],
)
def test_masks_and_the_flags_that_mean_them(
    fake: FakeDriver, load: LoadFake, arguments: dict[str, Any], mask: str
) -> None:
    specs = {name: make_spec(mask=value) for name, value in MASKS.items()}
    load(*specs.values()).run(make_tensors(specs["none"]), **arguments)
    assert fake.launches[0].entry == kernel_name(specs[mask])


@pytest.mark.parametrize(
    ("arguments", "score_mod"),
    [
        ({"softcap": 30.0}, {"kind": "softcap", "cap": 30.0}),
        ({"logits_soft_cap": 30}, {"kind": "softcap", "cap": 30.0}),
        ({"softcap": 0.0}, "identity"),
        ({}, "identity"),
        ({"score_mod": [{"kind": "softcap", "cap": 30.0}]}, {"kind": "softcap", "cap": 30.0}),
    ],
)
def test_softcap_by_flag(
    fake: FakeDriver, load: LoadFake, arguments: dict[str, Any], score_mod: Any
) -> None:
    specs = [make_spec(score_mod=mod) for mod in ("identity", {"kind": "softcap", "cap": 30.0})]
    load(*specs).run(make_tensors(specs[0]), **arguments)
    assert fake.launches[0].entry == kernel_name(make_spec(score_mod=score_mod))


def test_the_only_kernel_needs_no_naming(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(mask="causal", score_mod={"kind": "softcap", "cap": 5.0})
    load(spec).run(make_tensors(spec))
    assert fake.launches[0].entry == kernel_name(spec)


def test_several_meanings_are_listed(load: LoadFake) -> None:
    kernels = load(make_spec(mask="causal"), make_spec(mask=MASKS["window"]))
    with pytest.raises(InputError) as error:
        kernels.run(make_tensors(kernels.specs[0]))
    assert str(error.value) == (
        "mask: not given, and several loaded kernels fit: causal, "
        "{kind: sliding_window, left: 3, right: 0}\n  pass mask=, one of these"
    )


def test_kernels_of_one_meaning_are_chosen_by_cost(fake: FakeDriver, load: LoadFake) -> None:
    wide, narrow = make_spec(), make_spec(config={"tile_n": 64})
    load(narrow, wide).run(make_tensors(wide))
    load(wide, narrow).run(make_tensors(wide))
    first, second = (launch.entry for launch in fake.launches)
    assert first == kernel_name(narrow), "of equal cost a score, the first of the file"
    assert second == kernel_name(wide)


@pytest.mark.parametrize(
    ("lengths", "heads", "options", "rows"),
    [
        ((128,) * 40, 128, {"max_seqlen_q": 128}, 128),
        ((128,) * 40, 128, {"max_seqlen_q": 129}, 256),  # a bound: no length lies on the host
        ((128,) * 40, 128, {}, 256),
        ((60, 60), 128, {}, 128),  # not longer than all rows together
        ((200,), 74, {}, 128),  # 74 whole tiles for 148 SMs
        ((200,), 75, {}, 256),
        ((300, 1, 1), 18, {}, 128),  # at most 1 + 3
        ((300, 1, 1), 19, {}, 256),
    ],
)
def test_few_rows_or_few_tiles_get_tiles_of_128_rows(
    lengths: tuple[int, ...],
    heads: int,
    options: dict[str, int],
    rows: int,
) -> None:
    blackwell = {"arch": "sm_100a", "kv": "ragged", "k_rope": "ragged", "q_form": "split"}
    whole, half = make_spec(**blackwell), make_spec(**blackwell, config={"tile_m": 128})
    tensors = make_tensors(whole, q_lens=lengths, k_lens=lengths, heads=1)
    tensors = {
        name: tensor.expand(-1, heads, -1) if tensor.ndim == 3 else tensor
        for name, tensor in tensors.items()
    }
    call = parse_call({**tensors, **options})
    for specs in ((whole, half), (half, whole)):
        chosen = select(specs, call, arch="sm_100a", source="", reluctance=reluctance)
        assert plan_kernel(chosen).tile_m == rows


@pytest.mark.parametrize(
    ("mask", "lengths", "heads", "cluster"),
    [
        ("none", (4096,), 33, 2),  # 16 tiles a head, 8 for each of 66 pairs
        ("none", (4096,), 32, 1),
        ("none", (4095,), 128, 1),
        ("none", (8192, 1), 128, 2),  # 4096 keys a sequence
        ("none", (8192, 1, 1), 128, 1),
        ("causal", (16384,), 128, 2),
        ("causal", (16383,), 128, 1),
    ],
)
def test_many_tiles_of_long_keys_go_to_pairs_of_blocks(
    mask: str, lengths: tuple[int, ...], heads: int, cluster: int
) -> None:
    alone, pair = make_spec(mask=mask), make_spec(mask=mask, config={"cluster_size": 2})
    tensors = make_tensors(alone, q_lens=lengths, k_lens=lengths, heads=1)
    tensors = {
        name: tensor.expand(-1, heads, -1) if tensor.ndim == 3 else tensor
        for name, tensor in tensors.items()
    }
    call = parse_call({**tensors, "mask": mask})
    for specs in ((alone, pair), (pair, alone)):
        chosen = select(specs, call, arch="sm_90a", source="", reluctance=reluctance)
        assert (chosen.config.cluster_size or 1) == cluster


def test_tensors_tell_layouts_apart(fake: FakeDriver, load: LoadFake) -> None:
    specs = [
        make_spec(),
        make_spec(q_form="split"),
        make_spec(k_rope="ragged"),
        make_spec(k_rope="dense"),
        make_spec(k_rope=PAGED_64),
        make_spec(k_rope={"layout": "paged", "page_size": 16}),
        make_spec(k_rope={"layout": "ragged", "num_heads": 2}),
        make_spec(kv=PAGED_64),
        make_spec(kv={"layout": "paged", "page_size": 16}),
        make_spec(kv=PAGED_64, k_rope=PAGED_64),
        make_spec(q_layout="dense", kv=PAGED_64),
        make_spec(q_layout="dense", kv="dense", k_rope=PAGED_64),
        make_spec(q_layout="dense", kv="dense"),
        make_spec(q_layout="dense", kv="dense", k_rope="dense"),
        make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True}),
        make_spec(q_layout="dense"),
        make_spec(kv="dense"),
        make_spec(sink=True),
        make_spec(dtype="float16"),
        make_spec(score_mod={"kind": "alibi", "slopes": "tensor"}),
        make_spec(geometry=GLM_FLASH),
    ]
    kernels = load(*specs)
    for spec in specs:
        kernels.run(make_tensors(spec), score_mod=spec.score_mod)
        assert fake.launches[-1].entry == kernel_name(spec)


def test_lse_is_written_where_it_is_wanted(fake: FakeDriver, load: LoadFake) -> None:
    without, with_lse = make_spec(), make_spec(lse=True)
    kernels, tensors = load(without, with_lse), make_tensors(without)
    kernels.run(tensors)
    kernels.run(tensors, return_lse=True)
    kernels.run(tensors, lse=torch.empty(169, 4))
    entries = [launch.entry for launch in fake.launches]
    assert entries == [kernel_name(without), kernel_name(with_lse), kernel_name(with_lse)]
    with pytest.raises(NoKernelError, match=r"with: with LSE\n.*which writes no LSE\n.*lse: true"):
        load(without).run(tensors, return_lse=True)


@pytest.mark.parametrize(
    ("given", "chosen"), [(None, "dynamic"), (100, 128), (128, 128), (129, 512), (600, "dynamic")]
)
def test_the_tightest_length_that_holds(
    fake: FakeDriver, load: LoadFake, given: int | None, chosen: int | str
) -> None:
    specs = [make_spec(max_seqlen=length) for length in (512, "dynamic", 128)]
    load(*specs).run(make_tensors(specs[0], q_lens=(64, 64), k_lens=(8, 8)), max_seqlen_q=given)
    assert fake.launches[0].entry == kernel_name(make_spec(max_seqlen=chosen))


def test_without_a_promise_the_longest_static_length(fake: FakeDriver, load: LoadFake) -> None:
    specs = [make_spec(max_seqlen=length) for length in (128, 512)]
    load(*specs).run(make_tensors(specs[0], q_lens=(64, 64), k_lens=(8, 8)))
    assert fake.launches[0].entry == kernel_name(specs[1])


def test_a_longer_call_than_the_kernel_takes_is_refused(load: LoadFake) -> None:
    spec = make_spec(max_seqlen=128)
    with pytest.raises(NoKernelError, match=r"max_seqlen_q 129\n.*which has max_seqlen 128"):
        load(spec).run(make_tensors(spec), max_seqlen_q=129)


def test_no_kernel_names_the_nearest_and_what_to_add(load: LoadFake) -> None:
    spec = make_spec(mask="causal", k_rope=PAGED_64)
    other = make_spec(mask="none", dtype="float16", k_rope="ragged")
    tensors = make_tensors(make_spec(k_rope={"layout": "paged", "page_size": 32}))
    with pytest.raises(NoKernelError) as error:
        load(other, spec).run(tensors, causal=True)
    assert str(error.value) == (
        "nothing loaded for prefill on sm_90a with: page_size 32\n"
        f"  nearest: {kernel_name(spec)}, which has page_size 64\n"
        "  add to a group of kernels in specs/test.yaml: k_rope: {layout: paged, page_size: 32}; "
        "then: mlagen build specs/test.yaml"
    )


def test_no_kernel_for_pages_of_that_size(load: LoadFake) -> None:
    spec = make_spec(kv=PAGED_64)
    with pytest.raises(NoKernelError) as error:
        load(spec).run(make_tensors(make_spec(kv={"layout": "paged", "page_size": 32})))
    assert str(error.value) == (
        "nothing loaded for prefill on sm_90a with: page_size 32\n"
        f"  nearest: {kernel_name(spec)}, which has page_size 64\n"
        "  add to a group of kernels in specs/test.yaml: kv: {layout: paged, page_size: 32}; "
        "then: mlagen build specs/test.yaml"
    )


def test_shapes_of_two_layouts_are_refused_where_both_are_loaded(load: LoadFake) -> None:
    """A dense batch as long as a page, of as many sequences as the cache has pages."""
    dense = make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True}, k_rope=PAGED_64)
    paged = make_spec(q_layout="dense", kv=PAGED_64, k_rope=PAGED_64)
    tensors = make_tensors(dense, q_lens=(9, 9), k_lens=(64, 64))
    load(dense).run(tensors)
    load(paged).run(tensors)
    with pytest.raises(InputError, match="kernels for dense, paged are loaded"):
        load(dense, paged).run(tensors)


def test_another_architecture_is_another_kernel(fake: FakeDriver, load: LoadFake) -> None:
    fake.capability = (10, 0)
    spec = make_spec()
    with pytest.raises(NoKernelError, match=r"on sm_100a with: sm_100a\n.*which is for sm_90a"):
        load(spec).run(make_tensors(spec))


def test_nothing_loaded_is_said(load: LoadFake) -> None:
    spec: KernelSpec = make_spec()
    with pytest.raises(NoKernelError, match=r"specs/test\.yaml: holds no kernel"):
        load().run(make_tensors(spec))


def test_none_is_not_given() -> None:
    call = parse_call({"q": torch.empty(1), "kpe": None, "mask": None, "window_size": None})
    assert set(call.tensors) == {"q"}
    assert call.options.mask is None


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=["H200", "B200"])
def test_each_gpu_runs_the_kernel_of_its_architecture(
    fake: FakeDriver, load: LoadFake, capability: tuple[int, int]
) -> None:
    fake.capability = capability
    hopper, blackwell = make_spec(mask="causal"), make_spec(mask="causal", arch="sm_100a")
    load(hopper, blackwell).run(make_tensors(hopper), mask="causal")
    (launch,) = fake.launches
    wanted = plan_kernel(hopper if capability == (9, 0) else blackwell)
    assert launch.entry == wanted.name
    assert launch.block == wanted.threads
    assert launch.shared_memory_bytes == wanted.shared_memory_bytes
    rows = wanted.map("q").box_rows
    assert launch.maps["q"].box == (64, 1, rows, 1, 1)


def test_without_a_gpu_the_architecture_named_first_is_meant(load: LoadFake) -> None:
    first, second = make_spec(mask="causal", arch="sm_100a"), make_spec(mask="causal")
    call = parse_call(make_tensors(first))
    for specs in ((first, second), (second, first)):
        chosen = select(specs, call, arch=None, source="", reluctance=lambda *_: (0.0, 0.0))
        assert chosen is specs[0]


@pytest.mark.parametrize(
    ("options", "other", "words"),
    [
        (
            {"kind": "bias", "rank": 4},
            {"kind": "bias", "rank": 3},
            ["a bias of 3 dimensions", "takes a bias of 4", "score_mod: {kind: bias, rank: 3}"],
        ),
        (
            {"kind": "relative_bias", "extent": 9},
            {"kind": "relative_bias", "extent": 8},
            ["relative_bias of 8 distances", "has extent 9", "extent: 8}"],
        ),
    ],
    ids=["bias", "relative_bias"],
)
def test_a_bias_of_another_form_has_no_kernel(
    load: LoadFake, options: dict[str, Any], other: dict[str, Any], words: list[str]
) -> None:
    tensors = make_tensors(make_spec(score_mod=other))
    with pytest.raises(NoKernelError) as error:
        load(make_spec(score_mod=options)).run(tensors)
    assert all(word in str(error.value) for word in words)
    del tensors[str(other["kind"])]
    with pytest.raises(InputError, match=f"{other['kind']}: missing; the only fitting kernel"):
        load(make_spec(score_mod=options)).run(tensors)
