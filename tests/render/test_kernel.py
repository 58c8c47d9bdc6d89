"""The rendered text: complete, reproducible, and only what its options need."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any  # Any: options before validation

import pytest
from jinja2 import meta

from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.render.environment import environment
from mlagen.render.kernel import prefill_names
from tests.plan.kernels import plan, shipped_specs

if TYPE_CHECKING:
    from mlagen.plan.plan import KernelPlan

SHIPPED = [plan_kernel(kernel) for kernel in shipped_specs()]
every_shipped = pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)
DENSE: dict[str, Any] = {"q_layout": "dense", "kv": {"layout": "dense"}}


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
    assert "232 registers a thread" in header


@every_shipped
def test_compiler_checks_the_plan(shipped: KernelPlan) -> None:
    text = render_kernel(shipped)
    assert f"static_assert(sizeof(SharedMemory) == {shipped.shared_memory_bytes}," in text


def test_same_bytes_whatever_the_process() -> None:
    program = (
        "import hashlib; from tests.plan.kernels import plan; from mlagen.render import render_kernel;"
        "print(hashlib.sha256(render_kernel(plan(mask='causal', lse=True)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, locale in (("0", "C"), ("1", "C.UTF-8"))
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"lse": True}, ["lse"]),
        ({"sink": True}, ["sinks"]),
        ({"mask": "causal"}, ["first_block<kScoresPerThread / 2>", "kCount == 32"]),
        ({"mask": {"kind": "chunked", "size": 777}}, ["chunk_begin", "777"]),
        (
            {"mask": {"kind": "sliding_window", "left": 5, "right": 6}},
            ["kWindowLeft", "kWindowRight", "column < begin"],
        ),
        ({"mask": "padding"}, ["valid_lengths", "valid_keys"]),
        ({"mask": {"any": ["causal", "padding"]}}, ["end_of_range_2", "keys_of_every_row"]),
        (
            {"score_mod": {"kind": "softcap", "cap": 30}},
            ["ScoreMod", "reciprocal_approx", "kSoftcap"],
        ),
        ({"score_mod": "alibi"}, ["ScoreMod", "slope"]),
        (
            {"score_mod": {"kind": "bias", "rank": 4}},
            ["ScoreMod", "read_if", "bias_head_stride", "bias_batch_stride", "kLog2E"],
        ),
        (
            {"score_mod": {"kind": "relative_bias", "extent": 7}},
            ["ScoreMod", "read_if", "kRelativeExtent"],
        ),
        (
            {"k_rope": {"layout": "paged", "page_size": 32}},
            ["block_table", "page_of_lane", "k_rope_map", "kPageSize"],
        ),
        (
            {"kv": {"layout": "paged", "page_size": 32}},
            ["block_table", "page_of_lane", "load_clipped_page", "kPageSize", "cache_seqlens"],
        ),
        ({"q_form": "split"}, ["q_nope_map", "q_pe_map"]),
        (
            {"partition": {"kind": "split_kv", "splits": 3}},
            ["take_part", "merge_parts", "arguments.states", "begin_block", "kSplits", "atom.acq"],
        ),
        ({"partition": "split_kv"}, ["num_splits", "merge_parts", "kStateElements"]),
        ({"q_layout": "ragged"}, ["cu_seqlens_q", "max_seqlen_q", "kClippedRows"]),
        ({"kv": {"layout": "dense", "seqlens": True}}, ["cache_seqlens"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_option_that_is_off_leaves_no_text(option: dict[str, Any], words: list[str]) -> None:
    plain, chosen = (_code_of(plan(**DENSE, lse=False)), _code_of(plan(**{**DENSE, **option})))
    for word in words:
        assert re.search(rf"\b{re.escape(word)}", chosen), word
        assert not re.search(rf"\b{re.escape(word)}", plain), word


def test_fp8_and_16_bits_leave_nothing_of_each_other() -> None:
    plain, fp8 = (_code_of(plan(dtype=dtype)) for dtype in ("bfloat16", "float8_e4m3fn"))
    for word in ("set_ceiling", "kRescaleThreshold", "inverse_scale_log2", "borrow_stage", "k16."):
        assert word in plain, word
        assert word not in fp8, word
    words = ("TransposeWarp", "v_rows", "v_scale", "kProbabilityShift", "add_product", "k32.")
    for word in (*words, "e4m3", "load_matrix_transposed", "warp_arrive", "uint8"):
        assert word in fp8, word
        assert word not in plain, word


def test_identity_and_no_mask_render_no_code() -> None:
    text = _code_of(plan(**DENSE))
    assert "ScoreMod" not in text
    assert "next_block<true>" not in text


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("kind", ["transient", "persistent"])
def test_kernels_without_tickets_have_no_atomics(arch: str, kind: str) -> None:
    queued, chosen = (_code_of(plan(arch=arch, scheduler=one)) for one in ("queued", kind))
    for word in ("atomicAdd", "tickets", "drawn"):
        assert word in queued
        assert word not in chosen
    assert ("gridDim" in chosen) == (kind == "persistent")


def test_only_longest_first_visits_heads_in_sections() -> None:
    for order in ("longest_first", "natural", "rotate"):
        text = _code_of(plan(scheduler={"order": order}))
        assert ("heads_in_section" in text) == (order == "longest_first")


def test_static_max_seqlen_is_a_constant() -> None:
    text = _code_of(plan(max_seqlen=4096))
    assert "constexpr int kMaxSeqlenQ = 4096;" in text
    assert "max_seqlen_q" not in text


def test_offsets_into_tensors_have_64_bits() -> None:
    # T * H * dim and pages * row width pass 2^31 elements: whatever multiplies a row or a page has to be 64 bits wide.
    kernel = plan(lse=True, k_rope={"layout": "paged", "page_size": 16})
    ctypes = {argument.name: argument.ctype for argument in kernel.arguments}
    for name in ("lse_row_stride", "lse_head_stride", "block_table_stride"):
        assert ctypes[name] == "int64"
    text = _code_of(kernel)
    products = re.findall(r"(\w+\.)?(\w+) \* arguments\.(\w+stride)", text)
    assert {product[2] for product in products} == {
        "lse_row_stride",
        "lse_head_stride",
        "block_table_stride",
    }


def test_text_of_a_spec_reaches_cuda_only_in_the_header() -> None:
    text = _code_of(plan(score_mod={"kind": "softcap", "cap": 12.5}))
    assert "constexpr float kSoftcap = 12.5f;" in text
    assert "softcap" not in text.lower().replace("ksoftcap", "")


def test_templates_use_every_name_that_they_get() -> None:
    used = set()
    for name in environment().list_templates():
        source = environment().loader.get_source(environment(), name)[0]  # type: ignore[union-attr]
        used |= meta.find_undeclared_variables(environment().parse(source))
    # `panels` and `boxes` come from the `with` around an include, not from here.
    assert used - {"panels", "boxes"} == (
        set(prefill_names(plan())) | set(prefill_names(plan(arch="sm_100a")))
    )


def test_every_device_file_is_included() -> None:
    names = set(environment().list_templates())
    sources = [environment().loader.get_source(environment(), name)[0] for name in names]  # type: ignore[union-attr]
    included = set(
        itertools.chain.from_iterable(
            re.findall(r'{% include "(.*?)"', source) for source in sources
        )
    )
    assert names - included == {"kernels/prefill_sm90.cu.j2", "kernels/prefill_sm100.cu.j2"}


def _code_of(kernel: KernelPlan) -> str:
    """The rendered text without comments and without the kernel's name."""
    return re.sub(r"//.*", "", render_kernel(kernel)).replace(kernel.name, "kernel")
