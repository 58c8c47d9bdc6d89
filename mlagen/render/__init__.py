"""Render: a `KernelPlan` and the templates become one CUDA file, the same bytes every time.

Here: the Jinja environment, the header, text of operand lists. Not here: choices (`plan`), compilers, tensors.
"""

from __future__ import annotations

from mlagen.render.kernel import render_kernel

__all__ = ["render_kernel"]
