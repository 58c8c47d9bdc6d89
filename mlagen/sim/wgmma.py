"""`wgmma`: products of a warpgroup, from issue over groups to the registers (PTX ISA 9.7.15).

Warps need not arrive together: the first one that executes a product makes it, the fourth lets it start. Registers are
read when their own warp executes it. Products of a warpgroup complete in order; results reach the registers of a warp
when it waits for their group.

Registers in flight are kept as bitsets of the warp, which the machine compares with those of every other instruction.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import ALL_LANES, LANES, WARPS_OF_WARPGROUP, Waitable
from mlagen.sim.ptx import Immediate
from mlagen.sim.wgmma_form import Form, decode_form
from mlagen.sim.wgmma_product import Accumulator, Product, Warpgroup

if TYPE_CHECKING:
    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Warp
    from mlagen.sim.ptx import Instruction
    from mlagen.sim.report import Findings

UNIT = "wgmma"
_POISON = np.uint32(0xFFFFFFFF)  # a NaN, and two of f16


@dataclass(slots=True)
class WarpState:
    """What one warp has executed.

    Attributes:
        group: Its warpgroup.
        place: In the warpgroup, 0 to 3.
        number: Products so far.
        has_fenced: Whether it has executed any `wgmma.fence`.
        open: Products that no group holds yet.
        groups: Committed groups, oldest first.
        accumulators: Those in flight, by `Form.chain`.
    """

    group: Warpgroup
    place: int
    number: int = 0
    has_fenced: bool = False
    open: list[Product] = field(default_factory=list)
    groups: deque[list[Product]] = field(default_factory=deque)
    accumulators: dict[str, Accumulator] = field(default_factory=dict)

    def in_flight(self) -> list[Product]:
        """Products that the warp has executed and not waited for, oldest first."""
        return [*(product for group in self.groups for product in group), *self.open]


def _state_of(warp: Warp) -> WarpState:
    """A warp's state, made when it is first asked for."""
    state = warp.units.get(UNIT)
    if state is None:
        first = warp.index - warp.index % WARPS_OF_WARPGROUP
        groups = warp.cta.units.setdefault(UNIT, {})
        group = groups.setdefault(first, Warpgroup(warp.cta, first))
        state = warp.units[UNIT] = WarpState(group, warp.index - first)
    assert isinstance(state, WarpState)
    return state


def decode_mma(instruction: Instruction, bind: Binder) -> Handler:
    """`wgmma.mma_async`."""
    form = decode_form(instruction, bind)
    readers = [form.b_descriptor, form.scale_d]
    if form.a_descriptor is not None:
        readers.insert(0, form.a_descriptor)

    def multiply(path: Path) -> None:
        warp = path.warp
        state = _state_of(warp)
        operands = tuple([read(path) for read in readers])
        _check_registers(path, state, form)
        product = _join(path, state, form, operands)
        _take_registers(warp, state, product)
        state.open.append(product)
        state.number += 1
        group = state.group
        if product.arrived == (1 << WARPS_OF_WARPGROUP) - 1:
            assert group.partial[0] is product
            group.partial.popleft()
            group.first_number += 1
            product.after, group.last = group.last, product
            product.start(warp.cta.simulation.findings.site(path, instruction))

    return multiply


def _join(path: Path, state: WarpState, form: Form, operands: tuple[int, ...]) -> Product:
    """The product that a warp executes: a new one, or one that others of its warpgroup have executed before."""
    warp, group = path.warp, state.group
    order = warp.cta.simulation.order
    place = state.number - group.first_number
    if place == len(group.partial):
        accumulator = state.accumulators.get(form.chain)
        if accumulator is None:
            accumulator = Accumulator(form, adds=bool(operands[-1]))
        product = Product(group, form, operands, accumulator)
        order.register(product, warp, warp.cta.simulation.findings.site(path, form.instruction))
        group.partial.append(product)
    else:
        product = group.partial[place]
        own = 1 << product.event
        product.ordered &= warp.ordered | own
        product.async_visible &= warp.async_visible | own
        if product.form is not form or product.operands != operands:
            _report_mismatch(path, product, form)
    product.visible[state.place] = warp.async_visible
    product.arrived |= 1 << state.place
    return product


def _report_mismatch(path: Path, product: Product, form: Form) -> None:
    """The warps of a warpgroup disagree."""
    findings = path.warp.cta.simulation.findings
    what = (
        "its descriptors or scale-d are not those of other warps of its warpgroup"
        if product.form is form
        else f"others of its warpgroup execute that of PTX line {product.form.instruction.line}"
    )
    findings.add(
        "wgmma-mismatch",
        f"warp {path.warp.index}: {what}",
        findings.site(path, form.instruction),
        earlier=product.site,
    )


def _take_registers(warp: Warp, state: WarpState, product: Product) -> None:
    """Read a warp's registers of A, and of D if they count; from here on they are in flight."""
    form, accumulator = product.form, product.accumulator
    registers = warp.cta.registers["b32"]
    mine = slice(warp.first_thread, warp.first_thread + LANES)
    lanes = slice(state.place * LANES, (state.place + 1) * LANES)
    if form.a is not None and product.a_words is not None:
        product.a_words[:, lanes] = registers[form.a.rows, mine]
        warp.rows_lent |= form.a.mask
    if not accumulator.users[state.place]:
        if accumulator.captured is not None:
            accumulator.captured[:, lanes] = registers[accumulator.form.d.rows, mine]
        registers[accumulator.form.d.rows, mine] = _POISON
        state.accumulators[accumulator.form.chain] = accumulator
        warp.rows_pending |= accumulator.mask
    accumulator.users[state.place] += 1


def _check_registers(path: Path, state: WarpState, form: Form) -> None:
    """Whether a warp may use its registers: PTX ISA 9.7.15.7.1, wgmma.fence, and 9.7.15.5.2, in-flight registers."""
    warp = path.warp
    a_mask = form.a.mask if form.a is not None else 0
    problem = None
    if path.mask != ALL_LANES:
        problem = "wgmma-warpgroup", "all 128 threads of a warpgroup must execute it"
    elif not state.has_fenced:
        problem = "wgmma-fence", "no wgmma.fence comes before the first product"
        state.has_fenced = True
    elif warp.rows_dirty & (form.d.mask | a_mask):
        problem = (
            "wgmma-fence",
            "its registers have been accessed since the last wgmma.fence",
        )
    elif warp.rows_pending & a_mask:
        problem = "wgmma-reg", "a product in flight is about to write its registers of A"
    elif warp.rows_lent & form.d.mask:
        problem = "wgmma-reg", "a product in flight still reads registers of its D as its A"
    elif warp.rows_pending & form.d.mask and form.chain not in state.accumulators:
        problem = (
            "wgmma-reg",
            "a product of another shape is in flight on some of its accumulators",
        )
    if problem is not None:
        findings = warp.cta.simulation.findings
        findings.add(*problem, findings.site(path, form.instruction))


def decode_fence(instruction: Instruction, bind: Binder) -> Handler:
    """`wgmma.fence`: registers accessed so far may be used by later products."""

    def fence(path: Path) -> None:
        path.warp.rows_dirty = 0
        _state_of(path.warp).has_fenced = True

    return fence


def decode_commit(instruction: Instruction, bind: Binder) -> Handler:
    """`wgmma.commit_group`: what the warp has executed since the last one becomes a group, which may be empty."""

    def commit(path: Path) -> None:
        state = _state_of(path.warp)
        state.groups.append(state.open)
        state.open = []

    return commit


def decode_wait(instruction: Instruction, bind: Binder) -> Handler:
    """`wgmma.wait_group N`: all groups but the N newest are over, their results in registers."""
    (operand,) = instruction.operands
    if not isinstance(operand, Immediate):
        raise UnsupportedPtxError(instruction.text)
    newest = operand.value

    def wait(path: Path) -> Waitable | None:
        state = _state_of(path.warp)
        count = len(state.groups) - newest
        older = [product for group in list(state.groups)[: max(count, 0)] for product in group]
        if older and not older[-1].done:  # they complete in order
            older[-1].is_awaited = True
            return state.group
        for _ in range(count):
            state.groups.popleft()
        _retire(path.warp, state, older)
        return None

    return wait


def _retire(warp: Warp, state: WarpState, products: list[Product]) -> None:
    """A warp has waited for products: what they wrote and read is its own again.

    Their reads of shared memory are over for both proxies: waiting for completion is a proxy fence (PTX ISA 9.7.15.6).
    """
    if not products:
        return
    warp.cta.simulation.order.acquire_operations(warp, products, asynchronous=True)
    registers = warp.cta.registers["b32"]
    mine = slice(warp.first_thread, warp.first_thread + LANES)
    lanes = slice(state.place * LANES, (state.place + 1) * LANES)
    for product in products:
        accumulator = product.accumulator
        accumulator.users[state.place] -= 1
        if not accumulator.users[state.place]:
            registers[accumulator.form.d.rows, mine] = accumulator.words()[:, lanes]
            # Another one has its place where warps disagree, which has been reported.
            if state.accumulators.get(accumulator.form.chain) is accumulator:
                del state.accumulators[accumulator.form.chain]
    warp.rows_pending = warp.rows_lent = 0
    for accumulator in state.accumulators.values():
        warp.rows_pending |= accumulator.mask
    for product in state.in_flight():
        if product.form.a is not None:
            warp.rows_lent |= product.form.a.mask


def at_exit(cta: Cta, findings: Findings) -> None:
    """Report products that nobody has waited for."""
    for warp in cta.warps:
        state = warp.units.get(UNIT)
        if state is None:
            continue
        for product in state.in_flight():
            findings.add(
                "exit-in-flight",
                f"warp {warp.index} has ended, and has not waited for this wgmma",
                product.site,
            )


DECODERS: dict[str, Decoder] = {
    "wgmma.mma_async": decode_mma,
    "wgmma.fence": decode_fence,
    "wgmma.commit_group": decode_commit,
    "wgmma.wait_group": decode_wait,
}
ALIGNED = frozenset(DECODERS)
