"""Attention of torch, flash-attn-4 and FlashInfer, to time beside ours on the same tensors.

A peer takes a row's packed tensors `[total, heads, dim]` and gives a function that enqueues one
call and returns `[total_q, heads, v]`, or refuses the row with its reason. Only torch must be installed: the row of a
peer that cannot be imported is refused.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.rows import Row

    InputSet = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    Call = Callable[[int], torch.Tensor]


FLASHINFER_WORKSPACE_BYTES = 512 << 20


class RefusedRowError(Exception):
    """A peer has no way to compute a row; `str()` says why."""


class Peer(Protocol):
    """One implementation of attention."""

    def prepare(self, row: Row, sets: Sequence[InputSet], scale: float) -> Call:
        """Do all that need not be timed; the function returned enqueues input set `i`.

        Raises:
            RefusedRowError: It cannot compute this row.
        """

    def packed(self, row: Row, out: torch.Tensor) -> torch.Tensor:
        """What a call returned as `[total_q, heads, v]`."""


class CudnnAttention:
    """`scaled_dot_product_attention` with torch's cuDNN backend; ragged through nested tensors."""

    def prepare(self, row: Row, sets: Sequence[InputSet], scale: float) -> Call:
        """See `Peer`."""
        mask = None
        if row.is_uniform:
            arguments = [tuple(by_head(row, x) for x in operands) for operands in sets]
            if row.is_causal and row.q_lens != row.kv_lens:
                # It brings all of torch's compiler along.
                from torch.nn.attention.bias import causal_lower_right

                # torch expands this to a dense mask: slow, but what a user of torch gets
                mask = causal_lower_right(row.q_lens[0], row.kv_lens[0])
        elif row.q_lens == row.kv_lens:
            arguments = [tuple(nested(row, x) for x in operands) for operands in sets]
        else:
            raise RefusedRowError("ragged with more keys than queries")
        causal = row.is_causal and mask is None

        def call(i: int) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                q, k, v = arguments[i]
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=causal, scale=scale
                )

        return call

    def packed(self, row: Row, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        if out.is_nested:
            return out.transpose(1, 2).values()
        return out.transpose(1, 2).reshape(sum(row.q_lens), row.heads, -1)


class FlexAttention:
    """`torch.compile(flex_attention)` with a block mask, which is made outside the timing."""

    def __init__(self) -> None:
        """Compile nothing yet."""
        self._compiled: Callable[..., torch.Tensor] | None = None

    def prepare(self, row: Row, sets: Sequence[InputSet], scale: float) -> Call:
        """See `Peer`."""
        if not row.is_uniform:
            raise RefusedRowError("timed on dense batches only")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        compiled = self._compiled or torch.compile(flex_attention)
        self._compiled = compiled
        arguments = [tuple(by_head(row, x) for x in operands) for operands in sets]
        seqlen_q, seqlen_k = row.q_lens[0], row.kv_lens[0]
        block_mask = None
        if row.is_causal:
            block_mask = create_block_mask(
                lambda _batch, _head, q, k: q + (seqlen_k - seqlen_q) >= k,
                None,
                None,
                seqlen_q,
                seqlen_k,
                device=sets[0][0].device,
            )
        return lambda i: compiled(*arguments[i], block_mask=block_mask, scale=scale)

    def packed(self, row: Row, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        return out.transpose(1, 2).reshape(sum(row.q_lens), row.heads, -1)


class FlashAttention4:
    """flash-attn-4, the kernels of `flash_attn.cute`."""

    def prepare(self, row: Row, sets: Sequence[InputSet], scale: float) -> Call:
        """See `Peer`."""
        library = imported("flash_attn.cute", "flash-attn-4")
        options: dict[str, Any] = {"softmax_scale": scale, "causal": row.is_causal}
        if row.is_uniform:
            attend = library.flash_attn_func
            arguments = [
                tuple(x.unflatten(0, (len(row.q_lens), -1)) for x in operands) for operands in sets
            ]
        else:
            attend, arguments = library.flash_attn_varlen_func, list(sets)
            device = sets[0][0].device
            options |= {
                "cu_seqlens_q": offsets(row.q_lens, device),
                "cu_seqlens_k": offsets(row.kv_lens, device),
                "max_seqlen_q": max(row.q_lens),
                "max_seqlen_k": max(row.kv_lens),
            }

        def call(i: int) -> torch.Tensor:
            result = attend(*arguments[i], **options)
            return result[0] if isinstance(result, tuple) else result  # some versions add the LSE

        return call

    def packed(self, row: Row, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        return out.reshape(sum(row.q_lens), row.heads, -1)


class FlashInfer:
    """FlashInfer's ragged prefill with the backend that it chooses; `plan` stays outside the timing."""

    def prepare(self, row: Row, sets: Sequence[InputSet], scale: float) -> Call:
        """See `Peer`."""
        library = imported("flashinfer", "flashinfer-python")
        q, _, v = sets[0]
        workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            offsets(row.q_lens, q.device),
            offsets(row.kv_lens, q.device),
            row.heads,
            row.heads,
            q.shape[-1],
            head_dim_vo=v.shape[-1],
            causal=row.is_causal,
            sm_scale=scale,
            q_data_type=q.dtype,
            kv_data_type=q.dtype,
        )
        return lambda i: wrapper.run(*sets[i])

    def packed(self, row: Row, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        del row
        return out


def imported(module: str, distribution: str) -> Any:  # Any: libraries that need not be installed
    """A peer's module.

    Raises:
        RefusedRowError: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RefusedRowError(f"{distribution}: {error}") from error


def offsets(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Running totals of lengths, from 0, int32."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def by_head(row: Row, packed: torch.Tensor) -> torch.Tensor:
    """Packed rows of a dense batch as `[batch, heads, length, dim]`, a view."""
    return packed.unflatten(0, (len(row.q_lens), -1)).transpose(1, 2)


def nested(row: Row, packed: torch.Tensor) -> torch.Tensor:
    """Packed rows as a jagged nested tensor `[batch, heads, *, dim]`."""
    offsets = torch.tensor([0, *row.q_lens], device=packed.device).cumsum(0)
    jagged = torch.nested.nested_tensor_from_jagged(
        packed, offsets, min_seqlen=min(row.q_lens), max_seqlen=max(row.q_lens)
    )
    return jagged.transpose(1, 2)


PEERS: dict[str, Peer] = {
    "torch_cudnn": CudnnAttention(),
    "flex": FlexAttention(),
    "fa4": FlashAttention4(),
    "flashinfer": FlashInfer(),
}
