"""Memory: its spaces in one import, and the decoders of everything that loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.sim import (
    atomics,
    cp_async,
    load_store,
    matrix_move,
    register_pool,
    st_async,
    strong,
)
from mlagen.sim.global_memory import Buffer, GlobalMemory
from mlagen.sim.shared_memory import POISON, SharedMemory
from mlagen.sim.windows import (
    CONST_WINDOW,
    GLOBAL_WINDOW,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
    cluster_address,
    locate_shared,
)

if TYPE_CHECKING:
    from mlagen.sim.hardware import Decoder

__all__ = [
    "ALIGNED",
    "CONST_WINDOW",
    "DECODERS",
    "GLOBAL_WINDOW",
    "LOCAL_WINDOW",
    "PARAM_WINDOW",
    "POISON",
    "SHARED_BASE",
    "SHARED_WINDOW",
    "Buffer",
    "GlobalMemory",
    "SharedMemory",
    "cluster_address",
    "locate_shared",
]

DECODERS: dict[str, Decoder] = {
    **load_store.DECODERS,
    **matrix_move.DECODERS,
    **atomics.DECODERS,
    **strong.DECODERS,
    **cp_async.DECODERS,
    **st_async.DECODERS,
    **register_pool.DECODERS,
}
ALIGNED = matrix_move.ALIGNED | register_pool.ALIGNED
