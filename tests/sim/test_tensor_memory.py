"""Tensor memory: fragments of every load and store shape, access rules, allocation. The PTX is written here."""

from __future__ import annotations

import struct
from itertools import product
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest

from mlagen.launch_record import LaunchRecord
from mlagen.sim.hardware import ALL_LANES, Cta, Warp
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.order import Order
from mlagen.sim.report import Findings, Names, Site
from mlagen.sim.simulate import Checks, SimulationResult, simulate
from mlagen.sim.tcgen05_layout import register_count
from mlagen.sim.tcgen05_state import TensorAccess
from mlagen.sim.tensor_memory import TensorShadow
from tests.sim.test_tcgen05_layout import BITS, by_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD = """
.version 9.4
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out){cluster}
{{
  .reg .pred p<4>; .reg .b32 r<140>, t<16>, ta, lanes, tid, warp, lane, rank; .reg .b64 d<4>, at;
  .shared .align 16 .b8 slot[16];
  mov.u32 tid, %tid.x; shr.u32 warp, tid, 5; and.b32 lane, tid, 31; mov.u32 rank, %cluster_ctarank;
  ld.param.u64 d0, [out]; mad.lo.u32 t0, rank, 128, tid; mul.wide.u32 d1, t0, 512; add.u64 at, d0, d1;
  setp.eq.u32 p0, warp, 0; setp.eq.u32 p1, tid, 0;
"""
ALLOCATE = """
  @p0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 512;
  tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
  ld.shared.u32 ta, [slot]; shl.b32 lanes, warp, 21; add.u32 lanes, lanes, ta;
"""
# Cell (lane, column) of the first 128 columns holds 1000 * lane + column.
FILL = (
    "  mul.lo.u32 t1, tid, 1000;\n"
    + "".join(f"  add.u32 r{number}, t1, {number};\n" for number in range(128))
    + "  tcgen05.st.sync.aligned.32x32b.x128.b32 [lanes], {{{all_registers}}};\n"
    + "  tcgen05.wait::st.sync.aligned;\n"
).format(all_registers=", ".join(f"r{number}" for number in range(128)))
FREE = """
  tcgen05.fence::before_thread_sync; bar.sync 0;
  @p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 ta, 512;
"""


def vector(registers: int, first: int = 0) -> str:
    return "{" + ", ".join(f"r{number}" for number in range(first, first + registers)) + "}"


def keep(registers: int) -> str:
    """Write registers to the thread's part of the output."""
    return "".join(
        f"  st.global.u32 [at+{4 * number}], r{number};\n" for number in range(registers)
    )


def run(
    *body: str, checks: Checks | None = None, ctas: int = 1, cluster: int = 1
) -> tuple[NDArray[np.uint32], SimulationResult]:
    """Output `[thread, register]` of 128 threads a CTA, and what was found."""
    head = HEAD.format(cluster=f" .reqnctapercluster {cluster}, 1, 1" if cluster > 1 else "")
    out = np.zeros((128 * ctas, 128), np.uint32)
    memory = GlobalMemory()
    record = LaunchRecord(
        kernel="k",
        grid=(ctas, 1, 1),
        block=(128, 1, 1),
        cluster=(cluster, 1, 1),
        shared_memory_bytes=0,
        parameters=(struct.pack("<Q", memory.add(out, "out")),),
    )
    ptx = head + "".join(body) + "\n  ret;\n}\n"
    return out, simulate(ptx, record, memory, checks=checks or Checks.strict())


def kinds(outcome: SimulationResult, severity: str = "error") -> set[str]:
    return {finding.kind for finding in outcome.findings if finding.severity == severity}


def value(warp: int, lane: int, column: int) -> int:
    return 1000 * (32 * warp + lane) + column


@pytest.mark.parametrize("shape", [*BITS, "16x32bx2"])
@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("half", [0, 16])
def test_a_load_gives_each_thread_its_cells(shape: str, count: int, half: int) -> None:
    if half and shape == "32x32b":
        return
    registers = register_count(shape, count)
    assert registers is not None
    split = ", 32" if shape == "16x32bx2" else ""
    load = f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {vector(registers)}, [t2]{split};"
    out, outcome = run(
        ALLOCATE,
        FILL,
        f"  add.u32 t2, lanes, {half << 16 | 8};\n",
        load,
        "  tcgen05.wait::ld.sync.aligned;\n",
        keep(registers),
        FREE,
    )
    assert outcome.findings == ()
    for warp, thread, register in product(range(4), range(32), range(registers)):
        if shape == "16x32bx2":
            lane, column = thread % 16, register + 32 * (thread // 16)
        else:
            lane, column = by_bits(shape, thread, register)
        assert out[32 * warp + thread, register] == value(warp, lane + half, column + 8)


@pytest.mark.parametrize("shape", [*BITS, "16x32bx2"])
def test_a_store_puts_each_register_into_its_cell(shape: str) -> None:
    registers = register_count(shape, 8)
    assert registers is not None
    split = " 8," if shape == "16x32bx2" else ""
    fill = "".join(f"  mad.lo.u32 r{n}, tid, 1000, {n};\n" for n in range(registers))
    out, outcome = run(
        ALLOCATE,
        FILL,
        fill,
        f"  tcgen05.st.sync.aligned.{shape}.x8.b32 [lanes],{split} {vector(registers)};\n",
        "  tcgen05.wait::st.sync.aligned;\n",
        f"  tcgen05.ld.sync.aligned.32x32b.x128.b32 {vector(128)}, [lanes];\n",
        "  tcgen05.wait::ld.sync.aligned;\n",
        keep(128),
        FREE,
    )
    assert outcome.findings == ()
    expected = np.array(
        [[value(0, thread, column) for column in range(128)] for thread in range(128)]
    )
    for warp, thread, register in product(range(4), range(32), range(registers)):
        if shape == "16x32bx2":
            lane, column = thread % 16, register + 8 * (thread // 16)
        else:
            lane, column = by_bits(shape, thread, register)
        expected[32 * warp + lane, column] = 1000 * (32 * warp + thread) + register
    np.testing.assert_array_equal(out, expected)


def test_packed_loads_and_stores_move_low_halves() -> None:
    out, outcome = run(
        ALLOCATE,
        FILL,
        f"  tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {vector(4)}, [lanes];\n",
        "  tcgen05.wait::ld.sync.aligned;\n",
        keep(4),
        f"  tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [lanes+64], {vector(4)};\n",
        "  tcgen05.wait::st.sync.aligned;\n",
        f"  tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8, 8)}, [lanes+64];\n",
        "  tcgen05.wait::ld.sync.aligned;\n",
        "".join(f"  st.global.u32 [at+{4 * n}], r{n};\n" for n in range(8, 16)),
        FREE,
    )
    assert outcome.findings == ()
    for thread in range(128):
        low = [value(0, thread, column) & 0xFFFF for column in range(8)]
        packed = [low[2 * n] | low[2 * n + 1] << 16 for n in range(4)]
        assert out[thread, :4].tolist() == packed
        assert out[thread, 8:16].tolist() == low


LOAD = "  tcgen05.ld.sync.aligned.32x32b.x2.b32 {r0, r1}, [t2];\n"
STORE = "  tcgen05.st.sync.aligned.32x32b.x2.b32 [t2], {r0, r1};\n"
WAIT_LOAD = "  tcgen05.wait::ld.sync.aligned;\n"
WAIT_STORE = "  tcgen05.wait::st.sync.aligned;\n"
AT_START = "  mov.b32 t2, lanes;\n"

# What goes wrong -> the body between allocation and deallocation, and the finding.
SEEDED = {
    "another warp's lanes": ((FILL, "  mov.b32 t2, ta;\n", LOAD, WAIT_LOAD), "tcgen05-address"),
    "half a quarter with 32 lanes": (
        (FILL, "  add.u32 t2, lanes, 0x100000;\n", LOAD, WAIT_LOAD),
        "tcgen05-address",
    ),
    "behind the columns": (("  add.u32 t2, lanes, 511;\n", STORE, WAIT_STORE), "tcgen05-address"),
    "nothing stored": ((AT_START, LOAD, WAIT_LOAD), "uninitialised"),
    "different addresses": (
        (FILL, "  add.u32 t2, lanes, lane;\n", LOAD, WAIT_LOAD),
        "operand-not-uniform",
    ),
    "load right behind a store": ((AT_START, STORE, LOAD, WAIT_STORE, WAIT_LOAD), "race"),
    "store right behind a load": ((FILL, AT_START, LOAD, STORE, WAIT_STORE, WAIT_LOAD), "race"),
    "store right behind a store": ((AT_START, STORE, STORE, WAIT_STORE), "race"),
    "no wait before dealloc": ((FILL, AT_START, LOAD), "race"),
    "register written while it is loaded": (
        (FILL, AT_START, LOAD, "  mov.b32 r1, 7;\n", WAIT_LOAD, keep(2)),
        "tcgen05-register",
    ),
    "threads that have left": (
        (FILL, AT_START, "  setp.eq.u32 p2, tid, 127;\n  @p2 exit;\n", LOAD, WAIT_LOAD),
        "diverged-aligned",
    ),
    "wait by a part of the warp": (
        (
            FILL,
            AT_START,
            LOAD,
            "  setp.lt.u32 p2, lane, 8;\n  @p2 tcgen05.wait::ld.sync.aligned;\n",
        ),
        "diverged-aligned",
    ),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_bug_is_found(name: str) -> None:
    body, kind = SEEDED[name]
    _, outcome = run(ALLOCATE, *body, FREE)
    assert kind in kinds(outcome)


@pytest.mark.parametrize(
    "name",
    ["load right behind a store", "store right behind a load", "store right behind a store"],
)
def test_practice_takes_accesses_of_one_warp_as_pipelined(name: str) -> None:
    body, _ = SEEDED[name]
    _, outcome = run(ALLOCATE, *body, FREE, checks=Checks.practice())
    assert kinds(outcome) == set()


def test_a_register_may_be_read_before_the_wait() -> None:
    """PTX ISA 9.7.16.6.4.5: a true dependency is respected without any other synchronisation."""
    body = (
        FILL,
        AT_START,
        LOAD,
        "  add.u32 r2, r0, 1;\n",
        WAIT_LOAD,
        "  st.global.u32 [at], r2;\n",
    )
    out, outcome = run(ALLOCATE, *body, FREE)
    assert outcome.findings == ()
    assert out[:, 0].tolist() == [1000 * thread + 1 for thread in range(128)]


def alloc(columns: int, slot: int = 0, guard: str = "@p0 ", group: int = 1) -> str:
    opcode = f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32"
    return f"  {guard}{opcode} [slot+{4 * slot}], {columns};\n"


def dealloc(register: str, columns: int | str, guard: str = "@p0 ", group: int = 1) -> str:
    opcode = f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32"
    return f"  {guard}{opcode} {register}, {columns};\n"


LOAD_SLOTS = "  bar.sync 0;\n" + "".join(
    f"  ld.shared.u32 t{n + 4}, [slot+{4 * n}];\n" for n in range(4)
)
RELINQUISH = "  @p0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"


def test_allocations_lie_side_by_side_and_are_given_back() -> None:
    body = (
        alloc(256, 0) + alloc(128, 1) + alloc(32, 2) + RELINQUISH,
        "  @!p0 bra SKIP;\n  mov.b32 t1, 0; st.shared.u32 [slot+12], t1;\nSKIP:\n",
        LOAD_SLOTS,
        "".join(f"  st.global.u32 [at+{4 * n}], t{n + 4};\n" for n in range(3)),
        dealloc("t5", 128) + dealloc("t4", 256) + dealloc("t6", 32),
    )
    out, outcome = run(*body)
    assert outcome.findings == ()
    assert out[0, :3].tolist() == [0, 256, 384]


ALLOCATIONS = {
    "never given back": ((alloc(64),), "tcgen05-alloc"),
    "another size": ((alloc(64), LOAD_SLOTS, dealloc("t4", 32)), "tcgen05-alloc"),
    "given back twice": (
        (alloc(64), LOAD_SLOTS, dealloc("t4", 64), dealloc("t4", 64)),
        "tcgen05-alloc",
    ),
    "not an allocation": (
        (alloc(64), LOAD_SLOTS, "  add.u32 t5, t4, 32;\n", dealloc("t5", 32), dealloc("t4", 64)),
        "tcgen05-alloc",
    ),
    "behind relinquish": (
        (RELINQUISH, alloc(64), LOAD_SLOTS, dealloc("t4", 64)),
        "tcgen05-alloc",
    ),
    "48 columns in a register": (
        ("  mov.b32 t1, 48;\n", alloc(48).replace("48;", "t1;")),
        "tcgen05-alloc",
    ),
}


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_a_wrong_allocation_is_found(name: str) -> None:
    body, kind = ALLOCATIONS[name]
    _, outcome = run(*body)
    assert kinds(outcome, "error") - {"uninitialised"} == {kind}


def test_growing_allocations_are_a_note() -> None:
    body = (alloc(32, 0) + alloc(64, 1), LOAD_SLOTS, dealloc("t4", 32) + dealloc("t5", 64))
    _, outcome = run(*body)
    assert kinds(outcome) - {"uninitialised"} == set()
    assert kinds(outcome, "note") == {"tcgen05-alloc"}


SECOND_WARP = "  setp.eq.u32 p3, warp, 1;\n"


def test_an_allocation_waits_until_another_warp_gives_columns_back() -> None:
    body = (
        SECOND_WARP,
        alloc(512),
        "  bar.sync 0;\n",
        alloc(256, 1, "@p3 "),
        "  @p0 ld.shared.u32 t4, [slot];\n",
        dealloc("t4", 512),
        "  bar.sync 0;\n  ld.shared.u32 t5, [slot+4];\n",
        dealloc("t5", 256),
    )
    _, outcome = run(*body)
    assert kinds(outcome) == set()


def test_an_allocation_that_nobody_makes_room_for_is_a_deadlock() -> None:
    _, outcome = run(SECOND_WARP, alloc(512), "  bar.sync 0;\n", alloc(256, 1, "@p3 "))
    assert "deadlock" in kinds(outcome)
    text = next(finding.message for finding in outcome.findings if finding.kind == "deadlock")
    assert "columns of tensor memory" in text


def test_a_pair_allocates_and_frees_together() -> None:
    sync = "  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
    body = (
        alloc(128, group=2),
        "  bar.sync 0;\n  ld.shared.u32 t4, [slot];\n  st.global.u32 [at], t4;\n",
        sync,
        dealloc("t4", 128, group=2),
        sync,
    )
    _, outcome = run(*body, ctas=2, cluster=2)
    assert outcome.findings == ()


def test_one_of_a_pair_that_does_not_allocate_is_a_deadlock() -> None:
    body = (
        "  setp.eq.u32 p2, rank, 0;\n  and.pred p0, p0, p2;\n",
        alloc(128, group=2),
        "  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n",
    )
    _, outcome = run(*body, ctas=2, cluster=2)
    assert "deadlock" in kinds(outcome)
    text = next(finding.message for finding in outcome.findings if finding.kind == "deadlock")
    assert "peer" in text


def test_what_one_thread_has_fenced_is_not_handed_on() -> None:
    """PTX ISA 9.7.16.6.3: every thread orders its own tcgen05 operations behind its own wait."""
    findings = Findings(Names())
    order = Order(findings)
    cta = Cta(Mock(), (0, 0, 0), 0)
    first, second = Warp(cta, 0, ALL_LANES), Warp(cta, 1, ALL_LANES)
    shadow, site = TensorShadow(), Site(0, 0, ALL_LANES, "tcgen05", 1, None, 0)
    order.register(first, None, None)
    order.register(second, None, None)
    store = TensorAccess("tcgen05.st", cta)
    order.register(store, first, site)
    order.tensor_write(shadow, slice(0, 1), store, site)
    order.fence_tensor_before(first, 1 << store.event)
    order.fence_tensor_after(first)
    order.acquire(second, order.publish(first))

    def load(line: int) -> list[str]:
        access = TensorAccess("tcgen05.ld", cta)
        order.register(access, second, site)
        order.tensor_read(shadow, slice(0, 1), access, site._replace(ptx_line=line))
        return [finding.kind for finding in findings.items]

    assert load(2) == ["tcgen05-fence"]
    assert load(3) == ["tcgen05-fence"] * 2
    order.fence_tensor_after(second)
    assert load(4) == ["tcgen05-fence"] * 2
