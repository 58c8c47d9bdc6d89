"""What can go wrong in the origin of the Blackwell prefill, one row each, and why it cannot here.

A row is either held by a test of this file, marked with its number; or by one elsewhere, named; or it is a limit of the
origin, which a spec value lifts or which is refused by name.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ml_dtypes
import numpy as np
import pytest

from mlagen.errors import MlagenError
from mlagen.plan import plan_kernel
from mlagen.plan.support import SM100, unsupported
from mlagen.render import render_kernel
from mlagen.runtime.kernel import load
from mlagen.runtime.simulator import Simulated, Simulator
from mlagen.trials import Outputs, Trial, expected, judge
from mlagen.verify.problems import Problem, make_problem
from tests.plan.kernels import plan, spec
from tests.sim.test_kernels import WALK, assert_passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.spec.model import KernelSpec

_Test = TypeVar("_Test", bound="Callable[..., None]")

ROOT = Path(__file__).parents[2]
CAUSAL = spec(arch="sm_100a", mask="causal", lse=True)
PAGED = {"layout": "paged", "page_size": 64}
STEPS_Q_K, STEPS_P_V = 192 // 16, 128 // 16

# Number -> what the origin has, does, or lacks.
HAZARDS = {
    1: "products of one CTA only",
    2: "no persistent scheduler",
    3: "no split over keys",
    4: "a key tile of 64 in the softmax",
    5: "key tiles rounded to powers of two against pages",
    6: "outputs spaced by the head dimension of Q, 128 columns lost",
    7: "K and V counted as pairs, 48 KiB idle",
    8: "shared memory aligned to 128 bytes, the swizzle wants 1024",
    9: "two query tiles, whatever the depth",
    10: "a path of 64-row products that nothing reaches",
    11: "barriers for the order of the softmax warpgroups, unused",
    12: "no emulated exponentials",
    13: "sinks, offsets of keys and score mods taken and not used",
    14: "no LSE",
    15: "offsets of context chunks ignored",
    16: "a finite mask value: logits below it lose to hidden keys, a row without keys is a mean of V",
    17: "an unsigned count of tiles less one: no keys wrap around",
    18: "the wrong kind of mask for the first tile at some offsets",
    19: "each role bounds its own loop: one waits for ever where they differ",
    20: "a combination of masks with a wrong branch",
    21: "a division by the page size 0; a window's begin off the grid of pages",
    22: "rows behind a sequence come from its neighbour: 0 * NaN",
    23: "tensor memory given back while a product runs",
    24: "different setmaxnreg in one warpgroup",
    25: "a fence behind the first wait only",
    26: "dimensions fixed in layouts, those of V and K equal",
    27: "trip counts of the whole tile: blocks that a half cannot see",
    28: "a tail of one row costs a whole tile",
    29: "short tiles first, long ones last",
    30: "a grid of the longest sequence",
    31: "lengths, alignment and strides not checked",
    32: "types of 16 bits only",
    33: "32-bit rows",
    34: "a ragged store whose map begins before the output",
}
# Number -> the test that holds it, in another file.
ELSEWHERE = {
    2: "tests/sim/test_tile_schedulers.py::test_kernels_of_every_kind",
    13: "tests/sim/test_option_pairs.py::test_chosen_kernels_are_right",
    29: "tests/sim/test_tile_schedulers.py::test_longest_first_takes_the_last_rows_of_all_heads_first",
    26: "tests/sim/test_kernels_sm100.py::test_random_priorities_find_nothing",  # 64 + 64 / 128
    33: "tests/mutation/test_far_rows.py::test_the_lse_reaches_rows_that_32_bits_do_not",
}
# Limits: number -> options of a spec that lift them; a kernel has them, or they are refused by name.
LIMITS: dict[int, dict[str, Any]] = {
    1: {"config": {"cta_group": 2}},
    3: {"partition": {"kind": "split_kv", "splits": 2}},
    9: {"config": {"tile_m": 128}},
    11: {"config": {"softmax_order": True}},
    12: {"config": {"exp2_emulation_share": 0.25}},
    20: {"mask": {"kind": "all", "of": ["causal", {"kind": "chunked", "size": 64}]}},
    32: {"dtype": "float8_e4m3fn"},
}
_tested: set[int] = set()


def closes(*numbers: int) -> Callable[[_Test], _Test]:
    """Say that a test holds these rows."""
    _tested.update(numbers)
    return lambda test: test


def test_every_hazard_has_a_test_or_is_a_limit() -> None:
    assert list(HAZARDS) == list(range(1, 35))
    assert sorted({*_tested, *ELSEWHERE, *LIMITS}) == list(HAZARDS)


@pytest.mark.parametrize("place", ELSEWHERE.values())
def test_tests_elsewhere_exist(place: str) -> None:
    file, name = place.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("number", LIMITS, ids=lambda number: HAZARDS[number])
def test_an_option_is_built_or_refused_never_ignored(number: int) -> None:
    kernel = spec(arch="sm_100a", **LIMITS[number])
    reasons = [reason.partition(":")[0] for reason in unsupported(kernel, SM100)]
    (name,) = LIMITS[number]
    if reasons:
        assert {reason.partition(".")[0] for reason in reasons} == {name}
    else:
        assert code(kernel) != code(spec(arch="sm_100a"))


# ----- Layouts and code


def code(kernel: KernelSpec) -> str:
    """Its text without the header and the name, which say what was asked for."""
    text = render_kernel(plan_kernel(kernel))
    return text[text.index("using uint16") :].replace(plan_kernel(kernel).name, "kernel")


@closes(4, 5)
@pytest.mark.parametrize("page_size", [8, 16, 32, 64, 128, 256])
def test_no_page_size_makes_a_tile_smaller(page_size: int) -> None:
    rope = {"layout": "paged", "page_size": page_size}
    assert plan(arch="sm_100a", mask="causal", k_rope=rope).tile_n == 128


@closes(6)
def test_outputs_lie_side_by_side() -> None:
    kernel = plan_kernel(CAUSAL)
    first, second = (kernel.tensor_region(f"O{half}") for half in (0, 1))
    assert second.first_column == first.first_column + 128
    assert second.first_column + 128 == kernel.arch.tensor_memory_columns


@closes(7)
def test_one_slot_more_would_not_fit() -> None:
    kernel = plan_kernel(CAUSAL)
    (ring,) = (region for region in kernel.regions if region.name == "kv")
    slot = ring.size_bytes // kernel.kv_slots
    assert kernel.shared_memory_bytes + slot > kernel.arch.shared_memory_bytes


@closes(8)
def test_the_alignment_is_asked_for_and_looked_at() -> None:
    text = code(CAUSAL)
    assert "struct __align__(1024) SharedMemory" in text
    assert "if (shared_address(shared_bytes) % 1024 != 0) __trap();" in text


@closes(10)
def test_every_product_has_128_rows() -> None:
    made = re.findall(r"= instruction_descriptor\((\w+),", code(CAUSAL))
    assert set(made) == {"kHalfM"}
    assert "kHalfM = 128;" in code(CAUSAL)


@closes(13)
@pytest.mark.parametrize(
    "option",
    [{"sink": True}, {"kv": {"layout": "ragged", "row_offsets": False}}, {"score_mod": "alibi"}],
    ids=str,
)
def test_an_option_changes_the_code(option: dict[str, Any]) -> None:
    assert code(spec(arch="sm_100a", **option)) != code(spec(arch="sm_100a"))


@closes(19)
def test_one_function_says_which_blocks_there_are() -> None:
    text = code(CAUSAL)
    bounds = text.index("struct KeyBlocks"), text.index("// Shared memory")
    outside = text[: bounds[0]] + text[bounds[1] :]
    assert "/ kTileN" not in outside
    assert not re.search(r"ceil_div\([^;]*, kTileN\)", outside)
    for role in ("LoadWarp", "MmaWarp", "SoftmaxWarpgroup", "CorrectionWarpgroup"):
        body = text[text.index(f"struct {role} {{") :].partition("\n};")[0]
        assert re.search(r"KeyBlocks blocks\(tile\)|blocks_of_half\(tile, half", body), role


@closes(21)
def test_chunks_need_no_pages() -> None:
    assert "kPageSize" not in code(spec(arch="sm_100a", mask={"kind": "chunked", "size": 100}))


@closes(24)
def test_a_warpgroup_has_one_number_of_registers() -> None:
    entry = code(CAUSAL).partition('extern "C"')[2]
    branches = re.findall(r"(?:if|else if) \(warpgroup.*\) \{\n(.*)|\} else \{\n(.*)", entry)
    first_lines = [line.strip() for branch in branches for line in branch if line]
    assert [line.partition("<")[0] for line in first_lines] == [
        "claim_registers",
        "release_registers",
        "release_registers",
    ]
    assert len(re.findall(r"(?:claim|release)_registers<", entry)) == len(first_lines)


@closes(30)
def test_a_block_finds_its_tile_among_sequences_of_any_length() -> None:
    # 63 of 66 sequences have no queries: no block is started for them.
    assert_passes(CAUSAL, "many sequences")


@closes(31)
def test_a_wrong_call_is_refused_before_the_launch() -> None:
    problem = make_problem(CAUSAL, "random")
    q = problem.tensors["q"]
    for complaint, wrong in (
        ("dims 191/128", q[:, :, :-1]),
        ("float32", q.astype(np.float32)),
        ("contiguous last dimension", np.repeat(q, 2, axis=2)[..., ::2]),
    ):
        with pytest.raises(MlagenError, match=complaint):
            simulate(CAUSAL, problem, q=wrong)


@closes(31)
def test_more_queries_than_keys_are_right() -> None:
    assert_passes(CAUSAL, "more queries than keys")


# ----- Results


loaded = functools.cache(load)


def simulate(
    kernel: KernelSpec, problem: Problem, *, trace: bool = False, **arguments: Any
) -> Simulated:
    """A call of a problem with one block, some arguments replaced or added."""
    given = {**problem.tensors, **problem.options, **arguments}
    return loaded(kernel).simulate(given, simulator=Simulator(ctas=1, trace=trace))


def run_right(kernel: KernelSpec, problem: Problem) -> Simulated:
    """Run a problem of our own and hold it against float64, findings and all."""
    outputs = Outputs.of(kernel, problem)
    simulated = simulate(kernel, problem, **outputs.arguments())
    verdict = judge(
        Trial(kernel, problem.name, backend=Simulator()),
        outputs,
        expected(kernel, problem),
        simulated=simulated,
        seconds=0.0,
    )
    assert verdict.passed, "\n".join(verdict.complaints)
    assert verdict.findings == ()
    return simulated


def ragged(queries: tuple[int, ...], keys: tuple[int, ...]) -> Problem:
    """Random operands of one head in a ragged batch."""
    random = np.random.default_rng(7)

    def draw(rows: int, columns: int) -> Any:
        return random.standard_normal((rows, 1, columns)).astype(ml_dtypes.bfloat16)

    tensors = {
        "q": draw(sum(queries), 192),
        "k": draw(sum(keys), 192),
        "v": draw(sum(keys), 128),
        "cu_seqlens_q": np.cumsum([0, *queries]).astype(np.int32),
        "cu_seqlens_k": np.cumsum([0, *keys]).astype(np.int32),
    }
    return Problem("ragged", tensors, {"softmax_scale": 0.1})


@closes(14, 15)
def test_results_over_two_ranges_of_keys_merge_into_that_over_all() -> None:
    torch = pytest.importorskip("torch")
    from mlagen.runtime.merge import merge_state

    kernel = spec(arch="sm_100a", lse=True)
    whole = ragged((20,), (300,))
    parts = []
    for first, last in ((0, 170), (170, 300)):
        tensors = whole.tensors | {
            "k": whole.tensors["k"][first:last],
            "v": whole.tensors["v"][first:last],
            "cu_seqlens_k": np.array([0, last - first], np.int32),
        }
        part = run_right(kernel, Problem("part", tensors, whole.options))
        parts += [torch.tensor(part.out.astype(np.float32)), torch.tensor(part.lse)]
    out, lse = merge_state(*parts)
    wanted = expected(kernel, whole)
    # Each part is rounded to bfloat16 once.
    np.testing.assert_allclose(out.numpy(), wanted.out, atol=0.02)
    np.testing.assert_allclose(lse.numpy(), wanted.lse, atol=1e-4)


@closes(16)
def test_hidden_keys_weigh_nothing_beside_the_smallest_logits() -> None:
    # Visible logits reach -60000, far below any finite mask value that a kernel would choose.
    assert_passes(CAUSAL, "huge falling")


@closes(16, 17)
@pytest.mark.parametrize("keys", [0, 1])
def test_a_row_without_keys_is_zero_with_a_sum_of_nothing(keys: int) -> None:
    result = run_right(CAUSAL, ragged((130,), (keys,)))
    empty = 130 - keys
    assert (result.out[:empty] == 0).all()
    assert np.isneginf(result.lse[:empty]).all()


@closes(18)
def test_the_first_block_has_its_mask_at_every_offset() -> None:
    offsets = (0, 1, 127, 128, 129, 255)
    queries = (3,) * len(offsets)
    run_right(CAUSAL, ragged(queries, tuple(3 + offset for offset in offsets)))


@closes(19, 21)
def test_a_windows_begin_need_not_lie_on_a_page() -> None:
    window = {"kind": "sliding_window", "left": 100, "right": 0}
    kernel = spec(arch="sm_100a", q_form="split", mask=window, k_rope=PAGED)
    assert_passes(kernel, "edge of the window")


@closes(22)
def test_a_neighbours_nan_stays_with_it() -> None:
    problem = ragged((40, 5), (70, 60))
    tensors = dict(problem.tensors)
    for name in ("k", "v"):
        tensors[name] = tensors[name].copy()
        tensors[name][70:] = np.nan
    wanted = run_right(CAUSAL, ragged((40, 5), (70, 60)))
    found = simulate(CAUSAL, Problem("nan", tensors, problem.options))
    assert found.report == ""
    np.testing.assert_array_equal(found.out[:40], wanted.out[:40])
    assert np.isnan(found.out[40:].astype(np.float32)).all()


@closes(23, 25)
@pytest.mark.parametrize("schedule", ["lazy", "pct:1"])
def test_a_half_without_rows_leaves_tensor_memory_in_order(schedule: str) -> None:
    # `lazy` lets products complete as late as they may; what is missing between them and the release is found.
    assert_passes(CAUSAL, "many keys", schedule)


def products(queries: int, keys: int) -> int:
    """Blocks of 128 x 128 that a causal call multiplies."""
    result = simulate(CAUSAL, ragged((queries,), (keys,)), trace=True).result
    assert result is not None
    trace = result.trace
    issued = sum(event.kind == "issue" and event.label == "tcgen05.mma" for event in trace)
    assert issued % (STEPS_Q_K + STEPS_P_V) == 0
    return issued // (STEPS_Q_K + STEPS_P_V)


@closes(27, 28)
@pytest.mark.parametrize(
    ("queries", "keys", "blocks"),
    [
        pytest.param(256, 256, 1 + 2, id="the lower half sees one block"),
        pytest.param(256, 512, 3 + 4, id="a prefix"),
        pytest.param(1, 128, 1, id="a tail of one row is one half"),
        pytest.param(129, 129, 1 + 2, id="one row in the upper half"),
    ],
)
def test_only_blocks_that_a_half_sees_are_multiplied(queries: int, keys: int, blocks: int) -> None:
    assert products(queries, keys) == blocks


@closes(34)
@pytest.mark.parametrize("queries", [(1,), (127, 2), (129, 130)], ids=str)
def test_a_store_touches_nothing_but_its_rows(queries: tuple[int, ...]) -> None:
    # The output is an allocation of its own: an access before or behind it would be out of bounds.
    problem = ragged(queries, queries)
    out = np.empty((sum(queries), 1, 128), problem.tensors["v"].dtype)
    result = simulate(CAUSAL, problem, out=out, lse=np.empty((sum(queries), 1), np.float32))
    assert result.report == ""
    run_right(CAUSAL, problem)


def test_one_query_at_most_is_a_static_length_like_any_other() -> None:
    kernel = spec(arch="sm_100a", mask="causal", lse=True, max_seqlen=1)
    assert_passes(kernel, WALK)
