"""`st.async`: stores of lanes to shared memory of the cluster that count their bytes on an mbarrier there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.access import access_form, element_readers, lane_values, split_by_space
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.shared_memory import cells_of, scatter
from mlagen.sim.windows import locate_shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.access import Part
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path
    from mlagen.sim.mbarrier import MBarrier
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Site

_COMPLETION = "mbarrier::complete_tx::bytes"


class RemoteStore(AsyncOperation):
    """The stores of one instruction into one CTA."""

    __slots__ = ("_barriers", "_data", "_targets", "_to")

    def __init__(
        self,
        issuer: Cta,
        to: Cta,
        targets: NDArray[np.int64],
        data: NDArray[np.uint8],
        barriers: list[MBarrier],
    ) -> None:
        """Nothing moves yet.

        Args:
            issuer: Whose instruction it is.
            to: Whose shared memory is written.
            targets: `[n]` addresses there.
            data: `[n, size]` bytes.
            barriers: One a lane.
        """
        super().__init__("st.async", issuer)
        self._to = to
        self._targets = targets
        self._data = data
        self._barriers = barriers

    def complete(self) -> None:
        """The bytes arrive and are counted."""
        size = self._data.shape[1]
        if self._to.has_ended:
            text = f"st.async arrives in cta {self._to.number}, which has ended"
            self._to.simulation.findings.add("exited-cta", text, self.site)
            return
        scatter(self._to.shared.bytes, self._targets, self._data)
        self._to.shared.end_async_write(cells_of(self._targets, size))
        for barrier in self._barriers:
            barrier.complete_bytes(size, self)


def decode_store(instruction: Instruction, bind: Binder) -> Handler:
    """`st.async.shared::cluster.mbarrier::complete_tx::bytes` (PTX ISA 9.7.9.12)."""
    form = access_form(instruction, own=frozenset({"async", _COMPLETION}))
    if form.space != "shared" or _COMPLETION not in form.rest or form.element_bytes < 4:
        raise UnsupportedPtxError(instruction.opcode)
    target, source, barrier = instruction.operands
    read_target, read_barrier = bind.address(target), bind.address(barrier)
    values = element_readers(instruction, bind, source, form)

    def store(path: Path) -> None:
        site = path.warp.cta.simulation.findings.site(path, instruction)
        targets = lane_values(read_target(path), path).view(np.int64)
        barriers = lane_values(read_barrier(path), path).view(np.int64)
        data = values(path)
        for part in split_by_space(path, "shared", targets, site):
            _issue(path, part, data[part.lanes], barriers[part.lanes], site)

    return store


def _issue(
    path: Path,
    part: Part,
    data: NDArray[np.uint8],
    barriers: NDArray[np.int64],
    site: Site,
) -> None:
    """Check the stores into one CTA, and put their bytes in flight."""
    cta = path.warp.cta
    order = cta.simulation.order
    shared = part.owner.shared
    size = data.shape[1]
    if not shared.check_lanes(part.addresses, size, site):
        return
    counted = []
    for address in barriers.tolist():
        owner, inside = locate_shared(cta, address)
        if owner is not part.owner:
            text = "the mbarrier of st.async lies in another CTA than the data"
            cta.simulation.findings.add("bad-operand", text, site)
            return
        barrier = owner.barriers.at(inside, path, site)
        if barrier is None:
            return
        counted.append(barrier)
    operation = RemoteStore(cta, part.owner, part.addresses, data, counted)
    order.register(operation, path.warp, site)
    cells = cells_of(part.addresses, size)
    shared.report_in_flight(cells, site)
    order.write(shared.shadow, cells, operation, site)
    shared.begin_async_write(cells)
    cta.simulation.submit(operation)


DECODERS: dict[str, Decoder] = {"st.async": decode_store}
