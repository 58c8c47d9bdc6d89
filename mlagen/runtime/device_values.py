"""`validate=True`: read lengths and page ids from the device and check them.

This synchronises; `run` never does it unasked.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import InputError
from mlagen.plan.key_maps import page_size_of
from mlagen.verify.arrays import backend_of

if TYPE_CHECKING:
    from mlagen.runtime.arguments import Call
    from mlagen.runtime.inputs import Extents
    from mlagen.spec.model import KernelSpec


def check_device_values(spec: KernelSpec, call: Call, extents: Extents) -> None:
    """Check every length, offset and page id of a call; the tensors' shapes have been checked.

    Raises:
        InputError: Offsets that decrease or leave the tensor, lengths over what the tensors or
            `max_seqlen` allow, or page ids outside the cache; names the tensor, the place and the
            value.
    """
    values = _Values(call)
    if spec.q_layout == "ragged":
        queries = values.offsets("cu_seqlens_q", extents.rows_q)
        _check_longest(
            values.name("cu_seqlens_q"), queries, call.options.max_seqlen_q, "max_seqlen_q"
        )
        if isinstance(spec.max_seqlen, int):
            _check_longest(
                values.name("cu_seqlens_q"), queries, spec.max_seqlen, "the kernel's max_seqlen"
            )
    else:
        queries = [extents.seqlen_q] * extents.batch
    if spec.kv.layout in ("dense", "paged"):
        keys = [extents.seqlen_k] * extents.batch
    elif spec.kv.row_offsets:
        keys = values.offsets("cu_seqlens_k", extents.rows_k)
    else:
        keys = queries
    if "cache_seqlens" in call.tensors:
        added = queries if spec.kv_length_counts == "prefix" else [0] * extents.batch
        keys = values.counts("cache_seqlens", added, keys)
    if "valid_lengths" in call.tensors:
        values.valid_lengths(keys)
    _check_longest("keys", keys, call.options.max_seqlen_k, "max_seqlen_k")
    if "bias" in call.tensors:
        values.bias(queries, keys)
    page_size = page_size_of(spec)
    if page_size is not None:
        cache = call.tensors["v" if spec.kv.layout == "paged" else "k_rope"]
        values.pages(keys, page_size, int(cache.shape[0]))


def _check_longest(name: str, lengths: list[int], limit: int | None, limit_name: str) -> None:
    if limit is not None and lengths and max(lengths) > limit:
        index = lengths.index(max(lengths))
        message = (
            f"{name}: sequence {index} has {lengths[index]} rows, more than {limit_name}={limit}"
        )
        raise InputError(f"{message}\n  pass the longest length")


@dataclass(frozen=True, slots=True)
class _Values:
    call: Call

    def name(self, name: str) -> str:
        return self.call.written.get(name, name)

    def _read(self, name: str) -> list[int]:
        tensor: Any = self.call.tensors[name]
        return backend_of(tensor).integers(tensor)

    def offsets(self, name: str, rows: int) -> list[int]:
        """The lengths that offsets mean."""
        offsets = self._read(name)
        if offsets[0] != 0:
            raise InputError(
                f"{self.name(name)}: starts with {offsets[0]}, not 0\n  the first sequence starts at row 0"
            )
        lengths = [after - before for before, after in itertools.pairwise(offsets)]
        for index, length in enumerate(lengths):
            if length < 0:
                message = f"{self.name(name)}: decreases from {offsets[index]} to {offsets[index + 1]} at {index + 1}"
                raise InputError(f"{message}\n  pass running totals of the lengths")
        if offsets[-1] > rows:
            message = f"{self.name(name)}: ends at {offsets[-1]}, but the tensor has {rows} rows"
            raise InputError(f"{message}\n  the last offset is the total length")
        return lengths

    def counts(self, name: str, added: list[int], room: list[int]) -> list[int]:
        """The numbers of keys that `cache_seqlens` means."""
        keys = []
        for index, (count, more, rows) in enumerate(
            zip(self._read(name), added, room, strict=True)
        ):
            if not 0 <= count + more <= rows or count < 0:
                has = f"sequence {index} has {count} + {more} keys"
                message = f"{self.name(name)}: {has}, but the tensor has room for {rows}"
                raise InputError(f"{message}\n  lengths lie between 0 and the rows of k and v")
            keys.append(count + more)
        return keys

    def valid_lengths(self, keys: list[int]) -> None:
        """That no sequence has more valid keys than keys."""
        for index, (valid, rows) in enumerate(zip(self._read("valid_lengths"), keys, strict=True)):
            if not 0 <= valid <= rows:
                message = (
                    f"{self.name('valid_lengths')}: sequence {index} has {valid}, but {rows} keys"
                )
                raise InputError(f"{message}\n  valid lengths lie between 0 and the keys")

    def bias(self, queries: list[int], keys: list[int]) -> None:
        """That the bias has a number for each query and key."""
        rows, columns = (int(size) for size in self.call.tensors["bias"].shape[-2:])
        for what, lengths, size in (("queries", queries, rows), ("keys", keys, columns)):
            is_shared = what == "queries" and size == 1
            for index, length in enumerate(lengths):
                if length > size and not is_shared:
                    message = f"{self.name('bias')}: sequence {index} has {length} {what}, but the tensor {size}"
                    raise InputError(f"{message}\n  pass a bias of the longest sequence's size")

    def pages(self, keys: list[int], page_size: int, pages: int) -> None:
        """That every page in use exists; entries past a sequence's last page may hold anything."""
        table: Any = self.call.tensors["block_table"]
        width = int(table.shape[1])
        for index, length in enumerate(keys):
            used = -(-length // page_size)
            name = self.name("block_table")
            if used > width:
                message = f"{name}: sequence {index} has {length} keys, {used} pages, but the table is {width} wide"
                raise InputError(f"{message}\n  pass a wider table")
            for column, page in enumerate(backend_of(table).integers(table[index, :used])):
                if not 0 <= page < pages:
                    message = f"{name}: entry [{index}, {column}] is page {page}, but the cache has {pages} pages"
                    raise InputError(f"{message}\n  pass ids from 0 to {pages - 1}")
