"""One product of a warpgroup: its accumulator, its operands in shared memory, its arithmetic."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.sim.elements import ELEMENT_BYTES, decode_elements
from mlagen.sim.hardware import WARPS_OF_WARPGROUP, AsyncOperation, Waitable
from mlagen.sim.layout import decode_hopper, place_tile
from mlagen.sim.products import multiply_add, multiply_add_integers
from mlagen.sim.tensor_core_sum import aligned_sum
from mlagen.sim.wgmma_fragment import THREADS, a_of_registers, d_of_registers, registers_of_d

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.hardware import Cta, Path
    from mlagen.sim.layout import Tile, TileShape
    from mlagen.sim.report import Site
    from mlagen.sim.wgmma_form import Form

_ROWS_OF_WARP = 16


class Accumulator:
    """Registers of D while products that follow each other on them are in flight.

    Attributes:
        mask: The registers.
        captured: `[registers, 128]` words as they were, if a product adds to them; else None.
        values: `[64, n]` after the products that have completed.
        users: Products that each warp has executed and not waited for.
    """

    __slots__ = ("_words", "captured", "form", "mask", "users", "values")

    def __init__(self, form: Form, *, adds: bool) -> None:
        """For a first product, which adds to the registers or not."""
        self.form = form
        self.mask = form.d.mask
        self.captured = np.empty((form.d.count, THREADS), np.uint32) if adds else None
        self.values: NDArray[Any] | None = None
        self.users = [0] * WARPS_OF_WARPGROUP
        self._words: NDArray[np.uint32] | None = None

    def current(self) -> NDArray[Any]:
        """`[64, n]` to which the next product is added."""
        if self.values is None:
            assert self.captured is not None
            self.values = d_of_registers(self.captured, self.form.d_type)
        return self.values

    def words(self) -> NDArray[np.uint32]:
        """`[registers, 128]`: the result."""
        if self._words is None:
            assert self.values is not None
            self._words = registers_of_d(self.values, self.form.d_type)
        return self._words


class Product(AsyncOperation):
    """One `wgmma.mma_async`, from the first warp that executes it to its completion.

    Attributes:
        form: What is multiplied.
        operands: Descriptors, and scale-d last.
        accumulator: Of D.
        a_words: `[4, 128]` words of A, if it is in registers.
        visible: What each warp's async proxy could rely on when it executed it.
        arrived: Warps that have executed it, a bitset.
        is_awaited: Whether a warp waits for it.
    """

    __slots__ = (
        "_a",
        "_b",
        "_group",
        "a_words",
        "accumulator",
        "arrived",
        "form",
        "is_awaited",
        "operands",
        "visible",
    )

    def __init__(
        self, group: Warpgroup, form: Form, operands: tuple[int, ...], accumulator: Accumulator
    ) -> None:
        """Made by the first warp."""
        super().__init__("wgmma", group.cta)
        self.form = form
        self.operands = operands
        self.accumulator = accumulator
        self.a_words = np.empty((form.a.count, THREADS), np.uint32) if form.a else None
        self.visible = [0] * WARPS_OF_WARPGROUP
        self.arrived = 0
        self.is_awaited = False
        self._group = group
        self._a: Tile | None = None
        self._b: Tile | None = None

    def start(self, site: Site) -> None:
        """All warps have executed it: check its operands in shared memory, and let it go."""
        form, cta = self.form, self.cta
        b = _place(cta, self.operands[-2], form.b_shape, "B", site)
        if b is not None:
            self._read(b, site, is_a=False)
        a = None
        if form.a is None:
            a = _place(cta, self.operands[0], form.a_shape, "A", site)
            if a is not None:
                self._read(a, site, is_a=True)
        if b is not None and (a is not None or form.a is not None):
            self._a, self._b = a, b
        cta.simulation.submit(self)

    def _read(self, tile: Tile, site: Site, *, is_a: bool) -> None:
        """Check and note the read of an operand.

        B must be visible to all four warps. Of A each reads its own 16 rows, which it may have written by itself.
        """
        shared = self.cta.shared
        order = self.cta.simulation.order
        if order.enabled and order.read_known(shared.shadow, tile.cells, self):
            return  # so it has been written, and nothing is under way
        shared.check_readable(tile.cells, site)
        if not is_a:
            order.async_read(shared.shadow, tile.cells, self)
            return
        joint, own = self.async_visible, 1 << self.event
        for warp, visible in enumerate(self.visible):
            self.async_visible = visible | own
            rows = tile.cells_of_rows(warp * _ROWS_OF_WARP, _ROWS_OF_WARP)
            order.async_read(shared.shadow, rows, self)
        self.async_visible = joint

    def complete(self) -> None:
        """Multiply, and add to the accumulator."""
        accumulator = self.accumulator
        adds = self.operands[-1]
        c = accumulator.current() if adds else None
        if self._b is None:  # its operands lie nowhere: that has been reported
            accumulator.values = np.full((self.form.a_shape.rows, self.form.n), np.nan, np.float32)
        else:
            accumulator.values = self._multiply(c)
        self.after = None  # nobody asks any more, and products would hold all those before them
        if self.is_awaited:
            self._group.wake()

    def _multiply(self, c: NDArray[Any] | None) -> NDArray[Any]:
        """A B + C as they are now."""
        form, memory = self.form, self.cta.shared.bytes
        assert self._b is not None
        if self._a is not None:
            raw = self._a.gather(memory)
        else:
            assert self.a_words is not None
            raw = a_of_registers(self.a_words, ELEMENT_BYTES[form.a_type])
        a = decode_elements(raw, form.a_type)
        b = decode_elements(self._b.gather(memory), form.b_type)
        if form.d_type == "s32":
            return multiply_add_integers(a, b, c, saturate=form.saturates)
        if form.negates:
            a = -a
        mode = self.cta.simulation.accumulation
        if mode == "hardware" or (mode == "fast" and ELEMENT_BYTES[form.a_type] == 1):
            return aligned_sum(a, b, c, form.a_type, form.b_type, form.d_type)
        result = multiply_add(a, b, c, "f64" if mode == "f64" else "f32")
        return result.astype(np.float16).astype(np.float32) if form.d_type == "f16" else result


class Warpgroup(Waitable):
    """What four neighbouring warps share.

    Attributes:
        cta: Whose.
        first_warp: Index of the first.
        partial: Products that some of the warps have yet to execute, oldest first.
        first_number: Of the oldest of them, counted from the start of the run.
        last: The newest product that has started.
    """

    __slots__ = ("cta", "first_number", "first_warp", "last", "partial")

    def __init__(self, cta: Cta, first_warp: int) -> None:
        """No product yet."""
        super().__init__()
        self.cta = cta
        self.first_warp = first_warp
        self.partial: deque[Product] = deque()
        self.first_number = 0
        self.last: Product | None = None

    def describe(self, path: Path) -> str:
        """Which warps a product lacks, or that one has to complete."""
        if not self.partial:
            return "a wgmma to complete"
        product = self.partial[0]
        missing = [
            str(self.first_warp + warp)
            for warp in range(WARPS_OF_WARPGROUP)
            if not product.arrived >> warp & 1
        ]
        line = product.form.instruction.line
        return f"the wgmma of PTX line {line}, which warp {', '.join(missing)} has not executed"


def _place(cta: Cta, value: int, shape: TileShape, name: str, site: Site) -> Tile | None:
    """The operand that a descriptor describes; None after reporting that it lies outside shared memory."""
    descriptor, problems = decode_hopper(value)
    for problem in problems:
        cta.simulation.findings.add(
            "wgmma-descriptor", f"descriptor of {name}, {value:#018x}: {problem}", site
        )
    tile = place_tile(descriptor, shape)
    return tile if cta.shared.check_range(tile.first, tile.end - tile.first, site) else None
