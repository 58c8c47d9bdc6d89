"""The few array operations in which NumPy and torch differ, so that the reference is written once for both."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

# NumPy array or torch tensor; they share arithmetic, comparison and indexing.
Array = Any


class Backend(Protocol):
    """What the reference needs besides operators."""

    def float64(self, array: Array) -> Array:
        """The array in float64."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Float64 zeros."""

    def full(self, shape: tuple[int, ...], value: float) -> Array:
        """A float64 array of one value."""

    def arange(self, start: int, stop: int) -> Array:
        """Int64 integers from `start` up to, without, `stop`."""

    def integers(self, array: Array) -> list[int]:
        """The values of a one-dimensional array of integers, on the host."""

    def exp(self, array: Array) -> Array:
        """Natural exponential; of a large number it is inf, silently."""

    def log(self, array: Array) -> Array:
        """Natural logarithm; of 0 it is -inf, silently."""

    def tanh(self, array: Array) -> Array:
        """Hyperbolic tangent."""

    def absolute(self, array: Array) -> Array:
        """Absolute value."""

    def where(self, condition: Array, chosen: Array, other: Array) -> Array:
        """Elements of `chosen` where the condition holds, else of `other`; broadcasts."""

    def row_maximum(self, array: Array) -> Array:
        """The largest element along the last dimension, kept with size 1."""

    def row_sum(self, array: Array) -> Array:
        """The sum along the last dimension, kept with size 1."""

    def concatenate(self, arrays: list[Array], axis: int) -> Array:
        """The arrays after one another along an axis."""

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """Axes in another order."""


class NumpyBackend:
    """`Backend` on NumPy arrays."""

    def float64(self, array: Array) -> Array:
        """See `Backend`."""
        return np.asarray(array).astype(np.float64)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """See `Backend`."""
        return np.zeros(shape)

    def full(self, shape: tuple[int, ...], value: float) -> Array:
        """See `Backend`."""
        return np.full(shape, value)

    def arange(self, start: int, stop: int) -> Array:
        """See `Backend`."""
        return np.arange(start, stop, dtype=np.int64)

    def integers(self, array: Array) -> list[int]:
        """See `Backend`."""
        return [int(value) for value in np.asarray(array)]

    def exp(self, array: Array) -> Array:
        """See `Backend`."""
        with np.errstate(over="ignore"):
            return np.exp(array)

    def log(self, array: Array) -> Array:
        """See `Backend`."""
        with np.errstate(divide="ignore"):
            return np.log(array)

    def tanh(self, array: Array) -> Array:
        """See `Backend`."""
        return np.tanh(array)

    def absolute(self, array: Array) -> Array:
        """See `Backend`."""
        return np.abs(array)

    def where(self, condition: Array, chosen: Array, other: Array) -> Array:
        """See `Backend`."""
        return np.where(condition, chosen, other)

    def row_maximum(self, array: Array) -> Array:
        """See `Backend`."""
        return array.max(axis=-1, keepdims=True)

    def row_sum(self, array: Array) -> Array:
        """See `Backend`."""
        return array.sum(axis=-1, keepdims=True)

    def concatenate(self, arrays: list[Array], axis: int) -> Array:
        """See `Backend`."""
        return np.concatenate(arrays, axis=axis)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """See `Backend`."""
        return np.transpose(array, axes)


class TorchBackend:
    """`Backend` on torch tensors of one device."""

    def __init__(self, device: Any) -> None:
        """Work on `device`."""
        import torch

        self._torch = torch
        self._device = device

    def float64(self, array: Array) -> Array:
        """See `Backend`."""
        return array.to(self._torch.float64)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """See `Backend`."""
        return self.full(shape, 0.0)

    def full(self, shape: tuple[int, ...], value: float) -> Array:
        """See `Backend`."""
        return self._torch.full(shape, value, dtype=self._torch.float64, device=self._device)

    def arange(self, start: int, stop: int) -> Array:
        """See `Backend`."""
        return self._torch.arange(start, stop, dtype=self._torch.int64, device=self._device)

    def integers(self, array: Array) -> list[int]:
        """See `Backend`."""
        return [int(value) for value in array.tolist()]

    def exp(self, array: Array) -> Array:
        """See `Backend`."""
        return self._torch.exp(array)

    def log(self, array: Array) -> Array:
        """See `Backend`."""
        return self._torch.log(array)

    def tanh(self, array: Array) -> Array:
        """See `Backend`."""
        return self._torch.tanh(array)

    def absolute(self, array: Array) -> Array:
        """See `Backend`."""
        return self._torch.abs(array)

    def where(self, condition: Array, chosen: Array, other: Array) -> Array:
        """See `Backend`."""
        return self._torch.where(condition, chosen, other)

    def row_maximum(self, array: Array) -> Array:
        """See `Backend`."""
        return array.amax(dim=-1, keepdim=True)

    def row_sum(self, array: Array) -> Array:
        """See `Backend`."""
        return array.sum(dim=-1, keepdim=True)

    def concatenate(self, arrays: list[Array], axis: int) -> Array:
        """See `Backend`."""
        return self._torch.cat(arrays, dim=axis)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """See `Backend`."""
        return array.permute(axes)


def backend_of(array: Array) -> Backend:
    """The backend of an array's own kind."""
    return NumpyBackend() if isinstance(array, np.ndarray) else TorchBackend(array.device)


def round_to(array: Array, dtype: str, destination: Array | None) -> Array:
    """A float64 array in another dtype, of its own kind, written into `destination` if there is one."""
    if isinstance(array, np.ndarray):
        import ml_dtypes  # gives NumPy bfloat16

        rounded = array.astype(getattr(ml_dtypes, dtype, dtype))
    else:
        import torch

        rounded = array.to(getattr(torch, dtype))
    if destination is None:
        return rounded
    destination[...] = rounded
    return destination
