"""`mlagen schema`: the JSON Schema of spec files."""

from __future__ import annotations

import click

from mlagen.cli.options import debug_option, json_option
from mlagen.cli.output import print_json
from mlagen.spec.schema import json_schema


@click.command("schema")
@json_option
@debug_option
def command(*, as_json: bool) -> None:
    r"""Print the JSON Schema of spec files.

    Editors check and complete a spec by it. Put the output beside your specs and name it in their
    first line:

    \b
      mlagen schema > mlagen.schema.json
      # yaml-language-server: $schema=mlagen.schema.json
    """
    print_json(json_schema())
