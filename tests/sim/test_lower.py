"""Lowering: segments and control flow of whole kernels, fusion, masks, registers of a CTA, refusals."""

from __future__ import annotations

import functools
import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda
from mlagen.errors import PtxError, UnsupportedPtxError
from mlagen.sim import lower as lower_module
from mlagen.sim.fuse import Group, fuse
from mlagen.sim.hardware import Cta, Path
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.program import Branch, Exit, IndexedBranch, Nothing, Program, Segment, Visible
from tests.sim.alu import THREADS, make_cta, reported, run

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GENERATED = FilePath(__file__).parents[2] / "generated" / "deepseek-v3" / "sm_90a"
_KERNELS = (
    "*bf16_causal_ragged_fused_lse_*",
    "*causal_softcap_ragged_fused_*",
    "*causal_ragged_splitq_paged16_lse_*",
)


@functools.cache
def _ptx(pattern: str) -> str:
    (path,) = _GENERATED.glob(pattern + ".cu")
    return compile_cuda(
        path.read_text(), name=path.stem, arch="compute_90a", options=LINE_OPTIONS
    ).ptx


def _kernel(body: str, *, declarations: str = "", head: str = "") -> Program:
    text = f""".version 8.6
.target sm_90a
.address_size 64
{declarations}
.visible .entry kernel(.param .b64 first)
{head}
{{
.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<100>; .reg .b64 %d<10>;
{body}
}}
"""
    return lower(parse(text))


@pytest.mark.parametrize("pattern", _KERNELS)
def test_every_instruction_of_a_shipped_kernel_is_in_one_step(pattern: str) -> None:
    program = lower(parse(_ptx(pattern)))
    pc = 0
    while pc < len(program.steps):
        step = program.steps[pc]
        assert step is not None, program.function.instructions[pc]
        end = step.end if isinstance(step, Segment) else pc + 1
        assert all(inner is None for inner in program.steps[pc + 1 : end])
        pc = end
    targets = [step.target for step in program.steps if isinstance(step, Branch)]
    assert all(program.steps[target] is not None for target in targets)


def _without_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lower_module, "fuse", lambda operations, is_local: [Group((one,)) for one in operations]
    )


def _random_registers(program: Program, seed: int) -> Cta:
    """A CTA whose registers hold moderate floats, any integers and any predicates, equal for equal names."""
    cta = make_cta(parameters=np.arange(4096, dtype=np.uint32).view(np.uint8))
    program.open_registers(cta, dict.fromkeys(program.globals, 1 << 20))
    source = np.random.default_rng(seed)
    for name in sorted(name for name in program.rows if name.startswith("%") and "." not in name):
        kind, row = program.rows[name]
        array = cta.registers[kind]
        if kind == "pred":
            array[row] = source.random(THREADS) < 0.5
        elif name.startswith("%f"):
            array[row] = source.standard_normal(THREADS).astype(np.float32).view(np.uint32)
        else:
            array[row] = source.integers(0, 1 << 12, THREADS)
    return cta


@pytest.mark.parametrize("pattern", _KERNELS[:2])
def test_fusion_changes_no_register_of_a_shipped_kernel(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = parse(_ptx(pattern))
    fused = lower(module)
    with monkeypatch.context() as patch:
        _without_fusion(patch)
        plain = lower(module)
    assert _calls(fused) < 0.5 * _calls(plain)
    one, two = _random_registers(fused, 1), _random_registers(plain, 1)
    with np.errstate(all="ignore"):
        for left, right in zip(fused.steps, plain.steps, strict=True):
            if not isinstance(left, Segment):
                continue
            assert isinstance(right, Segment)
            if left.start % 3:
                left.run(one, 0, 4)
                right.run(two, 0, 4)
            else:  # some lanes of one warp
                mask = 0x0FF0_F00D if left.start % 2 else 0x0000_0400
                left.run_path(Path(one.warps[1], left.start, mask))
                right.run_path(Path(two.warps[1], right.start, mask))
            for name in _named(fused, left):
                (kind, a), (_, b) = fused.rows[name], plain.rows[name]
                assert _equal(one.registers[kind][a], two.registers[kind][b]), (name, left.start)


def _calls(program: Program) -> int:
    return sum(len(step.calls) for step in program.steps if isinstance(step, Segment))


def _named(program: Program, segment: Segment) -> list[str]:
    """Registers with rows of their own that a segment names."""
    texts = [one.text for one in program.function.instructions[segment.start : segment.end]]
    return [name for name in set(re.findall(r"%\w+", " ".join(texts))) if name in program.rows]


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Equal bits, or NaN and NaN: nobody says which NaN a sum makes."""
    if a.dtype == np.uint32:
        return np.array_equal(a.view(np.float32), b.view(np.float32), equal_nan=True) and bool(
            ((a == b) | np.isnan(a.view(np.float32))).all()
        )
    return np.array_equal(a, b)


_NUMBERS = st.integers(0, 11)


@st.composite
def _straight_line(draw: st.DrawFn) -> str:
    """Straight-line code full of dependences of all three kinds, chains and guards."""
    lines = []
    for _ in range(draw(st.integers(5, 60))):
        d, a, b, p = draw(_NUMBERS), draw(_NUMBERS), draw(_NUMBERS), draw(st.integers(0, 3))
        guard = draw(st.sampled_from(["", "", "", "", f"@%p{p} ", f"@!%p{p} "]))
        body = draw(
            st.sampled_from(
                [
                    f"add.f32 %r{d}, %r{a}, %r{b};",
                    f"add.f32 %r{d}, %r{d}, %r{b};",
                    f"max.f32 %r{d}, %r{a}, %r{b};",
                    f"mul.f32 %r{d}, %r{a}, 0f3FC00000;",
                    f"add.s32 %r{d}, %r{a}, {b};",
                    f"setp.lt.s32 %p{p}, %r{a}, %r{b};",
                    f"selp.b32 %r{d}, %r{a}, %r{b}, %p{p};",
                    f"mov.b32 %r{d}, %r{a};",
                    f"mov.b32 %r{d}, {b};",
                    f"shfl.sync.bfly.b32 %r{d}|%p{p}, %r{a}, 1, 31, -1;",
                ]
            )
        )
        lines.append(guard + body)
    for _ in range(draw(st.integers(0, 3))):
        # A chain of new registers, as unrolled code has it.
        first = 20 + 10 * draw(st.integers(0, 5))
        opcode = draw(st.sampled_from(["add.f32", "max.f32", "min.f32"]))
        lines.append(f"{opcode} %r{first}, %r{draw(_NUMBERS)}, %r{draw(_NUMBERS)};")
        for index in range(first + 1, first + draw(st.integers(2, 9))):
            a, b = (
                (index - 1, draw(_NUMBERS)) if draw(st.booleans()) else (draw(_NUMBERS), index - 1)
            )
            lines.append(f"{opcode} %r{index}, %r{a}, %r{b};")
            if draw(st.integers(0, 4)) == 0:
                lines.append(f"mul.f32 %r{draw(_NUMBERS)}, %r{draw(_NUMBERS)}, %r{draw(_NUMBERS)};")
        lines.append(f"mov.b32 %r{draw(_NUMBERS)}, %r{index};")
    return "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(_straight_line(), st.integers(0, 5), st.sampled_from([None, 0xFFFF_FFFF, 0x8001_0FF0, 0x10]))
def test_fusion_changes_nothing(body: str, seed: int, mask: int | None) -> None:
    source = np.random.default_rng(seed)
    inputs: dict[str, Any] = {
        f"%r{index}": source.standard_normal(THREADS).astype(np.float32)
        for index in range(12)
        if f"%r{index}," in body or f"%r{index};" in body
    }
    inputs |= {
        f"%p{index}": source.random(THREADS) < 0.5 for index in range(4) if f"%p{index}" in body
    }
    if mask is not None and mask != 0xFFFF_FFFF:
        body = "\n".join(line for line in body.splitlines() if "shfl" not in line)
    fused = run(body, {name: inputs[name] for name in inputs if name in body}, mask=mask)
    with pytest.MonkeyPatch.context() as patch:
        _without_fusion(patch)
        plain = run(body, {name: inputs[name] for name in inputs if name in body}, mask=mask)
    for name, values in plain.items():
        if int(name[2:]) < 12:
            assert _equal(values, fused[name]), name


def test_unrolled_code_becomes_one_call() -> None:
    lines = [f"fma.rn.f32 %r{index + 40}, %r{index}, %r90, %r91;" for index in range(32)]
    lines += [f"ex2.approx.ftz.f32 %r{index}, %r{index + 40};" for index in range(32)]
    chain = [
        "add.f32 %r72, %r0, %r91;",
        *(f"add.f32 %r{72 + index}, %r{71 + index}, %r{index};" for index in range(1, 16)),
    ]
    program = _kernel(
        "\n".join([*lines, *chain, "bra NEXT; NEXT: st.global.b32 [%d0], %r87; ret;"])
    )
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    assert [
        (call.alu.chain is not None and call.is_chain, call.count) for call in segment.calls
    ] == [
        (False, 32),
        (False, 32),
        (True, 16),
    ]


def test_sums_keep_their_order() -> None:
    # 2^24 + 1 + 1 + ... stays 2^24 in f32 if the ones are added one by one, and only then.
    lines = ["add.f32 %r2, %r1, 0f3F800000;"]
    lines = ["mov.b32 %r19, %r1;", "add.f32 %r2, %r0, %r19;"] + [
        f"add.f32 %r{i + 1}, %r{i}, %r1;" for i in range(2, 12)
    ]
    big, one = np.full(THREADS, 2.0**24, np.float32), np.ones(THREADS, np.float32)
    for mask in (None, 0x10, 0x3):
        got = run("\n".join(lines), {"%r0": big, "%r1": one}, mask=mask)["%r12"].view(np.float32)
        assert got[36 if mask == 0x10 else 32] == 2.0**24


@pytest.mark.parametrize("mask", [0x0000_FF00, 0x8000_0001, 0x0000_0020])
def test_lanes_outside_of_the_mask_keep_their_registers(mask: int) -> None:
    a = np.arange(THREADS, dtype=np.uint32)
    got = run("add.s32 %r0, %r1, 1; setp.lt.s32 %p0, %r1, 1000; cvt.u16.u32 %h0, %r1; cvt.u64.u32 %d0, %r1;",
              {"%r0": a + 500, "%r1": a, "%p0": np.zeros(THREADS, np.bool_), "%h0": np.full(THREADS, 9, np.uint16),
               "%d0": np.full(THREADS, 7, np.uint64)}, mask=mask)  # fmt: skip
    inside = np.zeros(THREADS, np.bool_)
    inside[32:64] = [bool(mask >> lane & 1) for lane in range(32)]
    assert (got["%r0"] == np.where(inside, a + 1, a + 500)).all()
    assert (got["%p0"] == inside).all()
    assert (got["%h0"] == np.where(inside, a, 9)).all()
    assert (got["%d0"] == np.where(inside, a, 7)).all()


def test_guards_write_only_lanes_for_which_they_hold() -> None:
    a = np.arange(THREADS, dtype=np.uint32)
    got = run("setp.lt.u32 %p0, %r1, 10; @%p0 add.s32 %r0, %r1, 1; @!%p0 mov.b32 %r0, 77;",
              {"%r0": a, "%r1": a})["%r0"]  # fmt: skip
    assert (got == np.where(a < 10, a + 1, 77)).all()


def test_a_guarded_instruction_may_overwrite_its_guard() -> None:
    p = np.arange(THREADS) % 2 == 0
    got = run("@%p0 not.pred %p0, %p0; @!%p1 mov.pred %p1, 1;", {"%p0": p, "%p1": p})
    assert not got["%p0"].any()
    assert got["%p1"].all()


def test_undefined_registers_are_nan() -> None:
    got = run("add.f32 %r0, %r1, 0f3F800000; add.f64 %d0, %d1, %d1; add.f16 %h0, %h1, %h1;")
    assert np.isnan(got["%r0"].view(np.float32)).all()
    assert np.isnan(got["%d0"].view(np.float64)).all()
    assert np.isnan(got["%h0"].view(np.float16)).all()


def test_registers_of_an_ended_cta_are_poisoned_for_the_next() -> None:
    program = _kernel(
        "mov.b32 %r0, 5; bra NEXT; NEXT: add.s32 %r0, %r0, %r1; st.global.b32 [%d0], %r0; ret;"
    )
    cta = make_cta()
    program.open_registers(cta, {})
    kind, row = program.rows["%r0"]
    cta.registers[kind][row] = 9
    before = cta.registers[kind]
    program.close_registers(cta)
    other = make_cta()
    program.open_registers(other, {})
    assert other.registers[kind] is before
    assert np.isnan(other.registers[kind][row].view(np.float32)).all()


def test_special_registers() -> None:
    cta = make_cta(128, block=(16, 4, 2), grid=(6, 2, 1), cluster_shape=(2, 1, 1))
    cta.index = (3, 1, 0)
    cta.rank = 1
    names = ["tid.x", "tid.y", "tid.z", "ntid.y", "ctaid.x", "nctaid.x", "laneid", "warpid", "nwarpid", "clusterid.x",
             "nclusterid.x", "cluster_ctaid.x", "cluster_nctaid.x", "cluster_ctarank", "cluster_nctarank",
             "lanemask_lt", "lanemask_ge", "dynamic_smem_size", "tid.w"]  # fmt: skip
    body = (
        "\n".join(f"mov.u32 %r{index}, %{name};" for index, name in enumerate(names))
        + "mov.pred %p0, %is_explicit_cluster;"
    )
    got = run(body, cta=cta)
    at = {name: got[f"%r{index}"] for index, name in enumerate(names)}
    threads = np.arange(128)
    assert (at["tid.x"] == threads % 16).all()
    assert (at["tid.y"] == threads // 16 % 4).all()
    assert (at["tid.z"] == threads // 64).all()
    assert (at["laneid"] == threads % 32).all()
    assert (at["warpid"] == threads // 32).all()
    assert (at["lanemask_lt"] == (1 << threads % 32) - 1).all()
    assert (at["lanemask_ge"] == 0xFFFF_FFFF - ((1 << threads % 32) - 1)).all()
    single = {name: int(values[0]) for name, values in at.items()}
    assert [single[name] for name in names[3:6]] == [4, 3, 6]
    assert [single[name] for name in names[8:15]] == [4, 1, 3, 1, 2, 1, 2]
    assert single["dynamic_smem_size"] == 4096
    assert single["tid.w"] == 0
    assert got["%p0"].all()


def test_clocks_tell_the_simulations_step() -> None:
    cta = make_cta()
    cta.simulation.step = (5 << 32) + 7
    got = run("mov.u32 %r0, %clock; mov.u32 %r1, %clock_hi; mov.u64 %d0, %globaltimer;", cta=cta)
    assert (got["%r0"][0], got["%r1"][0], got["%d0"][0]) == (7, 5, (5 << 32) + 7)


def test_parameters_are_read_from_their_space() -> None:
    cta = make_cta(parameters=np.arange(64, dtype=np.uint8))
    got = run(
        "ld.param.u64 %d0, [first]; ld.param.v2.u32 {%r0, %r1}, [second+8]; ld.param.s8 %h0, [second+1];"
        "mov.b64 %d1, second; cvta.param.u64 %d2, %d1; ld.param.b16 %h1, [%d2+4];"
        "add.s64 %d3, %d1, %d4; ld.param.u8 %r2, [%d3];",
        {"%d4": np.arange(128, dtype=np.uint64) % 16},
        cta=cta,
    )
    assert got["%d0"][5] == 0x0706_0504_0302_0100
    assert (got["%r0"][5], got["%r1"][5]) == (0x1B1A_1918, 0x1F1E_1D1C)
    assert (got["%h0"][5], got["%h1"][5]) == (17, 0x1514)
    assert (got["%r2"] == 16 + np.arange(128) % 16).all()


def test_parameters_outside_of_their_space_are_reported() -> None:
    cta = make_cta(parameters=np.arange(64, dtype=np.uint8))
    run("ld.param.u32 %r0, [second+48];", cta=cta)
    assert reported(cta) == ["parameter-bounds"]


def test_windows_of_generic_addresses_differ() -> None:
    a = np.full(THREADS, 4096, np.uint64)
    spaces = ("shared", "local", "param", "const", "global")
    body = "".join(f"cvta.{name}.u64 %d{index + 1}, %d0;" for index, name in enumerate(spaces))
    body += "cvta.to.shared.u64 %d7, %d1; isspacep.shared %p0, %d1; isspacep.global %p1, %d1; isspacep.global %p2, %d5;"
    got = run(body, {"%d0": a})
    assert len({int(got[f"%d{index + 1}"][0]) for index in range(5)}) == 5
    assert got["%d7"][0] == 4096
    assert (got["%p0"][0], got["%p1"][0], got["%p2"][0]) == (True, False, True)


# --- Lanes


def test_shuffles_within_segments() -> None:
    lane = np.arange(THREADS, dtype=np.uint32)
    # Segments of eight lanes: the mask in bits 8 to 12 keeps the upper two bits of the lane number.
    bounds = (0x18 << 8) | 0x1F
    got = run(
        f"shfl.sync.up.b32 %r1|%p1, %r0, 2, {0x18 << 8}, -1; shfl.sync.down.b32 %r2|%p2, %r0, 3, {bounds}, -1;"
        f"shfl.sync.idx.b32 %r3|%p3, %r0, 5, {bounds}, -1; shfl.sync.bfly.b32 %r4|%p4, %r0, 9, {bounds}, -1;",
        {"%r0": lane},
    )
    sources: dict[str, list[int | None]] = {
        "1": [i - 2 if i % 8 >= 2 else None for i in range(THREADS)],
        "2": [i + 3 if i % 8 < 5 else None for i in range(THREADS)],
        "3": [i // 8 * 8 + 5 for i in range(THREADS)],
        "4": [(i ^ 9) if (i % 32 ^ 9) <= (i % 32 // 8 * 8 + 7) else None for i in range(THREADS)],
    }
    for name, source in sources.items():
        read = [i if one is None else one for i, one in enumerate(source)]
        assert got[f"%p{name}"].tolist() == [one is not None for one in source], name
        assert got[f"%r{name}"].tolist() == read, name


def test_shuffle_by_registers_equals_shuffle_by_constants() -> None:
    lane = np.arange(THREADS, dtype=np.uint32)
    same = {
        "%r0": lane * 3,
        "%r1": np.full(THREADS, 5, np.uint32),
        "%r2": np.full(THREADS, 31, np.uint32),
    }
    for mode in ("idx", "up", "down", "bfly"):
        clamp = "%r3" if mode == "up" else "%r2"
        inputs = same | ({"%r3": np.zeros(THREADS, np.uint32)} if mode == "up" else {})
        if mode == "up":
            del inputs["%r2"]
        dynamic = run(f"shfl.sync.{mode}.b32 %r4|%p4, %r0, %r1, {clamp}, -1;", inputs)
        fixed = run(
            f"shfl.sync.{mode}.b32 %r4|%p4, %r0, 5, {0 if mode == 'up' else 31}, -1;",
            {"%r0": lane * 3},
        )
        assert (dynamic["%r4"] == fixed["%r4"]).all()
        assert (dynamic["%p4"] == fixed["%p4"]).all()


def test_reading_a_lane_that_does_not_execute_is_reported() -> None:
    cta = make_cta()
    got = run(
        "shfl.sync.bfly.b32 %r0, %r1, 1, 31, 0xFF;",
        {"%r1": np.arange(THREADS, dtype=np.uint32)},
        mask=0x7F,
        cta=cta,
    )
    assert reported(cta) == ["shfl-inactive-lane"]
    assert got["%r0"][32:38].tolist() == [33, 32, 35, 34, 37, 36]
    assert got["%r0"][38] == 0x7FFF_DEAD


def test_executing_lanes_must_be_members() -> None:
    cta = make_cta()
    run(
        "vote.sync.any.pred %p0, %p1, 0xFF;",
        {"%p1": np.ones(THREADS, np.bool_)},
        mask=0x1FF,
        cta=cta,
    )
    assert reported(cta) == ["membermask"]


@pytest.mark.parametrize("mask", [None, 0x0000_FFF0])
def test_votes(mask: int | None) -> None:
    p = np.arange(THREADS) % 32 >= 8
    got = run(
        "vote.sync.all.pred %p1, %p0, -1; vote.sync.any.pred %p2, !%p0, -1; vote.sync.uni.pred %p3, %p0, -1;"
        "vote.sync.ballot.b32 %r0, %p0, -1; activemask.b32 %r1; elect.sync %r2|%p4, -1;",
        {"%p0": p},
        mask=mask,
    )
    at = 32 + 10
    assert (got["%p1"][at], got["%p2"][at], got["%p3"][at]) == (False, True, False)
    assert got["%r0"][at] == (0xFFFF_FF00 if mask is None else 0xFF00)
    assert got["%r1"][at] == (0xFFFF_FFFF if mask is None else mask)
    assert got["%r2"][at] == (0 if mask is None else 4)
    assert np.flatnonzero(got["%p4"])[-4 if mask is None else 0] == (0 if mask is None else 36)


def test_votes_that_hold() -> None:
    got = run("vote.sync.all.pred %p1, %p0, -1; vote.sync.any.pred %p2, !%p0, -1; vote.sync.uni.pred %p3, !%p0, -1;",
              {"%p0": np.ones(THREADS, np.bool_)})  # fmt: skip
    assert got["%p1"].all()
    assert not got["%p2"].any()
    assert got["%p3"].all()


@pytest.mark.parametrize("mask", [None, 0x00FF_00FF])
def test_reductions_over_the_executing_lanes(mask: int | None) -> None:
    values = np.random.default_rng(3).integers(0, 1 << 32, THREADS, dtype=np.uint32)
    floats = np.random.default_rng(4).standard_normal(THREADS).astype(np.float32)
    got = run(
        "redux.sync.add.u32 %r1, %r0, -1; redux.sync.min.s32 %r2, %r0, -1; redux.sync.max.u32 %r3, %r0, -1;"
        "redux.sync.and.b32 %r4, %r0, -1; redux.sync.or.b32 %r5, %r0, -1; redux.sync.xor.b32 %r6, %r0, -1;"
        "redux.sync.max.f32 %r8, %r7, -1; redux.sync.min.abs.f32 %r9, %r7, -1;",
        {"%r0": values, "%r7": floats},
        mask=mask,
    )
    lanes = [32 + lane for lane in range(32) if mask is None or mask >> lane & 1]
    chosen = [int(value) for value in values[lanes]]
    at = lanes[3]
    assert got["%r1"][at] == sum(chosen) % (1 << 32)
    assert got["%r2"].view(np.int32)[at] == min(value - (value >> 31 << 32) for value in chosen)
    assert got["%r3"][at] == max(chosen)
    assert got["%r4"][at] == functools.reduce(int.__and__, chosen)
    assert got["%r5"][at] == functools.reduce(int.__or__, chosen)
    assert got["%r6"][at] == functools.reduce(int.__xor__, chosen)
    assert got["%r8"].view(np.float32)[at] == floats[lanes].max()
    assert got["%r9"].view(np.float32)[at] == np.abs(floats[lanes]).min()


def test_match_finds_lanes_with_equal_values() -> None:
    values = np.arange(THREADS, dtype=np.uint32) % 4
    got = run("match.any.sync.b32 %r1, %r0, -1; match.all.sync.b32 %r2|%p0, %r0, -1; "
        "match.all.sync.b64 %r3|%p1, %d0, -1;",
              {"%r0": values, "%d0": np.full(THREADS, 9, np.uint64)})  # fmt: skip
    assert (got["%r1"] == 0x1111_1111 << values).all()
    assert not got["%r2"].any()
    assert not got["%p0"].any()
    assert (got["%r3"] == 0xFFFF_FFFF).all()
    assert got["%p1"].all()


# --- Steps


def test_control_flow_and_visible_instructions_are_steps_of_their_own() -> None:
    program = _kernel(
        """
        mov.b32 %r0, 1;
        setp.eq.s32 %p0, %r0, %r1;
        @!%p0 bra SKIP;
        ld.global.b32 %r2, [%d0];
        prefetch.global.L2 [%d0];
        SKIP: add.s32 %r3, %r2, 1;
        @%p0 exit;
        brx.idx %r3, LIST;
        LIST: .branchtargets SKIP, END;
        trap;
        END: ret;
        """
    )
    kinds = [type(step).__name__ for step in program.steps]
    assert kinds == [
        "Segment", "NoneType", "Branch", "Visible", "Nothing", "Segment", "Exit",
        "IndexedBranch", "Exit", "Exit", "Exit",
    ]  # fmt: skip
    branch, jump, trap = program.steps[2], program.steps[7], program.steps[8]
    assert isinstance(branch, Branch)
    assert branch.guard is not None
    assert (branch.target, branch.guard.negated, branch.uniform) == (5, True, False)
    assert isinstance(jump, IndexedBranch)
    assert jump.targets == (5, 9)
    assert isinstance(trap, Exit)
    assert trap.is_trap
    assert isinstance(program.steps[4], Nothing)


def test_a_guard_tells_the_lanes_that_execute() -> None:
    program = _kernel("setp.lt.u32 %p0, %r0, 7; @!%p0 bra END; add.s32 %r0, %r0, 1; END: ret;")
    cta = make_cta()
    program.open_registers(cta, {})
    kind, row = program.rows["%p0"]
    cta.registers[kind][row] = np.arange(THREADS) % 3 == 0
    branch = program.steps[1]
    assert isinstance(branch, Branch)
    assert branch.guard is not None
    holds = sum(1 << lane for lane in range(32) if (64 + lane) % 3 == 0)
    assert branch.guard.lanes(Path(cta.warps[2], 1, 0xFFFF)) == 0xFFFF & ~holds


def test_touched_rows_are_those_that_are_named() -> None:
    program = _kernel(
        "ld.global.b32 %r0, [%d0]; add.s32 %r1, %r0, 1; mov.b32 %r3, %r1; bra NEXT;"
        "NEXT: st.global.v2.b32 [%d0], {%r1, %r3}; ret;"
    )
    row = {name: program.rows[name][1] for name in ("%r0", "%r1", "%r3")}
    load, segment, store = program.steps[0], program.steps[1], program.steps[4]
    assert isinstance(load, Visible)
    assert isinstance(segment, Segment)
    assert isinstance(store, Visible)
    assert (load.touched.reads, load.touched.writes) == (0, 1 << row["%r0"])
    assert segment.touched.reads == 1 << row["%r0"] | 1 << row["%r1"]
    assert segment.touched.writes == 1 << row["%r1"] | 1 << row["%r3"]
    assert (store.touched.reads, store.touched.writes) == (1 << row["%r1"] | 1 << row["%r3"], 0)
    assert program.first_touching(1, 1 << row["%r3"]).text.startswith("mov.b32 %r3")


def test_shared_variables_lie_behind_the_systems_kibibyte() -> None:
    program = _kernel(
        "mov.u32 %r0, table; mov.u32 %r1, bytes; bra NEXT; NEXT: st.shared.b32 [%r0], %r1; ret;",
        declarations=".shared .align 4 .b8 table[100];\n.extern .shared .align 128 .b8 bytes[];",
    )
    assert (program.static_shared_bytes, program.dynamic_shared_base) == (100, 1152)
    cta = make_cta()
    program.open_registers(cta, {})
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    segment.run(cta, 0, 1)
    assert [int(cta.registers["b32"][program.rows[name][1], 0]) for name in ("%r0", "%r1")] == [
        1024,
        1152,
    ]


def test_global_variables_get_their_addresses_when_a_cta_starts() -> None:
    program = _kernel(
        "mov.u64 %d0, table; add.s64 %d1, %d0, 8; bra NEXT; NEXT: st.global.b64 [%d1], %d1; ret;",
        declarations=".global .align 4 .u32 table[4] = {1, 2, 3, 4};",
    )
    assert program.globals == ("table",)
    cta = make_cta()
    program.open_registers(cta, {"table": 0x1000})
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    segment.run(cta, 0, 1)
    assert cta.registers["b64"][program.rows["%d1"][1], 0] == 0x1008


def test_unknown_instructions_are_refused_with_line_and_count() -> None:
    with pytest.raises(UnsupportedPtxError) as caught:
        _kernel(
            "\n".join(
                ["frobnicate.b32 %r0, %r1;", "add.s32 %r0, %r0, 1;", "vadd.u32 %r0, %r1;"] * 2
                + ["ret;"]
            )
        )
    lines = str(caught.value).splitlines()
    assert "line 9, 2 times: frobnicate.b32" in lines[1]
    assert "line 11, 2 times: vadd.u32" in lines[2]


@pytest.mark.parametrize(
    "statement",
    ["add.rz.f16 %h0, %h1, %h2;", "cvt.rs.f16x2.f32 %r0, %r1, %r2;",
     "ld.global.strange.b32 %r0, [%d0];", "mul.f32 %r0, %r1;",
     "mov.b64 {%r0, %r1, %r2}, %d0;"],
)  # fmt: skip
def test_unknown_forms_are_refused(statement: str) -> None:
    with pytest.raises(UnsupportedPtxError, match="line 9, 1 times"):
        _kernel(statement + "\nret;")


def test_one_of_several_kernels_is_chosen_by_name() -> None:
    module = parse(
        ".version 8.0 .target sm_90a .address_size 64".replace(" .", "\n.")
        + "\n.visible .entry one() { ret; }\n.visible .entry two() { trap; }"
    )
    assert lower(module, "two").function.name == "two"
    with pytest.raises(PtxError, match="one, two"):
        lower(module)
    with pytest.raises(PtxError, match="three"):
        lower(module, "three")


def test_fuse_orders_writes_behind_reads() -> None:
    program = _kernel(
        "add.s32 %r0, %r1, %r2; mov.b32 %r1, %r3; mov.b32 %r2, %r0; st.global.b32 [%d0], %r1; ret;"
    )
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    assert next(call.instruction.text for call in segment.calls).startswith("add")
    assert fuse([], lambda register: False) == []
