"""What the kernel families implement; what else a spec may say is refused here, with what is available instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import UnsupportedError
from mlagen.plan.mask import MAX_RANGES, RANGE_MASKS, key_ranges, parts_of
from mlagen.plan.split_kv import MOST_SPLITS, fixed_splits, splits_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlagen.spec.model import KernelSpec

AVAILABLE_SCORE_MODS = ("identity", "softcap", "alibi", "bias", "relative_bias")
PAGE_SIZES = (8, 16, 32, 64, 128, 256)
HEAD_DIMS = ((128, 64, 128), (64, 64, 128), (192, 64, 256), (256, 0, 256))  # nope, rope, v


@dataclass(frozen=True, slots=True)
class Offer:
    """What one family lets a spec choose.

    Attributes:
        dtypes: Element types of the operands.
        chosen_by_user: Fields of `config` with several values.
        fixed_config: Fields with one.
    """

    dtypes: tuple[str, ...]
    chosen_by_user: tuple[str, ...]
    fixed_config: dict[str, object]


SM90 = Offer(
    ("bfloat16", "float16", "float8_e4m3fn"),
    ("tile_n", "k_stages", "v_stages", "rescale_threshold", "ping_pong", "half_diagonal"),
    {
        "tile_m": 128,
        "kv_ring": "separate",
        "qk_stages": 1,
        "pv_stages": 1,
        "swizzle_bytes": 128,
        "cta_group": 1,
        "cluster_size": 1,
        "exp2_emulation_share": 0,
        "epilogue": "tma",
        "producer_registers": 40,
        "math_registers": 232,
    },
)
SM100 = Offer(
    ("bfloat16", "float16", "float8_e4m3fn"),
    (
        "tile_m",
        "tile_n",
        "single_output",
        "rescale_threshold",
        "exp2_emulation_share",
        "softmax_order",
        "cta_group",
    ),
    {
        "kv_ring": "shared",
        "qk_stages": 1,
        "pv_stages": 2,
        "swizzle_bytes": 128,
        "cluster_size": 1,
        "epilogue": "tma",
        "producer_registers": 56,
        "math_registers": 184,
        "correction_registers": 88,
    },
)
# A position and a window width, or a sequence's rows, add up inside 32 bits.
MAX_EXTENT = 2**30 - 1


def refuse_unsupported(spec: KernelSpec, offer: Offer) -> None:
    """Raise for the options of a spec that no kernel implements yet.

    Raises:
        UnsupportedError: Names every such option, the reason and what is available.
    """
    reasons = list(unsupported(spec, offer))
    if reasons:
        title = f"not available for {spec.arch} {spec.op} yet:"
        raise UnsupportedError("\n".join([title, *(f"  {reason}" for reason in reasons)]))


def unsupported(spec: KernelSpec, offer: Offer) -> Iterable[str]:
    """Reasons why no kernel implements this spec, one for each option."""
    yield from unsupported_operands(spec, offer)
    yield from unsupported_mask(spec.mask)
    kind = getattr(spec.score_mod, "kind", "a list of score mods")
    if kind not in AVAILABLE_SCORE_MODS:
        yield f"score_mod: {kind}; available: {', '.join(AVAILABLE_SCORE_MODS)}"
    splits = fixed_splits(spec)
    if splits is not None and splits > MOST_SPLITS:
        yield f"partition.splits: {splits}; available: up to {MOST_SPLITS}, or auto"
    if splits_keys(spec) and spec.config.cta_group == 2:
        yield "partition: split_kv, and config.cta_group is 2; available: none, or cta_group 1"
    if offer is SM100 and has_one_query_tile(spec):
        if splits_keys(spec):
            yield "partition: split_kv, and a tile has 128 query rows; available: none"
        if spec.config.cta_group == 2:
            yield "config.cta_group: 2, and a tile has 128 query rows; available: 1"
    yield from unsupported_config(spec, offer)


def has_one_query_tile(spec: KernelSpec) -> bool:
    """Whether a kernel for sm_100a has tiles of 128 query rows: asked for, or since V is too wide for two outputs."""
    config = spec.config
    return config.tile_m == 128 or bool(config.single_output) or spec.geometry.v_head_dim > 192


def unsupported_mask(mask: Any) -> Iterable[str]:  # Any: the union of spec.mask
    """Reasons that lie in the mask."""
    parts = list(parts_of(mask))
    refused = dict.fromkeys(part.kind for part in parts if part.kind not in RANGE_MASKS)
    available = f"{', '.join(RANGE_MASKS)}, and all and any of these"
    yield from (f"mask: {kind}; available: {available}" for kind in refused)
    for part in parts:
        for field in ("left", "right", "size"):
            extent = getattr(part, field, None)
            if extent is not None and extent > MAX_EXTENT:
                yield f"mask.{field}: {extent}; available: up to {MAX_EXTENT} (offsets add up inside 32 bits)"
    if not refused and key_ranges(mask) is None:
        yield f"mask: any of more than {MAX_RANGES} ranges of keys; available: up to {MAX_RANGES}"


def unsupported_operands(spec: KernelSpec, offer: Offer) -> Iterable[str]:
    """Reasons that lie in dtypes, dimensions and layouts."""
    geometry = spec.geometry
    dims = (geometry.qk_nope_head_dim, geometry.qk_rope_head_dim, geometry.v_head_dim)
    if dims not in HEAD_DIMS:
        choices = ", ".join(f"{nope}+{rope}/{v}" for nope, rope, v in HEAD_DIMS)
        yield (
            f"geometry: qk_nope_head_dim + qk_rope_head_dim / v_head_dim {dims[0]}+{dims[1]}/{dims[2]}; "
            f"available: {choices}"
        )
    if spec.dtype not in offer.dtypes:
        yield f"dtype: {spec.dtype}; available: {', '.join(offer.dtypes)}"
    if spec.kv.layout == "paged" and spec.k_rope.layout == "dense":
        yield "k_rope.layout: dense, and kv is paged; available: fused, paged"
    if spec.kv.row != "plain":
        yield f"kv.row: {spec.kv.row}; available: plain"
    for operand in ("kv", "k_rope"):
        page_size = getattr(spec, operand).page_size
        if page_size is not None and page_size not in PAGE_SIZES:
            yield (
                f"{operand}.page_size: {page_size} (a box of the cache must hold whole 8-row swizzle atoms and "
                f"divide the key tile); available: {', '.join(map(str, PAGE_SIZES))}"
            )


def unsupported_config(spec: KernelSpec, offer: Offer) -> Iterable[str]:
    """Reasons that lie in `config`."""
    for field, value in spec.config.model_dump(exclude_none=True).items():
        if field in offer.chosen_by_user or value == offer.fixed_config.get(field):
            continue
        available = offer.fixed_config.get(field)
        yield f"config.{field}: {value}; " + (
            "no such choice here" if available is None else f"available: {available}"
        )
