"""Options and arguments that several verbs share, so that they read the same everywhere."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import click

from mlagen.arch import ARCHS


def _split_archs(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    archs = tuple(part.strip() for part in value.split(","))
    for arch in archs:
        if arch not in ARCHS:
            message = f"{arch!r} is not an architecture; choose from {', '.join(ARCHS)}"
            raise click.BadParameter(message)
    return archs


class Verb(click.Command):
    """A command whose help shows examples, paragraphs that begin with `mlagen`, as they are written."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Mark the examples for click, which wraps every other paragraph."""
        text = self.help
        paragraphs = inspect.cleandoc(text or "").split("\n\n")
        self.help = "\n\n".join(map(_keep_example, paragraphs))
        super().format_help_text(ctx, formatter)
        self.help = text


def _keep_example(paragraph: str) -> str:
    if not paragraph.lstrip().startswith("mlagen "):
        return paragraph
    return "\b\n" + textwrap.indent(textwrap.dedent(paragraph), "  ")


# Read by `main.run` before anything is parsed; here so that it may stand after the verb, too.
debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show the trace of an error and the log of each step.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON document."
)
spec_argument = click.argument("spec", type=click.Path(path_type=Path))
arch_option = click.option(
    "--arch",
    "archs",
    metavar="ARCH,...",
    callback=_split_archs,
    help="Only these architectures, separated by commas.",
)
words_option = click.option(
    "-k",
    "words",
    multiple=True,
    metavar="WORD",
    help="Only kernels whose name contains WORD; several must all be there. May be repeated.",
)
# A kernel: `SPEC KERNEL`, `SPEC` alone if it has one kernel, or the beginning of a name or hash alone.
target_argument = click.argument("target", metavar="SPEC|KEY")
kernel_argument = click.argument("kernel", required=False)
