"""Attention of torch, flash-attn-4 and FlashInfer, to time beside ours on the same tensors.

A peer takes packed tensors `[total, heads, dim]` of a shape and gives a function that enqueues one call, or refuses the
shape with its reason. Only torch must be installed: a peer that cannot be imported refuses everything.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mlagen.bench.installed import PEER_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlagen.bench.rows import Shape

    InputSet = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    Call = Callable[[int], torch.Tensor]


FLASHINFER_WORKSPACE_BYTES = 512 << 20


class RefusedShapeError(Exception):
    """A peer has no way to compute a shape; `str()` says why."""


class Peer(Protocol):
    """One implementation of attention."""

    def prepare(
        self, shape: Shape, sets: Sequence[InputSet], *, causal: bool, scale: float
    ) -> Call:
        """Do all that need not be timed; the function returned enqueues input set `i`.

        Args:
            shape: Sizes of the call.
            sets: Q, K and V, each packed by sequence.
            causal: Whether the mask is causal, the last query at the last key; else every key is seen.
            scale: Of the scores.

        Raises:
            RefusedShapeError: It cannot compute this.
        """

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        """What a call returned as `[total_q, heads, v]`."""


class CudnnAttention:
    """`scaled_dot_product_attention` with torch's cuDNN backend; ragged through nested tensors."""

    def prepare(
        self, shape: Shape, sets: Sequence[InputSet], *, causal: bool, scale: float
    ) -> Call:
        """See `Peer`."""
        mask = None
        if shape.is_uniform:
            arguments = [tuple(by_head(shape, x) for x in operands) for operands in sets]
            if causal and shape.queries != shape.keys:
                # It brings all of torch's compiler along.
                from torch.nn.attention.bias import causal_lower_right

                # torch expands this to a dense mask: slow, but what a user of torch gets
                mask = causal_lower_right(shape.queries[0], shape.keys[0])
        elif shape.queries == shape.keys:
            arguments = [tuple(nested(shape, x) for x in operands) for operands in sets]
        else:
            raise RefusedShapeError("ragged with more keys than queries")
        is_causal = causal and mask is None

        def call(i: int) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                q, k, v = arguments[i]
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale
                )

        return call

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        if out.is_nested:
            return out.transpose(1, 2).values()
        return out.transpose(1, 2).reshape(sum(shape.queries), shape.heads, -1)


class FlexAttention:
    """`torch.compile(flex_attention)` with a block mask, made and compiled outside the timing, for each shape anew."""

    def prepare(
        self, shape: Shape, sets: Sequence[InputSet], *, causal: bool, scale: float
    ) -> Call:
        """See `Peer`."""
        if not shape.is_uniform:
            raise RefusedShapeError("timed on dense batches only")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # Of many shapes, torch would make one kernel for all sizes, and in the end none.
        torch.compiler.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        arguments = [tuple(by_head(shape, x) for x in operands) for operands in sets]
        seqlen_q, seqlen_k = shape.queries[0], shape.keys[0]
        block_mask = None
        if causal:
            block_mask = create_block_mask(
                lambda _batch, _head, q, k: q + (seqlen_k - seqlen_q) >= k,
                None,
                None,
                seqlen_q,
                seqlen_k,
                device=sets[0][0].device,
            )
        return lambda i: compiled(*arguments[i], block_mask=block_mask, scale=scale)

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        return out.transpose(1, 2).reshape(sum(shape.queries), shape.heads, -1)


class FlashAttention4:
    """flash-attn-4, the kernels of `flash_attn.cute`."""

    def prepare(
        self, shape: Shape, sets: Sequence[InputSet], *, causal: bool, scale: float
    ) -> Call:
        """See `Peer`."""
        library = imported("fa4")
        options: dict[str, Any] = {"softmax_scale": scale, "causal": causal}
        if shape.is_uniform:
            attend = library.flash_attn_func
            arguments = [
                tuple(x.unflatten(0, (len(shape.queries), -1)) for x in operands)
                for operands in sets
            ]
        else:
            attend, arguments = library.flash_attn_varlen_func, list(sets)
            device = sets[0][0].device
            options |= {
                "cu_seqlens_q": offsets(shape.queries, device),
                "cu_seqlens_k": offsets(shape.keys, device),
                "max_seqlen_q": max(shape.queries),
                "max_seqlen_k": max(shape.keys),
            }

        def call(i: int) -> torch.Tensor:
            result = attend(*arguments[i], **options)
            return result[0] if isinstance(result, tuple) else result  # some versions add the LSE

        return call

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        return out.reshape(sum(shape.queries), shape.heads, -1)


class FlashInfer:
    """FlashInfer's ragged prefill with the backend that it chooses; `plan` stays outside the timing."""

    def prepare(
        self, shape: Shape, sets: Sequence[InputSet], *, causal: bool, scale: float
    ) -> Call:
        """See `Peer`."""
        library = imported("flashinfer")
        q, _, v = sets[0]
        workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            offsets(shape.queries, q.device),
            offsets(shape.keys, q.device),
            shape.heads,
            shape.heads,
            q.shape[-1],
            head_dim_vo=v.shape[-1],
            causal=causal,
            sm_scale=scale,
            q_data_type=q.dtype,
            kv_data_type=q.dtype,
        )
        return lambda i: wrapper.run(*sets[i])

    def packed(self, shape: Shape, out: torch.Tensor) -> torch.Tensor:
        """See `Peer`."""
        del shape
        return out


def imported(name: str) -> Any:  # Any: libraries that need not be installed
    """A peer's module.

    Raises:
        RefusedShapeError: It cannot be imported.
    """
    peer = PEER_NAMES[name]
    try:
        return importlib.import_module(peer.module)
    except ImportError as error:
        raise RefusedShapeError(f"{peer.distribution}: {error}") from error


def offsets(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Running totals of lengths, from 0, int32."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def by_head(shape: Shape, packed: torch.Tensor) -> torch.Tensor:
    """Packed rows of a dense batch as `[batch, heads, length, dim]`, a view."""
    return packed.unflatten(0, (len(shape.queries), -1)).transpose(1, 2)


def nested(shape: Shape, packed: torch.Tensor) -> torch.Tensor:
    """Packed rows as a jagged nested tensor `[batch, heads, *, dim]`."""
    offsets = torch.tensor([0, *shape.queries], device=packed.device).cumsum(0)
    jagged = torch.nested.nested_tensor_from_jagged(
        packed, offsets, min_seqlen=min(shape.queries), max_seqlen=max(shape.queries)
    )
    return jagged.transpose(1, 2)


PEERS: dict[str, Peer] = {
    "torch_cudnn": CudnnAttention(),
    "flex": FlexAttention(),
    "fa4": FlashAttention4(),
    "flashinfer": FlashInfer(),
}
