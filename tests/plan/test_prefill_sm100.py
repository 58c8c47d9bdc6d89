"""The plan of the Blackwell prefill: memory, barriers, registers, maps, and what it refuses."""

from __future__ import annotations

import itertools
import math
import operator
from typing import TYPE_CHECKING, Any  # Any: options before validation

import pytest

from mlagen.dtypes import DTYPES
from mlagen.errors import PlanError, UnsupportedError
from mlagen.plan import plan_kernel
from mlagen.plan.fa4_config import fa4_layout
from mlagen.plan.probability import PROBABILITY_SHIFT
from tests.plan.kernels import plan as plan_for
from tests.plan.kernels import shipped_specs

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

KIB = 1024
SHIPPED = [plan_kernel(kernel) for kernel in shipped_specs("sm_100a")]
every_shipped = pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)


def plan(heads: str = "192x128", **options: Any) -> KernelPlan:
    return plan_for(heads, arch="sm_100a", **options)


def element_bytes(kernel: KernelPlan) -> int:
    return DTYPES[kernel.spec.dtype].size_bytes


def test_deepseek_has_two_halves_and_three_slots() -> None:
    causal = plan(mask="causal")
    assert (causal.tile_m, causal.tile_n, causal.kv_slots) == (256, 128, 3)
    assert causal.threads == 512
    assert causal.rescale_threshold == 0.5


def test_deepseek_budget_equals_the_sum_by_hand() -> None:
    # Q 256 x 192; three slots of 128 x 128; two buffers of 128 x 64 rope columns; all of 2 bytes.
    operands = 2 * (256 * 192 + 3 * 128 * 128 + 2 * 128 * 64)
    assert operands == 224 * KIB
    # 28 barriers of 8, 2 tiles of 32, 256 factors and sums of 4, one address of 4: less than 3 KiB.
    assert 3 * KIB >= 28 * 8 + 2 * 32 + 2 * 256 * 4 + 4
    assert sum(barrier.copies for barrier in plan().barriers) == 28
    assert plan().shared_memory_bytes == 227 * KIB


def test_one_query_tile_leaves_a_slot_more() -> None:
    kernel = plan(config={"tile_m": 128})
    assert (kernel.tile_m, kernel.tile_n, kernel.kv_slots) == (128, 128, 4)
    # Q 128 x 192; four slots; two buffers of rope columns.
    operands = 2 * (128 * 192 + 4 * 128 * 128 + 2 * 128 * 64)
    # 27 barriers of 8, 2 tiles of 32, a factor and a sum a row and half, one address.
    rest = 27 * 8 + 2 * 32 + 4 * 128 * 4 + 4
    assert sum(barrier.copies for barrier in kernel.barriers) == 27
    assert kernel.shared_memory_bytes == math.ceil((operands + rest) / KIB) * KIB
    assert kernel.cost.tensor_cycles == plan().cost.tensor_cycles // 2


def test_values_of_256_columns_have_one_output_of_128_rows() -> None:
    kernel = plan("256x256")
    assert (kernel.tile_m, kernel.tile_n, kernel.kv_slots) == (128, 64, 4)
    assert kernel.single_output
    columns = {one.name: (one.first_column, one.columns) for one in kernel.tensor_regions}
    assert columns == {
        "S0": (0, 64),
        "P0": (32, 32),
        "S1": (64, 64),
        "P1": (96, 32),
        "O0": (128, 256),
    }


def test_two_outputs_of_256_columns_are_refused_with_what_fits() -> None:
    with pytest.raises(PlanError) as refusal:
        plan("256x256", config={"single_output": False})
    assert "tensor memory: 640 columns, 512 available" in str(refusal.value)
    advice = "use tile_n 64 with 4 slots of K and V (212 KiB), tile_m 128, single_output true"
    assert advice in str(refusal.value)


def test_twelve_warps_and_two_more_take_each_tile() -> None:
    (empty,) = (barrier for barrier in plan().barriers if barrier.name == "tile_empty")
    assert empty.arrivals == 4 * 3 + 2


def test_a_pair_shares_k_and_v() -> None:
    pair = plan(mask="causal", config={"cta_group": 2})
    assert (pair.tile_m, pair.tile_rows, pair.tile_n, pair.kv_slots) == (256, 512, 128, 6)
    # Q 256 x 192; six slots of 64 keys x 128 nope columns, or 128 keys x 64 columns of V; three of 64 keys x 64.
    assert pair.shared_memory_bytes == 2 * (256 * 192 + 6 * 64 * 128 + 3 * 64 * 64) + 3 * KIB
    assert pair.map("q").box_rows == 128
    assert (pair.map("k").box_rows, pair.map("v").box_rows) == (64, 128)


def test_the_leader_of_a_pair_counts_both_ctas() -> None:
    single, pair = (
        {barrier.name: (barrier.arrivals, barrier.bytes) for barrier in kernel.barriers}
        for kernel in (plan(), plan(config={"cta_group": 2}))
    )
    assert pair == single | {
        "q_full": (1, 256 * 192 * 2),
        "p_ready": (16, 0),
        "p_last": (8, 0),
        "tile_full": (1, 32),
        "tile_empty": (28, 0),
    }


@pytest.mark.parametrize(
    ("size", "k_rows", "v_rows"), [(16, 16, 16), (64, 64, 64), (128, 64, 128), (256, 64, 128)]
)
def test_boxes_of_pages_hold_what_one_cta_of_a_pair_loads(
    size: int, k_rows: int, v_rows: int
) -> None:
    pages = {"layout": "paged", "page_size": size}
    paged = plan(mask="causal", kv=pages, k_rope=pages, config={"cta_group": 2})
    rows = [paged.map(name).box_rows for name in ("k", "k_rope", "v")]
    assert rows == [k_rows, k_rows, v_rows]


@every_shipped
def test_regions_do_not_overlap_and_fit(shipped: KernelPlan) -> None:
    for before, after in itertools.pairwise(shipped.regions):
        assert before.offset_bytes + before.size_bytes <= after.offset_bytes, after.name
    assert shipped.shared_memory_bytes <= shipped.arch.shared_memory_bytes


@every_shipped
def test_the_map_takes_what_the_configuration_says(shipped: KernelPlan) -> None:
    layout = fa4_layout(
        shipped.spec.geometry,
        shipped.arch,
        cta_group=shipped.cta_group,
        query_tiles=shipped.tile_m // 128,
        single_output=shipped.single_output,
        tile_n=shipped.tile_n,
        element_bytes=element_bytes(shipped),
        tile_bytes=next(one.element_bytes for one in shipped.regions if one.name == "tile"),
        splits_keys=shipped.state_elements > 0,
    )
    assert shipped.shared_memory_bytes == layout.shared_memory_bytes


@every_shipped
def test_operand_panels_lie_on_swizzle_atoms(shipped: KernelPlan) -> None:
    for region in (one for one in shipped.regions if one.name in ("q", "kv", "k_rope")):
        assert region.offset_bytes % 1024 == 0, region.name
        assert region.element_bytes * math.prod(region.shape[-2:]) % 1024 == 0, region.name


@every_shipped
def test_scores_and_outputs_lie_apart_in_tensor_memory(shipped: KernelPlan) -> None:
    taken = [
        column
        for region in shipped.tensor_regions
        if region.name[0] in "SO"
        for column in range(region.first_column, region.first_column + region.columns)
    ]
    assert len(set(taken)) == len(taken)
    assert max(taken) < shipped.arch.tensor_memory_columns


@every_shipped
def test_probabilities_lie_over_scores_of_their_own_half(shipped: KernelPlan) -> None:
    for half in "01":
        scores, probabilities = (shipped.tensor_region(f"{name}{half}") for name in "SP")
        assert probabilities.columns == shipped.tile_n * element_bytes(shipped) // 4
        assert probabilities.first_column >= scores.first_column
        end = scores.first_column + scores.columns
        assert probabilities.first_column + probabilities.columns == end


@every_shipped
def test_registers_of_all_warpgroups_fit_the_pool(shipped: KernelPlan) -> None:
    assert sum(128 * role.warpgroups * role.registers for role in shipped.roles) <= 65_536


@every_shipped
def test_full_barriers_expect_the_bytes_of_their_boxes(shipped: KernelPlan) -> None:
    expected = {barrier.name: barrier.bytes for barrier in shipped.barriers}
    panels = shipped.spec.geometry.qk_head_dim // 64
    assert expected["q_full"] == panels * 128 * 64 * element_bytes(shipped) * shipped.cta_group
    assert expected["kv_full"] == panels * shipped.tile_n * 64 * element_bytes(shipped)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"config": {"kv_ring": "separate"}}, "config.kv_ring: separate; available: shared"),
        ({"mask": "document"}, "mask: document"),
        (
            {"partition": "split_kv", "config": {"single_output": True}},
            "partition: split_kv, and a tile has 128 query rows",
        ),
        (
            {"partition": "split_kv", "config": {"cta_group": 2}},
            "partition: split_kv, and config.cta_group is 2",
        ),
    ],
)
def test_options_without_a_kernel_are_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan(**options)
    assert "not available for sm_100a prefill yet:" in str(refusal.value)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("config", [{"tile_m": 64}, {"tile_m": 256, "single_output": True}])
def test_there_are_three_forms(config: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="use tile_m 256, or 128 with or without single_output"):
        plan(config=config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"tile_n": 96}, "tile_n 96 is not 128 or 64"),
        ({"tile_n": 256}, "tensor memory: 768 columns, 512 available"),
        ({"rescale_threshold": 61}, "rescale_threshold 61: probabilities reach 2^it"),
        ({"exp2_emulation_share": 0.3}, "exp2_emulation_share 0.3 is no multiple of 1/16"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError) as refusal:
        plan(config=config)
    assert reason in str(refusal.value)
    assert "use tile_n 128 with 3 slots of K and V (227 KiB)" in str(refusal.value)


@pytest.mark.parametrize(("share", "cycles"), [(0, 2048), (0.25, 1536), (1, 0)])
def test_emulated_exponentials_cost_the_exp2_unit_nothing(share: float, cycles: int) -> None:
    assert plan(config={"exp2_emulation_share": share}).cost.exp2_cycles == cycles


def test_turns_at_the_exponentials_take_two_named_barriers() -> None:
    assert plan(config={"softmax_order": False}).named_barriers == ()
    turn = plan(config={"softmax_order": True}).named_barrier("turn")
    assert (turn.first_id, turn.copies) == (1, 2)


def test_fp8_has_slots_and_products_of_half_the_size() -> None:
    fp8 = plan(dtype="float8_e4m3fn")
    assert fp8.kv_slots == 8
    # A half's place is that of its output: 128 x 128 of 2 bytes. Slots of 128 x 128, buffers of 128 x 64.
    assert fp8.shared_memory_bytes == 2 * 32 * KIB + 8 * 16 * KIB + 4 * 8 * KIB + 3 * KIB
    assert fp8.cost.tensor_cycles == plan().cost.tensor_cycles // 2
    assert fp8.cost.bytes_from_l2 == plan().cost.bytes_from_l2 // 2
    assert (fp8.tensor_region("P1").first_column, fp8.tensor_region("P1").columns) == (224, 32)


def test_maps_of_fp8_swizzle_64_bytes_but_the_output_128() -> None:
    maps = plan(dtype="float8_e4m3fn", output_dtype="float16").tensor_maps
    assert {one.name: one.swizzle_bytes for one in maps} == {"q": 64, "k": 64, "v": 64, "out": 128}
    assert maps[-1].dtype.name == "float16"


def test_only_fp8_takes_a_scale() -> None:
    names = [argument.name for argument in plan(dtype="float8_e4m3fn").arguments]
    assert [argument.name for argument in plan().arguments] == [
        name for name in names if name != "v_scale"
    ]
    assert "v_scale" in names


def test_fp8_probabilities_stay_below_the_largest_number() -> None:
    with pytest.raises(PlanError, match=r"rescale_threshold 0\.9: .* float8_e4m3fn allows 0\.8"):
        plan(dtype="float8_e4m3fn", config={"rescale_threshold": 0.9})
    assert 2 ** (PROBABILITY_SHIFT["float8_e4m3fn"] + 0.8) < 448


def test_the_name_tells_an_output_of_another_dtype() -> None:
    assert "_bf16_tofp16_full_" in plan(output_dtype="float16").name
    assert "_e4m3_full_" in plan(dtype="float8_e4m3fn", output_dtype="bfloat16").name


@pytest.mark.parametrize(
    ("options", "products", "loads", "stores"),
    [
        # Both halves; 192 columns and 128 keys, 16 a product. 32 scores a load, twice: with the mask and without.
        pytest.param({}, ("UTCHMMA", 2 * (12 + 8)), 2 * 4, ("STTM.x16", 2 * 4), id="bf16"),
        pytest.param(
            {"config": {"tile_n": 64}},
            ("UTCHMMA", 2 * (12 + 4)),
            2 * 2,
            ("STTM.x16", 2 * 2),
            id="64 keys",
        ),
        pytest.param(
            {"dtype": "float8_e4m3fn", "output_dtype": "bfloat16"},
            ("UTCQMMA", 2 * (6 + 4)),
            2 * 4,
            ("STTM.x8", 2 * 4),
            id="fp8",
        ),
    ],
)
def test_a_round_of_a_loop_does_everything_once(
    options: dict[str, Any], products: tuple[str, int], loads: int, stores: tuple[str, int]
) -> None:
    mma, softmax = plan(**options).sass.loops
    assert mma.counts == (products,)
    assert softmax.counts == (("LDTM.x32", loads), stores)


@every_shipped
def test_roles_ask_for_the_registers_that_the_block_has(shipped: KernelPlan) -> None:
    assert shipped.sass.registers == tuple(role.registers for role in shipped.roles)
    warpgroups = [role.warpgroups for role in shipped.roles]
    assert sum(map(operator.mul, warpgroups, shipped.sass.registers)) == 4 * 128


def test_a_narrow_tile_gets_more_slots() -> None:
    assert plan(config={"tile_n": 64}).kv_slots == 6


def test_pages_that_divide_no_tile_are_refused() -> None:
    # 128 keys hold pages of 8 to 128 and lie in pages of 256.
    for size in (8, 16, 32, 64, 128, 256):
        paged = plan(mask="causal", k_rope={"layout": "paged", "page_size": size})
        assert paged.map("k_rope").box_rows == min(size, 128)
