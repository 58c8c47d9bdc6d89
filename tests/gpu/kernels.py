"""The kernels of `tests/gpu/specs`, found by their options."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import mlagen
from mlagen.runtime.kernel import Kernels
from mlagen.spec.yaml import load_spec_file
from tests.gpu.option_grid import AXES, SPECS, spec_files

if TYPE_CHECKING:
    from mlagen.spec.model import KernelSpec
    from tests.pairwise import Row


@functools.cache
def _specs() -> dict[str, KernelSpec]:
    """Every committed kernel by its label."""
    found = {}
    for file in spec_files():
        specs = load_spec_file(file.path).expand()
        assert len(specs) == len(file.rows), f"{file.path} is not what option_grid.py writes"
        found.update({label(row): spec for row, spec in zip(file.rows, specs, strict=True)})
    return found


def label(row: Row) -> str:
    """What differs from the base, as in `192x128-causal-paged_64`."""
    named = {"dtype": "{}", "geometry": "{}", "mask": "{}", "k_rope": "rope_{}"}
    parts = [
        named.get(axis, axis + "_{}").format(value)
        for axis, value in row.items()
        if axis == "geometry" or value != AXES[axis][0]
    ]
    return "-".join(parts)


def spec_of(**options: str) -> KernelSpec:
    """The kernel with these options, all others at their base; it must be committed."""
    row = {axis: options.get(axis, values[0]) for axis, values in AXES.items()}
    assert options.items() <= row.items(), f"not all of {options} are axes of the grid"
    return _specs()[label(row)]


def grid_specs() -> dict[str, KernelSpec]:
    """Every kernel of the option grid by its label, without those that single tests add."""
    names = {label(row) for file in spec_files() if file.in_grid for row in file.rows}
    return {name: spec for name, spec in _specs().items() if name in names}


def all_specs() -> dict[str, KernelSpec]:
    """Every committed kernel by its label."""
    return dict(_specs())


@functools.cache
def load(spec: KernelSpec) -> Kernels:
    """One kernel alone; `MLAGEN_KERNELS` says where its cubin lies, else it is compiled here."""
    return Kernels((spec,), binaries=_everything()._binaries, backend="cuda", source=str(SPECS))


@functools.cache
def _everything() -> Kernels:
    """All of them, loaded once a session: opening a folder verifies every file in it."""
    return mlagen.load(list(_specs().values()))
