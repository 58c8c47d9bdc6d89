"""Text files end with one newline and have no trailing space."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent


def text_files() -> list[Path]:
    """Return the files that git knows, without those that are not ours to edit."""
    names = subprocess.run(
        ["git", "-C", CHECKOUT, "ls-files", "-z"],  # noqa: S607  # git, wherever it is
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    others = (".png", ".svg", ".jpg", "LICENSE", ".cubin", ".npz")
    paths = [CHECKOUT / name for name in names if name and not name.endswith(others)]
    return [path for path in paths if path.is_file()]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a git checkout")
def test_lines_end_cleanly() -> None:
    faults = []
    for path in text_files():
        text = path.read_bytes().decode()
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            faults.append(f"{path}: ends with other than one newline")
        faults += [
            f"{path}:{number}: trailing space or carriage return"
            for number, line in enumerate(text.split("\n"), start=1)
            if line != line.rstrip()
        ]
    assert not faults, "\n".join(faults)
