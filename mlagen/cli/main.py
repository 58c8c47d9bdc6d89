"""The `mlagen` command: finds the verb, turns errors into messages and exit statuses.

Exit statuses: 0 done, 1 a check failed, 2 bad usage or spec, 3 environment, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import importlib.metadata
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING

import click

from mlagen.errors import MlagenError
from mlagen.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# Verb -> its line in `mlagen --help`. A verb's module is imported when it is used: help stays
# quick, and `doctor` works where the imports of another verb would fail.
VERBS = {
    "init": "Turn a model's config.json into a spec.",
    "build": "Render and compile the kernels of a spec.",
    "list": "List the kernels of a spec, or the options mlagen knows.",
    "show": "Show the plan, budgets and machine code of one kernel.",
    "verify": "Run kernels on small problems and check every element.",
    "bench": "Time kernels beside other implementations of attention.",
    "key": "Show a kernel's identity and what went into it.",
    "schema": "Print the JSON Schema of spec files.",
    "cache": "Look at or empty the cache of compiled kernels.",
    "doctor": "Say what works on this machine, and how to mend the rest.",
}


class LazyGroup(click.Group):
    """A group whose verbs are the modules of this folder, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of a first session."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"mlagen.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a misspelt one is answered with the nearest."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            advice = f"did you mean '{near[0]}'? " if near else ""
            ctx.fail(f"no command {args[0]!r}\n  {advice}Commands: {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table above, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start: mlagen init config.json > model.yaml, then: mlagen build model.yaml",
)
@click.option("--debug", is_flag=True, help="Show the trace of an error and the log of each step.")
@click.version_option(importlib.metadata.version("mlagen"), prog_name="mlagen")
def cli(*, debug: bool) -> None:
    """Generate CUDA kernels for multi-head latent attention from a YAML spec.

    Exit statuses: 0 done, 1 a check failed, 2 bad usage or spec, 3 environment.
    """
    del debug  # read before the arguments are parsed, so that errors of parsing have it too


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    debug = "--debug" in arguments
    with _logging(debug=debug):
        return _run(arguments, debug=debug)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        result = cli.main(arguments, prog_name="mlagen", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print(_INTERRUPTED, file=sys.stderr)
        return 130
    except MlagenError as error:
        if debug:
            traceback.print_exc()
        print(error, file=sys.stderr)
        return error.exit_status
    except OSError as error:
        return _environment_status(error, debug=debug)
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def _logging(*, debug: bool) -> Iterator[None]:
    """Show the package's log on stderr meanwhile, as much of it as `MLAGEN_LOG` or --debug asks."""
    try:
        level = "debug" if debug else Settings.from_environment().log
    except MlagenError:
        level = "warning"  # a verb that needs settings says what is wrong with them
    logger = logging.getLogger("mlagen")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


_INTERRUPTED = """
interrupted; nothing half-written is left
  the kernels compiled so far are in the cache: the same command goes on from there"""


def _environment_status(error: OSError, *, debug: bool) -> int:
    """Report a file that cannot be used; a closed pipe (`mlagen list | head`) is no error."""
    if error.errno == errno.EPIPE:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if debug:
        traceback.print_exc()
    place = f"{error.filename}: " if error.filename else ""
    print(f"error: {place}{error.strerror or error}", file=sys.stderr)
    return 3
