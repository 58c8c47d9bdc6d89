"""Inputs for any prefill kernel: logical operands, drawn once, and the tensors that a spec wants.

`Operands` are what attention means: one row a token, packed by sequence. `lay_out` puts them where
a kernel's spec says that it looks, and fills everything that no kernel may use (columns before the
rope, rows past a sequence's end, slots past a page table's last key, spare pages) with `filler`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlagen.spec.model import KernelSpec

Tensor: TypeAlias = torch.Tensor
Device: TypeAlias = torch.device | str

# A page id that no cache has: entries past a sequence's last page are never used.
UNUSED_PAGE = 1 << 30


@dataclass(frozen=True, slots=True)
class Batch:
    """Lengths of one call: sequence `i` has `q_lens[i]` queries on `kv_lens[i]` keys."""

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: int = 4

    @property
    def size(self) -> int:
        """Number of sequences."""
        return len(self.q_lens)

    def __str__(self) -> str:
        return f"q {self.q_lens} kv {self.kv_lens} heads {self.heads}"


@dataclass(frozen=True, slots=True)
class Operands:
    """What one call computes with, packed by sequence.

    Attributes:
        q: `[total_q, H, qk_head_dim]`.
        k_nope: `[total_k, H, qk_nope_head_dim]`.
        k_rope: `[total_k, rope heads, qk_rope_head_dim]`.
        v: `[total_k, H, v_head_dim]`.
        sinks: fp32 `[H]`.
        alibi_slopes: fp32 `[H]`.
    """

    q: Tensor
    k_nope: Tensor
    k_rope: Tensor
    v: Tensor
    sinks: Tensor
    alibi_slopes: Tensor


def rope_heads(spec: KernelSpec, batch: Batch) -> int:
    """Heads with rope columns of their own: cache heads, which query heads share, or those of a fused key."""
    return spec.k_rope.num_heads if spec.k_rope.layout != "fused" else batch.heads


def draw_operands(
    spec: KernelSpec, batch: Batch, *, seed: int, device: Device = "cuda"
) -> Operands:
    """N(0, 1) operands in the spec's dtype; equal seeds give equal values on one kind of device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    geometry, dtype = spec.geometry, getattr(torch, spec.dtype)

    def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    total_q, total_k = sum(batch.q_lens), sum(batch.kv_lens)
    return Operands(
        q=normal(total_q, batch.heads, geometry.qk_head_dim),
        k_nope=normal(total_k, batch.heads, geometry.qk_nope_head_dim),
        k_rope=normal(total_k, rope_heads(spec, batch), geometry.qk_rope_head_dim),
        v=normal(total_k, batch.heads, geometry.v_head_dim),
        sinks=normal(batch.heads, dtype=torch.float32),
        alibi_slopes=0.3 * normal(batch.heads, dtype=torch.float32).abs(),
    )


def fit_batch(spec: KernelSpec, batch: Batch) -> Batch:
    """`batch` with the lengths that the spec cannot express replaced by the nearest that it can."""
    q_lens, kv_lens = batch.q_lens, batch.kv_lens
    if spec.q_layout == "dense":
        q_lens = (max(q_lens),) * len(q_lens)
    if spec.kv.layout == "ragged" and not spec.kv.row_offsets:
        kv_lens = q_lens
    elif spec.kv.layout == "dense" and not spec.kv.seqlens:
        kv_lens = (max(kv_lens),) * len(kv_lens)
    if spec.kv_length_counts == "prefix":  # this call's own keys come on top
        kv_lens = tuple(q + kv for q, kv in zip(q_lens, kv_lens, strict=True))
    return replace(batch, q_lens=q_lens, kv_lens=kv_lens)


def offsets(lengths: Iterable[int], device: Device) -> Tensor:
    """`cu_seqlens` of the lengths, int32."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def lay_out(
    spec: KernelSpec,
    batch: Batch,
    operands: Operands,
    *,
    filler: float = float("nan"),
    strided: bool = False,
    padding: int = 0,
) -> dict[str, Tensor]:
    """The tensors under the names that `run` takes.

    Args:
        spec: Says which tensors there are and how they lie.
        batch: Lengths, as `fit_batch` returns them.
        operands: Values.
        filler: What stands in every element that no kernel may use.
        strided: Make every tensor a view into a larger one, with strides of its own.
        padding: Rows of filler behind the last sequence of ragged tensors, dense batches' keys
            and caches.
    """
    layout = _Layout(spec, batch, operands.q.device, filler, strided, padding)
    tensors = {**layout.queries(operands), **layout.keys(operands), **layout.lengths()}
    if spec.sink:
        tensors["sinks"] = operands.sinks
    if spec.score_mod.kind == "alibi" and spec.score_mod.slopes == "tensor":
        tensors["alibi_slopes"] = operands.alibi_slopes
    return tensors


@dataclass(frozen=True, slots=True)
class _Layout:
    spec: KernelSpec
    batch: Batch
    device: Device
    filler: float
    strided: bool
    padding: int

    def queries(self, operands: Operands) -> dict[str, Tensor]:
        q = operands.q
        if self.spec.q_layout == "dense":
            q = q.unflatten(0, (self.batch.size, -1))
        elif self.padding:
            q = self._spread(q, self.batch.q_lens, self.batch.q_lens)
        q = self._view(q)
        if self.spec.q_form == "fused":
            return {"q": q}
        nope = self.spec.geometry.qk_nope_head_dim
        parts = {"q_nope": q[..., :nope], "q_pe": q[..., nope:]}
        return parts if self.strided else {name: x.contiguous() for name, x in parts.items()}

    def keys(self, operands: Operands) -> dict[str, Tensor]:
        rope_layout, k, v = self.spec.k_rope.layout, operands.k_nope, operands.v
        if rope_layout == "fused":
            k = torch.cat((k, operands.k_rope), dim=-1)
        if self.strided:  # k and v are slices of one tensor, as models project them
            both = self._view(self._place(torch.cat((k, v), dim=-1), self.spec.kv.layout))
            tensors = {"k": both[..., : k.shape[-1]], "v": both[..., k.shape[-1] :]}
        else:
            tensors = {
                name: self._place(x, self.spec.kv.layout) for name, x in (("k", k), ("v", v))
            }
        if rope_layout == "paged":
            return tensors | self._pages(self._rows(operands.k_rope))
        if rope_layout != "fused":
            rows = self._view(self._place(self._rows(operands.k_rope), rope_layout))
            tensors["k_rope"] = rows if self.spec.k_rope.num_heads > 1 else rows.squeeze(-2)
        return tensors

    def lengths(self) -> dict[str, Tensor]:
        spec, batch = self.spec, self.batch
        tensors = {}
        if spec.q_layout == "ragged":
            tensors["cu_seqlens_q"] = offsets(batch.q_lens, self.device)
        if spec.kv.layout == "ragged" and spec.kv.row_offsets:
            tensors["cu_seqlens_k"] = offsets(self._capacities(), self.device)
        if spec.kv.seqlens or spec.kv_length_counts == "prefix":
            own = batch.q_lens if spec.kv_length_counts == "prefix" else (0,) * batch.size
            counts = [kv - q for kv, q in zip(batch.kv_lens, own, strict=True)]
            tensors["cache_seqlens"] = torch.tensor(counts, dtype=torch.int32, device=self.device)
        return tensors

    @property
    def _lengths_stand_beside(self) -> bool:
        """Whether a dense tensor of keys may have more rows than a sequence has keys."""
        return self.spec.kv.layout == "ragged" or self.spec.kv.seqlens

    def _capacities(self) -> tuple[int, ...]:
        """Rows between two entries of `cu_seqlens_k`: more than keys where lengths stand beside."""
        if self.spec.kv_length_counts == "total":
            return self.batch.kv_lens
        return tuple(n + 3 * (i % 3) for i, n in enumerate(self.batch.kv_lens))

    def _place(self, rows: Tensor, layout: str) -> Tensor:
        """Rows of keys, packed by sequence, in a ragged or dense tensor."""
        lengths = self.batch.kv_lens
        if layout == "ragged":
            return self._spread(rows, lengths, self._capacities())
        capacity = max(lengths, default=0)
        capacity += self.padding if self._lengths_stand_beside else 0
        parts = [self._filled(capacity, *rows.shape[1:], like=rows) for _ in lengths]
        for part, sequence in zip(parts, rows.split(list(lengths)), strict=True):
            part[: len(sequence)] = sequence
        return torch.stack(parts)

    def _spread(self, rows: Tensor, lengths: Sequence[int], capacities: Sequence[int]) -> Tensor:
        """Packed rows, each sequence moved to the start of its own capacity."""
        out = self._filled(sum(capacities) + self.padding, *rows.shape[1:], like=rows)
        at = 0
        for sequence, capacity in zip(rows.split(list(lengths)), capacities, strict=True):
            out[at : at + len(sequence)] = sequence
            at += capacity
        return out

    def _rows(self, rope: Tensor) -> Tensor:
        """Rope rows at the end of rows as wide as the spec says."""
        width = self.spec.k_rope.row_width
        assert width is not None
        rows = self._filled(*rope.shape[:-1], width, like=rope)
        rows[..., width - rope.shape[-1] :] = rope
        return rows

    def _pages(self, rows: Tensor) -> dict[str, Tensor]:
        """A cache with its pages in random order, and the table that finds them."""
        size = self.spec.k_rope.page_size
        assert size is not None
        counts = [-(-n // size) for n in self.batch.kv_lens]
        spare = 2 if self.padding else 0
        shuffled = torch.Generator().manual_seed(sum(counts))
        order = torch.randperm(sum(counts) + spare, generator=shuffled).to(self.device)
        cache = self._filled(sum(counts) + spare, size, *rows.shape[1:], like=rows)
        table = torch.full(
            (self.batch.size, max(counts, default=0)),
            UNUSED_PAGE,
            dtype=torch.int32,
            device=self.device,
        )
        at = 0
        for i, sequence in enumerate(rows.split(list(self.batch.kv_lens))):
            ids = order[at : at + counts[i]]
            pages = self._filled(counts[i] * size, *rows.shape[1:], like=rows)
            pages[: len(sequence)] = sequence
            cache[ids] = pages.unflatten(0, (counts[i], size))
            table[i, : counts[i]] = ids
            at += counts[i]
        cache = self._view(cache)
        return {
            "k_rope": cache if self.spec.k_rope.num_heads > 1 else cache.squeeze(-2),
            "block_table": self._view(table, filler=UNUSED_PAGE),
        }

    def _filled(self, *shape: int, like: Tensor) -> Tensor:
        return like.new_full(shape, self.filler)

    def _view(self, values: Tensor, *, filler: float | None = None) -> Tensor:
        """`values`, or with `strided` a copy inside a larger tensor, whose strides are its own."""
        if not self.strided:
            return values
        # 8 columns are 16 bytes, the least step of a tensor map's strides. No rows are added behind a sequence: batch
        # and rows are one dimension of some maps, so that the batch stride must be a whole number of rows.
        added = {values.dim() - 1: 8, values.dim() - 2: 1}
        shape = [n + added.get(d, 0) for d, n in enumerate(values.shape)]
        larger = values.new_full(shape, self.filler if filler is None else filler)
        inside = larger[tuple(slice(n) for n in values.shape)]
        inside.copy_(values)
        return inside
