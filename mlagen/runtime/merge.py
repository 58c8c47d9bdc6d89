"""`merge_state`: attention over two sets of keys, combined into attention over both.

For chunked prefill, prefix caches and context parallelism. Plain torch operations on the tensors'
own device and stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlagen.errors import DeviceError, DTypeError, InputError, MissingDependencyError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor


def merge_state(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    sinks: Tensor | None = None,
    *,
    validate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Combine the results over two disjoint sets of keys into the result over their union.

    Strides are free. Where one state is empty the other comes back bit for bit (unless there are
    sinks); where both are, the row is 0 with LSE -inf. Computes in float32.

    Args:
        out_a: `[..., num_heads, head_dim]`, normalised over its own keys, computed without sinks.
        lse_a: `[..., num_heads]`, float32, natural log (base-2 input gives wrong weights and cannot
            be told apart), -inf where a row saw no key.
        out_b: Like `out_a`, of the other keys.
        lse_b: Like `lse_a`.
        sinks: `[num_heads]`, float32 logits of the attention sinks, applied here once; the LSE
            excludes them.
        validate: Also reject LSE of +inf or NaN on a CUDA device, which synchronises; on the CPU
            they always are.

    Returns:
        `out` in the dtype of `out_a`, and `lse` in float32.

    Raises:
        InputError: Shapes, dtypes or devices disagree, or an LSE is +inf or NaN.

    Source: log-sum-exp weighting, FlashAttention (arXiv 2205.14135), section 3.1.
    """
    torch = _torch()
    _check(torch, out_a, lse_a, out_b, lse_b, sinks)
    if validate or lse_a.device.type == "cpu":
        _check_lse("lse_a", lse_a)
        _check_lse("lse_b", lse_b)
    empty = float("-inf")
    a_is_empty, b_is_empty = lse_a == empty, lse_b == empty
    largest = torch.maximum(lse_a, lse_b)
    reference = largest if sinks is None else torch.maximum(largest, sinks.float())
    # -inf - -inf is NaN, so a row without any key compares with 0.
    reference = reference.masked_fill(reference == empty, 0.0)
    weight_a, weight_b = torch.exp(lse_a - reference), torch.exp(lse_b - reference)
    keys = weight_a + weight_b
    total = keys if sinks is None else keys + torch.exp(sinks.float() - reference)
    share_a, share_b = weight_a / total, weight_b / total
    # An empty state's output may hold anything; its weight of 0 would not silence a NaN.
    out = share_a[..., None] * out_a.float().masked_fill(a_is_empty[..., None], 0.0)
    out = out + share_b[..., None] * out_b.float().masked_fill(b_is_empty[..., None], 0.0)
    out = out.to(out_a.dtype)
    lse = largest + torch.log(torch.exp(lse_a - largest) + torch.exp(lse_b - largest))
    lse = torch.where(a_is_empty, lse_b, torch.where(b_is_empty, lse_a, lse))
    if sinks is None:
        out = torch.where(
            b_is_empty[..., None], out_a, torch.where(a_is_empty[..., None], out_b, out)
        )
    return out.masked_fill((a_is_empty & b_is_empty)[..., None], 0.0), lse


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "merge_state needs torch\n  pip install 'mlagen[torch]'"
        ) from error
    return torch


def _check(
    torch: Any, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, sinks: Tensor | None
) -> None:
    """Shapes, dtypes and devices; reads no values."""
    if out_a.ndim < 2 or out_b.shape != out_a.shape:
        message = f"out_b: expected [..., num_heads, head_dim] like out_a {list(out_a.shape)}, got {list(out_b.shape)}"
        raise ShapeError(f"{message}\n  both states must cover the same queries and heads")
    if out_b.dtype != out_a.dtype:
        raise DTypeError(
            f"out_b: expected {out_a.dtype} like out_a, got {out_b.dtype}\n  convert one with .to()"
        )
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        if lse.shape != out_a.shape[:-1]:
            message = f"{name}: expected {list(out_a.shape[:-1])}, got {list(lse.shape)}"
            raise ShapeError(
                f"{message}\n  mlagen's layout is [total_q, num_heads]; transpose with lse.T"
            )
        if lse.dtype != torch.float32:
            raise DTypeError(
                f"{name}: expected torch.float32, got {lse.dtype}\n  convert it with {name}.float()"
            )
    if sinks is not None and sinks.shape != out_a.shape[-2:-1]:
        message = f"sinks: expected [num_heads={out_a.shape[-2]}], got {list(sinks.shape)}"
        raise ShapeError(f"{message}\n  pass one logit for each head")
    given = {"lse_a": lse_a, "out_b": out_b, "lse_b": lse_b, "sinks": sinks}
    for name, tensor in given.items():
        if tensor is not None and tensor.device != out_a.device:
            message = f"{name}: on {tensor.device}, but out_a is on {out_a.device}"
            raise DeviceError(f"{message}\n  move all to one device")


def _check_lse(name: str, lse: Tensor) -> None:
    if bool((lse.isnan() | (lse == float("inf"))).any()):
        message = f"{name}: holds +inf or NaN"
        raise InputError(
            f"{message}\n  mark an empty state with -inf: {name}.masked_fill({name} == inf, -inf)"
        )
