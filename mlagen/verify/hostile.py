"""Offsets, lengths and page ids that no caller should give.

A kernel reads them on the device, where nobody checks them: they may give wrong rows, but no access outside of a tensor
and no hang. What they mean is in `sequences.py`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.plan.key_maps import page_size_of
from mlagen.plan.mask import takes_valid_lengths
from mlagen.verify.arrays import NumpyBackend
from mlagen.verify.sequences import sequences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.spec.model import KernelSpec

    Array = NDArray[Any]  # Any: bfloat16, float16, float32 and int32

_LEAST, _MOST = -(2**31), 2**31 - 1

# Below the tensor; back into the sequence before, so that the next one overlaps it; past the tensor's end. Together
# the sequences have every row of a tensor of 90 rows or more.
_QUERY_OFFSETS = (-7, 40, 25, 90, 60, 30, _MOST)
_LONGEST = 90  # the last of them, in the tensor of 180 rows that the problem has
_KEY_OFFSETS = (-5, 130, 100, 330, 200, 390, _MOST)
# More than the sequence has room for, alone and with the call's own queries; negative ones.
_CACHED = (100, -1, _MOST, _LEAST, 3, 1)
# More than there are keys; negative ones.
_VALID = (_MOST, 45, -1, 20, _LEAST, 71)
HOSTILE_SEQUENCES = len(_CACHED)


def can_be_hostile(spec: KernelSpec) -> bool:
    """Whether a kernel reads anything on the device that could be, and takes sequences as long as they become then."""
    if spec.q_layout == "ragged" and spec.max_seqlen != "dynamic" and spec.max_seqlen < _LONGEST:
        return False
    return (
        spec.q_layout == "ragged"
        or spec.kv.layout == "ragged"
        or spec.kv.seqlens
        or page_size_of(spec) is not None
        or takes_valid_lengths(spec.mask)
    )


def with_hostile_values(spec: KernelSpec, tensors: dict[str, Array]) -> dict[str, Array]:
    """A call of HOSTILE_SEQUENCES sequences with other offsets, lengths and pages, wherever it has them.

    Rows may belong to any sequence now, so that none is NaN any more.
    """
    for tensor in tensors.values():
        if tensor.dtype.kind not in "iu":
            tensor[np.isnan(tensor)] = 0
    spoiled = with_offsets(
        tensors,
        cu_seqlens_q=_QUERY_OFFSETS,
        cu_seqlens_k=_KEY_OFFSETS,
        cache_seqlens=_CACHED,
        valid_lengths=_VALID,
    )
    if "block_table" in tensors:
        spoiled["block_table"] = _block_table(spec, spoiled)
    return spoiled


def with_offsets(tensors: dict[str, Array], **values: tuple[int, ...]) -> dict[str, Array]:
    """The call with other numbers in those of its int32 tensors that it has."""
    return tensors | {
        name: np.array(numbers, dtype=np.int32)
        for name, numbers in values.items()
        if name in tensors
    }


def _block_table(spec: KernelSpec, tensors: dict[str, Array]) -> Array:
    """A table of pages every other of which does not exist, and with too few of them, unless the host can see that."""
    num_pages, page_size = tensors["v" if spec.kv.layout == "paged" else "k_rope"].shape[:2]
    longest = max(one.num_keys for one in sequences(spec, tensors, NumpyBackend()))
    is_known = spec.kv.layout == "dense" and not spec.kv.seqlens
    width = max(1, -(-longest // page_size) - (0 if is_known else 1))
    table: Array = np.arange(HOSTILE_SEQUENCES * width, dtype=np.int32) % num_pages
    wrong = itertools.cycle((-1, _MOST, num_pages, _LEAST))
    table[::2] = list(itertools.islice(wrong, len(table[::2])))
    return table.reshape(HOSTILE_SEQUENCES, width)
