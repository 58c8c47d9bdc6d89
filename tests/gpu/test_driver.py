"""What only the driver can say: a moved tensor map is the one encoded there, a graph clears memory at each replay."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mlagen.launch_record import TensorMapSpec
from mlagen.runtime.driver import TENSOR_MAP_BYTES, system_driver
from mlagen.runtime.tensor_map import (
    CLIPPED_OFFSETS,
    CLIPPED_ROWS,
    CLIPPED_WRAP_BYTES,
    tensor_map_at,
)

ROW = 4 * 128 * 2
SPECS = {
    "packed": TensorMapSpec(0, "bfloat16", (128, 4, 64), (256, ROW), (64, 1, 64)),
    "columns behind": TensorMapSpec(128, "bfloat16", (64, 4, 64), (256, ROW), (64, 1, 64)),
    "bytes": TensorMapSpec(
        0, "uint8", (128, 4, 64), (128, ROW // 2), (64, 1, 64), swizzle_bytes=64
    ),
    "clipped": TensorMapSpec(
        0,
        "bfloat16",
        (128, 4, CLIPPED_ROWS, CLIPPED_OFFSETS, CLIPPED_OFFSETS),
        (256, ROW, CLIPPED_WRAP_BYTES - ROW, ROW),
        (64, 1, 64, 1, 1),
    ),
    "page before": TensorMapSpec(
        -8 * ROW, "bfloat16", (128, 4, 8, 9, 8), (256, ROW, ROW, 8 * ROW), (64, 1, 8, 1, 1)
    ),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_moved_tensor_map_is_the_one_encoded_there(kind: str) -> None:
    spec, driver = SPECS[kind], system_driver()
    memory = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
    place = -(-ctypes.addressof(memory) // TENSOR_MAP_BYTES) * TENSOR_MAP_BYTES
    write = driver.prepare_tensor_map(spec, place)
    tensor = torch.empty(4 * 64 * ROW, dtype=torch.uint8, device="cuda")
    for offset in (64 * ROW, 128 * ROW + 16, 64 * ROW):
        address = tensor.data_ptr() + offset
        write(address)
        wanted = driver.encode_tensor_map(tensor_map_at(spec, address))
        assert ctypes.string_at(place, TENSOR_MAP_BYTES) == wanted


def test_a_graph_clears_memory_whenever_it_is_replayed() -> None:
    driver, tensor = system_driver(), torch.ones(8, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = driver.current_stream(tensor.get_device())
        driver.clear(tensor.data_ptr() + 4, 6 * 4, stream)
    assert tensor.tolist() == [1] * 8
    for _ in range(2):
        tensor.fill_(1)
        graph.replay()
        assert tensor.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
