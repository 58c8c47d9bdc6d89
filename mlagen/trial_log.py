"""A file of verdicts, one JSON line each, so that a long run can be interrupted and goes on where it stopped.

Lines of another version of mlagen, or of another compiler, count for nothing: they are left in the file and not read.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlagen.compile.nvrtc_library import nvrtc_identity
from mlagen.errors import CacheError
from mlagen.package_files import shipped_folder
from mlagen.trials import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlagen.trials import Trial


class TrialLog:
    """The verdicts in a file; a missing file is an empty one."""

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Raises:
            CacheError: The file cannot be read.
        """
        self._path = path
        self._version = version_digest()
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise CacheError(f"{path}: cannot be read ({error})\n  name another file") from error
        self._found = {verdict.key: verdict for verdict in self._verdicts(lines)}

    def find(self, trial: Trial) -> Verdict | None:
        """The verdict of this trial; None if it has not been run, or has failed."""
        verdict = self._found.get(trial.key)
        return verdict if verdict is not None and verdict.passed else None

    def add(self, verdict: Verdict) -> None:
        """Append a verdict.

        Raises:
            CacheError: The file cannot be written.
        """
        line = json.dumps({"version": self._version, **verdict.to_json()})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise CacheError(
                f"{self._path}: cannot be written ({error.strerror})\n  name another file"
            ) from error

    def _verdicts(self, lines: list[str]) -> Iterator[Verdict]:
        for line in lines:
            try:
                values: dict[str, Any] = json.loads(line)  # Any: JSON
            except ValueError:
                continue  # the line that an interrupted run was writing
            if values.pop("version", None) == self._version:
                yield Verdict.from_json(values)


@functools.cache
def version_digest() -> str:
    """A digest of everything that decides a verdict besides the trial: our code, templates, the compiler."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    files += sorted(shipped_folder("templates").rglob("*.j2"))
    digest = hashlib.sha256(nvrtc_identity().compiler.encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
