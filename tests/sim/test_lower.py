"""Lowering: the steps of whole kernels, control flow, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.errors import PtxError, UnsupportedPtxError
from mlagen.sim.hardware import Path
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.program import Branch, Exit, IndexedBranch, Nothing, Segment, Visible
from tests.sim.alu import THREADS, make_cta
from tests.sim.kernels import KERNELS, lower_kernel, shipped_ptx


@pytest.mark.parametrize("pattern", KERNELS)
def test_every_instruction_of_a_shipped_kernel_is_in_one_step(pattern: str) -> None:
    program = lower(parse(shipped_ptx(pattern)))
    pc = 0
    while pc < len(program.steps):
        step = program.steps[pc]
        assert step is not None, program.function.instructions[pc]
        end = step.end if isinstance(step, Segment) else pc + 1
        assert all(inner is None for inner in program.steps[pc + 1 : end])
        pc = end
    targets = [step.target for step in program.steps if isinstance(step, Branch)]
    assert all(program.steps[target] is not None for target in targets)


def test_control_flow_and_visible_instructions_are_steps_of_their_own() -> None:
    program = lower_kernel(
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
    program = lower_kernel("setp.lt.u32 %p0, %r0, 7; @!%p0 bra END; add.s32 %r0, %r0, 1; END: ret;")
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
    program = lower_kernel(
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


def test_a_barrier_reads_its_operands_and_a_reduction_writes_its_result() -> None:
    program = lower_kernel(
        "bar.sync %r0, %r1; barrier.cta.red.popc.u32 %r2, %r0, %p0; bar.red.popc.u32 %r2, %r0, %p0; ret;"
    )
    row = {name: 1 << program.rows[name][1] for name in ("%r0", "%r1", "%r2")}
    sync, *reductions = program.steps[:3]
    assert isinstance(sync, Visible)
    assert (sync.touched.reads, sync.touched.writes) == (row["%r0"] | row["%r1"], 0)
    for one in reductions:
        assert isinstance(one, Visible)
        assert (one.touched.reads, one.touched.writes) == (row["%r0"], row["%r2"])


def test_shared_variables_lie_behind_the_systems_kibibyte() -> None:
    program = lower_kernel(
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
    program = lower_kernel(
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
        lower_kernel(
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
     "mov.b64 {%r0, %r1, %r2}, %d0;", "mbarrier.init.shared::cta.b64 [%r0];",
     "mbarrier.try_wait.parity.shared::cta.b64 %p0;", "bar.sync;", "bra;", "st.global.u32 [%d0];",
     "wgmma.wait_group.sync.aligned;", "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64;",
     "fence.proxy.async.strange;", "fence.mbarrier_init.acquire.cluster;", "red.global.add.u32 [%d0];",
     "atom.global.cas.b32 %r0, [%d0], %r1;", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r0], {%r1};"],
)  # fmt: skip
def test_unknown_forms_are_refused(statement: str) -> None:
    with pytest.raises(UnsupportedPtxError, match="line 9, 1 times") as caught:
        lower_kernel(statement + "\nret;")
    opcode = statement.split(" ")[0].rstrip(";")
    assert str(caught.value).count(opcode) == 1


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
