"""`mlagen cache info` and `mlagen cache clear`: the compiled kernels on this machine."""

from __future__ import annotations

import datetime
import re
import time

import click

from mlagen.cache import KernelCache, default_cache_folder
from mlagen.cli.options import Verb, debug_option, json_option
from mlagen.cli.output import count, print_facts, print_json
from mlagen.settings import Settings

_AGE_SECONDS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


def user_cache() -> KernelCache:
    """Return the cache that builds use: `MLAGEN_CACHE_DIR`, else the platform's folder."""
    return KernelCache(Settings.from_environment().cache_dir or default_cache_folder())


@click.group("cache")
def command() -> None:
    """Look at or empty the cache of compiled kernels.

    It lies in MLAGEN_CACHE_DIR, else in the platform's cache folder. Emptying it costs compile time
    only: the next build or load fills it again.
    """


@command.command("info", cls=Verb)
@json_option
@debug_option
def info_command(*, as_json: bool) -> None:
    """Say where the cache is and what it holds."""
    info = user_cache().info()
    if as_json:
        entries = [
            {
                "spec_hash": entry.spec_hash,
                "key": entry.key,
                "size_bytes": entry.size_bytes,
                "modified": _timestamp(entry.modified),
            }
            for entry in info.entries
        ]
        folder = None if info.folder is None else str(info.folder)
        print_json({"folder": folder, "size_bytes": info.size_bytes, "entries": entries})
        return
    facts: dict[str, object] = {
        "folder": info.folder or "none: kernels stay in memory",
        "kernels": len(info.entries),
        "size": f"{info.size_bytes / 2**20:.1f} MiB",
    }
    if info.entries:
        facts["oldest"] = _timestamp(info.entries[0].modified)
        facts["newest"] = _timestamp(info.entries[-1].modified)
    print_facts(facts)


def _age_seconds(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)([hdw])", value)
    if not found:
        message = f"{value!r} is no age; write hours, days or weeks as 12h, 30d or 2w"
        raise click.BadParameter(message)
    return float(int(found[1]) * _AGE_SECONDS[found[2]])


@command.command("clear", cls=Verb)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age_seconds,
    help="Keep what was written since: 12h, 30d, 2w.",
)
@json_option
@debug_option
def clear_command(*, older_than: float | None, as_json: bool) -> None:
    """Remove compiled kernels, and what interrupted builds left behind.

    mlagen cache clear
    mlagen cache clear --older-than 30d
    """
    before = None if older_than is None else time.time() - older_than
    removed = user_cache().clear(before=before)
    if as_json:
        print_json({"removed": len(removed.entries), "size_bytes": removed.size_bytes})
    else:
        size = f"{removed.size_bytes / 2**20:.1f} MiB"
        print(f"removed {count(len(removed.entries), 'kernel')}, {size}, from {removed.folder}")


def _timestamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
