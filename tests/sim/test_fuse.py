"""Fusion: fewer calls, the same registers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.sim import lower as lower_module
from mlagen.sim.fuse import Group, fuse
from mlagen.sim.hardware import Cta, Path
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.program import Program, Segment
from tests.sim.alu import THREADS, make_cta, run
from tests.sim.kernels import KERNELS, lower_kernel, shipped_ptx

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


@pytest.mark.parametrize("pattern", KERNELS[:2])
def test_fusion_changes_no_register_of_a_shipped_kernel(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = parse(shipped_ptx(pattern))
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
    if mask is not None and mask != 0xFFFF_FFFF:
        body = "\n".join(line for line in body.splitlines() if "shfl" not in line)
    named = set(re.findall(r"%[rp]\d+", body))
    source = np.random.default_rng(seed)
    inputs: dict[str, Any] = {
        f"%r{index}": source.standard_normal(THREADS).astype(np.float32) for index in range(12)
    }
    inputs |= {f"%p{index}": source.random(THREADS) < 0.5 for index in range(4)}
    inputs = {name: values for name, values in inputs.items() if name in named}
    fused = run(body, inputs, mask=mask)
    with pytest.MonkeyPatch.context() as patch:
        _without_fusion(patch)
        plain = run(body, inputs, mask=mask)
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
    program = lower_kernel(
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


def test_fuse_orders_writes_behind_reads() -> None:
    program = lower_kernel(
        "add.s32 %r0, %r1, %r2; mov.b32 %r1, %r3; mov.b32 %r2, %r0; st.global.b32 [%d0], %r1; ret;"
    )
    segment = program.steps[0]
    assert isinstance(segment, Segment)
    assert next(call.instruction.text for call in segment.calls).startswith("add")
    assert fuse([], lambda register: False) == []
