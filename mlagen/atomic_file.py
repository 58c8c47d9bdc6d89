"""Files that are never seen half written."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that has its old contents or all of the new ones at every moment.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    try:
        # Not `tempfile`: it makes files that only their owner can read, in a folder that others may
        # share.
        with open(temporary, "xb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        remove_file(temporary)
        raise


def remove_file(path: Path) -> None:
    """Remove a file if that is possible and it is still there."""
    with contextlib.suppress(OSError):
        path.unlink()
