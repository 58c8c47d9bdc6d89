"""Case 16: more than 2^31 elements in Q, K and the output; the rows at both ends are right."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.gpu.calls import Case, check, expected, make_outputs
from tests.gpu.kernels import load, spec_of
from tests.gpu.workloads import Batch

HEADS, LENGTH, EDGE = 128, 131_072, 256


def test_offsets_past_two_to_the_31() -> None:
    """One sequence of 2^31 output elements and 3.2e9 elements of q, with a window that bounds the work.

    The first and the last 256 rows are compared, against the reference on the keys that they see.
    """
    spec = spec_of(mask="window_left")
    assert spec.mask.kind == "sliding_window"
    left = spec.mask.left or 0
    generator = torch.Generator(device="cuda").manual_seed(16)

    def normal(width: int) -> torch.Tensor:
        tensor = torch.empty((LENGTH, HEADS, width), dtype=torch.bfloat16, device="cuda")
        for rows in tensor.split(8192):
            rows.normal_(generator=generator)
        return tensor

    tensors = {"q": normal(192), "k": normal(192), "v": normal(128)}
    offsets = torch.tensor([0, LENGTH], dtype=torch.int32, device="cuda")
    case = Case(
        spec,
        Batch((LENGTH,), (LENGTH,), HEADS),
        {**tensors, "cu_seqlens_q": offsets, "cu_seqlens_k": offsets},
        16,
    )
    outputs = make_outputs(case)
    assert outputs.lse is not None
    load(spec).run({**case.tensors, "out": outputs.out.view, "lse": outputs.lse.view})
    outputs.check_guards(case.context)
    for rows in (slice(0, EDGE), slice(LENGTH - EDGE, LENGTH)):
        keys = slice(max(0, rows.start - left), rows.stop)
        part = edge_case(case, rows, keys)
        own = make_outputs(part)
        assert own.lse is not None
        own.out.view.copy_(outputs.out.view[rows])
        own.lse.view.copy_(outputs.lse.view[rows])
        check(part, own, expected(part))


def edge_case(case: Case, rows: slice, keys: slice) -> Case:
    """The same attention on some rows and the keys that they see; the last query still sees the last key."""
    q_len, kv_len = rows.stop - rows.start, keys.stop - keys.start
    return replace(
        case,
        batch=Batch((q_len,), (kv_len,), HEADS),
        tensors={
            "q": case.tensors["q"][rows],
            "k": case.tensors["k"][keys],
            "v": case.tensors["v"][keys],
            "cu_seqlens_q": torch.tensor([0, q_len], dtype=torch.int32, device="cuda"),
            "cu_seqlens_k": torch.tensor([0, kv_len], dtype=torch.int32, device="cuda"),
        },
    )
