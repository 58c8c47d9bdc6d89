"""`tcgen05.mma`: one thread starts a product of matrices in shared and tensor memory (PTX ISA 9.7.16.10.9).

Everything is checked, and its order recorded, when it is issued; the data moves when it completes, in the order of
issue within a CTA or pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.errors import UnsupportedPtxError
from mlagen.sim.hardware import AsyncOperation
from mlagen.sim.ptx import Address, Immediate, Vector
from mlagen.sim.tcgen05_descriptor import (
    BYTES_OF_TYPE,
    K_OF_KIND,
    InstructionDescriptor,
    MmaForm,
    decode_instruction_descriptor,
    stricter_shape_problem,
)
from mlagen.sim.tcgen05_form import GROUPS, check_one_lane, cta_group_of, site_of
from mlagen.sim.tcgen05_layout import Block, accumulator_blocks
from mlagen.sim.tcgen05_state import own_accesses, pair_of, queue_of, record
from mlagen.sim.tensor_memory import lane_groups, shadow_cells, split_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mlagen.sim.hardware import Binder, Cta, Decoder, Handler, Path, Reader
    from mlagen.sim.ptx import Instruction, Operand
    from mlagen.sim.report import Site
    from mlagen.sim.tcgen05_state import ThreadOperations

_KINDS = frozenset(f"kind::{kind}" for kind in K_OF_KIND)
# The collector buffers only save reads of an operand that does not change (9.7.16.10): no effect on values or order.
_COLLECTORS = frozenset(
    f"collector::{buffer}::{use}"
    for buffer in ("a", "b0", "b1", "b2", "b3")
    for use in ("fill", "use", "lastuse", "discard")
)
_MOST_SCALE = 15
_SHARED_OPERAND_REACH = 1 << 18
