"""The rendered text of the Blackwell prefill: what each option adds, and that it tells its budget."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any  # Any: options before validation

import pytest

from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from tests.plan.kernels import plan as plan_for
from tests.plan.kernels import shipped_specs

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

SHIPPED = [plan_kernel(kernel) for kernel in shipped_specs("sm_100a")]
every_shipped = pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)
# Methods of the origin that are functions here. `mla_prefill_kernel` is the entry, under the
# kernel's own name.
METHODS = (
    "load",
    "mma",
    "softmax",
    "correction",
    "scale_write_output",
    "mask_status",
    "descriptor_q",
)


def plan(**options: Any) -> KernelPlan:
    return plan_for(arch="sm_100a", **options)


@every_shipped
def test_text_is_complete_and_clean(shipped: KernelPlan) -> None:
    text = render_kernel(shipped)
    assert "#include" not in text
    assert "#define" not in text
    assert text.endswith("}\n")
    assert "\t" not in text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert "\n\n\n" not in text
    assert "{% " not in text
    assert "{{ " not in text
    assert re.search(rf"^extern .* {shipped.name}\($", text, re.MULTILINE)


@every_shipped
def test_header_holds_spec_and_budget(shipped: KernelPlan) -> None:
    header = render_kernel(shipped).split("\nusing ")[0]
    assert header.splitlines()[0] == f"// {shipped.name}"
    assert all(line.startswith("//") for line in header.splitlines())
    for field in shipped.spec.canonical:
        assert f"//   {field}: " in header
    for barrier in shipped.barriers:
        assert f"{barrier.name}[{barrier.copies}]" in header
    assert f"= {shipped.shared_memory_bytes // 1024} of 227 KiB" in header
    assert "184 registers a thread" in header
    p0, p1 = (64, 192) if shipped.spec.dtype != "float8_e4m3fn" else (96, 224)
    tensor = f"S0 0-127, P0 {p0}-127, S1 128-255, P1 {p1}-255, O0 256-383, O1 384-511 of 512"
    if shipped.spec.geometry.v_head_dim == 256:
        tensor = "S0 0-63, P0 32-63, S1 64-127, P1 96-127, O0 128-383 of 512"
    elif shipped.single_output:
        tensor = "S0 0-127, P0 64-127, S1 128-255, P1 192-255, O0 256-383 of 512"
    assert tensor in header


@every_shipped
def test_compiler_checks_the_plan(shipped: KernelPlan) -> None:
    text = render_kernel(shipped)
    assert f"static_assert(sizeof(SharedMemory) == {shipped.shared_memory_bytes}," in text


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_the_origin_are_functions(method: str) -> None:
    text = render_kernel(plan(mask="causal"))
    assert len(re.findall(rf"^ *__device__ .* {method}\(", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lse": True}, ["store_lse", "lse_row_stride", "log2_approx"]),
        ({"sink": True}, ["sinks"]),
        ({"score_mod": {"kind": "softcap", "cap": 30.0}}, ["kSoftcap", "ScoreMod"]),
        ({"score_mod": "alibi"}, ["slope", "ScoreMod"]),
        ({"k_rope": {"layout": "paged", "page_size": 64}}, ["block_table", "page_of_lane"]),
        (
            {"kv": {"layout": "paged", "page_size": 64}},
            ["block_table", "page_of_lane", "load_clipped_page"],
        ),
        ({"kv_length_counts": "prefix"}, ["cache_seqlens"]),
        ({"mask": {"kind": "chunked", "size": 512}}, ["kChunkSize"]),
        ({"config": {"cta_group": 2}}, ["cta_group::2", "leads_pair", "multicast::cluster"]),
        (
            {"config": {"exp2_emulation_share": 0.25}},
            ["exp2_polynomial", "is_emulated", "kEmulatedPairs", "max_or_nan", "mul.rn.f32x2"],
        ),
        (
            {"partition": "split_kv"},
            ["take_part", "merge_parts", "kCorrectionBarrier", "shared.stores"],
        ),
        ({"config": {"softmax_order": True}}, ["kTurnBarrier", "kSoftmaxThreads", "pass_turns"]),
        (
            {"dtype": "float8_e4m3fn"},
            ["v_scale", "e4m3x2", "f8f6f4", "kProbabilityShift", "staged_output", "pack_output"],
        ),
        ({"output_dtype": "float16"}, ["pack_output", "cvt.rn.f16x2.f32"]),
    ],
    ids=[
        "lse",
        "sink",
        "softcap",
        "alibi",
        "paged",
        "paged k and v",
        "prefix",
        "chunked",
        "pair",
        "exp2",
        "parts",
        "order",
        "fp8",
        "output",
    ],
)
def test_an_option_that_is_off_leaves_nothing(options: dict[str, Any], words: list[str]) -> None:
    with_option = _code_of(plan(**options))
    without = _code_of(plan())
    for word in words:
        assert word in with_option
        assert word not in without


def test_the_masks_of_both_architectures_are_one_text() -> None:
    for mask in ("none", "causal", {"kind": "chunked", "size": 512}):
        texts = [render_kernel(plan_for(arch=arch, mask=mask)) for arch in ("sm_90a", "sm_100a")]
        ours, theirs = (
            text[text.index("// Which keys a query sees") : text.index("// One unit of work")]
            for text in texts
        )
        assert ours == theirs


def _code_of(kernel: KernelPlan) -> str:
    """The rendered text without comments and without the kernel's name."""
    return re.sub(r"//.*", "", render_kernel(kernel)).replace(kernel.name, "kernel")
