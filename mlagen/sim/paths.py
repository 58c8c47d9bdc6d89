"""Divergence and reconvergence: where the lanes of a warp go, and which path goes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.sim.hardware import LANES, Path
from mlagen.sim.program import Segment, Visible

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from mlagen.sim.hardware import Warp
    from mlagen.sim.program import Branch, IndexedBranch, Step


def next_path(
    warp: Warp, steps: Sequence[Step | None], released: Container[Path] = ()
) -> Path | None:
    """The path with the lowest pc that can go on; None if none can.

    Paths at the same pc merge. Where lanes work together, at an `.aligned` instruction or a segment with `shfl` and
    the like, a path waits for the warp's other live lanes. For the latter it stops waiting when all others are held up
    as well: its member mask may name just these lanes.

    Args:
        warp: Whose paths.
        steps: The program.
        released: Paths that need not wait before a segment any longer.
    """
    paths = warp.paths
    if len(paths) == 1:
        path = paths[0]
        return path if path.waiting_on is None else None
    _merge(paths)
    if len(paths) == 1:
        return paths[0] if paths[0].waiting_on is None else None
    may_go: Path | None = None
    somebody_waits = False
    for path in paths:
        if path.waiting_on is not None:
            somebody_waits = True
            continue
        step = steps[path.pc]
        if isinstance(step, Visible) and step.aligned:
            continue
        if isinstance(step, Segment) and step.crosses_lanes and path not in released:
            may_go = may_go or path
            continue
        return path
    return None if somebody_waits else may_go


def held_before_segment(warp: Warp, steps: Sequence[Step | None]) -> Path | None:
    """The lowest path that only waits for other lanes to join it before a segment."""
    for path in warp.paths:
        step = steps[path.pc]
        if path.waiting_on is None and isinstance(step, Segment) and step.crosses_lanes:
            return path
    return None


def split(path: Path, lanes: int, pc: int) -> Path:
    """Send some lanes of a path to another pc, as a path of their own."""
    other = Path(path.warp, pc, lanes)
    path.mask &= ~lanes
    path.warp.paths.append(other)
    return other


def take_branch(step: Branch, path: Path) -> None:
    """Send lanes to a branch's target; a loop that polls memory waits for a write there."""
    lanes = path.mask if step.guard is None else step.guard.lanes(path)
    if lanes == 0:
        path.pc += 1
        return
    going = path
    if lanes != path.mask:
        if step.uniform:
            findings = path.warp.cta.simulation.findings
            findings.add(
                "diverged-uniform",
                f"bra.uni: lanes {lanes:#x} of {path.mask:#x} jump, the others do not",
                findings.site(path, step.instruction),
            )
        going = split(path, lanes, step.target)
        going.polled, going.polled_before = path.polled, path.polled_before
        path.pc += 1
    going.pc = step.target
    if going.polled is not None and step.target <= step.instruction.index:
        place, version = going.polled
        if going.polled == going.polled_before and place.version == version:
            going.waiting_on = place
            place.waiters.append(going)
        going.polled_before = going.polled


def take_indexed_branch(step: IndexedBranch, path: Path) -> None:
    """Send every lane to the target of its index."""
    findings = path.warp.cta.simulation.findings
    lanes = path.mask if step.guard is None else step.guard.lanes(path)
    indices = np.broadcast_to(step.index(path), LANES)
    masks: dict[int, int] = {}
    for lane in path.lanes:
        target = path.pc + 1
        if lanes >> lane & 1:
            index = int(indices[lane])
            if index < len(step.targets):
                target = step.targets[index]
            else:
                findings.add(
                    "out-of-bounds",
                    f"brx.idx: index {index} of {len(step.targets)} targets",
                    findings.site(path, step.instruction),
                )
        masks[target] = masks.get(target, 0) | 1 << lane
    first, *others = masks.items()
    for target, some in others:
        split(path, some, target)
    path.pc = first[0]


def _merge(paths: list[Path]) -> None:
    """Order paths by pc, and join those that are at the same one and have not begun its instruction."""
    paths.sort(key=lambda path: path.pc)
    last = 0
    for path in paths[1:]:
        before = paths[last]
        if (
            path.pc == before.pc
            and path.waiting_on is None is before.waiting_on
            and path.pending is None is before.pending
        ):
            before.mask |= path.mask
            before.polled = None
        else:
            last += 1
            paths[last] = path
    del paths[last + 1 :]
