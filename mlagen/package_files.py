"""Where the files that ship with mlagen are: templates and specs, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent


def shipped_folder(name: Literal["templates", "specs"]) -> Path:
    """Return the folder: `mlagen/_<name>` of a wheel, else `<name>/` beside the package.

    Raises:
        FileNotFoundError: Neither exists: the installation is damaged.
    """
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"mlagen's {name} are missing beside {_PACKAGE}\n  install mlagen again"
    )
