"""Problems: that every kernel has valid ones, and that they are what their names say."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlagen.errors import InputError
from mlagen.plan import plan_kernel
from mlagen.runtime.addressing import check_strides
from mlagen.runtime.arguments import parse_call
from mlagen.runtime.device_values import check_device_values
from mlagen.runtime.dispatch import mismatches
from mlagen.runtime.host_tensor import host_tensor
from mlagen.runtime.inputs import check_presence, check_tensors
from mlagen.sim.tensor_core_sum import aligned_sum
from mlagen.verify.arrays import NumpyBackend
from mlagen.verify.layout import UNUSED_PAGE, lay_out
from mlagen.verify.operands import EXACT_SCALE, Lengths, draw_operands, fit_lengths
from mlagen.verify.problems import Problem, make_problem, problem_names, problems
from mlagen.verify.reference import reference
from mlagen.verify.sequences import sequences
from tests.gpu.kernels import all_specs, spec_of
from tests.runtime.calls import make_spec

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

SPECS = all_specs()
# Neighbours in the grid differ in many options: a sample by steps has every value of each.
SAMPLE = dict(itertools.islice(SPECS.items(), 0, None, 6))


@pytest.mark.parametrize("label", SAMPLE)
def test_every_problem_is_a_call_of_its_kernel(label: str) -> None:
    assert_problems_are_calls(SPECS[label])


@pytest.mark.parametrize("longest", [1, 60, 4096])
def test_problems_of_a_static_length_are_calls_with_no_longer_one(longest: int) -> None:
    spec = make_spec(mask={"kind": "causal"}, max_seqlen=longest)
    assert_problems_are_calls(spec)
    assert ("hostile values" in problem_names(spec)) == (longest == 4096)
    for problem in problems(spec):
        if not problem.is_hostile:
            assert np.diff(problem.tensors["cu_seqlens_q"]).max() <= longest


def assert_problems_are_calls(spec: KernelSpec) -> None:
    assert problem_names(spec) == [problem.name for problem in problems(spec)]
    for problem in problems(spec):
        call = parse_call({**problem.tensors, **problem.options})
        check_presence(call)
        assert list(mismatches(spec, call, spec.arch)) == []
        hosted = type(call)(
            {name: host_tensor(value, name) for name, value in call.tensors.items()},
            call.written,
            call.options,
        )
        extents = check_tensors(spec, hosted)
        check_strides(hosted)
        if problem.is_hostile:
            with pytest.raises(InputError):
                check_device_values(spec, call, extents)
        else:
            check_device_values(spec, call, extents)


@pytest.mark.parametrize("label", SAMPLE)
def test_nothing_that_counts_is_nan_and_something_that_does_not_is(label: str) -> None:
    spec = SPECS[label]
    for problem in problems(spec):
        out, lse = exact(spec, problem)
        assert np.isfinite(out).all()
        assert not np.isnan(lse).any()
    padded = make_problem(spec, "three blocks walk").tensors
    owners = [padded[name].base for name in ("k", "v")]
    assert all(np.isnan(owner.astype(float)).any() for owner in owners if owner is not None)


def exact(spec: KernelSpec, problem: Problem) -> tuple[Any, Any]:
    return reference(spec, problem.tensors, softmax_scale=problem.options.get("softmax_scale"))


def test_equal_seeds_give_equal_problems() -> None:
    spec = spec_of(mask="causal", k_rope="paged_64")
    first, again, other = problems(spec), problems(spec), problems(spec, seed=1)
    for one, two, three in zip(first, again, other, strict=True):
        assert one.name == two.name == three.name
        for name, tensor in one.tensors.items():
            assert tensor.tobytes() == two.tensors[name].tobytes(), name
        assert one.tensors["v"].size == 0 or (
            one.tensors["v"].tobytes() != three.tensors["v"].tobytes()
        )


@pytest.mark.parametrize("name", ["integer walk", "three blocks walk"])
@pytest.mark.parametrize("options", [{}, {"q_layout": "dense", "kv": "dense"}], ids=str)
def test_walks_give_each_block_four_tiles(name: str, options: dict[str, str]) -> None:
    spec = spec_of(mask="causal", **options)
    problem, tile_m = make_problem(spec, name), plan_kernel(spec).tile_m
    query = problem.tensors["q"]
    if "cu_seqlens_q" in problem.tensors:
        lengths = np.diff(problem.tensors["cu_seqlens_q"])
        assert 0 in lengths
    else:
        lengths = np.full(query.shape[0], query.shape[1])
    tiles = int((-(-lengths // tile_m)).sum()) * query.shape[-2]
    assert tiles >= 4 * problem.ctas


def test_walks_have_tiles_without_keys_and_tiles_of_which_a_part_sees_none() -> None:
    spec = spec_of(mask="causal")
    problem = make_problem(spec, "integer walk")
    offsets = problem.tensors["cu_seqlens_q"]
    _, lse = exact(spec, problem)
    empty = [
        np.isneginf(lse[first:last]).mean()
        for first, last in itertools.pairwise(offsets)
        if last > first
    ]
    assert 1.0 in empty
    assert any(0 < share < 1 for share in empty)
    assert 0.0 in empty


def test_one_call_has_all_lengths_around_blocks() -> None:
    around = [0, 1, 127, 128, 129, 255, 256, 257]
    tensors = make_problem(spec_of(mask="causal"), "lengths around blocks").tensors
    queries, keys = (np.diff(tensors[f"cu_seqlens_{which}"]) for which in "qk")
    assert sorted(queries) == sorted(keys) == around
    assert (queries != keys).sum() >= 6
    last_tile = queries[queries > 0] % 256  # of the higher tile of sm_100a
    assert {0, 1} <= set(last_tile)
    assert (last_tile > 128).any()
    assert ((last_tile > 0) & (last_tile < 128)).any()
    assert (keys[queries > 0][(last_tile > 0) & (last_tile <= 128)] > 256).any()  # three blocks


@pytest.mark.parametrize("label", SAMPLE)
def test_exact_problems_hold_integers_only(label: str) -> None:
    """In base 2, so that every probability is a power of two."""
    for problem in problems(SPECS[label]):
        if problem.is_exact:
            assert problem.options["softmax_scale"] == EXACT_SCALE
            for tensor in problem.tensors.values():
                values = tensor.astype(np.float64)
                assert np.array_equal(values, np.round(values), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("rising", lambda j, n: 20.0 * (j // n)),
        ("falling", lambda j, n: -20.0 * (j // n)),
        ("huge rising", lambda j, n: -60_000.0 if j < n else 60_000.0 - j % 3),
        ("huge falling", lambda j, n: 60_000.0 - j % 3 if j < n else -60_000.0),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_profiles_are_exact(name: str, wanted: Any, dtype: str) -> None:
    spec = spec_of(dtype=dtype)
    problem, tile_n = make_problem(spec, name), plan_kernel(spec).tile_n
    q, k = (problem.tensors[name].astype(np.float64) for name in ("q", "k"))
    logits = np.einsum("qhd,khd->hqk", q, k)
    expected = np.array([wanted(j, tile_n) for j in range(k.shape[0])])
    assert np.array_equal(logits, np.broadcast_to(expected, logits.shape))
    assert len(expected) > 3 * tile_n


@pytest.mark.parametrize("name", ["rising", "falling", "huge rising", "huge falling"])
def test_profiles_are_exact_where_sums_are_cut(name: str) -> None:
    spec = make_spec(dtype="float8_e4m3fn")
    problem = make_problem(spec, name)
    q, k = (problem.tensors[name][:, 0].astype(np.float32) for name in ("q", "k"))
    logits = np.zeros((len(q[:64]), len(k)), np.float32)
    for column in range(0, q.shape[1], 32):
        part = slice(column, column + 32)
        logits = aligned_sum(q[:64, part], k[:, part], logits, "e4m3", "e4m3", "f32")
    assert np.array_equal(logits, q[:64].astype(np.float64) @ k.T)
    assert len(np.unique(logits)) > 3


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        ("bfloat16", "sm_90a"),
        ("float16", "sm_90a"),
        ("float8_e4m3fn", "sm_90a"),
        ("float8_e4m3fn", "sm_100a"),
    ],
)
def test_one_key_of_each_step_and_row_towers_above_the_others(dtype: str, arch: str) -> None:
    spec = make_spec(dtype=dtype, arch=arch)
    problem, tile_n = make_problem(spec, "towering keys"), plan_kernel(spec).tile_n
    q, k = (problem.tensors[name].astype(np.float64) for name in ("q", "k"))
    steps = np.einsum("qhd,khd->qhk", q, k).reshape(*q.shape[:2], -1, tile_n)
    assert (np.count_nonzero(steps, axis=-1) == 1).all()
    # In base 2: fp32 ends at 2^128.
    heights = steps.max(axis=-1)
    assert heights.min() > 128
    growth = np.diff(heights, axis=-1)
    assert np.abs(growth).min() > 128
    assert (growth[:16] < 0).all()  # steps are visited from the last to the first
    assert (growth[16:] > 0).all()
    assert set(steps.argmax(axis=-1).flat) == set(range(tile_n))


def test_edges_of_masks_hide_keys_at_both_sides_of_the_edge() -> None:
    for mask, name in (
        ("window_left", "edge of the window"),
        ("window_4095", "edge of the window"),
        ("chunked", "edge of the chunk"),
    ):
        spec = spec_of(mask=mask)
        problem = make_problem(spec, name)
        _, lse = exact(spec, problem)
        everything = spec_of()
        _, full = exact(everything, problem)
        hidden = (lse < full - 1e-9).mean()
        assert hidden > 0.1, mask


@pytest.mark.parametrize(
    ("mask", "width", "name"),
    [
        ({"kind": "sliding_window", "right": 0}, {"left": 4095}, "edge of the window"),
        ({"kind": "chunked"}, {"size": 8192}, "edge of the chunk"),
    ],
)
def test_one_key_at_the_edge_of_a_wide_mask_is_far_beyond_rounding(
    mask: dict[str, Any], width: dict[str, int], name: str
) -> None:
    spec = make_spec(mask=mask | width)
    problem = make_problem(spec, name)
    out, _ = exact(spec, problem)
    for step in (-1, 1):
        other = make_spec(mask=mask | {key: size + step for key, size in width.items()})
        moved, _ = exact(other, problem)
        assert np.abs(moved - out).max() > 0.05 * np.abs(out).max()


def test_a_fused_key_has_another_rope_part_in_each_head() -> None:
    k = make_problem(spec_of(mask="causal"), "three blocks walk").tensors["k"]
    rope = k[..., -64:].astype(np.float64)
    assert rope.shape[1] > 1
    assert (rope[:, 0] != rope[:, 1]).any(axis=-1).mean() > 0.9


def hostile_sequences(**options: str) -> list[tuple[int, int, int, int]]:
    spec = spec_of(**options)
    tensors = make_problem(spec, "hostile values").tensors
    return [
        (one.first_query, one.num_queries, one.first_key, one.num_keys)
        for one in sequences(spec, tensors, NumpyBackend())
    ]


def test_hostile_offsets_mean_what_is_written_down() -> None:
    """Offsets of queries -7, 40, 25, 90, 60, 30, 2^31 - 1; of keys -5, 130, 100, 330, 200, 390, 2^31 - 1."""
    keys = [(0, 130), (130, 0), (100, 230), (330, 0), (200, 190), (390, 30)]
    queries = [(0, 40), (40, 0), (40, 50), (90, 0), (90, 0), (90, 90)]
    assert hostile_sequences() == [(*q, *k) for q, k in zip(queries, keys, strict=True)]


def test_hostile_counts_of_cached_keys_stay_inside_their_rows() -> None:
    """Rows 130, 0, 230, 0, 190 and a rest; cached 100, -1, 2^31 - 1, -2^31, 3, 1, and the queries on top."""
    prefix = [one[-1] for one in hostile_sequences(kv_length_counts="prefix")]
    assert prefix == [130, 0, 230, 0, 3, 91]
    assert [one[-1] for one in hostile_sequences(kv="dense_lengths")] == [70, 0, 70, 0, 3, 1]


def test_hostile_page_tables_are_too_narrow_and_hold_every_kind_of_wrong_page() -> None:
    problem = make_problem(spec_of(k_rope="paged_64"), "hostile values")
    table, pages = problem.tensors["block_table"], len(problem.tensors["k_rope"])
    assert table.shape[1] * 64 < 230
    assert {-1, pages, 2**31 - 1, -(2**31)} <= set(table.reshape(-1).tolist())
    assert ((table >= 0) & (table < pages)).any()


def test_pages_that_do_not_exist_have_no_rope_part() -> None:
    spec = spec_of(k_rope="paged_64")
    problem = make_problem(spec, "hostile values")
    table, cache = (problem.tensors[name] for name in ("block_table", "k_rope"))
    zeros = np.concatenate([cache, np.zeros_like(cache[:1])])
    exists = (table >= 0) & (table < len(cache))
    full = np.where(exists, table, len(cache)).astype(np.int32)
    wide = np.pad(full, ((0, 0), (0, 1)), constant_values=len(cache))
    mended = problem.tensors | {"k_rope": zeros, "block_table": wide}
    for got, wanted in zip(
        exact(spec, problem),
        reference(spec, mended, softmax_scale=EXACT_SCALE),
        strict=True,
    ):
        assert np.array_equal(got, wanted)


def test_pages_are_shared_where_full_and_hold_nan_where_unused() -> None:
    pages = {"layout": "paged", "page_size": 64}
    problem = make_problem(make_spec(kv=pages, k_rope=pages), "shared pages")
    table, lengths = (problem.tensors[name] for name in ("block_table", "cache_seqlens"))
    assert lengths.tolist() == [517, 384, 263]
    assert np.array_equal(table[1, :6], table[0, :6])
    assert np.array_equal(table[2, :4], table[0, :4])
    assert table[2, 4] not in table[0]
    for name in ("k", "v", "k_rope"):
        cache = problem.tensors[name]
        assert np.isnan(cache[table[0, 8], 5:].astype(np.float32)).all()
        assert np.isfinite(cache[table[0, 8], :5, ..., -64:].astype(np.float32)).all()
        used = table[table < len(cache)]
        unused = np.setdiff1d(np.arange(len(cache)), used)
        assert len(unused) == 10
        assert np.isnan(cache[unused].astype(np.float32)).all()


def test_rows_beyond_what_is_said_to_be_longest_are_not_to_be_written() -> None:
    spec = spec_of(mask="causal")
    problem = make_problem(spec, "longer than said")
    used = int(problem.tensors["cu_seqlens_q"][-1])
    _, cut, _ = sequences(spec, problem.tensors, NumpyBackend())
    assert used == cut.first_query + problem.options["max_seqlen_q"]
    assert cut.num_queries > problem.options["max_seqlen_q"]
    assert cut.num_keys == 0


def test_many_sequences_have_queries_on_both_sides_of_a_step_of_the_search() -> None:
    problem = make_problem(spec_of(), "many sequences")
    lengths = np.diff(problem.tensors["cu_seqlens_q"])
    assert np.flatnonzero(lengths).tolist() == [31, 32, 65]


def test_page_tables_end_with_pages_that_do_not_exist() -> None:
    problem = make_problem(spec_of(mask="causal", k_rope="paged_64"), "integer walk")
    assert (problem.tensors["block_table"] == UNUSED_PAGE).any()


LAYOUTS = [name for name in SAMPLE if "k_rope" in name or "rope" in name or "dense" in name]


@pytest.mark.parametrize("label", LAYOUTS)
def test_layouts_hold_the_same_operands(label: str) -> None:
    """The result of a layout is that of ragged, fused tensors of the same operands."""
    spec = SPECS[label]
    plain = spec.model_copy(
        update={
            name: getattr(spec_of(), name)
            for name in ("q_layout", "kv", "k_rope", "q_form", "kv_length_counts")
        }
    )
    heads = 2 * spec.k_rope.num_heads
    lengths = fit_lengths(spec, Lengths((3, 0, 40, 7), (70, 5, 9, 0), heads))
    random = np.random.default_rng(3)
    operands = draw_operands(
        spec, lengths, "random", tile_n=64, rescale_threshold=1.0, random=random
    )
    tensors = lay_out(spec, lengths, operands, strided=True, padding=2, random=random)
    out, lse = reference(spec, tensors)
    rope = np.repeat(operands.k_rope, heads // operands.k_rope.shape[1], axis=1)
    packed = {
        "q": operands.q,
        "k": np.concatenate([operands.k_nope, rope], axis=-1),
        "v": operands.v,
        "cu_seqlens_q": np.cumsum([0, *lengths.queries], dtype=np.int32),
        "cu_seqlens_k": np.cumsum([0, *lengths.keys], dtype=np.int32),
        "sinks": operands.sinks,
        "alibi_slopes": operands.alibi_slopes,
    }
    wanted_out, wanted_lse = reference(plain, packed)
    rows = len(wanted_out)
    np.testing.assert_allclose(out.reshape(-1, *out.shape[-2:])[:rows], wanted_out, rtol=1e-9)
    np.testing.assert_allclose(lse.reshape(-1, lse.shape[-1])[:rows], wanted_lse, rtol=1e-9)
