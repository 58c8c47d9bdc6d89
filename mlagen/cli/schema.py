"""`mlagen schema`: the JSON Schema of spec files."""

from __future__ import annotations

import click

from mlagen.cli.options import Verb, debug_option, json_option
from mlagen.cli.spec_page import spec_page
from mlagen.spec.schema import schema_text


@click.command("schema", cls=Verb)
@click.option("--markdown", is_flag=True, help="Print a page for people instead: docs/spec.md.")
@json_option
@debug_option
def command(*, markdown: bool, as_json: bool) -> None:
    """Print the JSON Schema of spec files.

    Editors check and complete a spec by it. Put the output beside your specs and name it in their
    first line:

      mlagen schema > mlagen.schema.json
      # yaml-language-server: $schema=mlagen.schema.json
    """
    if markdown and as_json:
        raise click.UsageError("the schema is JSON without --json: leave out one of the two")
    print(spec_page() if markdown else schema_text(), end="")
