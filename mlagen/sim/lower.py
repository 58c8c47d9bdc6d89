"""A parsed kernel to a `Program`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.sim.program import Program
    from mlagen.sim.ptx import Module


def lower(module: Module, kernel: str | None = None) -> Program:
    """Lower a kernel, once for all launches. NumPy warnings must be off where it runs (`np.errstate(all="ignore")`).

    Args:
        module: What `parse` gave.
        kernel: Name of the entry; may be left out if there is only one.

    Raises:
        UnsupportedPtxError: It lists every instruction that nobody can execute, with line and count.
    """
    raise NotImplementedError
