"""The shapes that are timed: the rows of issue 2, and the wider tables of issue 5.

FLOPs are 2 (192 + 128) heads x visible pairs of query and key, whatever a kernel skips or pads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Fields of a kernel's spec, by path. What a row does not name is as here.
BASE: dict[str, object] = {
    "dtype": "bfloat16",
    "q_layout": "dense",
    "q_form": "fused",
    "k_rope.layout": "fused",
    "mask.kind": "causal",
    "score_mod.kind": "identity",
    "sink": False,
    "lse": False,
}
RAGGED_MIX = (17, 64, 129, 200, 333, 511, 640, 777, 1000, 1300, 1733, 2048, 2500, 3001, 3600, 4096)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        label: Its name, unique.
        q_lens: Queries of each sequence.
        kv_lens: Keys of each sequence.
        heads: Query heads; keys have as many.
        kernel: What its kernel's spec has, where that is not `BASE`.
        pairs: Visible pairs of query and key of one head.
        goal: Least speed relative to torch's cuDNN attention in the same run and regime, or None.
    """

    label: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    heads: int
    kernel: Mapping[str, object]
    pairs: int
    goal: float | None = None

    def flops(self) -> float:
        """Floating-point operations that count."""
        return 2.0 * (192 + 128) * self.heads * self.pairs

    @property
    def wanted(self) -> dict[str, object]:
        """Fields of the kernel that runs it."""
        return {**BASE, **self.kernel}

    @property
    def is_causal(self) -> bool:
        """Bottom-right causal, else every key is seen (or the mask is one that peers lack)."""
        return self.wanted["mask.kind"] == "causal"

    @property
    def is_plain(self) -> bool:
        """Whether it is a row to time peers on: same operands, mask and layout as theirs."""
        free = {"mask.kind", "q_layout"}
        known_mask = self.wanted["mask.kind"] in {"causal", "none"}
        return known_mask and all(
            self.wanted.get(name) == want for name, want in BASE.items() if name not in free
        )

    @property
    def is_uniform(self) -> bool:
        """Whether a dense tensor holds the batch."""
        return len(set(self.q_lens)) == 1 and len(set(self.kv_lens)) == 1


def causal_pairs(seqlen_q: int, seqlen_k: int) -> int:
    """Visible pairs of a bottom-right causal mask."""
    first = seqlen_k - seqlen_q + 1  # keys that query 0 sees
    if first >= 1:
        return seqlen_q * (first + seqlen_k) // 2
    return seqlen_k * (seqlen_k + 1) // 2


def _row(label: str, lengths: tuple[int, ...], *, heads: int = 128, causal: bool = True) -> Row:
    """A row of self-attention."""
    pairs = sum(causal_pairs(n, n) if causal else n * n for n in lengths)
    dense = len(set(lengths)) == 1
    kernel = {"mask.kind": "causal" if causal else "none"}
    layout = {} if dense else {"q_layout": "ragged"}
    return Row(label, lengths, lengths, heads, {**kernel, **layout}, pairs)


def _with_goal(row: Row, goal: float) -> Row:
    return replace(row, goal=goal)


def _figures() -> tuple[Row, ...]:
    """The rows of issue 2, with what each is to reach."""
    causal = (_row(f"causal {n // 1024}k", (n,)) for n in (2048, 4096, 8192))
    dense = _row("dense 8k", (8192,), causal=False)
    return (*(_with_goal(row, 1.15) for row in causal), _with_goal(dense, 1.08))


def _speed() -> tuple[Row, ...]:
    """The table of issue 5."""
    sizes = (1024, 2048, 4096, 8192, 16384)
    return (
        *(_row(f"b1 {n // 1024}k causal", (n,)) for n in sizes),
        _row("b4 4k causal", (4096,) * 4),
        _row("b8 1k causal", (1024,) * 8),
        _row("b1 4k h16 causal", (4096,), heads=16),
        _row("b1 16k h16 causal", (16384,), heads=16),
        _row("b32 512 h16 causal", (512,) * 32, heads=16),
        _row("ragged mix causal", RAGGED_MIX),
        Row("chunk 1k on 16k causal", (1024,), (16384,), 128, {}, causal_pairs(1024, 16384)),
        *(_row(f"b1 {n // 1024}k dense", (n,), causal=False) for n in sizes),
        _row("b32 512 h16 dense", (512,) * 32, heads=16, causal=False),
    )


def _operands() -> tuple[Row, ...]:
    """The same two shapes with every other form of the operands, first the plain one."""
    forms: dict[str, dict[str, object]] = {
        "fused": {},
        "split q": {"q_form": "split"},
        "rope rows": {"q_layout": "ragged", "k_rope.layout": "ragged"},
        "rope paged by 64": {
            "q_layout": "ragged",
            "k_rope.layout": "paged",
            "k_rope.page_size": 64,
        },
        "rope paged by 16": {
            "q_layout": "ragged",
            "k_rope.layout": "paged",
            "k_rope.page_size": 16,
        },
        "ragged": {"q_layout": "ragged"},
        "fp16": {"dtype": "float16"},
        "lse": {"lse": True},
    }
    return tuple(
        replace(_row(f"{n // 1024}k causal, {form}", (n,)), kernel=kernel)
        for n in (2048, 8192)
        for form, kernel in forms.items()
    )


def _masks() -> tuple[Row, ...]:
    """Masks and score mods."""
    mods: dict[str, dict[str, object]] = {
        "causal": {},
        "alibi": {"score_mod.kind": "alibi"},
        "sinks": {"sink": True},
        "softcap": {"score_mod.kind": "softcap"},
    }
    n, window, chunk = 16384, 1024, 2048
    windowed = causal_pairs(window, window) + (n - window) * window
    long = _row("16k causal", (n,))
    return (
        *(replace(_row(f"8k {mod}", (8192,)), kernel=kernel) for mod, kernel in mods.items()),
        long,
        replace(
            long,
            label="16k window 1024",
            kernel={"mask.kind": "sliding_window"},
            pairs=windowed,
        ),
        replace(
            long,
            label="16k chunked 2048",
            kernel={"mask.kind": "chunked"},
            pairs=n // chunk * causal_pairs(chunk, chunk),
        ),
    )


ROWS: dict[str, tuple[Row, ...]] = {
    "figures": _figures(),
    "speed": _speed(),
    "operands": _operands(),
    "masks": _masks(),
}
