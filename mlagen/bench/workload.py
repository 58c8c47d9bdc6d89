"""The inputs of a row on a GPU, for a kernel of ours and for peers, and how far an output is from the exact one.

Values are drawn on the host for a few heads, by what `mlagen verify` draws its problems with, and those heads repeated
on the device until there are as many as the row has: every head has memory of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlagen.bench.rows import Shape, lengths_of
from mlagen.plan import plan_kernel
from mlagen.verify.compare import compare, rounding_bound
from mlagen.verify.device_copies import DeviceCopies
from mlagen.verify.layout import lay_out
from mlagen.verify.operands import draw_operands
from mlagen.verify.reference import alibi_slopes, reference

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec
    from mlagen.verify.operands import Operands

    Tensors = dict[str, torch.Tensor]

DRAWN_HEADS = 4
CHECKED_HEADS = 3
# Input sets are taken in turn until they hold this much: no row shall sit in the L2 (60 MB on an H200, 126 on a B200).
ROTATED_BYTES = 256e6
MOST_SETS = 8
# Largest relative L2 error of our outputs, by dtype: draws are normal.
REL_L2_LIMIT = {"bfloat16": 2.5e-3, "float16": 3.5e-4}
# Tensors with heads, and their dimension.
_HEAD_DIMENSION = {
    **dict.fromkeys(("q", "q_nope", "q_pe", "k", "v", "relative_bias"), -2),
    **dict.fromkeys(("sinks", "alibi_slopes"), 0),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Inputs of one row.

    Attributes:
        spec: The kernel whose tensors they are.
        shape: Sizes.
        sets: Tensors by the names that `run` takes, of equal sizes and other values.
        packed: Q, K with its rope columns, and V of each set as `[total, heads, dim]`, for peers; empty if no peer
            computes what the kernel does.
    """

    spec: KernelSpec
    shape: Shape
    sets: tuple[Tensors, ...]
    packed: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]

    @property
    def scale(self) -> float:
        """Of the scores, for everyone; without what a model multiplies it with."""
        return 1 / math.sqrt(self.spec.geometry.qk_head_dim)

    @property
    def options(self) -> dict[str, Any]:  # Any: as `run` takes them
        """What a user says besides the tensors, in the short forms that users write."""
        options = {
            "mask": self.spec.mask.model_dump(),
            "score_mod": self.spec.score_mod.model_dump(),
        }
        short = {
            name: value["kind"] if len(value) == 1 else value for name, value in options.items()
        }
        if short["score_mod"] == "identity":
            del short["score_mod"]
        if self.spec.kv_length_counts == "prefix":
            short["kv_length_counts"] = "prefix"
        return {**short, "return_lse": self.spec.lse, "softmax_scale": self.scale}


def has_peers(spec: KernelSpec) -> bool:
    """Whether other libraries compute the same, on operands of their own layout."""
    return (
        spec.dtype in REL_L2_LIMIT
        and spec.output_dtype == spec.dtype
        and spec.mask.kind in ("none", "causal")
        and not spec.score_mods
        and not spec.sink
    )


def make_workload(
    spec: KernelSpec, shape: Shape, *, for_peers: bool, device: str = "cuda"
) -> Workload:
    """Draw the inputs of a row; equal calls give equal values."""
    sets: list[Tensors] = []
    packed: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    count = 1
    while len(sets) < count:
        random = np.random.default_rng(len(sets))
        tensors, for_peer = _draw(spec, shape, random, device=device, for_peers=for_peers)
        sets.append(tensors)
        packed += for_peer
        bytes_per_set = sum(tensor.nbytes for tensor in tensors.values())
        count = min(MOST_SETS, max(1, math.ceil(ROTATED_BYTES / bytes_per_set)))
    return Workload(spec, shape, tuple(sets), tuple(packed))


def _draw(
    spec: KernelSpec,
    shape: Shape,
    random: np.random.Generator,
    *,
    device: str,
    for_peers: bool,
) -> tuple[Tensors, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    plan = plan_kernel(spec)
    rope_heads = 1 if spec.k_rope.layout == "fused" else spec.k_rope.num_heads
    heads = rope_heads if rope_heads > 1 else math.gcd(DRAWN_HEADS, shape.heads)
    lengths = lengths_of(spec, Shape(shape.queries, shape.keys, heads))
    operands = draw_operands(
        spec,
        lengths,
        "random",
        tile_n=plan.tile_n,
        rescale_threshold=plan.rescale_threshold,
        random=random,
    )
    copies, times = DeviceCopies(device), shape.heads // heads
    tensors = {
        name: _repeated(copies.copy(array), _head_dimension(name, array.ndim), times)
        for name, array in lay_out(spec, lengths, operands, random=random).items()
    }
    if not for_peers:
        return tensors, []
    q, k, v = (_repeated(copies.copy(array), -2, times) for array in _packed(operands))
    return tensors, [(q, k, v)]


def _packed(operands: Operands) -> tuple[Any, Any, Any]:
    """Q, K with rope columns in every head, and V."""
    heads = operands.q.shape[1]
    rope = np.repeat(operands.k_rope, heads // operands.k_rope.shape[1], axis=1)
    return operands.q, np.concatenate([operands.k_nope, rope], axis=-1), operands.v


def _head_dimension(name: str, dimensions: int) -> int | None:
    if name == "bias":
        return 1 if dimensions == 4 else None
    return _HEAD_DIMENSION.get(name)


def _repeated(tensor: torch.Tensor, dimension: int | None, times: int) -> torch.Tensor:
    """The tensor with each head `times` times in a row, so that heads share rope rows as they did."""
    if dimension is None:
        return tensor
    dimension %= tensor.dim()
    wider = tensor.unsqueeze(dimension + 1)
    sizes = [-1] * wider.dim()
    sizes[dimension + 1] = times
    return wider.expand(sizes).flatten(dimension, dimension + 1).contiguous()


@dataclass(frozen=True, slots=True)
class Error:
    """How far an output is from the exact one, on the heads that are checked.

    Attributes:
        relative_l2: Relative L2 error; infinite if any element of any head is not finite.
        of_bound: Largest error of an element in units of what rounding explains; likewise.
    """

    relative_l2: float
    of_bound: float


class Exact:
    """The exact output of a workload's first set: float64, on the first, the middle and the last head."""

    def __init__(self, workload: Workload) -> None:
        """Compute it, on the tensors' device."""
        heads = workload.shape.heads
        self._heads = sorted({0, heads // 2, heads - 1})[:CHECKED_HEADS]
        tensors = {
            name: self._part(workload, name, tensor) for name, tensor in workload.sets[0].items()
        }
        spec = workload.spec
        if spec.score_mod.kind == "alibi":  # whose slopes count all the heads
            slopes = torch.tensor(alibi_slopes(heads), device=tensors["v"].device)[self._heads]
            tensors.setdefault("alibi_slopes", slopes)
            given = spec.score_mod.model_copy(update={"slopes": "tensor"})
            spec = spec.model_copy(update={"score_mod": given})
        self._out, _ = reference(spec, tensors, softmax_scale=workload.scale)
        self._bound = rounding_bound(spec, tensors, self._out, softmax_scale=workload.scale)

    def _part(self, workload: Workload, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with only the heads that are checked."""
        heads, dimension = self._heads, _head_dimension(name, tensor.dim())
        if name == "k_rope" and (rope_heads := workload.spec.k_rope.num_heads) > 1:
            heads = [head * rope_heads // workload.shape.heads for head in heads]
            dimension = -2
        if dimension is None:
            return tensor
        return torch.cat([tensor.narrow(dimension, head, 1).double() for head in heads], dimension)

    def error_of(self, out: torch.Tensor) -> Error:
        """The error of an output `[..., heads, v]` with the rows of the row's kernel, or packed."""
        found = compare(
            out[..., self._heads, :].reshape(self._out.shape), self._out, bound=self._bound
        )
        if found.misplaced or not bool(out.isfinite().all()):
            return Error(math.inf, math.inf)
        return Error(found.relative_l2, found.ratio)
