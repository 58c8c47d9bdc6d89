"""The Jinja environment: strict, and with no filter that computes."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mlagen.package_files import shipped_folder


@cache
def environment() -> Environment:
    """The environment over the folder of templates."""
    return Environment(
        loader=FileSystemLoader(shipped_folder("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  escapes are for HTML; this is CUDA, and no text of a user reaches it
    )
