"""Arrays on the host, NumPy's or torch's, under the one interface that the runtime's checks and launches read.

A `HostTensor` has what they use of a torch tensor, over a NumPy array that shares the caller's memory. So NumPy arrays
need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.errors import DeviceError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class HostTensor:
    """A NumPy array that answers like a tensor.

    Attributes:
        array: The array; it shares memory with what the caller gave.
        dtype: Its name, as torch calls it.
        device: Always `cpu`.
        is_array: Whether the caller gave a NumPy array, for advice.
    """

    __slots__ = ("array", "dtype", "is_array")

    device = "cpu"

    def __init__(self, array: NDArray[Any], *, is_array: bool) -> None:
        """See the array; its strides must be whole elements."""
        self.array = array
        self.dtype = str(array.dtype)
        self.is_array = is_array

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return self.array.ndim

    def stride(
        self, dim: int | None = None
    ) -> Any:  # as in torch: all of them, or that of one dimension
        """Steps in elements."""
        steps = tuple(step // self.array.itemsize for step in self.array.strides)
        return steps if dim is None else steps[dim]

    def numel(self) -> int:
        """Number of elements."""
        return self.array.size

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.array.itemsize


def host_tensor(value: Any, name: str) -> HostTensor:
    """A caller's array or CPU tensor, not copied.

    Args:
        value: NumPy array or torch tensor.
        name: The caller's name of it.

    Raises:
        DeviceError: A tensor that is not on the CPU.
        ShapeError: An array whose strides are no whole elements.
    """
    array = value if isinstance(value, np.ndarray) else _array_of_tensor(value, name)
    if any(step % array.itemsize for step in array.strides):
        message = f"{name}: strides of {array.strides} bytes are no multiples of {array.itemsize}"
        raise ShapeError(f"{message}\n  copy it with numpy.ascontiguousarray({name})")
    return HostTensor(array, is_array=isinstance(value, np.ndarray))


def contiguous_copy(name: str, tensor: Any) -> str:
    """How a caller copies a tensor or array into contiguous, aligned memory."""
    is_array = getattr(tensor, "is_array", False)
    return f"numpy.array({name}, order='C')" if is_array else f"{name}.contiguous()"


def converted(name: str, tensor: Any, dtype: str) -> str:
    """How a caller converts a tensor or array to a dtype."""
    if not getattr(tensor, "is_array", False):
        return f"{name}.to(torch.{dtype})"
    is_numpys = dtype in ("float16", "float32", "int32")
    return f"{name}.astype({'numpy' if is_numpys else 'ml_dtypes'}.{dtype})"


def new_host_array(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the same kind as `like`, contents undefined."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=_numpy_dtype(dtype))
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype))


def _array_of_tensor(tensor: Any, name: str) -> NDArray[Any]:
    """A CPU tensor as an array over its whole storage, so that slices of one storage are seen to overlap."""
    import torch

    if tensor.device.type != "cpu":
        message = f"{name}: on {tensor.device}, and the simulator runs on the CPU"
        raise DeviceError(f"{message}\n  move it with {name}.cpu(), or load with backend='cuda'")
    dtype = _numpy_dtype(str(tensor.dtype).removeprefix("torch."))
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    return np.ndarray(
        tuple(tensor.shape),
        dtype=dtype,
        buffer=storage,
        offset=tensor.storage_offset() * dtype.itemsize,
        strides=tuple(step * dtype.itemsize for step in tensor.stride()),
    )


def _numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; ml_dtypes has those that NumPy lacks."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))
