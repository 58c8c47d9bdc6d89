"""The values of a kernel's parameters that are no tensor maps, and the struct in which it takes them."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from mlagen.plan.split_kv import MOST_SPLITS, fixed_splits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mlagen.plan.plan import KernelPlan
    from mlagen.runtime.arguments import Call, Options
    from mlagen.runtime.inputs import Extents
    from mlagen.spec.model import KernelSpec

# Native sizes and alignment: the struct that the compiler lays out on the other side.
_FORMATS = {"int": "i", "int64": "q", "float": "f"}
_POINTER = "P"
_EVERY_QUERY = 2**31 - 1


def longest_queries(spec: KernelSpec, call: Call, extents: Extents) -> int:
    """An upper bound on the query lengths: what the caller or the spec says, else all rows."""
    known = (call.options.max_seqlen_q, spec.max_seqlen)
    return min([extents.rows_q, *(length for length in known if isinstance(length, int))])


def tile_bound(plan: KernelPlan, call: Call, extents: Extents) -> int:
    """The most tiles that a call can have; how many have work is known on the device only.

    A ragged batch of T rows in B sequences has at most T / tile_rows full tiles and B that are not.
    """
    if plan.spec.q_layout == "dense":
        return extents.num_heads * extents.batch * -(-extents.seqlen_q // plan.tile_rows)
    longest = longest_queries(plan.spec, call, extents)
    by_rows = extents.rows_q // plan.tile_rows + extents.batch
    by_length = extents.batch * -(-longest // plan.tile_rows)
    return extents.num_heads * min(by_rows, by_length)


def score_scale(spec: KernelSpec, options: Options) -> float:
    """What turns a product of q and k, as they are stored, into a score."""
    given, scales = options.softmax_scale, options.scales
    scale = spec.geometry.softmax_scale if given is None else given
    return scale * scales.get("q_scale", 1.0) * scales.get("k_scale", 1.0)


def longest_keys(spec: KernelSpec, call: Call, extents: Extents) -> int:
    """An upper bound on the key lengths: what the caller says, else all rows that a sequence may have."""
    rows = extents.rows_k if spec.kv.layout == "ragged" else extents.seqlen_k
    said = call.options.max_seqlen_k
    return rows if said is None else min(rows, said)


def num_splits(plan: KernelPlan, call: Call, extents: Extents, *, most_blocks: int) -> int:
    """Into how many parts the keys of a tile are split at most: as the spec says, else as many as pay.

    More parts than blocks that run at once gain nothing. And the block that comes last reads the states of all parts,
    each in the time of about half a step: so n steps take the least time, n / parts + parts / 2, with sqrt(2 n) parts.
    """
    if not plan.state_elements:
        return 1
    fixed = fixed_splits(plan.spec)
    if fixed is not None:
        return fixed
    steps = -(-longest_keys(plan.spec, call, extents) // plan.tile_n)
    tiles = tile_bound(plan, call, extents)
    return max(min(most_blocks // max(tiles, 1), math.isqrt(2 * steps), MOST_SPLITS), 1)


def scalar_values(
    plan: KernelPlan, call: Call, extents: Extents, lse: Any, *, splits: int
) -> dict[str, float]:
    """Every argument that is no pointer; a plan takes those that it names.

    Args:
        plan: The kernel.
        call: The tensors and options.
        extents: Their sizes.
        lse: The LSE tensor, for its strides.
        splits: Most parts of a tile's keys.
    """
    scale_log2 = score_scale(plan.spec, call.options) * math.log2(math.e)
    values: dict[str, float] = {
        "softmax_scale_log2": scale_log2,
        "inverse_scale_log2": 1 / scale_log2,
        "v_scale": call.options.scales.get("v_scale", 1.0),
        "num_heads": extents.num_heads,
        "batch": extents.batch,
        "total_q": extents.rows_q,
        "seqlen_q": extents.seqlen_q,
        "max_seqlen_q": longest_queries(plan.spec, call, extents),
        "total_k": extents.rows_k,
        "seqlen_k": extents.seqlen_k,
        "num_splits": splits,
    }
    if "block_table" in call.tensors:
        table = call.tensors["block_table"]
        values["block_table_stride"] = int(table.stride(0))
        values["block_table_width"] = int(table.shape[1])
        cache = call.tensors["v" if plan.spec.kv.layout == "paged" else "k_rope"]
        values["num_pages"] = int(cache.shape[0])
    if "bias" in call.tensors:
        values |= _bias_values(call.tensors["bias"])
    if "relative_bias" in call.tensors:
        steps = [int(stride) for stride in call.tensors["relative_bias"].stride()][:-1]
        names = ("batch", "row", "head")[-len(steps) :]
        values |= {
            f"relative_bias_{name}_stride": step for name, step in zip(names, steps, strict=True)
        }
    strides = [int(stride) for stride in lse.stride()]
    lse_names = ("lse_batch_stride", "lse_row_stride", "lse_head_stride")[-len(strides) :]
    return values | dict(zip(lse_names, strides, strict=True))


def _bias_values(bias: Any) -> dict[str, float]:
    """Strides and extents of a bias; a dimension of 1 is shared by all that it would tell apart."""
    sizes = [int(size) for size in bias.shape]
    steps = [0 if size == 1 else int(step) for size, step in zip(sizes, bias.stride(), strict=True)]
    names = {2: ("row",), 3: ("batch", "row"), 4: ("batch", "head", "row")}[len(sizes)]
    values: dict[str, float] = {
        f"bias_{name}_stride": step for name, step in zip(names, steps, strict=False)
    }
    values["bias_queries"] = _EVERY_QUERY if sizes[-2] == 1 else sizes[-2]
    values["bias_keys"] = sizes[-1]
    return values


class ArgumentStruct:
    """The struct of scalars and pointers; everything but addresses is known when it is made.

    Attributes:
        size_bytes: As the compiler counts it, with the padding at its end.
        open_slots: Places of the fields that are addresses, by name.
        offsets: First byte of every field.
    """

    def __init__(self, plan: KernelPlan, values: Mapping[str, float]) -> None:
        """Lay out the struct.

        Args:
            plan: The kernel.
            values: Arguments by name. What is not among them is an address.
        """
        codes = [_FORMATS.get(argument.ctype, _POINTER) for argument in plan.arguments]
        widest = max(codes, key=struct.calcsize)
        self._struct = struct.Struct("@" + "".join(codes) + "0" + widest)
        # A count of 0 aligns: each offset is the size of what stands before, and the field's own alignment.
        self.offsets = [
            struct.calcsize("@" + "".join(codes[:slot]) + "0" + code)
            for slot, code in enumerate(codes)
        ]
        self._template = [values.get(argument.name, 0) for argument in plan.arguments]
        self.size_bytes = self._struct.size
        self.open_slots = {
            argument.name: slot
            for slot, argument in enumerate(plan.arguments)
            if argument.name not in values
        }

    def pack(self, addresses: Iterable[tuple[int, int]]) -> bytes:
        """Its bytes, with `(slot, address)` for what was left open; 0 where there is none."""
        values = self._template.copy()
        for slot, address in addresses:
            values[slot] = address
        return self._struct.pack(*values)
