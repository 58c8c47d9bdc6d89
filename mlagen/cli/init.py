"""`mlagen init`: a model's `config.json` becomes a spec."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlagen.cli.options import Verb, debug_option, json_option
from mlagen.cli.output import print_json, warn
from mlagen.errors import SpecError
from mlagen.spec.hugging_face import spec_text_from_config


@click.command("init", cls=Verb)
@click.argument("config", metavar="CONFIG_JSON", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the spec, by default the model's own.")
@json_option
@debug_option
def command(*, config: Path, name: str | None, as_json: bool) -> None:
    """Turn a model's config.json (Hugging Face) into a commented spec, on standard output.

    What a spec cannot say yet (a sparse index, a position factor, decode) stands there as a comment
    and is also printed as a warning. Models of one family may have one name, and with it one folder
    under generated/: give one of them another.

      mlagen init DeepSeek-V3/config.json > deepseek.yaml
      mlagen init V2-Lite/config.json --name deepseek-v2-lite > lite.yaml
      mlagen build deepseek.yaml
    """
    text, warnings = spec_text_from_config(_read(config), name=name, source=str(config))
    if as_json:
        print_json({"spec": text, "warnings": list(warnings)})
    else:
        print(text, end="" if text.endswith("\n") else "\n")
    for warning in warnings:
        warn(warning)


def _read(path: Path) -> dict[str, object]:
    """Return the contents of a config file.

    Raises:
        SpecError: It is missing or is no JSON object.
    """
    advice = "  name the config.json that lies beside a model's weights"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file\n{advice}") from None
    except IsADirectoryError:
        raise SpecError(f"{path}: is a folder\n  name the file: {path / 'config.json'}") from None
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}:{error.colno}"
        raise SpecError(f"{place}: not JSON: {error.msg}\n{advice}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: {error.reason}\n{advice}") from error
    if not isinstance(values, dict):
        raise SpecError(f"{path}: a {type(values).__name__}, not an object\n{advice}")
    return values
