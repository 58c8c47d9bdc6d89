"""The environment variables that mlagen reads; the only place that reads them.

Everything here can also be given as an argument in Python; an argument wins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mlagen.errors import MlagenError

if TYPE_CHECKING:
    from collections.abc import Mapping

CompilePolicy = Literal["auto", "never", "always"]
LogLevel = Literal["debug", "info", "warning"]

VARIABLES: dict[str, str] = {
    "MLAGEN_CACHE_DIR": "folder of compiled kernels; default: the user's cache folder",
    "MLAGEN_COMPILE": "auto: compile what the cache lacks; never: only use what is built; "
    "always: compile again",
    "MLAGEN_LOG": "debug, info or warning (default): how much the command line logs",
    "MLAGEN_NVRTC": "path of the NVRTC library to compile with; default: found by cuda-pathfinder",
    "MLAGEN_KERNELS": "folder written by `mlagen build --out`, looked at before the cache",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for; see `VARIABLES`.

    Attributes:
        cache_dir: Absolute folder of the cache, or None for the platform's own.
        compile: When to compile.
        log: Level of the logger `mlagen` on the command line.
        nvrtc: The library to compile with, or None to search for one.
        kernels: A folder of built kernels, or None.
    """

    cache_dir: Path | None = None
    compile: CompilePolicy = "auto"
    log: LogLevel = "warning"
    nvrtc: Path | None = None
    kernels: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Return the settings in `environment` (the process's own by default); empty means unset.

        Raises:
            MlagenError: A variable has a value that it cannot have.
        """
        values = os.environ if environment is None else environment
        policy = _choice(values, "MLAGEN_COMPILE", get_args(CompilePolicy), "auto")
        level = _choice(values, "MLAGEN_LOG", get_args(LogLevel), "warning")
        return cls(
            cache_dir=_path(values, "MLAGEN_CACHE_DIR"),
            compile=policy,  # type: ignore[arg-type]  # checked against the Literal's own values
            log=level,  # type: ignore[arg-type]  # likewise
            nvrtc=_path(values, "MLAGEN_NVRTC"),
            kernels=_path(values, "MLAGEN_KERNELS"),
        )


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = values.get(name, "").strip().lower() or default
    if value not in allowed:
        raise MlagenError(
            f"{name}: {values[name]!r} is not a value of this variable\n"
            f"  set it to one of: {', '.join(allowed)}"
        )
    return value


def _path(values: Mapping[str, str], name: str) -> Path | None:
    value = values.get(name, "").strip()
    if not value:
        return None
    # Not `expanduser`: it fails where HOME is unset, and shells expand `~` themselves.
    return Path(value).absolute()
