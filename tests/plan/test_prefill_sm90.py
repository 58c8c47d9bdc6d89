"""The plan of the Hopper prefill: memory, barriers, registers, maps and arguments."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any  # Any: options before validation

import pytest

from mlagen.errors import PlanError, UnsupportedError
from mlagen.plan import plan_kernel
from mlagen.plan.mask import mask_bounds
from tests.plan.kernels import plan, shipped_specs, spec

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

KIB = 1024
SHIPPED = [plan_kernel(kernel) for kernel in shipped_specs()]
every_shipped = pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)


def test_deepseek_has_the_measured_configuration() -> None:
    causal = plan(mask="causal")
    assert (causal.tile_m, causal.tile_n, causal.k_stages, causal.v_stages) == (128, 128, 2, 2)
    assert causal.rescale_threshold == 0.5
    assert causal.half_diagonal
    assert causal.ping_pong
    assert not plan(mask="none").half_diagonal


def test_deepseek_budget_equals_the_sum_by_hand() -> None:
    # Q 2 x 64 x 192, K 2 x 128 x 192, V 2 x 128 x 128 elements of 2 bytes; 16 barriers of 8, 2 tiles of 32.
    operands = 2 * (2 * 64 * 192 + 2 * 128 * 192 + 2 * 128 * 128)
    assert operands == 208 * KIB
    assert plan().shared_memory_bytes == 209 * KIB
    assert sum(barrier.copies for barrier in plan().barriers) == 16


@every_shipped
def test_regions_do_not_overlap_and_fit(shipped: KernelPlan) -> None:
    for before, after in itertools.pairwise(shipped.regions):
        assert before.offset_bytes + before.size_bytes <= after.offset_bytes, (
            before.name,
            after.name,
        )
    assert shipped.shared_memory_bytes <= shipped.arch.shared_memory_bytes
    assert shipped.shared_memory_bytes % 1024 == 0


@every_shipped
def test_operand_panels_lie_on_swizzle_atoms(shipped: KernelPlan) -> None:
    for region in shipped.regions[:3]:
        panel_bytes = region.element_bytes * math.prod(region.shape[-2:])
        assert region.offset_bytes % 1024 == 0, region.name
        assert panel_bytes % 1024 == 0, region.name


@every_shipped
def test_registers_of_all_warpgroups_fit_the_pool(shipped: KernelPlan) -> None:
    given = sum(128 * role.warpgroups * role.registers for role in shipped.roles)
    entry = 65_536 // shipped.threads // 8 * 8
    assert given <= shipped.threads * entry
    assert shipped.estimated_registers < next(
        role.registers for role in shipped.roles if role.name == "math"
    )


@every_shipped
def test_full_barriers_expect_the_bytes_of_their_boxes(shipped: KernelPlan) -> None:
    geometry = shipped.spec.geometry
    expected = {barrier.name: barrier.bytes for barrier in shipped.barriers if barrier.bytes}
    panels = {
        "q": geometry.qk_head_dim // 64,
        "k": geometry.qk_head_dim // 64,
        "v": geometry.v_head_dim // 64,
    }
    rows = {"q": 64, "k": shipped.tile_n, "v": shipped.tile_n}
    is_fp8 = shipped.spec.dtype == "float8_e4m3fn"
    for operand, count in panels.items():
        full = "v_rows_full" if is_fp8 and operand == "v" else f"{operand}_full"
        assert expected.pop(full) == count * rows[operand] * 64 * (1 if is_fp8 else 2)
    assert expected == {}


@every_shipped
def test_every_box_is_one_swizzle_span_wide_and_at_most_256_rows(shipped: KernelPlan) -> None:
    for tensor_map in shipped.tensor_maps:
        assert tensor_map.box_columns == 64
        assert tensor_map.swizzle_bytes == (64 if tensor_map.dtype.is_scaled else 128)
        assert tensor_map.box_rows <= 256
        assert tensor_map.box_rows % 8 == 0


def test_names_are_different_and_identifiers() -> None:
    names = [shipped.name for shipped in SHIPPED]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_name_tells_a_partition() -> None:
    assert "_fused_splitkv_" in plan(partition="split_kv").name
    assert "_fused_splitkv4_" in plan(partition={"kind": "split_kv", "splits": 4}).name


def test_name_tells_an_unusual_scheduler() -> None:
    def words(**scheduler: str) -> str:
        return plan(scheduler=scheduler).name

    assert "_fused_transient_natural_" in words(kind="transient", order="natural")
    assert "_fused_rotate_" in words(order="rotate")
    assert "queued" not in words(kind="queued", order="longest_first")


def test_name_tells_the_options_and_ends_with_the_hash() -> None:
    kernel = plan(
        dtype="float16",
        mask={"kind": "sliding_window", "left": 127, "right": 0},
        score_mod="alibi",
        q_form="split",
        k_rope={"layout": "paged", "page_size": 64},
        sink=True,
        lse=True,
    )
    words = "mla_prefill_sm90a_192x128_fp16_window127_0_alibi_ragged_splitq_paged64_sink_lse"
    assert kernel.name == f"{words}_{kernel.spec.hash[:8]}"


@pytest.mark.parametrize(
    ("heads", "options", "tile_n"),
    [
        ("192x128", {}, 128),
        ("128x128", {}, 128),
        ("256x256", {}, 80),
        ("256+0x256", {}, 80),
        # 80 keys are no whole number of pages of 64.
        ("256x256", {"k_rope": {"layout": "paged", "page_size": 64}}, 64),
        ("256x256", {"k_rope": {"layout": "paged", "page_size": 256}}, 64),
        ("256x256", {"k_rope": {"layout": "paged", "page_size": 16}}, 80),
        # A score mod takes the registers that 80 keys would need.
        ("256x256", {"score_mod": "alibi"}, 64),
    ],
)
def test_widest_key_tile_that_fits_is_chosen(
    heads: str, options: dict[str, Any], tile_n: int
) -> None:
    assert plan(heads, **options).tile_n == tile_n


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("page_size", [8, 16, 32, 64, 128, 256])
def test_page_boxes_cover_the_key_tile(page_size: int, arch: str) -> None:
    pages = {"layout": "paged", "page_size": page_size}
    paged = plan(arch=arch, kv=pages, k_rope=pages)
    for name, addressing in (("k", "paged"), ("k_rope", "paged"), ("v", "paged_clipped")):
        tensor_map = paged.map(name)
        assert tensor_map.addressing == addressing
        assert tensor_map.box_rows == min(page_size, paged.tile_n)
        assert paged.tile_n % tensor_map.box_rows == 0


@pytest.mark.parametrize(
    ("options", "addressing"),
    [
        ({}, {"q": "clipped", "k": "packed", "v": "clipped", "out": "clipped"}),
        (
            {"q_layout": "dense", "kv": {"layout": "dense"}},
            {"q": "batched", "k": "batched", "v": "batched", "out": "batched"},
        ),
        # Values past the given length may hold NaN: TMA must cut them off.
        (
            {"q_layout": "dense", "kv": {"layout": "dense", "seqlens": True}},
            {"q": "batched", "k": "batched", "v": "clipped", "out": "batched"},
        ),
        (
            {"q_form": "split", "k_rope": {"layout": "paged", "page_size": 16}},
            {
                "q_nope": "clipped",
                "q_pe": "clipped",
                "k": "packed",
                "k_rope": "paged",
                "v": "clipped",
                "out": "clipped",
            },
        ),
    ],
)
def test_tensor_maps_follow_the_layouts(
    options: dict[str, Any], addressing: dict[str, str]
) -> None:
    assert {
        tensor_map.name: tensor_map.addressing for tensor_map in plan(**options).tensor_maps
    } == addressing


ALWAYS = ["softmax_scale_log2", "inverse_scale_log2", "num_heads", "batch"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"q_layout": "dense", "kv": {"layout": "dense"}}, ["seqlen_q", "seqlen_k"]),
        ({}, ["total_q", "cu_seqlens_q", "max_seqlen_q", "total_k", "cu_seqlens_k"]),
        ({"max_seqlen": 4096}, ["total_q", "cu_seqlens_q", "total_k", "cu_seqlens_k"]),
        (
            {"kv": {"layout": "ragged", "row_offsets": False}},
            ["total_q", "cu_seqlens_q", "max_seqlen_q", "total_k"],
        ),
        (
            {"kv_length_counts": "prefix"},
            ["total_q", "cu_seqlens_q", "max_seqlen_q", "total_k", "cu_seqlens_k", "cache_seqlens"],
        ),
        (
            {"q_layout": "dense", "kv": {"layout": "dense"}, "lse": True},
            [
                "seqlen_q",
                "seqlen_k",
                "lse",
                "lse_batch_stride",
                "lse_row_stride",
                "lse_head_stride",
            ],
        ),
        (
            {
                "q_layout": "dense",
                "kv": {"layout": "dense"},
                "k_rope": {"layout": "paged", "page_size": 64},
            },
            [
                "seqlen_q",
                "seqlen_k",
                "block_table",
                "block_table_stride",
                "block_table_width",
                "num_pages",
            ],
        ),
        (
            {"q_layout": "dense", "kv": {"layout": "dense"}, "sink": True},
            ["seqlen_q", "seqlen_k", "sinks"],
        ),
        (
            {
                "q_layout": "dense",
                "kv": {"layout": "dense"},
                "score_mod": {"kind": "alibi", "slopes": "tensor"},
            },
            ["seqlen_q", "seqlen_k", "alibi_slopes"],
        ),
        (
            {
                "q_layout": "dense",
                "kv": {"layout": "dense"},
                "score_mod": {"kind": "bias", "rank": 3},
            },
            [
                "seqlen_q",
                "seqlen_k",
                "bias",
                "bias_batch_stride",
                "bias_row_stride",
                "bias_queries",
                "bias_keys",
            ],
        ),
        (
            {
                "q_layout": "dense",
                "kv": {"layout": "dense"},
                "score_mod": {"kind": "relative_bias", "extent": 5},
            },
            [
                "seqlen_q",
                "seqlen_k",
                "relative_bias",
                "relative_bias_batch_stride",
                "relative_bias_row_stride",
                "relative_bias_head_stride",
            ],
        ),
    ],
)
def test_an_option_that_is_off_leaves_no_argument(
    options: dict[str, Any], names: list[str]
) -> None:
    assert [argument.name for argument in plan(**options).arguments] == [*ALWAYS, *names, "tickets"]


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        ("split_kv", ["num_splits", "states", "arrivals"]),
        ({"kind": "split_kv", "splits": 3}, ["states", "arrivals"]),
    ],
)
def test_kernels_that_split_keys_take_a_workspace(partition: Any, names: list[str]) -> None:
    usual = [argument.name for argument in plan().arguments]
    arguments = [argument.name for argument in plan(partition=partition).arguments]
    assert arguments == [*usual[:-1], *names, "tickets"]


def test_a_state_is_outputs_maxima_and_sums() -> None:
    # 128 rows of 128 columns in 256 threads; the four lanes of a quad each keep the maxima and sums of two rows.
    assert plan(partition="split_kv").state_elements == 64 + 2 + 2
    assert plan(arch="sm_100a", partition="split_kv").state_elements == 128 + 1 + 1
    assert plan().state_elements == 0


@pytest.mark.parametrize("kind", ["transient", "persistent"])
def test_only_queued_kernels_take_a_counter(kind: str) -> None:
    names = [argument.name for argument in plan(scheduler=kind).arguments]
    assert [*names, "tickets"] == [argument.name for argument in plan().arguments]


def test_cost_of_a_key_tile_equals_the_arithmetic() -> None:
    cost = plan().cost
    # 128 x 128 x (192 + 128) multiply-adds at 2048 a cycle, 128 x 128 exponentials at 16, 128 x 320 x 2 bytes.
    assert (cost.tensor_cycles, cost.exp2_cycles, cost.bytes_from_l2) == (2560, 1024, 81_920)


def test_a_round_of_the_loop_multiplies_each_column_and_key_once() -> None:
    (loop,) = plan().sass.loops
    assert loop.counts == (("HGMMA", 12 + 8),)
    assert plan().sass.registers == tuple(role.registers for role in plan().roles)


@pytest.mark.parametrize(
    ("heads", "config", "evidence", "advice"),
    [
        (
            "192x128",
            {"tile_n": 256},
            "Q 48 + K 2 x 96 + V 2 x 64",
            "use tile_n 128 with 2 stages of K and 2 of V",
        ),
        ("192x128", {"k_stages": 8}, "KiB, 227 KiB available", "use tile_n 128 with 2 stages"),
        (
            "256x256",
            {"tile_n": 96},
            "registers: about 226 a math thread, 224 usable of 232",
            "use tile_n 80",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_budget_and_what_fits(
    heads: str, config: dict[str, int], evidence: str, advice: str
) -> None:
    with pytest.raises(PlanError) as refusal:
        plan(heads, config=config)
    message = str(refusal.value)
    assert evidence in message
    assert message.splitlines()[-1].strip().startswith(advice)


def test_key_tile_that_splits_pages_is_refused() -> None:
    with pytest.raises(PlanError, match="tile_n 80 and page_size 64: neither divides the other"):
        plan(k_rope={"layout": "paged", "page_size": 64}, config={"tile_n": 80})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mask": "tree"}, "mask: tree; available: none, causal, sliding_window, chunked, padding"),
        ({"mask": {"all": ["causal", {"any": ["padding", "document"]}]}}, "mask: document"),
        (
            {
                "mask": {
                    "any": [{"kind": "sliding_window", "left": n, "right": 9 - n} for n in range(5)]
                }
            },
            "mask: any of more than 4 ranges of keys; available: up to 4",
        ),
        (
            {"mask": {"all": ["padding", {"kind": "chunked", "size": 2**30}]}},
            "mask.size: 1073741824; available: up to",
        ),
        (
            {"mask": {"kind": "sliding_window", "left": 2**30, "right": 0}},
            "mask.left: 1073741824; available: up to",
        ),
        (
            {"score_mod": "temperature"},
            "score_mod: temperature; available: identity, softcap, alibi",
        ),
        ({"score_mod": ["alibi", {"kind": "softcap", "cap": 30}]}, "score_mod: chain"),
        (
            {"partition": {"kind": "split_kv", "splits": 129}},
            "partition.splits: 129; available: up to 128, or auto",
        ),
        ({"kv": {"layout": "paged", "page_size": 24}}, "kv.page_size: 24"),
        ({"kv": {"layout": "paged", "page_size": 64}, "k_rope": "dense"}, "k_rope.layout: dense"),
        ({"k_rope": {"layout": "paged", "page_size": 48}}, "k_rope.page_size: 48"),
        ({"k_rope": {"layout": "paged", "page_size": 4}}, "available: 8, 16, 32, 64, 128, 256"),
        ({"config": {"cluster_size": 2}}, "config.cluster_size: 2; available: 1"),
        ({"config": {"cta_group": 2}}, "config.cta_group: 2; available: 1"),
        ({"config": {"single_output": True}}, "config.single_output: True; no such choice here"),
    ],
)
def test_options_without_a_kernel_are_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan(**options)
    assert reason in str(refusal.value)
    assert "available" in str(refusal.value)


def test_all_refusals_of_a_kernel_come_at_once() -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan(mask="document", score_mod="temperature", config={"cluster_size": 2})
    assert [line.split(":")[0].strip() for line in str(refusal.value).splitlines()[1:]] == [
        "mask",
        "score_mod",
        "config.cluster_size",
    ]


def test_head_dims_without_a_kernel_are_refused_with_the_supported_ones() -> None:
    geometry = {
        "qk_nope_head_dim": 96,
        "qk_rope_head_dim": 32,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
    }
    with pytest.raises(UnsupportedError, match=r"96\+32/128; available: 128\+64/128, 64\+64/128"):
        plan(geometry=geometry)


@pytest.mark.parametrize(
    ("mask", "bounds"),
    [
        ("none", (False, False)),
        ("causal", (False, True)),
        ({"kind": "sliding_window", "left": 5, "right": None}, (True, False)),
        ({"kind": "sliding_window", "left": None, "right": 5}, (False, True)),
        ({"kind": "sliding_window", "left": 5, "right": 5}, (True, True)),
        ({"kind": "chunked", "size": 64}, (True, True)),
        ("padding", (False, False)),
        ({"all": ["causal", "padding"]}, (False, True)),
        ({"any": ["causal", "padding"]}, (True, True)),
    ],
)
def test_mask_bounds(mask: object, bounds: tuple[bool, bool]) -> None:
    assert mask_bounds(plan(mask=mask).key_ranges) == bounds


def test_written_defaults_plan_the_same_kernel() -> None:
    written = plan(config={"tile_n": 128, "k_stages": 2, "v_stages": 2})
    derived = plan()
    assert written.spec != derived.spec
    assert written.regions == derived.regions
    assert written.barriers == derived.barriers


def test_stated_config_choices_reach_the_plan() -> None:
    chosen = plan(
        mask="causal", config={"rescale_threshold": 0, "ping_pong": False, "half_diagonal": False}
    )
    assert (chosen.rescale_threshold, chosen.ping_pong, chosen.half_diagonal) == (0, False, False)


@pytest.mark.parametrize(
    ("heads", "options", "reason"),
    [
        (
            "256x256",
            {"config": {"half_diagonal": True}},
            "half_diagonal: half of 64 keys is no swizzle panel",
        ),
        (
            "192x128",
            {"dtype": "float16", "config": {"rescale_threshold": 16}},
            "rescale_threshold 16: probabilities reach 2^it; float16 allows 15",
        ),
        (
            "192x128",
            {"config": {"rescale_threshold": 61}},
            "rescale_threshold 61: probabilities reach 2^it; bfloat16 allows 60",
        ),
    ],
)
def test_a_choice_that_cannot_be_given_is_refused(
    heads: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PlanError, match=reason.replace("^", r"\^")):
        plan(heads, mask="causal", **options)


FP8 = {"dtype": "float8_e4m3fn"}


def test_fp8_budget_equals_the_sum_by_hand() -> None:
    fp8 = plan(**FP8)
    assert (fp8.tile_n, fp8.k_stages, fp8.v_stages) == (128, 3, 2)
    # Q 2 x 64 x 192, K 3 x 128 x 192, V 2 x 128 x 128, as loaded and transposed; output 128 x 128 of 2 bytes.
    operands = 2 * 64 * 192 + 3 * 128 * 192 + 2 * 2 * 128 * 128 + 2 * 128 * 128
    assert operands == 192 * KIB
    assert fp8.shared_memory_bytes == 193 * KIB


def test_fp8_halves_cycles_and_bytes_of_a_step() -> None:
    fp8, usual = plan(**FP8), plan()
    assert fp8.cost.tensor_cycles == usual.cost.tensor_cycles // 2 == 1280
    assert fp8.cost.exp2_cycles == usual.cost.exp2_cycles
    assert fp8.cost.bytes_from_l2 == usual.cost.bytes_from_l2 // 2


def test_fp8_has_warps_between_the_load_warp_and_the_math_warps() -> None:
    barriers = {barrier.name: barrier for barrier in plan(**FP8).barriers}
    ring = ("v_rows_full", "v_rows_empty", "v_full", "v_empty")
    assert [(barriers[name].copies, barriers[name].arrivals) for name in ring] == [
        (2, 1),  # TMA
        (2, 2),  # two transpose warps
        (2, 2),
        (2, 8),  # eight math warps
    ]
    assert barriers["tile_empty"].arrivals == 8 + 2


@pytest.mark.parametrize(
    ("heads", "options", "tile_n", "columns", "products"),
    [
        # 192 columns and 128 keys, 32 a product.
        ("192x128", {"mask": "causal"}, 128, 128, 6 + 4),
        # Whatever takes registers beside them leaves no room for a product as wide as the output.
        ("192x128", {"score_mod": "alibi"}, 128, 64, 6 + 2 * 4),
        ("192x128", {"partition": "split_kv"}, 128, 64, 6 + 2 * 4),
        ("192x128", {"mask": {"kind": "chunked", "size": 64}}, 128, 64, 6 + 2 * 4),
        ("192x128", {"config": {"tile_n": 96}}, 96, 128, 6 + 3),
        ("256x256", {}, 64, 64, 8 + 4 * 2),
        ("256x256", {"score_mod": "alibi"}, 32, 64, 8 + 4 * 1),
    ],
)
def test_fp8_multiplies_as_many_columns_of_v_at_a_time_as_registers_allow(
    heads: str, options: dict[str, Any], tile_n: int, columns: int, products: int
) -> None:
    fp8 = plan(heads, **FP8, **options)
    assert (fp8.tile_n, fp8.product_columns) == (tile_n, columns)
    (loop,) = fp8.sass.loops
    assert loop.counts == (("QGMMA", products),)
    assert fp8.estimated_registers < 232


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"tile_n": 80}, "tile_n 80 is not a multiple of 32 between 32 and 256"),
        ({"rescale_threshold": 0.5}, "rescale_threshold 0.5: .* float8_e4m3fn allows 0"),
        (
            {"tile_n": 128, "k_stages": 6},
            r"Q 24 \+ K 6 x 24 \+ V rows 2 x 16 \+ V 2 x 16 \+ output 32 \+ barriers",
        ),
    ],
)
def test_what_fp8_cannot_have_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        plan(**FP8, config=config)


def test_spec_is_kept_in_the_plan() -> None:
    wanted = spec(mask="causal")
    assert plan_kernel(wanted).spec == wanted
