"""Problems for a kernel: calls, small enough for a simulator, that together reach every branch of it.

Lengths are given in tiles of the kernel's own plan. Batches are ragged, with empty sequences, sequences of one, offsets
between queries and keys that are no multiple of a tile, and few blocks, so that each walks many tiles, some of them
empty or only partly visible. Some calls have offsets, lengths and page ids that no caller should give. Equal seeds give
equal problems.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.dtypes import DTYPES
from mlagen.plan import plan_kernel
from mlagen.plan.mask import takes_valid_lengths
from mlagen.verify.hostile import (
    HOSTILE_SEQUENCES,
    can_be_hostile,
    with_hostile_values,
    with_offsets,
)
from mlagen.verify.layout import lay_out
from mlagen.verify.operands import EXACT_SCALE, Lengths, Values, draw_operands, fit_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec

    Array = NDArray[Any]  # Any: bfloat16, float16, float32 and int32

# A window or chunk up to here fits into a problem of ordinary size; wider ones get a few rows at their edge.
_NARROW = 512
# Of operands that have scales; powers of two, so that what is exact stays exact.
_SCALES = {"q_scale": 4.0, "k_scale": 0.5, "v_scale": 0.25}


@dataclass(frozen=True, slots=True)
class Problem:
    """One call of one kernel.

    Attributes:
        name: Says what is special about it; unique among a kernel's problems.
        tensors: Arguments of `run` under their canonical names; bfloat16 is that of `ml_dtypes`.
        options: Other arguments of `run`: `softmax_scale`, `max_seqlen_q`, scales of operands.
        ctas: How many blocks to run it with, where a block walks several tiles.
        is_exact: Every probability is a power of two: only the output is rounded.
        is_hostile: Offsets, lengths or page ids are such as `validate=True` refuses.
    """

    name: str
    tensors: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)  # as `run` takes them
    ctas: int = 1
    is_exact: bool = False
    is_hostile: bool = False


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A problem before its tensors are made."""

    name: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    values: Values = "random"
    heads: int = 1
    ctas: int = 1
    strided: bool = False
    padding: int = 0
    valid: tuple[int, ...] = ()
    longest: int | None = None  # said to be the longest queries
    shares_pages: bool = False
    spoil: Callable[[KernelSpec, dict[str, Array]], dict[str, Array]] | None = None


def problems(spec: KernelSpec, *, seed: int = 0) -> list[Problem]:
    """The problems of a kernel; the first is one tile of random values.

    Raises:
        SpecError, PlanError: There is no such kernel.
    """
    plan = plan_kernel(spec)
    return [_make(plan, recipe, seed) for recipe in _recipes(plan)]


def problem_names(spec: KernelSpec) -> list[str]:
    """The names of a kernel's problems, in order; makes no tensors."""
    return [recipe.name for recipe in _recipes(plan_kernel(spec))]


def make_problem(spec: KernelSpec, name: str, *, seed: int = 0) -> Problem:
    """One problem of a kernel, by its name.

    Raises:
        KeyError: It has none of that name.
    """
    plan = plan_kernel(spec)
    for recipe in _recipes(plan):
        if recipe.name == name:
            return _make(plan, recipe, seed)
    raise KeyError(name)


def _recipes(plan: KernelPlan) -> Iterator[_Recipe]:
    m, n = plan.tile_rows, plan.tile_n
    yield _Recipe("random", (m,), (2 * n + 5,))
    yield from _walks(plan)
    yield _Recipe(
        "longer keys", (70, 1), (3 * n + 45, 4 * n), "integer", heads=2, ctas=2, padding=1
    )
    yield _Recipe("more queries than keys", (2 * m + 5, 9), (n // 2 + 3, 8), longest=2 * m + 5)
    # Compilers unroll the loop over blocks by four.
    yield _Recipe("many keys", (3,), (9 * n + 5,), "integer")
    yield _Recipe("no keys", (m + 2,), (0,), "integer")
    yield _Recipe("one key", (1, m), (1, 1), "random")
    # The last block has one key more than its half.
    for values in ("rising", "falling", "threshold", "huge rising", "huge falling"):
        yield _Recipe(values, (m - 1,), (3 * n + n // 2 + 1,), values)
    yield _Recipe("towering keys", (32,), (4 * n,), "towering")
    if DTYPES[plan.spec.dtype].is_scaled:
        yield _Recipe("leading key", (40,), (9 * n,), "leading")
    yield from _edges(plan)
    yield from _batches(plan)
    if plan.state_elements:
        # So many blocks that the keys are split where that is chosen at each call; one sequence has too few for it.
        yield _Recipe("blocks share keys", (40, 3), (6 * n + 5, n), "integer", ctas=9, padding=2)
        # Two parts of a block each: under a causal mask, the first rows see no key of the second.
        yield _Recipe("blocks share rising keys", (m,), (2 * n - 5,), "deep rising", ctas=2)


def _walks(plan: KernelPlan) -> Iterator[_Recipe]:
    """Problems in which each block walks four tiles or more, some of them empty or partly visible."""
    m, n = plan.tile_rows, plan.tile_n
    few: tuple[int, ...] = (m + 1, 0, 40, 1, 3)
    many: tuple[int, ...] = (m + 72, 5, 0, m, 17, 2 * m + 1)
    few_keys: tuple[int, ...] = (n + 1, 7, 1, 0, 2 * n)
    many_keys: tuple[int, ...] = (n + 9, 2 * n - 1, 3, 0, 1, n // 2 + 3)
    if plan.spec.q_layout == "dense":  # all sequences have as many queries as the longest
        few, few_keys = (m + 1,) * 3, (n + 1, 1, 0)
        many, many_keys = (m + 72,) * 3, (n + 9, 2 * n - 1, 3)
    yield _Recipe("integer walk", few, few_keys, "integer")
    yield _Recipe("three blocks walk", many, many_keys, heads=2, ctas=3, strided=True, padding=3)
    # A tile that begins with what the last one left: its largest score, and barriers as they are after even blocks.
    yield _Recipe(
        "huge rising walk",
        (m, m if plan.spec.q_layout == "dense" else 20),
        (2 * n, n // 2),
        "huge rising",
    )
    yield _Recipe("three tiles walk", (m,) * 3, (2 * n + 20,) * 3, "integer")
    # Around one and two halves of a tile, and around one and two blocks. The last row of 257 is a tile with three
    # blocks, an odd number for two halves that take them in turn.
    rows: tuple[int, ...] = (257, 0, 129, 1, 255, 128, 256, 127)
    keys: tuple[int, ...] = (257, 129, 255, 128, 127, 0, 256, 1)
    if plan.spec.q_layout == "dense":
        rows = (129,) * len(keys)
    yield _Recipe("lengths around blocks", rows, keys, "integer")


def _edges(plan: KernelPlan) -> Iterator[_Recipe]:
    """Problems at the edges of the mask."""
    m, n = plan.tile_rows, plan.tile_n
    widths = [
        max(one.left or 0, one.right or 0)
        for one in plan.key_ranges
        if one.left is not None or one.right
    ]
    for width, number in zip(widths, _numbers(len(widths)), strict=True):
        # A key of thousands weighs something only if it is among the largest logits: falling, those at the edge are.
        is_wide = width > _NARROW
        yield _Recipe(
            f"edge of the window{number}",
            (20 if is_wide else m + 30,),
            (width + n + 40,),
            "falling" if is_wide else "integer",
        )
    sizes = sorted({size for one in plan.key_ranges for size in one.chunks})
    for size, number in zip(sizes, _numbers(len(sizes)), strict=True):
        if size <= _NARROW:
            yield _Recipe(f"edge of the chunk{number}", (m + 30,), (size + n,), "integer")
        else:
            # The rows before the edge see the whole chunk, so it takes all its blocks.
            yield _Recipe(f"edge of the chunk{number}", (20,), (size + 8,), "falling")
            yield _Recipe(
                f"behind the edge of the chunk{number}", (m + 3,), (size + m + n,), "integer"
            )
    if takes_valid_lengths(plan.spec.mask):
        # Around the edge of a block. Beside a window, the last rows see no key of the block in the middle.
        valid = (0, 1, n - 1, n, n + 1, 3 * n + 4)
        yield _Recipe("valid lengths", (m + 1, *(3,) * 5), (3 * n + 5,) * 6, "integer", valid=valid)


def _numbers(count: int) -> list[str]:
    """What makes the names of several different."""
    return [""] if count == 1 else [f" {number + 1}" for number in range(count)]


def _batches(plan: KernelPlan) -> Iterator[_Recipe]:
    """Problems of batches: many sequences, and offsets that no caller should give."""
    spec = plan.spec
    has_common_length = spec.kv.layout == "dense" and not spec.kv.seqlens  # of all sequences' keys
    if spec.q_layout == "ragged":
        # The search for a tile's sequence goes on by 32.
        queries = [0] * 66
        queries[31], queries[32], queries[65] = 3, 2, 1
        keys = [1 + index % 5 for index in range(66)]
        yield _Recipe("many sequences", tuple(queries), tuple(keys), "integer")
    if spec.kv.layout == "paged":
        m, n = plan.tile_m, plan.tile_n
        yield _Recipe(
            "shared pages",
            (m // 2, 5, 40),
            (4 * n + 5, 3 * n, 2 * n + 7),
            heads=2,
            shares_pages=True,
        )
    if can_be_hostile(spec):
        batch = HOSTILE_SEQUENCES
        yield _Recipe(
            "hostile values", (30,) * batch, (70,) * batch, "integer", spoil=with_hostile_values
        )
    if (
        any(mod.kind == "bias" for mod in spec.score_mods)
        and spec.q_layout == "ragged"
        and not has_common_length
    ):
        n = plan.tile_n
        yield _Recipe(
            "bias ends early", (40, 3), (2 * n + 5, n), "integer", padding=2, spoil=_with_short_bias
        )
    has_own_lengths = (
        spec.kv.row_offsets
        and not has_common_length
        and (spec.kv.layout != "paged" or spec.kv_length_counts == "total")
    )
    if spec.q_layout == "ragged" and has_own_lengths and spec.max_seqlen == "dynamic":
        # The second sequence is longer than is said: its rest stays as it is, and it sees no key, so that nothing
        # depends on where its queries stand. The third ends before it begins, where the rows to be written end.
        yield _Recipe(
            "longer than said",
            (40, 70, 0),
            (10, 0, 3),
            "integer",
            longest=40,
            spoil=lambda _, tensors: with_offsets(
                tensors, cu_seqlens_q=(0, 40, 110, 80), cu_seqlens_k=(0, 10, 10, 13)
            ),
        )


def _with_short_bias(_: KernelSpec, tensors: dict[str, Array]) -> dict[str, Array]:
    """The call with a bias that lacks the last queries and keys of the longest sequence."""
    return tensors | {"bias": tensors["bias"][..., :-5, :-30]}


def _make(plan: KernelPlan, recipe: _Recipe, seed: int) -> Problem:
    spec = plan.spec
    heads = recipe.heads * (spec.k_rope.num_heads if spec.k_rope.layout != "fused" else 1)
    lengths = fit_lengths(spec, Lengths(recipe.queries, recipe.keys, heads, recipe.valid))
    random = np.random.default_rng([seed, zlib.crc32(recipe.name.encode())])
    operands = draw_operands(
        spec,
        lengths,
        recipe.values,
        tile_n=plan.tile_n,
        rescale_threshold=plan.rescale_threshold,
        random=random,
    )
    tensors = lay_out(
        spec,
        lengths,
        operands,
        strided=recipe.strided,
        padding=recipe.padding,
        shares_pages=recipe.shares_pages,
        random=random,
    )
    options: dict[str, Any] = {}  # as `run` takes them
    if recipe.values != "random":
        options["softmax_scale"] = EXACT_SCALE
    if DTYPES[spec.dtype].is_scaled:
        options |= _SCALES
        if "softmax_scale" in options:
            options["softmax_scale"] /= _SCALES["q_scale"] * _SCALES["k_scale"]
    if recipe.longest is not None:
        options["max_seqlen_q"] = min(recipe.longest, max(lengths.queries))
    if recipe.spoil is not None:
        tensors = recipe.spoil(spec, tensors)
    is_exact = (
        recipe.values == "integer"
        and spec.dtype != "float16"  # which has no small powers of two
        and not spec.sink
        and spec.score_mod.kind == "identity"
    )
    return Problem(
        recipe.name, tensors, options, recipe.ctas, is_exact, is_hostile=recipe.spoil is not None
    )
