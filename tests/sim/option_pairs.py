"""The options of the Blackwell prefill, crossed pairwise: kernels that have every pair of values which is not refused.

`python -m tests.sim.option_pairs` rewrites `tests/sim/specs/pairs_*.yaml`, and `make sim-full` runs them. Who can stand
with whom is asked of the planner: nothing here knows a rule.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: the values of a spec, as in YAML

from ruamel.yaml import YAML

from mlagen.errors import MlagenError
from mlagen.plan import plan_kernel
from mlagen.spec.yaml import kernel_from_dict
from tests.gpu.option_grid import GEOMETRIES
from tests.pairwise import Axes

if TYPE_CHECKING:
    from tests.pairwise import Choice, Row

SPECS = Path(__file__).parent / "specs"

# Several fields of `config` together. Kernels say it in full: left out, it follows from heads and other options.
FORM = "config.form"

# Option, or a field of one -> its values in YAML, the default first. A new option, or a new value, is a line here.
AXES: dict[str, tuple[str, ...]] = {
    "geometry": ("192x128", "128x128", "256x256", "256x256_no_rope"),
    "dtype": ("bfloat16", "float16", "float8_e4m3fn"),
    "output_dtype": ("bfloat16", "float16"),
    "q_form": ("fused", "split"),
    "q_layout": ("ragged", "dense"),
    "mask": (
        "none",
        "causal",
        "{kind: sliding_window, left: 100, right: 0}",
        "{kind: sliding_window, left: 70, right: 30}",
        "{kind: chunked, size: 150}",
        "{kind: chunked, size: 100, causal: false}",
        "{all: [causal, padding]}",
        "{any: [{kind: sliding_window, left: 60, right: 0}, {kind: chunked, size: 90}]}",
    ),
    "score_mod": (
        "identity",
        "{kind: softcap, cap: 4.0}",
        "{kind: alibi, slopes: geometric}",
        "{kind: alibi, slopes: tensor}",
        "{kind: bias, rank: 2}",
        "{kind: bias, rank: 3}",
        "{kind: bias, rank: 4}",
        "{kind: relative_bias, extent: 100}",
    ),
    "kv": (
        "{layout: ragged}",
        "{layout: ragged, row_offsets: false}",
        "{layout: dense}",
        "{layout: dense, seqlens: true}",
        "{layout: paged, page_size: 16}",
        "{layout: paged, page_size: 256}",
    ),
    "k_rope": (
        "{layout: fused}",
        "{layout: ragged}",
        "{layout: dense, num_heads: 2}",
        "{layout: paged, page_size: 8}",
        "{layout: paged, page_size: 16}",
        "{layout: paged, page_size: 64, num_heads: 2}",
        "{layout: paged, page_size: 256}",
    ),
    "kv_length_counts": ("total", "prefix"),
    "sink": ("false", "true"),
    "lse": ("false", "true"),
    "max_seqlen": ("dynamic", "4096"),
    "partition": ("none", "{kind: split_kv, splits: auto}", "{kind: split_kv, splits: 3}"),
    "scheduler.kind": ("queued", "persistent", "transient"),
    "scheduler.order": ("longest_first", "natural", "rotate"),
    FORM: (
        "tile_m: 256",
        "tile_m: 128, single_output: false",
        "tile_m: 128, single_output: true",
    ),
    "config.cta_group": ("1", "2"),
    "config.tile_n": ("128", "64"),
    "config.rescale_threshold": ("0.5", "0"),
    "config.exp2_emulation_share": ("0", "0.25"),
    "config.softmax_order": ("false", "true"),
}

# Values that differ from one above in a number or a side only: where they can, they stand in its place by turns.
IN_TURN: dict[Choice, tuple[str, ...]] = {
    ("mask", "{kind: sliding_window, left: 70, right: 30}"): (
        "{kind: sliding_window, left: null, right: 17}",
        "{kind: sliding_window, left: 45, right: null}",
    ),
    ("k_rope", "{layout: ragged}"): ("{layout: ragged, num_heads: 2}",),
    ("k_rope", "{layout: dense, num_heads: 2}"): ("{layout: dense}",),
    ("k_rope", "{layout: paged, page_size: 16}"): ("{layout: paged, page_size: 32}",),
    ("k_rope", "{layout: paged, page_size: 64, num_heads: 2}"): (
        "{layout: paged, page_size: 64}",
        "{layout: paged, page_size: 64, row_width: 64}",
    ),
    ("k_rope", "{layout: paged, page_size: 256}"): ("{layout: paged, page_size: 128}",),
}


def options_of(row: Row) -> dict[str, str]:
    """What differs from the base, and the form of a tile, as fields of a kernel in YAML."""
    fields: dict[str, list[str]] = {}
    for axis, value in row.items():
        option, _, field = axis.partition(".")
        if axis == FORM:
            fields.setdefault(option, []).append(value)
        elif axis != "geometry" and value != AXES[axis][0]:
            fields.setdefault(option, []).append(f"{field}: {value}" if field else value)
    return {
        option: f"{{{', '.join(values)}}}" if option not in AXES else values[0]
        for option, values in fields.items()
    }


@functools.cache
def _value(text: str) -> Any:
    """What YAML says; not to be changed."""
    return YAML(typ="safe", pure=True).load(text)


def row_of(geometry: str, group: dict[str, Any]) -> Row:
    """The choices of one of a spec's `kernels`: what `options_of` made it of."""
    row = {"geometry": geometry}
    for axis, values in list(AXES.items())[1:]:
        option, _, field = axis.partition(".")
        given = group.get(option, {} if field else _value(values[0]))
        if axis == FORM:
            row[axis] = next(
                value for value in values if _value(f"{{{value}}}").items() <= given.items()
            )
            continue
        wanted = given.get(field, _value(values[0])) if field else given
        row[axis] = next(value for value in values if wanted in spellings(axis, value))
    return row


def spellings(axis: str, value: str) -> list[Any]:
    """What a spec may have for a choice."""
    return [_value(text) for text in (value, *IN_TURN.get((axis, value), ()))]


def in_turn(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows with all that `IN_TURN` names."""
    times: Counter[Choice] = Counter()

    def with_other(row: Row, choice: Choice) -> Row:
        axis, value = choice
        texts = (value, *IN_TURN[choice])
        other = {**row, axis: texts[times[choice] % len(texts)]}
        if row[axis] != value or not has_kernel(other):
            return row
        times[choice] += 1
        return other

    return tuple(functools.reduce(with_other, IN_TURN, row) for row in rows)


def committed_rows() -> tuple[Row, ...]:
    """The kernels of the spec files that there are."""
    return tuple(
        row_of(geometry, group)
        for geometry in AXES["geometry"]
        for group in _value(spec_path(geometry).read_text(encoding="utf-8"))["kernels"]
    )


def has_kernel(row: Row) -> bool:
    """Whether there is a kernel with these choices, all others at their base."""
    options = {option: _value(text) for option, text in options_of(row).items()}
    model = _value(GEOMETRIES[row.get("geometry", AXES["geometry"][0])])
    geometry = {name: value for name, value in model.items() if name != "num_heads"}
    try:
        spec = kernel_from_dict(
            {"arch": "sm_100a", "op": "prefill", "geometry": geometry} | options
        )
        plan_kernel(spec)
    except MlagenError:
        return False
    return True


@functools.cache
def is_allowed(first: Choice, second: Choice) -> bool:
    """Whether two choices have a kernel."""
    return has_kernel(dict((first, second)))


PAIRS = Axes(AXES, is_allowed)


def spec_path(geometry: str) -> Path:
    """Where the kernels of a geometry are committed."""
    return SPECS / f"pairs_{geometry}.yaml"


def spec_text(geometry: str, rows: tuple[Row, ...]) -> str:
    """The spec file of a geometry."""
    lines = [
        "# Written by tests/sim/option_pairs.py; edits here are lost.",
        "spec: 1",
        f"name: pairs-{geometry.replace('_', '-')}",
        f"geometry: {GEOMETRIES[geometry]}",
        "arch: [sm_100a]",
        "kernels:",
        *(f"  - {_group(row)}" for row in rows if row["geometry"] == geometry),
    ]
    return "\n".join(lines) + "\n"


def _group(row: Row) -> str:
    """One kernel as one line of a spec's `kernels`."""
    fields = {"op": "prefill"} | options_of(row)
    return "{" + ", ".join(f"{option}: {text}" for option, text in fields.items()) + "}"


if __name__ == "__main__":
    by_file = sorted(PAIRS.covering_rows(), key=lambda row: AXES["geometry"].index(row["geometry"]))
    covering = in_turn(tuple(by_file))
    for each in AXES["geometry"]:
        spec_path(each).write_text(spec_text(each, covering), encoding="utf-8")
    print(f"{len(covering)} kernels")
