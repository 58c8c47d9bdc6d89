"""Finding a verb, help, errors and exit statuses: what all verbs share."""

from __future__ import annotations

import contextlib
import importlib
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from mlagen.cli.main import VERBS
from mlagen.errors import CheckError, CompileError, DriverError, MlagenError, SpecError

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def commands() -> list[click.Command]:
    """Return every command that does something: groups are replaced by what they hold."""
    found: list[click.Command] = []
    for verb in VERBS:
        command = importlib.import_module(f"mlagen.cli.{verb}").command
        found += command.commands.values() if isinstance(command, click.Group) else [command]
    return found


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_verb_has_json_and_debug(command: click.Command) -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert {"--json", "--debug"} <= options


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "cache"])
def test_help_of_a_verb_explains_options_and_shows_an_example(mlagen: Command, verb: str) -> None:
    outcome = mlagen(verb, "-h")
    assert outcome.status == 0
    assert f"\n    mlagen {verb}" in outcome.out
    command = importlib.import_module(f"mlagen.cli.{verb}").command
    assert all(p.help for p in command.params if isinstance(p, click.Option))


@pytest.mark.parametrize("help_option", ["-h", "--help"])
def test_help_lists_the_verbs(mlagen: Command, help_option: str) -> None:
    outcome = mlagen(help_option)
    assert outcome.status == 0
    for verb, line in VERBS.items():
        assert f"{verb:8}{line}" in outcome.out.replace("  ", " " * 2)


def test_version(mlagen: Command) -> None:
    assert mlagen("--version").out.startswith("mlagen, version ")


def test_misspelt_verb_is_answered_with_the_nearest(mlagen: Command) -> None:
    outcome = mlagen("biuld")
    assert outcome.status == 2
    assert "did you mean 'build'?" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    "words", [["build"], ["build", "x.yaml", "--frobnicate"], ["build", "x.yaml", "--jobs", "0"]]
)
def test_bad_usage_has_status_2(mlagen: Command, words: list[str]) -> None:
    assert mlagen(*words).status == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SpecError("a.yaml:1:1: wrong"), 2),
        (CompileError("k: wrong"), 1),
        (CheckError("generated: old"), 1),
        (DriverError("cuInit: wrong"), 3),
        (PermissionError(13, "Permission denied", "/x"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_go_to_stderr_with_their_status(
    mlagen: Command,
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: MlagenError | OSError,
    status: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("mlagen.cli.build.select_kernels", fail)
    outcome = mlagen("build", spec)
    assert outcome.status == status
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert "Traceback" in mlagen("build", spec, "--debug").err
    assert "Traceback" in mlagen("--debug", "build", spec).err


def test_interrupt_says_how_to_go_on(
    mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mlagen.cli.build.build_plans", interrupt)
    outcome = mlagen("build", spec)
    assert outcome.status == 130
    assert "the same command goes on" in outcome.err
    assert not Path("generated").exists()


def test_closed_pipe_is_no_error(spec: Path) -> None:
    command = f"'{sys.executable}' -m mlagen schema | head -n 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "{\n"
    assert result.stderr == ""
    assert result.returncode == 0


def test_bad_setting_is_named(mlagen: Command, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_COMPILE", "perhaps")
    outcome = mlagen("build", spec)
    assert outcome.status == 2
    assert "MLAGEN_COMPILE" in outcome.err
    assert "auto" in outcome.err


def test_output_of_a_pipe_has_no_colour(mlagen: Command, built: Path) -> None:
    for words in (
        ["build", built],
        ["list", built],
        ["show", built, "mla_prefill_sm90a_192x128_bf16_c"],
    ):
        outcome = mlagen(*words)
        assert "\x1b" not in outcome.out + outcome.err
        assert not [line for line in outcome.out.splitlines() if line != line.rstrip()]


def on_a_terminal(words: list[str], **environment: str) -> str:
    """Run `mlagen` with a terminal for its output and return what it wrote there."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover  # another process
        os.execve(  # noqa: S606  # ourselves
            sys.executable,
            [sys.executable, "-m", "mlagen", *words],
            {**os.environ, "TERM": "xterm-256color", **environment},
        )
    written = b""
    with contextlib.suppress(OSError):  # the terminal is gone when its process is
        while part := os.read(terminal, 65_536):
            written += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, written
    return written.decode()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_terminal_gets_progress_and_colour_unless_told_not_to(built: Path) -> None:
    written = on_a_terminal(["build", str(built)], COLUMNS="100")
    assert "building" in written
    assert "2/2" in written
    assert "\x1b[3" in written
    plain = on_a_terminal(["build", str(built)], COLUMNS="100", NO_COLOR="1")
    assert "\x1b[3" not in plain.replace("\x1b[3J", "")
