"""All modules and cases of all families."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tests.hardware import (
    alu,
    barriers,
    bulk_copies,
    clusters,
    memory_access,
    programs,
    tensor_copies,
    warps,
    wgmma,
    wgmma_precision,
)

if TYPE_CHECKING:
    from tests.hardware.case import Case

ALU_ELEMENTS = 512  # of a replay; a GPU is asked for more
_FAMILIES = (
    alu,
    wgmma,
    tensor_copies,
    bulk_copies,
    warps,
    memory_access,
    barriers,
    clusters,
    programs,
)


@functools.cache
def module_texts() -> dict[str, str]:
    """CUDA text of every module."""
    texts: dict[str, str] = {}
    for family in _FAMILIES:
        texts.update(family.modules())
    return texts


def all_cases(
    alu_elements: int = ALU_ELEMENTS, approximate_elements: int = ALU_ELEMENTS
) -> list[Case]:
    """Every launch, in an order in which those that may hang or fault come last."""
    found = [
        *alu.cases(alu_elements, approximate_elements),
        *wgmma_precision.cases(),
        *wgmma.layout_cases(),
        *warps.cases(),
        *memory_access.cases(),
        *programs.cases(),
        *bulk_copies.cases(),
        *tensor_copies.cases(),
        *barriers.cases(),
        *clusters.cases(),
        *tensor_copies.faults(),
    ]
    assert len({case.name for case in found}) == len(found), "names of cases are unique"
    return found
