"""The benchmarks as far as they run without a GPU: their rows, their FLOPs, and what they write into documents."""

from __future__ import annotations

import pytest

import mlagen
from benchmarks.device_run import STAGES
from benchmarks.peers import by_head
from benchmarks.prefill import OURS, SPEC, find_kernel
from benchmarks.prepare_kernels import SPECS
from benchmarks.publish import BEGIN, END, README, readme_block, with_block
from benchmarks.rows import ROWS, causal_pairs
from benchmarks.timing import Timing
from tests.gpu.workloads import Batch, draw_operands, lay_out

ALL_ROWS = [row for rows in ROWS.values() for row in rows]
KERNELS = mlagen.load(SPEC)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.label)
def test_each_row_has_one_kernel(row: object) -> None:
    assert find_kernel(KERNELS, row) in KERNELS.specs  # type: ignore[arg-type]  # parametrized with rows


@pytest.mark.parametrize("lengths", [(1, 1), (5, 5), (2, 5), (5, 2), (1, 9), (64, 200)], ids=str)
def test_causal_pairs_are_those_that_a_loop_counts(lengths: tuple[int, int]) -> None:
    q, kv = lengths
    assert causal_pairs(q, kv) == sum(k <= i + kv - q for i in range(q) for k in range(kv))


def test_flops_of_the_rows_of_the_issue() -> None:
    causal, *_, dense = ROWS["figures"]
    assert causal.flops() == 2 * 320 * 128 * 2048 * 2049 / 2
    assert dense.flops() == 2 * 320 * 128 * 8192 * 8192


def test_window_and_chunk_rows_count_visible_pairs_only() -> None:
    by_label = {row.label: row for row in ROWS["masks"]}
    n = 16384
    assert by_label["16k window 1024"].pairs == sum(min(i + 1, 1024) for i in range(n))
    assert by_label["16k chunked 2048"].pairs == sum(i % 2048 + 1 for i in range(n))


def test_peers_see_the_rows_by_head() -> None:
    row = ROWS["speed"][5]
    small = KERNELS.specs[0]
    batch = Batch((3, 3, 3, 3), (3, 3, 3, 3), heads=2)
    tensors = lay_out(small, batch, draw_operands(small, batch, seed=0, device="cpu"))
    packed = tensors["q"].flatten(0, 1)
    assert (by_head(row, packed) == tensors["q"].transpose(1, 2)).all()


def test_every_spec_that_is_built_ahead_exists() -> None:
    assert all(path.exists() for path in SPECS)


def test_stages_write_into_files_of_their_own() -> None:
    files = [stage.result for stage in STAGES.values() if stage.result]
    assert len(set(files)) == len(files)


def test_figures_replace_only_what_stands_between_the_markers() -> None:
    text = README.read_text()
    changed = with_block(text, "figures")
    assert changed.partition(BEGIN)[0] == text.partition(BEGIN)[0]
    assert changed.partition(END)[2] == text.partition(END)[2]
    assert with_block(changed, "figures") == changed


def test_readme_figures_name_machine_and_command() -> None:
    timing = Timing(median_ms=1.0, least_ms=0.9, p90_ms=1.1, calls=20, regime="cool")
    common = {"row": "dense 8k", "regime": "cool", "timing": timing, "tflops": 800.0, "ratio": 1.2}
    machine = dict.fromkeys(
        ("date", "gpu", "driver", "cubins", "torch", "cudnn", "python"), "x"
    ) | {"gpu": "H200"}
    results = [{**common, "peer": peer} for peer in (OURS, "torch_cudnn")]
    block = readme_block({"machine": machine, "results": {"figures": {"results": results}}})
    assert "| dense 8k tokens | 800 TFLOP/s | 800 TFLOP/s | 1.20 × |" in block
    assert "H200" in block
    assert "python -m benchmarks.prefill" in block
