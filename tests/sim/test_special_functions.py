"""Approximate functions are those of an H200: checksums of its answers to whole ranges of mantissas."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mlagen.sim import special_functions

MANTISSAS = 1 << 23
# As `benchmarks/fit_special_functions.py` prints them: function, first of 2^23 arguments, CRC-32 of the answers.
RECORDED = (
    ("ex2", 1.0, 0x676486CD),
    ("ex2", 0.5, 0x2746C468),
    ("ex2", 2.0**-5, 0xA87CF4AC),
    ("ex2", 2.0**-22, 0x67D91C9A),
    ("ex2", 64.0, 0x29D3A885),
    ("ex2", -0.5, 0x58396E7A),
    ("ex2", -1.0, 0xC99445CD),
    ("ex2", -(2.0**-8), 0x1D08B60C),
    ("ex2", -128.0, 0x59450445),
    ("rcp", 1.0, 0xA9F2ECFC),
    ("rcp", 2.0**126, 0x4EB02090),
    ("rcp", 2.0**127, 0x59450445),
    ("rcp", 2.0**-126, 0x6A47FC37),
    ("rcp", 0.0, 0x01C7FF13),
    ("lg2", 1.0, 0x15F1D460),
    ("lg2", 2.0, 0xF4D108DF),
    ("lg2", 0.5, 0x1852A07C),
    ("lg2", 0.25, 0x7605ECD8),
    ("lg2", 2.0**20, 0x3D5111B2),
    ("lg2", 2.0**-126, 0xE50D3C27),
)
FLUSHING = {
    "ex2": special_functions.ex2_ftz,
    "rcp": special_functions.rcp_ftz,
    "lg2": special_functions.lg2_ftz,
}


@pytest.mark.parametrize(("name", "start", "checksum"), RECORDED)
def test_all_mantissas_give_the_recorded_bits(name: str, start: float, checksum: int) -> None:
    first = np.float32(start).view(np.uint32)
    arguments = (np.arange(MANTISSAS, dtype=np.uint32) + first).view(np.float32)
    answers = np.empty_like(arguments)
    for part in range(0, MANTISSAS, 1 << 18):
        here = slice(part, part + (1 << 18))
        FLUSHING[name](arguments[here], answers[here])
    assert zlib.crc32(answers.tobytes()) == checksum


@pytest.mark.parametrize(
    ("name", "argument", "answer"),
    [
        ("ex2", np.inf, np.inf),
        ("ex2", -np.inf, 0.0),
        ("ex2", -1e-30, 1.0),
        ("ex2", -126.5, 0.0),
        ("rcp", np.inf, 0.0),
        ("rcp", -0.0, -np.inf),
        ("rcp", 1e-40, np.inf),
        ("lg2", 0.0, -np.inf),
        ("lg2", -1e-40, -np.inf),
        ("lg2", np.inf, np.inf),
        ("lg2", -1.0, np.nan),
        ("ex2", np.nan, np.nan),
        ("rcp", np.nan, np.nan),
        ("lg2", np.nan, np.nan),
    ],
)
def test_ends_of_the_range(name: str, argument: float, answer: float) -> None:
    arguments = np.full(3, argument, np.float32)
    answers = np.empty_like(arguments)
    FLUSHING[name](arguments, answers)
    assert np.array_equal(answers, np.full(3, answer, np.float32), equal_nan=True)
    assert np.signbit(answers).all() == np.signbit(answer) or np.isnan(answer)


def test_small_and_large_numbers_are_scaled_where_nothing_is_flushed() -> None:
    arguments = np.array([2.0**-140, 2.0**-149, 2.0**127, -(2.0**-130)], np.float32)
    answers = np.empty_like(arguments)
    with np.errstate(over="ignore"):
        special_functions.rcp(arguments, answers)
    assert answers.tolist() == [np.inf, np.inf, 2.0**-127, -np.inf]
    special_functions.lg2(np.abs(arguments), answers)
    assert answers.tolist() == [-140.0, -149.0, 127.0, -130.0]
    special_functions.ex2(np.array([-130.0, -149.0, -127.0, 3.0], np.float32), answers)
    assert np.allclose(answers, [2.0**-130, 2.0**-149, 2.0**-127, 8.0], rtol=2.0**-20, atol=0)
