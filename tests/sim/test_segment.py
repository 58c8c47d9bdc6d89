"""Segments: lanes, guards, undefined registers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.alu import THREADS, run


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
