"""One small call of every option in one process, to run under NVIDIA's compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --error-exitcode 9 python -m tests.gpu.sanitizer_shapes --all
    compute-sanitizer --tool racecheck python -m tests.gpu.sanitizer_shapes
    compute-sanitizer --tool synccheck python -m tests.gpu.sanitizer_shapes

Without torch's caching every tensor is an allocation of its own, whose ends memcheck knows. Inputs are made and results
checked on the CPU, so that only our kernels are slowed down. Prints a line a kernel, with the options that it is the
first to have. The fewest kernels that have every option among them, or `--all` of the grid.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

import torch

from tests.gpu.checking import check_lse, check_out, expected_of
from tests.gpu.kernels import label, load, spec_of
from tests.gpu.option_grid import AXES, covering_rows
from tests.gpu.workloads import Batch, draw_operands, fit_batch, lay_out

if TYPE_CHECKING:
    from tests.pairwise import Choice, Row

# Two tiles with a tail, more queries than keys, no keys at all.
BATCH = Batch(q_lens=(130, 20, 3), kv_lens=(200, 7, 0), heads=2)


def main() -> int:
    """Run the kernels, one line each."""
    parser = argparse.ArgumentParser(
        description="Small calls of every option, for compute-sanitizer."
    )
    parser.add_argument("--all", action="store_true", help="every kernel of the grid")
    rows = covering_rows() if parser.parse_args().all else fewest_rows()
    begin = time.monotonic()
    seen: set[Choice] = set()
    for row in rows:
        run(row)
        new = [f"{axis}={value}" for axis, value in row.items() if (axis, value) not in seen]
        seen |= set(row.items())
        print(
            f"{time.monotonic() - begin:6.1f} s  {label(row)}: right; first with {', '.join(new) or 'nothing'}",
            flush=True,
        )
    missing = {(axis, value) for axis, values in AXES.items() for value in values} - seen
    assert not missing, missing
    print(f"{len(rows)} kernels, every option")
    return 0


def fewest_rows() -> list[Row]:
    """Rows of the grid that have every value among them, greedily few."""
    rows, missing = (
        covering_rows(),
        {(axis, value) for axis, values in AXES.items() for value in values},
    )
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & set(row.items())))
        chosen.append(best)
        missing -= set(best.items())
    return chosen


def run(row: Row) -> None:
    """One call, checked on the CPU."""
    spec = spec_of(**row)
    batch = fit_batch(spec, BATCH)
    operands = draw_operands(spec, batch, seed=1, device="cpu")
    tensors = lay_out(spec, batch, operands)
    on_device = {name: tensor.cuda() for name, tensor in tensors.items()}
    result = load(spec).run(on_device, return_lse=spec.lse)
    out, lse = result if spec.lse else (result, None)
    wanted = expected_of(spec, tensors)
    check_out(out.cpu(), wanted, context=label(row))
    if lse is not None:
        check_lse(lse.cpu(), wanted, context=label(row))


if __name__ == "__main__":
    torch.set_num_threads(8)
    sys.exit(main())
