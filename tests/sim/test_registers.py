"""The register file of a CTA: special registers, parameters, windows."""

from __future__ import annotations

import numpy as np

from tests.sim.alu import THREADS, make_cta, reported, run
from tests.sim.kernels import lower_kernel


def test_registers_of_an_ended_cta_are_poisoned_for_the_next() -> None:
    program = lower_kernel(
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
