"""Waits for mbarriers, and questions to the states that arrivals return (PTX ISA 9.7.13.15.16 and .17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.access import all_lanes, lane_values
from mlagen.sim.hardware import Waitable
from mlagen.sim.lane_knowledge import learn
from mlagen.sim.mbarrier import TIMED_OUT, MBarrier, pending_of
from mlagen.sim.mbarrier_form import SCOPES, addressed, modifiers
from mlagen.sim.strong import fences_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Warp
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

# Beginnings of the opcodes that wait.
WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
UNIT = "mbarrier wait"
_WAIT = frozenset({"b64", "parity", "acquire", "relaxed"}) | SCOPES


class _AnyBarrier(Waitable):
    """The barriers that lanes of one path wait for: it goes on when one of them changes."""

    __slots__ = ("_barriers",)

    def __init__(self, barriers: list[MBarrier]) -> None:
        super().__init__()
        self._barriers = barriers
        for barrier in barriers:
            barrier.followers.append(self)

    def describe(self, path: Path) -> str:
        """All of them."""
        return ", or ".join(barrier.describe(path) for barrier in self._barriers)


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.try_wait` and `test_wait`, by parity or by an arrival's state.

    Where the answer is false in all lanes, the path waits until a barrier changes: a kernel asks again anyway. Whether
    it does is seen at a warp's first false answer of each instruction, which comes at once: the time limit of a
    `try_wait` is the system's affair. The machine also lets a wait time out when nobody else can go on; a kernel that
    only had a look is then told that it is not true yet.
    """
    words = modifiers(instruction, _WAIT, skip=2)
    result, address, phase = instruction.operands[:3]  # a time hint means nothing here
    find = addressed(bind, address)
    write = bind.writer(result, "pred")
    by_parity, relaxed = "parity" in words, "relaxed" in words
    phases = bind.reader(phase, "u32" if by_parity else "u64")

    def wait(path: Path) -> Waitable | None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        asked = lane_values(phases(path), path).tolist()
        barriers = _barriers_of(path, find(path), site)
        answers = {
            (barrier, value): barrier.test(value) if by_parity else barrier.test_token(value)
            for barrier, value in dict.fromkeys(zip(barriers, asked, strict=True))
            if barrier is not None
        }
        ended = [barrier for (barrier, _), answer in answers.items() if answer]
        if (
            answers
            and not ended
            and path.pending != TIMED_OUT
            and _has_been_false(path, instruction)
        ):
            path.pending = asked[0]
            waited = sorted({barrier for barrier, _ in answers}, key=lambda one: one.address)
            return waited[0] if len(waited) == 1 else _AnyBarrier(waited)
        # Where there is no barrier, which has been reported, nobody waits.
        seen = [
            barrier is None or answers[barrier, value]
            for barrier, value in zip(barriers, asked, strict=True)
        ]
        for barrier in dict.fromkeys(ended):
            lanes = path.mask
            if len(answers) > 1:
                lanes = sum(
                    1 << lane
                    for lane, one, answer in zip(path.lanes, barriers, seen, strict=True)
                    if one is barrier and answer
                )
            _observe(path, barrier, lanes, site, relaxed=relaxed)
        write(path, np.True_ if all(seen) else all_lanes(np.array(seen), path))
        return None

    return wait


def _has_been_false(path: Path, instruction: Instruction) -> bool:
    """Whether this warp has had a false answer of this instruction before; from now on it has."""
    seen: set[int] = path.warp.units.setdefault(UNIT, set())
    has_been = instruction.line in seen
    seen.add(instruction.line)
    return has_been


def _barriers_of(path: Path, places: list[tuple[Cta, int]], site: Site) -> list[MBarrier | None]:
    """The barrier of each lane; None after reporting that there is none."""
    found: dict[tuple[Cta, int], MBarrier | None] = {}
    cta = path.warp.cta
    for owner, address in dict.fromkeys(places):
        if owner is not cta:
            cta.simulation.findings.add(
                "mbarrier-remote-wait", "only a CTA's own mbarriers can be waited for", site
            )
        found[owner, address] = owner.barriers.at(address, path, site)
    return [found[place] for place in places]


def _observe(path: Path, barrier: MBarrier, lanes: int, site: Site, *, relaxed: bool) -> None:
    """Lanes have seen a phase end: they learn what the arrivals have handed over, a relaxed wait at its next fence."""
    warp = path.warp
    barrier.note_seen(warp, site)
    barrier.note_user(warp, site)
    if relaxed:
        fences = fences_of(warp)
        fences.seen = fences.seen | barrier.completed
    else:
        learn(path, lanes, barrier.completed)


def decode_pending_count(instruction: Instruction, bind: Binder) -> Handler:
    """`mbarrier.pending_count`: of the state that an arrival has returned."""
    modifiers(instruction, frozenset({"b64"}), skip=2)
    write = bind.writer(instruction.operands[0], "u32")
    states = bind.reader(instruction.operands[1], "u64")

    def count(path: Path) -> None:
        counts = [pending_of(int(state)) for state in lane_values(states(path), path).tolist()]
        write(path, all_lanes(np.array(counts, dtype=np.uint32), path))

    return count


def time_out(warps: Iterable[Warp]) -> bool:
    """Let all waits for mbarriers time out: they are answered as they stand.

    Returns:
        Whether there were any.
    """
    paths = [
        path
        for warp in warps
        for path in warp.paths
        if isinstance(path.waiting_on, MBarrier | _AnyBarrier)
    ]
    for path in paths:
        path.pending = TIMED_OUT
        if path.waiting_on is not None:  # else another one's turn has woken it
            path.waiting_on.wake()
    return bool(paths)


DECODERS: dict[str, Decoder] = {
    "mbarrier.try_wait": decode_wait,
    "mbarrier.test_wait": decode_wait,
    "mbarrier.pending_count": decode_pending_count,
}
