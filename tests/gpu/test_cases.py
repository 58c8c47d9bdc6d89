"""Known failures of the field (`cases.md`), those that need a launch; the numbers are its own.

Elsewhere: 3 and 11 in test_isolation.py, 4 in test_streams_and_graphs.py, 16 in test_large_tensors.py; 19 to 21 and 24
need no GPU.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mlagen
from mlagen.errors import InputError
from tests.gpu.calls import (
    Case,
    check,
    expected,
    launch,
    make_case,
    make_outputs,
    verify,
    with_tensor,
)
from tests.gpu.checking import check_equal_bits
from tests.gpu.kernels import load, spec_of
from tests.gpu.workloads import Batch, draw_operands, fit_batch, lay_out

CAUSAL = spec_of(mask="causal")
NONE = spec_of()


@pytest.mark.parametrize("k_rope", ["fused", "paged_8", "paged_16", "paged_64"])
def test_1_more_queries_than_keys(k_rope: str) -> None:
    spec = spec_of(mask="causal", k_rope=k_rope)
    outputs = verify(make_case(spec, Batch((40,), (7,), heads=2), seed=1))
    assert outputs.lse is not None
    assert bool((outputs.out.view[:33] == 0).all())
    assert bool(torch.isneginf(outputs.lse.view[:33]).all())
    assert bool(outputs.out.view[33:].isfinite().all())


def test_2_visible_logits_far_below_any_mask_constant() -> None:
    batch = Batch((40,), (300,), heads=2)
    operands = draw_operands(NONE, batch, seed=2)
    q, k = torch.zeros_like(operands.q), torch.zeros_like(operands.k_nope)
    # Exact in bf16, and with a scale of ln 2 in base 2 too: -338 * 256 * ln 2 = -59976, -310 * 256 * ln 2 = -55008.
    q[..., 0] = 256
    k[..., 0] = -338
    k[0, :, 0] = -310
    operands = replace(operands, q=q, k_nope=k, k_rope=torch.zeros_like(operands.k_rope))
    case = make_case(NONE, batch, seed=2, operands=operands, options={"softmax_scale": math.log(2)})
    outputs = verify(case)
    assert outputs.lse is not None
    assert torch.equal(outputs.out.view, operands.v[:1].expand_as(outputs.out.view))
    assert float((outputs.lse.view + 55008).abs().max()) < 0.2


def test_5_prefix_and_suffix_merge_into_the_whole() -> None:
    whole = make_case(NONE, Batch((300,), (3136,), heads=16), seed=5)
    prefix_out, prefix_lse = run(split_keys(whole, 0, 3072))
    suffix_out, suffix_lse = run(split_keys(whole, 3072, 3136))
    out, lse = mlagen.merge_state(prefix_out, prefix_lse, suffix_out, suffix_lse)
    outputs = make_outputs(whole)
    assert outputs.lse is not None
    outputs.out.view.copy_(out)
    outputs.lse.view.copy_(lse)
    wanted = expected(whole)
    # Each state is rounded to bf16 once more than the whole: half an ulp of either, weighted.
    error = (out.double() - wanted.out).norm() / wanted.out.norm()
    assert float(error) <= 3.5e-3
    assert float((lse.double() - wanted.lse).abs().max()) <= 2e-4


def split_keys(case: Case, first: int, last: int) -> Case:
    """The case with keys `first` to `last` of its only sequence."""
    offsets = torch.tensor([0, last - first], dtype=torch.int32, device=case.device)
    part = with_tensor(case, "cu_seqlens_k", offsets)
    for name in ("k", "v"):
        part = with_tensor(part, name, part.tensors[name][first:last])
    return replace(part, batch=replace(case.batch, kv_lens=(last - first,)))


def test_6_merging_with_an_empty_state() -> None:
    out, lse = run(make_case(NONE, Batch((70,), (129,)), seed=6))
    no_out, no_lse = run(make_case(NONE, Batch((70,), (0,)), seed=6))
    for merged in (
        mlagen.merge_state(out, lse, no_out, no_lse),
        mlagen.merge_state(no_out, no_lse, out, lse),
    ):
        check_equal_bits(merged[0], out, context="out")
        check_equal_bits(merged[1], lse, context="lse")
    both_out, both_lse = mlagen.merge_state(no_out, no_lse, no_out, no_lse)
    assert bool((both_out == 0).all())
    assert bool(torch.isneginf(both_lse).all())
    with pytest.raises(InputError, match="lse_b"):
        mlagen.merge_state(out, lse, no_out, -no_lse, validate=True)


def run(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE in new tensors."""
    out, lse = load(case.spec).run({**case.tensors}, return_lse=True)
    return out, lse


def test_7_merging_states_with_unequal_strides() -> None:
    out, lse = run(make_case(NONE, Batch((70,), (129,), heads=16), seed=7))
    padded = out.new_full((70, 16, 192), float("nan"))[..., :128]
    padded.copy_(out)
    wide = lse.new_full((70, 19), float("nan"))[:, :16]
    wide.copy_(lse)
    for strided, plain in zip(
        mlagen.merge_state(out, lse, padded, wide),
        mlagen.merge_state(out, lse, out, lse),
        strict=True,
    ):
        check_equal_bits(strided, plain, context="merged")


@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (1, 9)], ids=str)
def test_9_causal_diagonal_ends_at_the_bottom_right(lengths: tuple[int, int]) -> None:
    """With equal logits row i is the mean of keys 0 to i + kv - q, whatever the reference thinks."""
    q_len, kv_len = lengths
    case = make_case(CAUSAL, Batch((q_len,), (kv_len,), heads=2), seed=9)
    case.tensors["q"].zero_()
    outputs = verify(case)
    for row in range(q_len):
        seen = max(0, row + 1 + kv_len - q_len)
        mean = (
            case.tensors["v"][:seen].double().mean(0)
            if seen
            else torch.zeros(2, 128, device="cuda")
        )
        assert float((outputs.out.view[row] - mean).abs().max()) < 2e-2


def test_10_window_of_three_sees_four_keys() -> None:
    case = make_case(spec_of(mask="window_3"), Batch((16,), (16,), heads=2), seed=10)
    case.tensors["q"].zero_()
    outputs = verify(case)
    mean = case.tensors["v"][7:11].double().mean(0)
    assert float((outputs.out.view[10] - mean).abs().max()) < 2e-2


def test_10_window_of_full_length_equals_causal() -> None:
    batch = Batch((300, 129, 700), (300, 1000, 64))
    windowed = verify(make_case(spec_of(mask="window_4095"), batch, seed=10))
    causal = verify(make_case(CAUSAL, batch, seed=10))
    assert all(torch.equal(a, b) for a, b in zip(windowed.bits(), causal.bits(), strict=True))


@pytest.mark.parametrize("change", ["strided", "int64", "cpu"])
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_13_offsets_of_another_form_are_refused_by_name(name: str, change: str) -> None:
    case = make_case(CAUSAL, Batch((40, 30), (40, 50)), seed=13)
    offsets = case.tensors[name]
    changed = {
        "strided": torch.stack((offsets, offsets), dim=1)[:, 0],
        "int64": offsets.long(),
        "cpu": offsets.cpu(),
    }[change]
    with pytest.raises(InputError, match=name):
        load(CAUSAL).run({**case.tensors, name: changed})


def test_14_page_table_is_not_read_past_the_last_page() -> None:
    """The table ends a buffer; behind it stands a page id that exists in no cache."""
    spec = spec_of(mask="causal", k_rope="paged_16")
    case = make_case(spec, Batch((129,), (129,)), seed=14)
    buffer = torch.full((10,), 1 << 30, dtype=torch.int32, device="cuda")
    buffer[:9] = case.tensors["block_table"][0]
    verify(with_tensor(case, "block_table", buffer[:9].view(1, 9)))


def test_15_page_ids_past_65536() -> None:
    """The cache is larger than 2 GB, and the pages that count lie around 2^16 and at its end."""
    spec = spec_of(mask="causal", k_rope="paged_64")
    batch = Batch((300,), (300,))
    operands = draw_operands(spec, batch, seed=15)
    tensors = lay_out(spec, batch, operands)
    ids = torch.tensor([[65_535, 65_536, 70_000, 29_127, 79_999]], dtype=torch.int32, device="cuda")
    cache = torch.zeros((80_000, 64, 576), dtype=torch.bfloat16, device="cuda")
    cache[ids[0].long()] = tensors["k_rope"][tensors["block_table"][0].long()]
    verify(Case(spec, batch, {**tensors, "k_rope": cache, "block_table": ids}, 15))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_17_runs_on_the_tensors_device() -> None:
    case = make_case(CAUSAL, Batch((129,), (129,)), seed=17)
    moved = replace(case, tensors={name: x.to("cuda:1") for name, x in case.tensors.items()})
    verify(moved)
    assert torch.cuda.current_device() == 0
    with pytest.raises(InputError, match="k"):
        load(CAUSAL).run({**moved.tensors, "k": case.tensors["k"]})


def test_17_current_device_and_stream_stay_as_they_were() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        case = make_case(CAUSAL, Batch((129,), (129,)), seed=17)
        load(CAUSAL).run({**case.tensors})
        assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == 0
    stream.synchronize()


_FORK = """
import os
import mlagen
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from tests.gpu.kernels import spec_of
spec = spec_of(mask="causal")
assert render_kernel(plan_kernel(spec)) and spec.hash
child = os.fork()
if child == 0:
    from tests.gpu.calls import make_case, verify
    from tests.gpu.workloads import Batch
    verify(make_case(spec, Batch((129,), (129,)), seed=18))
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_18_a_forked_child_can_use_the_gpu() -> None:
    """Importing, planning, rendering and hashing in the parent make no CUDA context."""
    command = [sys.executable, "-c", _FORK]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        command, cwd=root, check=False, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_22_two_kernels_called_in_turn_from_two_threads() -> None:
    batch = Batch((300, 64), (400, 129), heads=8)
    cases = [make_case(spec, batch, seed=22) for spec in (CAUSAL, NONE)]
    outputs = [verify(case) for case in cases]
    wanted = [output.bits() for output in outputs]
    failures: list[str] = []

    def work(offset: int) -> None:
        stream = torch.cuda.Stream()
        own = [make_outputs(case) for case in cases]
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(stream):
            for turn in range(50):
                which = (turn + offset) % 2
                own[which].poison()
                load(cases[which].spec).run({**cases[which].tensors, **arguments(own[which])})
                stream.synchronize()
                same = all(
                    torch.equal(a, b) for a, b in zip(own[which].bits(), wanted[which], strict=True)
                )
                if not same:
                    failures.append(f"thread {offset}, turn {turn}")

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def arguments(outputs: object) -> dict[str, torch.Tensor]:
    """`out` and `lse` of guarded outputs as arguments of `run`."""
    return {name: output.view for name, output in outputs.all()}  # type: ignore[attr-defined]  # see Outputs


def test_23_a_length_on_the_device_is_refused_and_compiles_nothing() -> None:
    case = make_case(CAUSAL, Batch((128,), (128,)), seed=23)
    for length in range(128, 138):
        with pytest.raises(InputError, match="max_seqlen_q"):
            load(CAUSAL).run({**case.tensors}, max_seqlen_q=torch.tensor(length, device="cuda"))
        load(CAUSAL).run({**case.tensors}, max_seqlen_q=length)


def test_25_default_scale_is_the_model_s() -> None:
    """DeepSeek-V3: 192^-0.5 (0.1 ln 40 + 1)^2 = 0.135234 (`models.md`); given outright it gives the same bits."""
    case = make_case(CAUSAL, Batch((129,), (500,)), seed=25)
    assert CAUSAL.geometry.softmax_scale == pytest.approx(0.135234, abs=5e-7)
    default, given = make_outputs(case), make_outputs(case)
    launch(case, default)
    launch(replace(case, options={"softmax_scale": CAUSAL.geometry.softmax_scale}), given)
    assert all(torch.equal(a, b) for a, b in zip(default.bits(), given.bits(), strict=True))
    other = replace(case, options={"softmax_scale": 0.072169})
    launch(other, given)
    check(other, given, expected(other))
    assert not torch.equal(default.bits()[0], given.bits()[0])


@pytest.mark.parametrize("rope", ["absent", "of width 0"])
def test_27_no_rope_at_all(rope: str) -> None:
    spec = spec_of(geometry="256x256_no_rope")
    case = make_case(spec, Batch((129, 64), (300, 64)), seed=27)
    if rope == "of width 0":
        case = with_tensor(case, "k_rope", case.tensors["k"].new_empty((364, 0)))
    assert spec.geometry.softmax_scale == 0.0625
    verify(case)


def test_prefix_lengths_count_the_keys_before_this_call() -> None:
    spec = spec_of(mask="causal", q_form="split", k_rope="paged_64", kv_length_counts="prefix")
    batch = fit_batch(spec, Batch((100, 3, 129), (0, 500, 64)))
    case = make_case(spec, Batch((100, 3, 129), (0, 500, 64)), seed=28)
    assert batch.kv_lens == (100, 503, 193)
    assert case.tensors["cache_seqlens"].tolist() == [0, 500, 64]
    verify(case)
