"""The options of the sm_90a prefill kernel, each alone and every valid pair of them, as spec files.

Knows words of a spec and nothing of tensors. `python -m tests.gpu.option_grid` rewrites
`tests/gpu/specs/grid_*.yaml`; `tests/verify/test_gpu_grid.py` asserts that they are what this file
says and that they cover what this file promises.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pairwise import Axes

if TYPE_CHECKING:
    from tests.pairwise import Choice, Row

SPECS = Path(__file__).parent / "specs"

# The first value of each axis is the base: what stands where nothing else is asked for.
AXES: dict[str, tuple[str, ...]] = {
    "geometry": ("192x128", "128x128", "256x256", "256x256_no_rope"),
    "q_layout": ("ragged", "dense"),
    "kv": ("ragged", "ragged_shared_offsets", "dense", "dense_lengths"),
    "k_rope": (
        "fused",
        "ragged",
        "ragged_2_heads",
        "dense",
        "dense_2_heads",
        "paged_8",
        "paged_16",
        "paged_32",
        "paged_64",
        "paged_128",
        "paged_256",
        "paged_64_2_heads",
        "paged_64_rope_only",
    ),
    "mask": (
        "none",
        "causal",
        "window_left",
        "window_both",
        "window_left_open",
        "window_right_open",
        "chunked",
        "chunked_full",
    ),
    "score_mod": ("identity", "softcap", "alibi", "alibi_tensor"),
    "dtype": ("bfloat16", "float16"),
    "sink": ("no", "yes"),
    "lse": ("yes", "no"),
    "q_form": ("fused", "split"),
    "kv_length_counts": ("total", "prefix"),
    "max_seqlen": ("dynamic", "static"),
}

GEOMETRIES: dict[str, str] = {
    # DeepSeek-V3 (YaRN only sets the default scale), Mistral Small 4, GLM-5, GLM-5.3-Flash.
    "192x128": "{num_heads: [4], qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, "
    "kv_lora_rank: 512, rope_scaling: {type: yarn, factor: 40, mscale_all_dim: 1.0}}",
    "128x128": "{num_heads: [4], qk_nope_head_dim: 64, qk_rope_head_dim: 64, v_head_dim: 128, "
    "kv_lora_rank: 256, rope_scaling: {type: yarn, factor: 128, mscale_all_dim: 1.0}}",
    "256x256": "{num_heads: [4], qk_nope_head_dim: 192, qk_rope_head_dim: 64, v_head_dim: 256, "
    "kv_lora_rank: 512}",
    "256x256_no_rope": "{num_heads: [4], qk_nope_head_dim: 256, qk_rope_head_dim: 0, "
    "v_head_dim: 256, kv_lora_rank: 512}",
}

# What each value says in YAML; also values that only `EXTRA` has. No window or chunk is a multiple of a tile.
_YAML: dict[str, dict[str, str]] = {
    "mask": {
        "none": "none",
        "causal": "causal",
        "window_3": "{kind: sliding_window, left: 3, right: 0}",
        "window_4095": "{kind: sliding_window, left: 4095, right: 0}",
        "window_left": "{kind: sliding_window, left: 100, right: 0}",
        "window_both": "{kind: sliding_window, left: 70, right: 30}",
        "window_left_open": "{kind: sliding_window, left: null, right: 17}",
        "window_right_open": "{kind: sliding_window, left: 45, right: null}",
        "chunked": "{kind: chunked, size: 150}",
        "chunked_full": "{kind: chunked, size: 100, causal: false}",
    },
    "score_mod": {
        "identity": "identity",
        "softcap": "{kind: softcap, cap: 4.0}",
        "softcap_1": "{kind: softcap, cap: 1.0}",
        "alibi": "{kind: alibi, slopes: geometric}",
        "alibi_tensor": "{kind: alibi, slopes: tensor}",
    },
    "k_rope": {
        "fused": "{layout: fused}",
        "ragged": "{layout: ragged}",
        "ragged_2_heads": "{layout: ragged, num_heads: 2}",
        "dense": "{layout: dense}",
        "dense_2_heads": "{layout: dense, num_heads: 2}",
        **{
            f"paged_{size}": f"{{layout: paged, page_size: {size}}}"
            for size in (8, 16, 32, 64, 128, 256)
        },
        "paged_64_2_heads": "{layout: paged, page_size: 64, num_heads: 2}",
        "paged_64_rope_only": "{layout: paged, page_size: 64, row_width: 64}",
    },
    "kv": {
        "ragged": "{layout: ragged}",
        "ragged_shared_offsets": "{layout: ragged, row_offsets: false}",
        "dense": "{layout: dense}",
        "dense_lengths": "{layout: dense, seqlens: true}",
    },
    "sink": {"no": "false", "yes": "true"},
    "lse": {"no": "false", "yes": "true"},
    "max_seqlen": {"dynamic": "dynamic", "static": "4096"},
}


# Kernels of single tests that the grid may lack: what differs from the base, geometry 192x128.
EXTRA: tuple[Row, ...] = (
    {"mask": "window_3"},
    {"mask": "window_4095"},
    {"mask": "causal", "score_mod": "softcap_1"},
    {"mask": "causal", "score_mod": "alibi"},
    {"mask": "causal", "k_rope": "paged_16"},
    {"mask": "causal", "k_rope": "paged_64"},
    {"mask": "causal", "k_rope": "paged_8"},
    {"mask": "causal", "k_rope": "ragged"},
    {"mask": "causal", "q_layout": "dense", "kv": "dense"},
    {"q_layout": "dense", "kv": "dense"},
    {"mask": "causal", "q_layout": "dense", "kv": "dense", "dtype": "float16"},
    {"q_layout": "dense", "kv": "dense", "dtype": "float16"},
    {"mask": "causal", "sink": "yes"},
    {"mask": "causal", "q_form": "split", "k_rope": "paged_64", "kv_length_counts": "prefix"},
)


@functools.cache
def is_allowed(first: Choice, second: Choice) -> bool:
    """Whether two choices can stand in one kernel; every rule of the spec joins two options."""
    return not (_is_forbidden(first, second) or _is_forbidden(second, first))


def _is_forbidden(first: Choice, second: Choice) -> bool:
    axis, value = second
    match first:
        case ("geometry", "256x256_no_rope"):  # nothing to separate
            return (axis == "k_rope" and value != "fused") or second == ("q_form", "split")
        case ("q_layout", "dense"):  # its length is the tensor's, and it has no offsets to share
            return second in {("max_seqlen", "static"), ("kv", "ragged_shared_offsets")}
        case (
            "kv",
            "dense" | "dense_lengths",
        ):  # ragged rope rows lie by the offsets of ragged keys
            return axis == "k_rope" and value.startswith("ragged")
        case ("kv_length_counts", "prefix"):  # needs a length a sequence beside the queries' own
            return second in {("kv", "ragged_shared_offsets"), ("kv", "dense")}
    return False


GRID = Axes(AXES, is_allowed)


@functools.cache
def covering_rows() -> tuple[Row, ...]:
    """Kernels with each option alone (all else at its base where it can be), then all valid pairs."""
    return GRID.covering_rows(first_alone=True)


def group_yaml(row: Row) -> str:
    """One kernel as one line of a spec's `kernels`."""
    fields = {
        axis: _YAML[axis][value] if axis in _YAML else value
        for axis, value in row.items()
        if axis != "geometry"
    }
    return "{op: prefill, " + ", ".join(f"{key}: {text}" for key, text in fields.items()) + "}"


@dataclass(frozen=True, slots=True)
class SpecText:
    """One committed spec file.

    Attributes:
        name: File stem.
        geometry: Of all its kernels.
        rows: Its kernels.
        in_grid: Whether it belongs to the grid, not to a single test.
    """

    name: str
    geometry: str
    rows: tuple[Row, ...]
    in_grid: bool = True

    @property
    def path(self) -> Path:
        """Where it is committed."""
        return SPECS / f"{self.name}.yaml"

    @property
    def text(self) -> str:
        """Its whole content."""
        lines = [
            "# Written by tests/gpu/option_grid.py; edits here are lost.",
            "spec: 1",
            f"name: {self.name.replace('_', '-')}",
            f"geometry: {GEOMETRIES[self.geometry]}",
            "arch: [sm_90a]",
            "kernels:",
            *(f"  - {group_yaml(row)}" for row in self.rows),
        ]
        return "\n".join(lines) + "\n"


def spec_files() -> list[SpecText]:
    """The grid, one file a geometry, and the kernels that single tests need beside it."""
    rows = covering_rows()
    grid = [
        SpecText(f"grid_{geometry}", geometry, tuple(r for r in rows if r["geometry"] == geometry))
        for geometry in AXES["geometry"]
    ]
    alone = ({**GRID.base, **options} for options in EXTRA)
    extra = tuple(row for row in alone if row not in rows)
    return [*grid, SpecText("extra", "192x128", extra, in_grid=False)]


if __name__ == "__main__":
    for file in spec_files():
        file.path.write_text(file.text)
        print(f"{file.path}: {len(file.rows)} kernels")
