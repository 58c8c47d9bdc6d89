"""mlagen generates CUDA kernels for multi-head latent attention from a spec, compiles them with NVRTC, and runs them.

The public names load what they need on first use: importing the package imports neither torch, CUDA nor NumPy.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlagen import errors
    from mlagen.build import build_specs
    from mlagen.runtime.kernel import Kernels, load
    from mlagen.runtime.merge import merge_state
    from mlagen.runtime.simulator import Simulator

__all__ = ["Kernels", "Simulator", "build_specs", "errors", "load", "merge_state"]

_HOMES = {
    "Kernels": ("mlagen.runtime.kernel", "Kernels"),
    "Simulator": ("mlagen.runtime.simulator", "Simulator"),
    "build_specs": ("mlagen.build", "build_specs"),
    "errors": ("mlagen.errors", None),
    "load": ("mlagen.runtime.kernel", "load"),
    "merge_state": ("mlagen.runtime.merge", "merge_state"),
}

logging.getLogger(__name__).addHandler(logging.NullHandler())


# Any: a module's attribute can be anything; type checkers read the imports above instead.
def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlagen' has no attribute {name!r}")
    module_name, attribute = _HOMES[name]
    module = importlib.import_module(module_name)
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
