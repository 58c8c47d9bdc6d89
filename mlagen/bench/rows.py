"""The rows of a table: shapes to time, by name, and which kernel of a spec runs each.

A row's name is made of words with commas between. `b4,s2048,h128,causal` is a batch of 4 sequences of 2048 tokens with
128 heads and a causal mask; `k16384` gives the sequences more keys than queries, `mix` stands for 16 sequences of 17 to
4096 tokens. More words ask for what the kernel must have (`WORDS`). What a name does not ask for may be anything, but
no score mod and no sink; the plainest kernel is taken.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import InputError
from mlagen.plan.cycle_model import visible
from mlagen.verify.operands import Lengths, fit_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlagen.spec.mask import Mask
    from mlagen.spec.model import KernelSpec

# Word -> fields of a kernel's spec, by path.
MASKS: dict[str, dict[str, object]] = {
    kind: {"mask.kind": kind}
    for kind in ("causal", "none", "sliding_window", "chunked", "padding", "all", "any")
}
WORDS: dict[str, dict[str, object]] = {
    "fp16": {"dtype": "float16"},
    "fp8": {"dtype": "float8_e4m3fn"},
    "ragged": {"q_layout": "ragged", "k_rope.layout": "fused"},
    "split": {"q_form": "split"},
    "rope_rows": {"k_rope.layout": "ragged"},
    "rope_paged16": {"k_rope.layout": "paged", "k_rope.page_size": 16},
    "rope_paged64": {"k_rope.layout": "paged", "k_rope.page_size": 64},
    "kv_paged": {"kv.layout": "paged"},
    "lse": {"lse": True},
    "alibi": {"score_mod.kind": "alibi"},
    "softcap": {"score_mod.kind": "softcap"},
    "bias": {"score_mod.kind": "bias"},
    "relative_bias": {"score_mod.kind": "relative_bias"},
    "sink": {"sink": True},
}
# What a kernel must have if a row's name says nothing of it; then what it had better have.
MEANING: dict[str, object] = {"score_mod.kind": "identity", "sink": False}
PLAIN: dict[str, object] = {
    "dtype": "bfloat16",
    "q_layout": "dense",
    "q_form": "fused",
    "kv.seqlens": False,
    "k_rope.layout": "fused",
    "kv_length_counts": "total",
    "lse": False,
    "max_seqlen": "dynamic",
    "partition.kind": "none",
}
MIX = (17, 64, 129, 200, 333, 511, 640, 777, 1000, 1300, 1733, 2048, 2500, 3001, 3600, 4096)

_LENGTHS = (1024, 2048, 4096, 8192, 16384)
_FORMS = (
    "",
    ",split",
    ",rope_rows",
    ",rope_paged64",
    ",rope_paged16",
    ",ragged",
    ",fp16",
    ",lse",
)
SETS: dict[str, tuple[str, ...]] = {
    "figures": (
        *(f"b1,s{n},h128,causal" for n in (2048, 4096, 8192)),
        "b1,s8192,h128,none",
    ),
    "speed": (
        *(f"b1,s{n},h128,causal" for n in _LENGTHS),
        "b4,s4096,h128,causal",
        "b8,s1024,h128,causal",
        "b1,s4096,h16,causal",
        "b1,s16384,h16,causal",
        "b32,s512,h16,causal",
        "mix,h128,causal",
        "b1,s1024,k16384,h128,causal",
        *(f"b1,s{n},h128,none" for n in _LENGTHS),
        "b32,s512,h16,none",
    ),
    "operands": tuple(f"b1,s{n},h128,causal{form}" for n in (2048, 8192) for form in _FORMS),
    "masks": (
        "b1,s8192,h128,causal",
        "b1,s8192,h128,causal,alibi",
        "b1,s8192,h128,causal,sink",
        "b1,s8192,h128,causal,softcap",
        "b1,s16384,h128,causal",
        "b1,s16384,h128,sliding_window",
        "b1,s16384,h128,chunked",
    ),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one call.

    Attributes:
        queries: Queries of each sequence.
        keys: Keys of each sequence; the last query stands at the last key.
        heads: Query heads; peers get keys and values for each.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int

    @property
    def is_uniform(self) -> bool:
        """Whether dense tensors hold the batch."""
        return len(set(self.queries)) == len(set(self.keys)) == 1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        name: See the module.
        shape: Of the call.
        wanted: What its kernel must have, by path of a field.
    """

    name: str
    shape: Shape
    wanted: Mapping[str, object]


def parse_row(name: str) -> Row:
    """The row of a name.

    Raises:
        InputError: It is none; says which word is wrong, and which names and words there are.
    """
    sizes: dict[str, int] = {}
    fields: dict[str, object] = {}
    is_mix = False
    for word in (part.strip() for part in name.split(",")):
        size = re.fullmatch(r"([bskh])([1-9]\d*)", word)
        known = MASKS.get(word) or WORDS.get(word)
        if size:
            sizes[size[1]] = int(size[2])
        elif known:
            fields |= known
        elif word == "mix":
            is_mix = True
        else:
            raise _no_row(name, f"{word!r} is no word of a row's name", word)
    needed = {"h"} if is_mix else {"s", "h"}
    if missing := sorted(needed - sizes.keys()):
        raise _no_row(name, f"says no {missing[0]}, as in {missing[0]}128")
    if is_mix and sizes.keys() != {"h"}:
        raise _no_row(name, "mix stands for b, s and k together")
    if "mask.kind" not in fields:
        raise _no_row(name, "names no mask")
    queries = MIX if is_mix else (sizes["s"],) * sizes.get("b", 1)
    keys = MIX if is_mix else (sizes.get("k", sizes["s"]),) * sizes.get("b", 1)
    return Row(name, Shape(queries, keys, sizes["h"]), MEANING | fields)


def _no_row(name: str, reason: str, word: str = "") -> InputError:
    standard = list(dict.fromkeys(row for rows in SETS.values() for row in rows))
    near = difflib.get_close_matches(word, [*MASKS, *WORDS, "mix"], n=1)
    names = "\n".join(f"    {row}" for row in standard)
    advice = f"did you mean {near[0]!r}? " if near else ""
    return InputError(
        f"--row {name}: {reason}\n  standard rows:\n{names}\n"
        f"  {advice}Words: b1 s4096 k16384 h128, mix, {', '.join(MASKS)}, {', '.join(WORDS)}"
    )


def find_kernel(specs: Iterable[KernelSpec], row: Row) -> KernelSpec | None:
    """The plainest kernel that has what a row wants and can be told its lengths; of equals the first."""
    fitting = [
        spec
        for spec in specs
        if spec.op == "prefill"
        and all(_field(spec, path) == want for path, want in row.wanted.items())
        and _takes(spec, row.shape)
    ]
    return min(fitting, key=_strangeness, default=None)


def _strangeness(spec: KernelSpec) -> int:
    return sum(_field(spec, path) != plain for path, plain in PLAIN.items())


def _field(spec: KernelSpec, path: str) -> object:
    found: Any = spec
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _takes(spec: KernelSpec, shape: Shape) -> bool:
    """Whether a call of the kernel can have these lengths and heads."""
    lengths = lengths_of(spec, shape)
    rope_heads = 1 if spec.k_rope.layout == "fused" else spec.k_rope.num_heads
    return (lengths.queries, lengths.keys) == (
        shape.queries,
        shape.keys,
    ) and shape.heads % rope_heads == 0


def lengths_of(spec: KernelSpec, shape: Shape) -> Lengths:
    """The lengths of a kernel's call, as near to the shape as it can be told; no key is padding."""
    keys = shape.keys
    if spec.kv_length_counts == "prefix":  # which `fit_lengths` turns into totals
        keys = tuple(max(total - own, 0) for own, total in zip(shape.queries, keys, strict=True))
    return fit_lengths(spec, Lengths(shape.queries, keys, shape.heads, valid=shape.keys))


def flops(spec: KernelSpec, shape: Shape) -> float:
    """Floating-point operations that count: 2 (qk + v) heads x visible pairs, whatever a kernel skips or pads."""
    columns = spec.geometry.qk_head_dim + spec.geometry.v_head_dim
    return 2.0 * columns * shape.heads * visible_pairs(spec.mask, shape)


def visible_pairs(mask: Mask, shape: Shape) -> int:
    """Pairs of query and key that one head sees; a mask that depends on data counts as one that hides nothing."""
    sequences = Counter(zip(shape.queries, shape.keys, strict=True))
    return sum(count * _pairs(mask, *lengths) for lengths, count in sequences.items())


def _pairs(mask: Mask, queries: int, keys: int) -> int:
    ranges = (visible(mask, query + keys - queries, keys) for query in range(queries))
    return sum(max(end - begin, 0) for begin, end in ranges)


def names_of(sets: Sequence[str]) -> list[str]:
    """The names in these sets, each once."""
    return list(dict.fromkeys(name for one in sets for name in SETS[one]))
