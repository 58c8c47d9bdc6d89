"""From YAML text or a dict to a `SpecFile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any  # Any: parsed YAML before validation

from pydantic import ValidationError
from ruamel.yaml import YAML

from mlagen.errors import SpecError
from mlagen.spec.model import SpecFile


def load_spec_file(path: str | Path) -> SpecFile:
    """Read and check a spec file."""
    path = Path(path)
    return parse_spec(path.read_text(encoding="utf-8"), str(path))


def parse_spec(text: str, source_name: str = "<spec>") -> SpecFile:
    """Parse and check the text of a spec file; `source_name` stands in messages."""
    return spec_from_dict(YAML(typ="safe", pure=True).load(text))


def spec_from_dict(values: dict[str, Any]) -> SpecFile:
    """Check a spec given as a dict of the same form as the YAML."""
    try:
        return SpecFile.model_validate(values)
    except ValidationError as error:
        raise SpecError(str(error)) from error
