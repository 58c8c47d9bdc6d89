"""Barriers: the mbarrier object against a model, and every instruction and finding in small kernels."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.sim.hardware import Cta
from mlagen.sim.mbarrier import MBarrier, pending_of
from mlagen.sim.order import Order
from mlagen.sim.report import Findings, Names
from mlagen.sim.schedule import Eager, Lazy, Pct
from tests.sim.ptx_kernel import BASE, kinds, launch, only, prepare_barrier, wait_barrier

B = BASE
C = BASE + 8
DATA = BASE + 256

ARRIVE = f"mbarrier.arrive.shared::cta.b64 _, [{B}];\n"
INIT = f"mbarrier.init.shared::cta.b64 [{B}], 1;\n"
TELL = f"mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [{C}];\n"
LOW = "setp.lt.u32 %p0, %r0, 32;\n@!%p0 bra high;\n"
# Warp 1 waits for warp 0 twice, and tells it in between that it goes on.
TURNS = (
    LOW
    + "bar.arrive 1, 64;\n"
    + wait_barrier(C)
    + "bar.arrive 1, 64;\nbra done;\n"
    + f"high: st.shared.u32 [{DATA}], 1;\nbar.sync 1, 64;\n"
    + "setp.eq.u32 %p1, %r0, 32;\n@%p1 {tell}bar.sync 1, 64;\ndone:\n"
)


def bench() -> tuple[MBarrier, Findings]:
    """A barrier of three arrivals, apart from any kernel."""
    findings = Findings(Names(barriers={0: "full"}, roles={0: "load warp", 4: "math"}))
    simulation: Any = SimpleNamespace(  # Any: only what a barrier asks for
        findings=findings,
        order=Order(findings, enabled=False),
        strict=True,
        function=SimpleNamespace(instructions=()),
        units={},
        dynamic_shared_base=B,
    )
    return MBarrier(Cta(simulation, (0, 0, 0), 0), B, 3, 0), findings


@dataclass
class Model:
    """An mbarrier in a few lines, from the text of PTX ISA 9.7.13.15."""

    count: int = 3
    pending: int = 3
    tx: int = 0
    phase: int = 0

    def change(self, arrivals: int, size: int, drop: int = 0) -> None:
        self.pending -= arrivals
        self.tx += size
        self.count -= drop
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("drop"), st.just(1), st.booleans()),
    st.tuples(st.just("expect"), st.sampled_from([16, 32]), st.booleans()),
    st.tuples(st.just("complete"), st.sampled_from([16, 32]), st.booleans()),
    st.tuples(st.just("arrive.expect"), st.sampled_from([16, 32]), st.booleans()),
)


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_mbarrier_is_what_its_model_is(steps: list[tuple[str, int, bool]]) -> None:
    barrier, findings = bench()
    model = Model()
    tokens: list[tuple[int, int, int]] = []
    for word, amount, looks in steps:
        arrivals = {"arrive": amount, "drop": 1, "arrive.expect": 1}.get(word, 0)
        if arrivals > model.pending or (word == "drop" and model.count == 1):
            continue
        tx = model.tx + {"expect": amount, "arrive.expect": amount, "complete": -amount}.get(
            word, 0
        )
        if model.pending == arrivals and tx < 0:
            continue  # more bytes than were announced: a finding
        before = model.phase, model.pending
        if looks:  # no phase goes unobserved
            barrier.was_observed = True
        match word:
            case "arrive" | "drop":
                model.change(arrivals, 0, drop=int(word == "drop"))
                token = barrier.arrive(arrivals, None, None, drops=word == "drop")
                tokens.append((token, *before))
            case "expect":
                model.change(0, amount)
                barrier.expect_bytes(amount, None)
            case "complete":
                model.change(0, -amount)
                barrier.take_bytes(amount, None)
            case "arrive.expect":
                model.tx += amount
                model.change(1, 0)
                barrier.announce_bytes(amount, None)
                barrier.arrive(1, None, None)
        assert (barrier.count, barrier.pending, barrier.bytes, barrier.phase) == (
            model.count,
            model.pending,
            model.tx,
            model.phase,
        )
        # "the phase indicated by phaseParity": the current one is incomplete, the one before complete
        assert [barrier.test(0), barrier.test(1)] == [model.phase % 2 == 1, model.phase % 2 == 0]
        for token, phase, pending in tokens:
            assert barrier.test_token(token) == (model.phase > phase)
            assert pending_of(token) == pending
    assert not findings.items


# Name: PTX, kinds by the letter, kinds in practice; two warps.
FINDINGS: dict[str, tuple[str, list[str], list[str]]] = {
    "nothing wrong": (
        prepare_barrier(B) + only(0, ARRIVE) + wait_barrier(B),
        [],
        [],
    ),
    "misaligned": (
        only(0, f"mbarrier.init.shared::cta.b64 [{B + 4}], 1;"),
        ["misaligned"],
        ["misaligned"],
    ),
    "outside shared memory": (
        only(0, "mbarrier.init.shared::cta.b64 [512], 1;"),
        ["out-of-bounds"],
        ["out-of-bounds"],
    ),
    "no arrivals": (
        only(0, f"mbarrier.init.shared::cta.b64 [{B}], 0;"),
        ["mbarrier-count"],
        ["mbarrier-count"],
    ),
    "too many arrivals": (
        only(0, f"mbarrier.init.shared::cta.b64 [{B}], 1048576;"),
        ["mbarrier-count"],
        ["mbarrier-count"],
    ),
    "the most arrivals": (only(0, f"mbarrier.init.shared::cta.b64 [{B}], 1048575;"), [], []),
    "initialised twice": (
        only(0, INIT + INIT),
        ["mbarrier-reinitialised"],
        ["mbarrier-reinitialised"],
    ),
    "invalidated between": (
        only(0, INIT + f"mbarrier.inval.shared::cta.b64 [{B}];\n" + INIT),
        [],
        [],
    ),
    "not initialised": (
        only(0, ARRIVE),
        ["mbarrier-uninitialised"],
        ["mbarrier-uninitialised"],
    ),
    "used behind inval": (
        only(0, INIT + f"mbarrier.inval.shared::cta.b64 [{B}];\n" + ARRIVE),
        ["mbarrier-uninitialised"],
        ["mbarrier-uninitialised"],
    ),
    "used before its initialisation is known": (
        only(0, INIT) + only(32, ARRIVE),
        ["mbarrier-init-order"],
        ["mbarrier-init-order"],
    ),
    "one arrival too many": (
        prepare_barrier(B, 2) + only(0, f"mbarrier.arrive.shared::cta.b64 _, [{B}], 3;"),
        ["mbarrier-over-arrival"],
        ["mbarrier-over-arrival"],
    ),
    "an arrival too many while bytes are missing": (
        prepare_barrier(B)
        + only(
            0,
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 16;\n"
            + ARRIVE
            + f"mbarrier.complete_tx.shared::cluster.b64 [{B}], 16;",
        ),
        ["mbarrier-over-arrival"],
        ["mbarrier-over-arrival"],
    ),
    "nobody has seen the phase before end": (
        prepare_barrier(B) + only(0, ARRIVE + ARRIVE),
        ["mbarrier-unobserved"],
        ["mbarrier-unobserved (note)"],
    ),
    "the phase before was seen by somebody": (
        prepare_barrier(B) + only(0, ARRIVE + wait_barrier(B)) + "bar.sync 0;\n" + only(32, ARRIVE),
        [],
        [],
    ),
    # C says that B was seen, and hands nothing over.
    "an arrival that may be one phase early, and a wait one phase late": (
        prepare_barrier(B)
        + prepare_barrier(C)
        + only(0, f"st.shared.u32 [{DATA}], %r0;\n" + ARRIVE + wait_barrier(B) + TELL)
        + only(32, wait_barrier(C) + ARRIVE),
        ["mbarrier-early", "mbarrier-missed"],
        ["mbarrier-early (note)", "mbarrier-missed (note)"],
    ),
    "a wait that may come after the next phase": (
        prepare_barrier(B)
        + prepare_barrier(C)
        + only(0, ARRIVE)
        + only(32, wait_barrier(B) + TELL)
        + only(0, wait_barrier(C) + ARRIVE),
        ["mbarrier-missed"],
        ["mbarrier-missed (note)"],
    ),
    "a wait that is known of before the next phase": (
        prepare_barrier(B)
        + prepare_barrier(C)
        + only(0, ARRIVE)
        + only(32, wait_barrier(B) + TELL.replace(".relaxed.cta", ""))
        + only(0, wait_barrier(C) + ARRIVE),
        [],
        [],
    ),
    "nobody waits for the last phase": (prepare_barrier(B) + only(0, ARRIVE), [], []),
    "too many bytes at once": (
        prepare_barrier(B)
        + only(
            0,
            f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{B}], 1048576;\n"
            f"mbarrier.complete_tx.shared::cluster.b64 [{B}], 1048576;",
        ),
        ["mbarrier-bytes"],
        ["mbarrier-bytes"],
    ),
    "more bytes than announced": (
        prepare_barrier(B)
        + only(
            0,
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 16;\n"
            f"mbarrier.complete_tx.shared::cluster.b64 [{B}], 32;",
        ),
        ["mbarrier-bytes", "mbarrier-exit"],
        ["mbarrier-bytes", "mbarrier-exit"],
    ),
    "fewer bytes than announced": (
        prepare_barrier(B)
        + only(
            0,
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 32;\n"
            f"mbarrier.complete_tx.shared::cluster.b64 [{B}], 16;",
        ),
        ["mbarrier-exit"],
        ["mbarrier-exit"],
    ),
    "bytes before they are announced": (
        prepare_barrier(B)
        + only(
            0,
            f"mbarrier.complete_tx.shared::cluster.b64 [{B}], 16;\n"
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 16;",
        )
        + wait_barrier(B),
        [],
        [],
    ),
    "noComplete completes": (
        prepare_barrier(B) + only(0, f"mbarrier.arrive.noComplete.shared::cta.b64 %x0, [{B}], 1;"),
        ["mbarrier-complete"],
        ["mbarrier-complete"],
    ),
    "noComplete does not": (
        prepare_barrier(B, 2)
        + only(0, f"mbarrier.arrive.noComplete.shared::cta.b64 %x0, [{B}], 1;\n" + ARRIVE)
        + wait_barrier(B),
        [],
        [],
    ),
    "inval beside a user": (
        prepare_barrier(B)
        + only(32, ARRIVE)
        + wait_barrier(B)
        + only(0, f"mbarrier.inval.shared::cta.b64 [{B}];"),
        ["race"],
        ["race"],
    ),
    "inval behind all users": (
        prepare_barrier(B)
        + only(32, ARRIVE)
        + wait_barrier(B)
        + "bar.sync 0;\n"
        + only(0, f"mbarrier.inval.shared::cta.b64 [{B}];"),
        [],
        [],
    ),
    "an ordinary store to a barrier": (
        prepare_barrier(B) + only(0, f"st.shared.u32 [{B + 4}], 0;"),
        ["barrier-access"],
        ["barrier-access"],
    ),
    "an ordinary wide load of a barrier": (
        prepare_barrier(C)
        + only(0, f"st.shared.u64 [{B}], 0;\nld.shared.v2.u64 {{%x0, %x1}}, [{B}];"),
        ["barrier-access", "uninitialised"],
        ["barrier-access", "uninitialised"],
    ),
    "different counts": (
        "setp.lt.u32 %p0, %r0, 32;\n@%p0 bra low;\nbar.sync 1, 32;\nbra done;\nlow: bar.sync 1, 64;\ndone:\n",
        ["barrier-count"],
        ["barrier-count"],
    ),
    "a count that is no multiple": ("bar.sync 1, 48;\n", ["barrier-count"], ["barrier-count"]),
    "a count beyond the CTA": (
        "bar.arrive 1, 96;\n",
        ["barrier-count"],
        ["barrier-count"],
    ),
    "no such barrier": ("bar.sync 16;\n", ["bad-operand"], ["bad-operand"]),
    "one warp twice": (
        "setp.ge.u32 %p0, %r0, 32;\n@%p0 bra done;\nbar.arrive 1, 64;\nbar.arrive 1, 64;\ndone:\n",
        ["barrier-twice"],
        ["barrier-twice"],
    ),
    # C says that the barrier has opened, and hands nothing over.
    "an arrival that may come before the last opening": (
        prepare_barrier(C) + TURNS.format(tell=TELL),
        ["barrier-early"],
        ["barrier-early (note)"],
    ),
    "an arrival that has heard of the last opening": (
        prepare_barrier(C) + TURNS.format(tell=TELL.replace(".relaxed.cta", "")),
        [],
        [],
    ),
    "a second cluster arrival": (
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n",
        ["barrier-twice"],
        ["barrier-twice"],
    ),
    "a cluster wait alone": (
        "barrier.cluster.wait.aligned;\n",
        ["barrier-wait"],
        ["barrier-wait"],
    ),
}


@pytest.mark.parametrize("level", ["strict", "practice"])
@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name: str, level: str) -> None:
    body, by_the_letter, in_practice = FINDINGS[name]
    result = launch(body, {}, threads=64, level=level)
    found = [
        finding.kind if finding.severity == "error" else f"{finding.kind} (note)"
        for finding in result.findings
    ]
    assert found == (by_the_letter if level == "strict" else in_practice)


def test_invalidated_while_somebody_waits() -> None:
    waits = only(32, wait_barrier(B))
    late = only(0, wait_barrier(C) + f"mbarrier.inval.shared::cta.b64 [{B}];")
    body = prepare_barrier(B) + prepare_barrier(C)
    arrive = only(33, f"mbarrier.arrive.shared::cta.b64 _, [{C}];")
    result = launch(body + arrive + waits + late, {}, threads=64)
    assert "mbarrier-invalidated" in kinds(result)


def test_a_users_findings_name_the_barrier() -> None:
    names = Names(barriers={0: "k_full[0]"}, roles={0: "load warp", 1: "math"})
    body = prepare_barrier(B) + wait_barrier(B)
    (finding,) = launch(body, {}, threads=64, names=names).findings
    assert finding.kind == "deadlock"
    assert "k_full[0] parity 0: phase 0 (parity 0) lacks 1 of 1 arrivals" in finding.message
    assert "warp 0 (load warp)" in finding.message


def test_a_deadlock_says_who_came_last_and_what_is_missing() -> None:
    names = Names(barriers={0: "full"}, roles={0: "load warp", 1: "math"})
    body = (
        prepare_barrier(B, 3)
        + only(32, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 64;")
        + wait_barrier(B)
    )
    (finding,) = launch(body, {}, threads=64, names=names).findings
    assert "full parity 0: phase 0 (parity 0) lacks 2 of 3 arrivals and 64 bytes" in finding.message
    assert "last arrivals by math" in finding.message


def test_a_waiter_that_comes_two_phases_late_is_told_so() -> None:
    # Warp 1 sees phase 0 end, and asks for phase 1 when phase 2 has ended too.
    again = "".join(ARRIVE + wait_barrier(B, parity) for parity in (1, 0))
    body = (
        prepare_barrier(B)
        + only(0, ARRIVE)
        + wait_barrier(B)
        + "bar.sync 0;\n"
        + only(0, again.replace("wait_", "again_"))
        + "bar.sync 0;\n"
        + only(32, wait_barrier(B, 1))
    )
    result = launch(body, {}, threads=64)
    assert kinds(result) == ["deadlock", "stale-wait"]
    assert "waits for phase 1, which ended before phase 2 did" in result.findings[1].message


def test_parities_alternate_and_a_fresh_barrier_lets_the_producer_pass() -> None:
    body = (
        prepare_barrier(B)
        + prepare_barrier(C)
        + only(
            0,
            "mov.u32 %r1, 0;\n"
            "produce: and.b32 %r2, %r1, 1;\nxor.b32 %r3, %r2, 1;\n"
            f"w0: mbarrier.try_wait.parity.shared::cta.b64 %p0, [{C}], %r3;\n@!%p0 bra w0;\n"
            f"st.shared.u32 [{DATA}], %r1;\n" + ARRIVE + "add.u32 %r1, %r1, 1;\n"
            "setp.lt.u32 %p1, %r1, 7;\n@%p1 bra produce;",
        )
        + only(
            32,
            "mov.u32 %r1, 0;\nmov.u32 %r5, 0;\n"
            "consume: and.b32 %r2, %r1, 1;\n"
            f"w1: mbarrier.try_wait.parity.shared::cta.b64 %p0, [{B}], %r2;\n@!%p0 bra w1;\n"
            f"ld.shared.u32 %r4, [{DATA}];\nmad.lo.u32 %r5, %r5, 10, %r4;\n"
            f"mbarrier.arrive.shared::cta.b64 _, [{C}];\nadd.u32 %r1, %r1, 1;\n"
            "setp.lt.u32 %p1, %r1, 7;\n@%p1 bra consume;\nst.global.u32 [%x_out], %r5;",
        )
    )
    for schedule in (Eager(), Lazy(), Pct(1), Pct(2), Pct(3)):
        out = np.zeros(1, dtype=np.uint32)
        assert kinds(launch(body, {"out": out}, threads=64, schedule=schedule)) == []
        assert out[0] == 123456  # 0 1 2 3 4 5 6 as digits


@pytest.mark.parametrize(
    ("release", "acquire", "found"),
    [
        ("", "", []),
        (".release.cta", ".acquire.cta", []),
        (".relaxed.cta", "", ["race"]),
        ("", ".relaxed.cta", ["race"]),
    ],
)
def test_relaxed_operations_carry_no_knowledge(
    release: str, acquire: str, found: list[str]
) -> None:
    body = (
        prepare_barrier(B)
        + only(0, f"st.shared.u32 [{DATA}], 7;\nmbarrier.arrive{release}.shared::cta.b64 _, [{B}];")
        + only(
            32,
            f"w: mbarrier.try_wait.parity{acquire}.shared::cta.b64 %p0, [{B}], 0;\n@!%p0 bra w;\n"
            f"ld.shared.u32 %r1, [{DATA}];",
        )
    )
    assert kinds(launch(body, {}, threads=64)) == found


@pytest.mark.parametrize("side", ["release", "acquire"])
def test_fences_make_relaxed_operations_carry_it(side: str) -> None:
    release, acquire = (".relaxed.cta", "") if side == "release" else ("", ".relaxed.cta")
    before = "fence.acq_rel.cta;\n" if side == "release" else ""
    behind = "fence.acq_rel.cta;\n" if side == "acquire" else ""
    body = (
        prepare_barrier(B)
        + only(
            0,
            f"st.shared.u32 [{DATA}], 7;\n{before}mbarrier.arrive{release}.shared::cta.b64 _, [{B}];",
        )
        + only(
            32,
            f"w: mbarrier.try_wait.parity{acquire}.shared::cta.b64 %p0, [{B}], 0;\n@!%p0 bra w;\n"
            f"{behind}ld.shared.u32 %r1, [{DATA}];",
        )
    )
    assert kinds(launch(body, {}, threads=64)) == []


def test_every_lane_arrives() -> None:
    body = prepare_barrier(B, 64) + ARRIVE + wait_barrier(B)
    assert kinds(launch(body, {}, threads=64)) == []
    assert kinds(launch(prepare_barrier(B, 65) + ARRIVE + wait_barrier(B), {}, threads=64)) == [
        "deadlock"
    ]


def test_states_tell_phase_and_pending_count() -> None:
    body = prepare_barrier(B, 40) + only(
        0,
        f"mbarrier.arrive.shared::cta.b64 %x0, [{B}], 30;\n"
        f"mbarrier.arrive.shared::cta.b64 %x1, [{B}];\n"
        "mbarrier.pending_count.b64 %r1, %x0;\nmbarrier.pending_count.b64 %r2, %x1;\n"
        f"mbarrier.arrive.shared::cta.b64 %x2, [{B}], 9;\n"
        f"mbarrier.test_wait.shared::cta.b64 %p0, [{B}], %x1;\n"
        "selp.u32 %r3, 1, 0, %p0;\n"
        f"mbarrier.arrive.shared::cta.b64 %x3, [{B}], 1;\n"
        f"mbarrier.try_wait.shared::cta.b64 %p1, [{B}], %x3, 1000;\n"
        "selp.u32 %r4, 1, 0, %p1;\n"
        "st.global.v4.u32 [%x_out], {%r1, %r2, %r3, %r4};",
    )
    out = np.full(4, 9, dtype=np.uint32)
    assert kinds(launch(body, {"out": out})) == []
    # before any arrival, after 30; phase 0 has ended; phase 1 has not, so the wait timed out
    assert out.tolist() == [40, 10, 1, 0]


def test_drops_lower_the_count_of_later_phases() -> None:
    body = prepare_barrier(B, 2) + only(
        0,
        f"mbarrier.arrive_drop.shared::cta.b64 _, [{B}];\n"
        + ARRIVE
        + wait_barrier(B, 0)
        + ARRIVE
        + wait_barrier(B, 1),
    )
    assert kinds(launch(body, {})) == []


@pytest.mark.parametrize("question", ["try_wait", "test_wait"])
def test_a_look_without_a_loop_is_answered(question: str) -> None:
    # Warp 0 looks at a barrier that only its own later arrival ends.
    body = prepare_barrier(B) + only(
        0,
        f"mbarrier.{question}.parity.shared::cta.b64 %p0, [{B}], 0;\nselp.u32 %r1, 1, 0, %p0;\n"
        + ARRIVE
        + f"mbarrier.{question}.parity.shared::cta.b64 %p0, [{B}], 0;\nselp.u32 %r2, 1, 0, %p0;\n"
        "st.global.v2.u32 [%x_out], {%r1, %r2};",
    )
    out = np.full(2, 9, dtype=np.uint32)
    assert kinds(launch(body, {"out": out})) == []
    assert out.tolist() == [0, 1]


def test_lanes_may_wait_for_barriers_of_their_own() -> None:
    body = (
        prepare_barrier(B)
        + prepare_barrier(C)
        + "setp.ge.u32 %p1, %r0, 32;\n@%p1 bra other;\n"
        + f"and.b32 %r1, %r0, 1;\nshl.b32 %r1, %r1, 3;\nadd.u32 %r1, %r1, {B};\n"
        + "w: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r1], 0;\n@!%p0 bra w;\n"
        # only lanes that see the first barrier end can end the second
        + f"setp.ne.u32 %p2, %r0, 0;\n@%p2 bra done;\nmbarrier.arrive.shared::cta.b64 _, [{C}];\nbra done;\n"
        + "other:\n"
        + only(40, ARRIVE)
        + "done:\n"
    )
    for schedule in (Eager(), Lazy(), Pct(1), Pct(2)):
        assert kinds(launch(body, {}, threads=64, schedule=schedule)) == []


LOAD = f"ld.shared.u32 %r1, [{DATA}];\n"


@pytest.mark.parametrize(
    ("then", "is_race"),
    [
        pytest.param(LOAD, True, id="all lanes read"),
        pytest.param(only(0, LOAD), False, id="it reads itself"),
        pytest.param(only(1, LOAD), True, id="another lane reads"),
        pytest.param("bar.warp.sync 0xffffffff;\n" + LOAD, False, id="syncwarp"),
        pytest.param("bar.sync 1, 32;\n" + LOAD, False, id="named barrier"),
        pytest.param(
            f"elect.sync _|%p1, 0xffffffff;\nshfl.sync.idx.b32 %r2, %r0, 0, 31, 0xffffffff;\n{LOAD}",
            True,
            id="collectives order nothing",
        ),
        pytest.param(
            "fence.proxy.async;\n" + only(1, LOAD), True, id="a fence of lanes that do not know"
        ),
        pytest.param(only(1, wait_barrier(B) + LOAD), False, id="another lane waits, too"),
        pytest.param(only(1, wait_barrier(B)) + LOAD, True, id="two lanes have waited"),
        pytest.param(wait_barrier(B) + LOAD, False, id="all lanes wait, too"),
    ],
)
def test_a_wait_of_one_lane_is_its_own(then: str, *, is_race: bool) -> None:
    body = prepare_barrier(B) + only(32, f"st.shared.u32 [{DATA}], 1;\n" + ARRIVE)
    body += LOW + only(0, wait_barrier(B).replace("wait_", "first_")) + then + "high:\n"
    found = launch(body, {}, threads=64).findings
    assert {one.kind for one in found} == ({"race"} if is_race else set())
    assert all("only some lanes of a warp have waited" in one.message for one in found)
    assert kinds(launch(body, {}, threads=64, level="practice")) == []


def test_every_lane_hands_on_what_it_has_waited_for() -> None:
    body = prepare_barrier(B) + only(64, f"st.shared.u32 [{DATA}], 1;\n" + ARRIVE)
    body += LOW + only(0, wait_barrier(B)) + "bar.arrive 1, 64;\nbra done;\n"
    body += "high: setp.ge.u32 %p1, %r0, 64;\n@%p1 bra done;\nbar.sync 1, 64;\n" + LOAD + "done:\n"
    assert kinds(launch(body, {}, threads=96)) == []


# A copy of 16 bytes, and who makes the barrier known to whom.
COPY = (
    f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{B}], 16;\n"
    f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{DATA}], [%x_data], 16, [{B}];\n"
)


@pytest.mark.parametrize(
    ("fence", "strict", "practice"),
    [
        ("fence.mbarrier_init.release.cluster;", [], []),
        ("fence.proxy.async;", [], []),
        ("fence.proxy.async.shared::cta;", [], []),
        ("", ["error"], ["note"]),
    ],
)
def test_the_async_proxy_must_see_the_initialisation(
    fence: str, strict: list[str], practice: list[str]
) -> None:
    body = only(0, INIT + fence) + "bar.sync 0;\n" + only(32, COPY) + wait_barrier(B)
    for level, severities in (("strict", strict), ("practice", practice)):
        data = np.zeros(4, dtype=np.uint32)
        findings = launch(body, {"data": data}, threads=64, level=level).findings
        assert [one.severity for one in findings] == severities
        assert {one.kind for one in findings} <= {"mbarrier-init-fence"}


def test_a_fence_before_the_initialisation_does_not_help() -> None:
    body = only(0, "fence.mbarrier_init.release.cluster;\n" + INIT) + "bar.sync 0;\n"
    body += only(0, COPY) + wait_barrier(B)
    data = np.zeros(4, dtype=np.uint32)
    assert kinds(launch(body, {"data": data})) == ["mbarrier-init-fence"]


# Named barriers.


@pytest.mark.parametrize("schedule", [Eager(), Lazy(), Pct(1), Pct(2)], ids=str)
def test_arrive_and_sync_hand_over(schedule: Lazy) -> None:
    body = (
        f"shl.b32 %r1, %r0, 2;\nadd.u32 %r2, %r1, {DATA};\n"
        + LOW
        + "st.shared.u32 [%r2], %r0;\nbar.arrive 3, 64;\nbra done;\n"
        + "high: bar.sync 3, 64;\nld.shared.u32 %r3, [%r2+-128];\nsub.u32 %r1, %r1, 128;\n"
        + "cvt.u64.u32 %x0, %r1;\nadd.u64 %x0, %x_out, %x0;\nst.global.u32 [%x0], %r3;\ndone:\n"
    )
    out = np.zeros(32, dtype=np.uint32)
    assert kinds(launch(body, {"out": out}, threads=64, schedule=schedule)) == []
    assert out.tolist() == list(range(32))


def test_sync_of_another_barrier_hands_over_nothing() -> None:
    body = (
        LOW
        + f"st.shared.u32 [{DATA}], 1;\nbar.arrive 3, 64;\nbar.sync 4, 64;\nbra done;\n"
        + f"high: bar.sync 4, 64;\nld.shared.u32 %r1, [{DATA}];\nbar.sync 3, 64;\ndone:\n"
    )
    # the knowledge is cumulative: behind `bar.sync 4` everything before the other's arrival there is known
    assert kinds(launch(body, {}, threads=64)) == []
    body = (
        LOW
        + f"bar.arrive 3, 64;\nst.shared.u32 [{DATA}], 1;\nbra done;\n"
        + f"high: bar.sync 3, 64;\nld.shared.u32 %r1, [{DATA}];\ndone:\n"
    )
    assert "race" in kinds(launch(body, {}, threads=64))


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("bar.red.popc.u32 %r1, 1, %p1;\n", 20),
        ("barrier.cta.red.popc.aligned.u32 %r1, 1, 64, !%p1;\n", 44),
        ("bar.red.and.pred %p2, 1, %p1;\nselp.u32 %r1, 1, 0, %p2;\n", 0),
        ("bar.red.or.pred %p2, 1, %p1;\nselp.u32 %r1, 1, 0, %p2;\n", 1),
    ],
)
def test_reductions(form: str, wanted: int) -> None:
    body = (
        "setp.lt.u32 %p1, %r0, 20;\n" + form + "mul.wide.u32 %x0, %r0, 4;\n"
        "add.u64 %x0, %x_out, %x0;\nst.global.u32 [%x0], %r1;\n"
    )
    out = np.full(64, 99, dtype=np.uint32)
    assert kinds(launch(body, {"out": out}, threads=64)) == []
    assert set(out.tolist()) == {wanted}


def test_an_unaligned_barrier_gathers_the_lanes_of_a_warp() -> None:
    body = (
        "setp.lt.u32 %p0, %r0, 7;\n@%p0 bra few;\nbarrier.sync 2;\nbra done;\n"
        "few: mov.u32 %r1, 3;\nbarrier.sync 2;\ndone:\n"
    )
    assert kinds(launch(body, {}, threads=64)) == []


def test_an_aligned_barrier_in_divergent_code_is_reported() -> None:
    body = "setp.lt.u32 %p0, %r0, 7;\n@%p0 bra few;\nbar.sync 2;\nbra done;\nfew: mov.u32 %r1, 3;\nbar.sync 2;\ndone:\n"
    assert kinds(launch(body, {}, threads=64))[0] == "diverged-aligned"


def test_threads_that_have_ended_are_not_waited_for_without_a_count() -> None:
    early = "setp.lt.u32 %p0, %r0, 32;\n@%p0 ret;\n"
    assert kinds(launch(early + "bar.sync 0;\n", {}, threads=96)) == []
    late = LOW + wait_barrier(B) + "ret;\nhigh: bar.sync 0;\n"  # the last to end opens it
    body = prepare_barrier(B) + only(40, ARRIVE) + late
    assert kinds(launch(body, {}, threads=96)) == []
    (finding,) = launch(early + "bar.sync 1, 96;\n", {}, threads=96).findings
    assert finding.kind == "deadlock"
    assert "barrier 1: 64 of 96 threads (warp 1, warp 2)" in finding.message


def test_lanes_of_a_warp_wait_for_each_other() -> None:
    body = (
        "setp.lt.u32 %p0, %r0, 7;\n@%p0 bra few;\nmov.u32 %r1, 1;\nbar.warp.sync 0xffffffff;\nbra done;\n"
        "few: mov.u32 %r1, 3;\nbar.warp.sync 0xffffffff;\ndone:\n"
    )
    assert kinds(launch(body, {})) == []
    missing = "setp.lt.u32 %p0, %r0, 7;\n@%p0 bra few;\nbar.warp.sync 0xffffffff;\nbra done;\n"
    missing += "few: bar.warp.sync 0x7f;\nw: bra w;\ndone:\n"
    assert "step-budget" in kinds(launch(missing, {}, most_steps=2000))


# Clusters.

MAPPED = (
    f"mov.u32 %r1, {B};\nmapa.shared::cluster.u32 %r2, %r1, 0;\nmov.u32 %r9, %cluster_ctarank;\n"
)
ARRIVE_CLUSTER = {
    "release": "barrier.cluster.arrive.release.aligned;\n",
    "relaxed": "barrier.cluster.arrive.relaxed.aligned;\n",
}
WAIT_CLUSTER = "barrier.cluster.wait.acquire.aligned;\n"
ALL_MEET = ARRIVE_CLUSTER["release"] + WAIT_CLUSTER


def remote(fence: str, way: str) -> str:
    """CTA 1 arrives at a barrier of CTA 0, which it knows through the cluster barrier."""
    return (
        MAPPED
        + only(0, INIT + fence)
        + ARRIVE_CLUSTER[way]
        + WAIT_CLUSTER
        + "setp.eq.u32 %p0, %r9, 0;\n@%p0 bra own;\n"
        + only(0, "mbarrier.arrive.shared::cluster.b64 _, [%r2];")
        + "bra done;\nown:\n"
        + wait_barrier(B)
        + "done:\n"
        + ALL_MEET
    )


@pytest.mark.parametrize(
    ("fence", "way", "found"),
    [
        ("fence.mbarrier_init.release.cluster;", "release", []),
        ("fence.mbarrier_init.release.cluster;", "relaxed", []),
        ("", "release", ["mbarrier-init-fence"]),
        ("", "relaxed", ["mbarrier-init-order"]),
    ],
)
def test_remote_arrivals_need_the_initialisation(fence: str, way: str, found: list[str]) -> None:
    assert kinds(launch(remote(fence, way), {}, cluster=2)) == found


def test_a_remote_wait_is_reported() -> None:
    body = (
        MAPPED
        + only(0, INIT + "fence.mbarrier_init.release.cluster;\n" + ARRIVE)
        + ALL_MEET
        + "w: mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r2], 0;\n@!%p0 bra w;\n"
        + ALL_MEET
    )
    assert kinds(launch(body, {}, cluster=2)) == ["mbarrier-remote-wait"]


@pytest.mark.parametrize("way", ARRIVE_CLUSTER)
def test_the_cluster_barrier_hands_over_unless_relaxed(way: str) -> None:
    body = (
        MAPPED
        + only(0, f"st.shared.u32 [{DATA}], %r9;")
        + ARRIVE_CLUSTER[way]
        + WAIT_CLUSTER
        + f"mov.u32 %r3, {DATA};\nxor.b32 %r4, %r9, 1;\nmapa.shared::cluster.u32 %r5, %r3, %r4;\n"
        + "ld.shared::cluster.u32 %r6, [%r5];\n"
        + ALL_MEET
    )
    assert kinds(launch(body, {}, cluster=2)) == ([] if way == "release" else ["race"])


def test_ctas_that_have_ended_are_not_waited_for() -> None:
    body = "mov.u32 %r9, %cluster_ctarank;\nsetp.eq.u32 %p0, %r9, 0;\n@%p0 ret;\n" + ALL_MEET
    for schedule in (Lazy(), Pct(1), Pct(2)):
        assert kinds(launch(body, {}, cluster=2, schedule=schedule)) == []


def test_arrival_and_wait_of_the_cluster_may_lie_apart() -> None:
    body = (
        only(0, f"st.shared.u32 [{DATA}], 1;")
        + "barrier.cluster.arrive.release.aligned;\nadd.u32 %r1, %r0, 1;\nbarrier.cluster.wait.acquire.aligned;\n"
    )
    assert kinds(launch(body, {}, cluster=2, threads=64)) == []
