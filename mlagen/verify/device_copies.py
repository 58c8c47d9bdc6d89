"""NumPy arrays on a GPU: the same shapes, strides and overlaps, as torch tensors; and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]  # Any: bfloat16 and int32 alike


class DeviceCopies:
    """Copies of arrays on one device; arrays that share memory on the host share it there."""

    def __init__(self, device: str) -> None:
        """Nothing is copied yet."""
        import torch

        self._torch = torch
        self._device = device
        self._owners: dict[int, tuple[Array, Any]] = {}  # Any: a torch tensor of bytes

    def copy(self, array: Array) -> Any:
        """A tensor like the array: its owner's memory on the device, seen with the same strides."""
        dtype, size = getattr(self._torch, str(array.dtype)), array.itemsize
        if array.size == 0:  # NumPy gives it strides that torch cannot take
            return self._torch.empty(array.shape, dtype=dtype, device=self._device)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if id(owner) not in self._owners:
            there = self._torch.from_numpy(_bytes(owner).copy()).to(self._device)
            self._owners[id(owner)] = (owner, there)
        there = self._owners[id(owner)][1]
        offset = _address(array) - _address(owner)
        strides = [step // size for step in array.strides]
        return there.view(dtype).as_strided(array.shape, strides, offset // size)

    def bring_back(self) -> None:
        """Write what the device has now into the arrays; waits for the device."""
        for owner, there in self._owners.values():
            if owner.flags.writeable:
                _bytes(owner)[...] = there.cpu().numpy()


def _bytes(owner: Array) -> NDArray[np.uint8]:
    return owner.reshape(-1).view(np.uint8)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
