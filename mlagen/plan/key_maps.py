"""How keys and values are addressed: the tensor maps of K, its rope part and V, the same on every architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.dtypes import DTYPES
from mlagen.plan.mask import is_padded_throughout, key_ranges
from mlagen.plan.plan import TensorMapPlan

if TYPE_CHECKING:
    from mlagen.plan.plan import Addressing
    from mlagen.spec.model import KernelSpec

PAGED_ADDRESSINGS: frozenset[Addressing] = frozenset({"paged", "paged_clipped"})

_K_ADDRESSING: dict[str, Addressing] = {"ragged": "packed", "dense": "batched", "paged": "paged"}
# V rows past a sequence's last key, or valid key, meet probabilities of 0, but 0 * NaN is NaN: TMA must not bring them.
_V_ADDRESSING: dict[str, Addressing] = {
    "ragged": "clipped",
    "dense": "clipped",
    "paged": "paged_clipped",
}


def page_size_of(spec: KernelSpec) -> int | None:
    """Keys of a page of what the block table finds: K and V, the rope part, or all of them. None if there is none."""
    return spec.kv.page_size if spec.kv.layout == "paged" else spec.k_rope.page_size


def page_box_rows(page_size: int, keys: int) -> int:
    """Rows of a box: a whole page where a load of so many keys takes several, else the load's part of a page."""
    return min(page_size, keys)


def page_problems(spec: KernelSpec, tile_n: int) -> list[str]:
    """Why boxes of pages do not make up a key tile, one line each."""
    page_size = page_size_of(spec)
    if page_size is None or not (tile_n % page_size and page_size % tile_n):
        return []
    return [f"tile_n {tile_n} and page_size {page_size}: neither divides the other"]


def key_tensor_maps(
    spec: KernelSpec, *, tile_n: int, panel_columns: int, cta_group: int = 1
) -> tuple[TensorMapPlan, ...]:
    """The maps that load `tile_n` keys, in the order of the kernel's parameters.

    Of a pair of CTAs, each loads half the rows of K, and of V half the columns of all rows.
    """
    page_size = page_size_of(spec)

    def tensor_map(name: str, addressing: Addressing) -> TensorMapPlan:
        rows = tile_n if name == "v" else tile_n // cta_group
        if addressing in PAGED_ADDRESSINGS:
            assert page_size is not None
            rows = page_box_rows(page_size, rows)
        return TensorMapPlan(name, name, addressing, rows, panel_columns, DTYPES[spec.dtype])

    maps = [tensor_map("k", _K_ADDRESSING[spec.kv.layout])]
    if spec.k_rope.layout != "fused":
        maps.append(tensor_map("k_rope", _K_ADDRESSING[spec.k_rope.layout]))
    ranges = key_ranges(spec.mask)
    assert ranges is not None
    ends_with_tensor = (
        spec.kv.layout == "dense" and not spec.kv.seqlens and not is_padded_throughout(ranges)
    )
    maps.append(tensor_map("v", "batched" if ends_with_tensor else _V_ADDRESSING[spec.kv.layout]))
    return tuple(maps)
