"""Copies on a device keep shapes, strides and overlaps; here the device is the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mlagen.verify.device_copies import DeviceCopies
from mlagen.verify.problems import problems
from tests.gpu.kernels import spec_of


@pytest.mark.parametrize("k_rope", ["fused", "paged_64"])
def test_every_tensor_of_every_problem(k_rope: str) -> None:
    for problem in problems(spec_of(mask="causal", k_rope=k_rope)):
        copies = DeviceCopies("cpu")
        for name, array in problem.tensors.items():
            copy = copies.copy(array)
            assert copy.shape == array.shape, name
            assert str(copy.dtype).removeprefix("torch.") == str(array.dtype)
            steps = tuple(step // array.itemsize for step in array.strides)
            assert copy.stride() == steps or copy.numel() == 0
            wanted = array.astype(np.float64)
            assert np.array_equal(copy.double().numpy(), wanted, equal_nan=True)


def test_arrays_that_share_memory_share_it_there() -> None:
    both = np.arange(24, dtype=np.float32).reshape(4, 6).astype(ml_dtypes.bfloat16)
    copies = DeviceCopies("cpu")
    k, v = copies.copy(both[:, :2]), copies.copy(both[1:, 2:])
    assert v.data_ptr() - k.data_ptr() == (6 + 2) * 2
    k[1] = 99
    assert float(both[1, 0]) == 6, "a copy, until it is brought back"


def test_what_was_written_there_comes_back() -> None:
    buffer = np.zeros((6, 4), dtype=np.float32)
    view, read_only = buffer[1:5, :3], np.ones(3, dtype=np.int32)
    read_only.flags.writeable = False
    copies = DeviceCopies("cpu")
    copies.copy(view)[...] = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    copies.copy(read_only)[...] = 7
    copies.bring_back()
    assert np.array_equal(view, np.arange(12).reshape(4, 3))
    assert buffer.sum() == view.sum()
    assert (read_only == 1).all()
