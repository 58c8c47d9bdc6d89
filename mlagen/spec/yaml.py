"""From YAML text or a dict to a `SpecFile`, with every error of the file at its place."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mlagen.errors import SpecError
from mlagen.spec.diagnostics import find_errors
from mlagen.spec.model import KernelSpec, SpecFile
from mlagen.spec.source import Finding, parse_source, show_path

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_spec_file(path: str | Path) -> SpecFile:
    """Read and check a spec file.

    Raises:
        SpecError: The file cannot be read, or has errors; the message lists all of them.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SpecError(f"{path}: no such file\n  {_similar_file(path)}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise SpecError(f"{path}: cannot be read: {reason}\n  give a YAML file") from error
    return parse_spec(text, str(path))


def _similar_file(path: Path) -> str:
    names = [entry.name for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else "give the path of a YAML file"


def parse_spec(text: str, source_name: str = "<spec>") -> SpecFile:
    """Parse and check the text of a spec file; `source_name` stands in messages.

    Raises:
        SpecError: The text has errors; the message lists all of them in file order.
    """
    source = parse_source(text, source_name)
    errors = list(source.errors)
    file = None
    if not errors or source.data is not None:
        try:
            file = SpecFile.model_validate({} if source.data is None else source.data)
        except ValidationError as error:
            found = find_errors(error, SpecFile, source.data)
            errors += [
                (source.place(finding), finding)
                for finding in found
                if not source.is_unreadable(finding.path)
            ]
    if file is None or errors:
        errors.sort(key=lambda item: item[0])
        raise SpecError("\n\n".join(source.render(span, finding) for span, finding in errors))
    return file


def spec_from_dict(values: Mapping[str, object], source_name: str = "spec") -> SpecFile:
    """Check a spec given as a dict of the same form as the YAML.

    Raises:
        SpecError: The dict has errors; the message lists all of them.
    """
    try:
        return SpecFile.model_validate(values)
    except ValidationError as error:
        raise _without_places(find_errors(error, SpecFile, values), source_name) from None


def kernel_from_dict(values: Mapping[str, object], source_name: str = "kernel") -> KernelSpec:
    """Check one kernel given as a dict: `arch`, `geometry` and options, long or short forms.

    Raises:
        SpecError: The dict has errors; the message lists all of them.
    """
    try:
        return KernelSpec.model_validate(values)
    except ValidationError as error:
        raise _without_places(find_errors(error, KernelSpec, values), source_name) from None


def _without_places(findings: list[Finding], name: str) -> SpecError:
    return SpecError(
        "\n\n".join(
            f"{name}: {show_path(one.path)}{one.message}\n  {one.advice}" for one in findings
        )
    )
