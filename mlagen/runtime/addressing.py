"""Checks that TMA can address the tensors of a call: alignments, strides, overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlagen.errors import InputError, ShapeError
from mlagen.runtime.host_tensor import contiguous_copy

if TYPE_CHECKING:
    from mlagen.runtime.arguments import Call

# Base addresses and strides of a tensor map (CUDA driver API, cuTensorMapEncodeTiled).
ALIGNMENT_BYTES = 16
LARGEST_STRIDE_BYTES = 2**40 - 1

_VECTORS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "cache_seqlens",
    "valid_lengths",
    "sinks",
    "alibi_slopes",
)
_ROWS = ("block_table", "bias", "relative_bias")  # of contiguous elements, wherever each lies
_OUTPUTS = ("out", "lse")


def check_strides(call: Call) -> None:
    """Raise ShapeError unless TMA can address what the kernel reads and writes, and vectors are contiguous."""
    for canonical, tensor in call.tensors.items():
        name = call.written[canonical]
        if canonical in _VECTORS:
            _check_contiguous(name, tensor)
        elif canonical in _ROWS:
            _check_last_dimension(name, tensor)
        else:
            if canonical in _OUTPUTS:
                _check_distinct(name, tensor)
            if canonical != "lse":
                _check_tma(name, tensor)


def _check_contiguous(name: str, tensor: Any) -> None:
    if tensor.numel() > 1 and tensor.stride(0) != 1:
        message = f"{name}: expected contiguous elements, got stride {tensor.stride(0)}"
        raise ShapeError(f"{message}\n  copy it with {contiguous_copy(name, tensor)}")


def _check_last_dimension(name: str, tensor: Any) -> None:
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1 and tensor.numel() > 0:
        message = f"{name}: expected a contiguous last dimension, got strides {tensor.stride()}"
        raise ShapeError(f"{message}\n  copy it with {contiguous_copy(name, tensor)}")


def _check_distinct(name: str, tensor: Any) -> None:
    steps = sorted(
        (step, size) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )
    reach = 0
    for step, size in steps:
        if step <= reach:
            message = f"{name}: an output whose elements overlap, strides {tensor.stride()}"
            raise ShapeError(f"{message}\n  pass a tensor of its own")
        reach += step * (size - 1)


def _check_tma(name: str, tensor: Any) -> None:
    _check_last_dimension(name, tensor)
    if tensor.numel() == 0:
        return
    item = tensor.element_size()
    for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        step = stride * item
        if size > 1 and (step % ALIGNMENT_BYTES or not 0 < step <= LARGEST_STRIDE_BYTES):
            message = (
                f"{name}: expected strides that are multiples of {ALIGNMENT_BYTES} bytes and not 0, "
                f"got {tensor.stride()} elements of {item} bytes"
            )
            raise ShapeError(f"{message}\n  copy it with {contiguous_copy(name, tensor)}")


def wrong_address(name: str, address: int, alignment: int) -> InputError:
    """The error of a tensor that has no memory, or none where the kernel can read it."""
    if address == 0:
        message = f"{name}: has elements, but no memory"
        advice = "pass a tensor that holds data: none that is fake, wraps others, or is released"
        return InputError(f"{message}\n  {advice}")
    message = f"{name}: its data starts at {address:#x}, no multiple of {alignment} bytes"
    return ShapeError(f"{message}\n  copy it: {name}.clone(), or numpy.array({name}, order='C')")


def check_even_rows(name: str, tensor: Any) -> None:
    """Raise unless the rows of `[batch, seqlen, ...]` are evenly spaced, so that batch and rows are one dimension."""
    if min(tensor.shape[:2]) < 2:
        return
    batch_stride, row_stride = tensor.stride()[:2]
    expected = int(tensor.shape[1]) * row_stride
    if batch_stride != expected:
        message = (
            f"{name}: expected a batch stride of {expected} elements, {tensor.shape[1]} rows of {row_stride}, "
            f"got {batch_stride}"
        )
        raise ShapeError(f"{message}\n  copy it with {contiguous_copy(name, tensor)}")


def extent_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps)
    return int((reach + 1) * tensor.element_size())
