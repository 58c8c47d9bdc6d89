r"""Lengths, offsets and page ids on the device that no caller should give: wrong rows at worst, no fault and no hang.

    python -m tests.gpu.hostile_values
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
        python -m tests.gpu.hostile_values --exact

A program of its own, because a fault ends a process's CUDA context and a hang the process. Prints a line a case. The
guards around the outputs must keep their pattern; with `--exact` outputs have no guards, so that a checker sees every
byte outside. After each kernel's cases a well-formed call must still be right.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tests.gpu.calls import Case, check, expected, launch, make_case, make_outputs
from tests.gpu.kernels import load, spec_of
from tests.gpu.workloads import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST, MOST = -(2**31), 2**31 - 1
BATCH = Batch(q_lens=(200, 1, 130), kv_lens=(100, 300, 129), heads=2)
LIMIT_S = 120.0

KERNELS = {
    "causal": spec_of(mask="causal"),
    "none": spec_of(),
    "window": spec_of(mask="window_left"),
    "chunked": spec_of(mask="chunked"),
    "shared offsets": spec_of(kv="ragged_shared_offsets"),
    "dense q": spec_of(q_layout="dense"),
    "dense keys with lengths": spec_of(kv="dense_lengths"),
    "prefix lengths": spec_of(kv_length_counts="prefix"),
    "static max_seqlen": spec_of(max_seqlen="static"),
    "ragged rope": spec_of(k_rope="ragged"),
    "dense rope": spec_of(k_rope="dense"),
    "pages of 8": spec_of(mask="causal", k_rope="paged_8"),
    "pages of 64": spec_of(mask="causal", k_rope="paged_64"),
    "pages of 256": spec_of(k_rope="paged_256"),
    "256x256": spec_of(geometry="256x256"),
}

# `batch + 1` offsets; the tensors hold 331 query rows and 529 key rows.
OFFSETS: dict[str, tuple[int, ...]] = {
    "negative": (0, -5, 100, 200),
    "decreasing": (0, 200, 100, 300),
    "all -1": (-1, -1, -1, -1),
    "past the end": (0, 200, 330, 100_000),
    "huge": (0, 1, 2, MOST),
    "all huge": (MOST, MOST, MOST, MOST),
    "least": (LEAST, 0, 10, 20),
    "least to most": (LEAST, MOST, LEAST, MOST),
    "starts late": (150, 200, 250, 300),
    "difference overflows": (0, LEAST, MOST, LEAST),
}
COUNTS: dict[str, tuple[int, ...]] = {
    "negative": (-1, -300, -1),
    "huge": (MOST, MOST, MOST),
    "least": (LEAST, LEAST, LEAST),
    "past the end": (5, 100_000, 129),
    "mixed": (MOST, -1, LEAST),
}
PAGES = {"-1": -1, "2^31 - 1": MOST, "-2^31": LEAST, "one past the last": None}


def main() -> int:
    """Run every case; the exit status is 1 if a guard was damaged or a later call was wrong."""
    parser = argparse.ArgumentParser(description="Hostile lengths and page ids on the device.")
    parser.add_argument("--exact", action="store_true", help="outputs without guards, for memcheck")
    exact = parser.parse_args().exact
    bad = 0
    for kernel in KERNELS:
        case = make_case(KERNELS[kernel], BATCH, seed=1)
        for name, hostile in hostile_cases(case):
            damaged = run(hostile, exact=exact, label=f"{kernel}: {name}")
            bad += bool(damaged)
            print(
                f"{kernel:24} {name:40} {'ok' if not damaged else f'{damaged} guard elements written'}",
                flush=True,
            )
        outputs = make_outputs(case)
        launch(case, outputs)
        check(case, outputs, expected(case))
    print("all well" if not bad else f"{bad} cases wrote outside their outputs")
    return int(bool(bad))


def hostile_cases(case: Case) -> Iterator[tuple[str, Case]]:
    """The case with each of its tensors of lengths or pages spoiled in turn."""
    for tensor in ("cu_seqlens_q", "cu_seqlens_k"):
        if tensor in case.tensors:
            for name, values in OFFSETS.items():
                yield f"{tensor} {name}", with_values(case, tensor, values)
    if "cu_seqlens_q" in case.tensors and "cu_seqlens_k" in case.tensors:
        for name, values in OFFSETS.items():
            both = with_values(with_values(case, "cu_seqlens_q", values), "cu_seqlens_k", values)
            yield f"both offsets {name}", both
    if "cache_seqlens" in case.tensors:
        for name, values in COUNTS.items():
            yield f"cache_seqlens {name}", with_values(case, "cache_seqlens", values)
    if "block_table" in case.tensors:
        table = case.tensors["block_table"]
        for name, page in PAGES.items():
            value = case.tensors["k_rope"].shape[0] if page is None else page
            spoiled = {**case.tensors, "block_table": torch.full_like(table, value)}
            yield f"block_table {name}", replace(case, tensors=spoiled)
    if case.spec.q_layout == "ragged" and case.spec.max_seqlen == "dynamic":
        yield "max_seqlen_q below a length", replace(case, options={"max_seqlen_q": 111})


def with_values(case: Case, name: str, values: tuple[int, ...]) -> Case:
    """The case with other numbers in one int32 tensor."""
    tensor = torch.tensor(values, dtype=torch.int32, device=case.device)
    assert tensor.shape == case.tensors[name].shape
    return replace(case, tensors={**case.tensors, name: tensor})


def run(case: Case, *, exact: bool, label: str) -> int:
    """Run one case with all blocks and with few; return how many guard elements it wrote."""
    if exact:
        load(case.spec).run({**case.tensors, **case.options}, return_lse=case.spec.lse)
        wait(label)
        return 0
    damaged = 0
    for blocks in (None, 3):
        outputs = make_outputs(case)
        launch(case, outputs, blocks=blocks)
        wait(label)
        damaged += sum(output.damaged() for _, output in outputs.all())
    return damaged


def wait(label: str) -> None:
    """Wait for the device, but not for ever: a hang ends the process with status 3."""
    done = torch.cuda.Event()
    done.record()
    limit = time.monotonic() + LIMIT_S
    while not done.query():
        if time.monotonic() > limit:
            print(f"{label}: hangs", flush=True)
            os._exit(3)
        time.sleep(1e-4)


if __name__ == "__main__":
    sys.exit(main())
