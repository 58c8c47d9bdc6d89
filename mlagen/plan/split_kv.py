"""Split-KV: what a kernel has besides where several CTAs share out the keys of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.spec.partition import SplitKV

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec

STORES_BYTES = 4  # a flag: whether a half's output is to be stored
# Threads that hold the state of a tile, each an equal share: two math warpgroups, or the correction warpgroup twice.
STATE_THREADS = 2 * 128
MOST_SPLITS = 128


def splits_keys(spec: KernelSpec) -> bool:
    """Whether several CTAs share the keys of a tile."""
    return isinstance(spec.partition, SplitKV)


def fixed_splits(spec: KernelSpec) -> int | None:
    """Most parts of a tile, if the spec says; None if each call chooses."""
    partition = spec.partition
    if isinstance(partition, SplitKV) and isinstance(partition.splits, int):
        return partition.splits
    return None


def state_elements(spec: KernelSpec, *, outputs: int, rows: int) -> int:
    """fp32 numbers of a thread's share of a part's state: outputs, a maximum and a sum a row; 0 without parts."""
    return outputs + 2 * rows if splits_keys(spec) else 0
