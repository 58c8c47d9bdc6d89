"""Instructions that look at other lanes."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.sim.alu import THREADS, make_cta, reported, run


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
