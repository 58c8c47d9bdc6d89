"""Which NVRTC compiles: the one of `MLAGEN_NVRTC`, else the first that cuda-pathfinder finds.

A process has one NVRTC: `cuda.bindings` binds its functions once. cuda-pathfinder looks, in this
order, among libraries that the process has loaded, NVIDIA's wheels, conda, the system's loader,
`CUDA_PATH` and `CUDA_HOME`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mlagen.errors import MissingDependencyError
from mlagen.settings import Settings

if TYPE_CHECKING:
    from types import ModuleType

_INSTALL = "pip install nvidia-cuda-nvrtc, or set MLAGEN_NVRTC to the path of a libnvrtc.so"


@dataclass(frozen=True, slots=True)
class NvrtcIdentity:
    """The compiler that this process uses.

    Attributes:
        version: `major.minor`, as the library says.
        build_id: The library's ELF build ID (`readelf -n` shows it), else the SHA-256 of its file.
            It tells two patch releases of one version apart, and does not depend on where the
            library lies.
        path: Where the library lies.
        found_via: How it was found: `MLAGEN_NVRTC`, or cuda-pathfinder's word for it.
    """

    version: str
    build_id: str
    path: Path
    found_via: str

    @property
    def compiler(self) -> str:
        """What goes into a build key: all of the identity that can change a cubin."""
        return f"nvrtc {self.version} {self.build_id}"


@functools.cache
def nvrtc_identity() -> NvrtcIdentity:
    """Load NVRTC, once a process, and return which one it is. Needs no driver.

    Raises:
        MissingDependencyError: There is none, or not the one that `MLAGEN_NVRTC` names.
    """
    wanted = Settings.from_environment().nvrtc
    if wanted is not None:
        _preload(wanted)
    path, found_via = _find()
    if wanted is not None:
        if not path.samefile(wanted):
            raise MissingDependencyError(
                f"MLAGEN_NVRTC: {wanted} is no NVRTC, or came too late: this process uses {path}\n"
                "  set it to a libnvrtc.so, before anything that compiles with NVRTC is imported"
            )
        found_via = "MLAGEN_NVRTC"
    _preload_builtins(path)
    status, major, minor = nvrtc_bindings().nvrtcVersion()
    if int(status):
        raise MissingDependencyError(f"{path}: nvrtcVersion failed: {status}\n  {_INSTALL}")
    return NvrtcIdentity(f"{major}.{minor}", _build_id(path), path, found_via)


def nvrtc_bindings() -> Any:  # a compiled module without stubs
    """Return the module `cuda.bindings.nvrtc`.

    Raises:
        MissingDependencyError: cuda-python is not installed.
    """
    return _import("cuda.bindings.nvrtc")


def _import(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"{name}: the package is not installed ({error})\n  pip install 'cuda-python>=12.9,<14'"
        ) from error


def _preload(path: Path) -> None:
    """Load the library at `path`, so that its SONAME is taken when cuda-pathfinder looks for it."""
    if not path.is_file():
        raise MissingDependencyError(
            f"MLAGEN_NVRTC: no such file: {path}\n"
            "  set it to a libnvrtc.so, or unset it to let mlagen search"
        )
    try:
        ctypes.CDLL(os.path.realpath(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise MissingDependencyError(
            f"MLAGEN_NVRTC: {path} cannot be loaded: {error}\n"
            "  set it to a libnvrtc.so for this machine, or unset it to let mlagen search"
        ) from error


def _preload_builtins(path: Path) -> None:
    """Load the library that NVRTC opens by its bare name, from beside NVRTC.

    The wheels of 13.0 do not look there themselves, and a toolkit need not be on the loader's path.
    """
    for builtins in path.resolve().parent.glob("libnvrtc-builtins.so.*"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)


def _find() -> tuple[Path, str]:
    pathfinder = _import("cuda.pathfinder")
    try:
        found = pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError as error:
        searched = "\n".join(f"    {line.strip()}" for line in str(error).splitlines())
        raise MissingDependencyError(
            "NVRTC: CUDA's run-time compiler was not found\n"
            "  searched: MLAGEN_NVRTC (not set), libraries already loaded, NVIDIA's wheels in "
            "site-packages, CONDA_PREFIX, the system's loader (LD_LIBRARY_PATH, ld.so.conf), "
            "CUDA_PATH, CUDA_HOME\n"
            f"{searched}\n  {_INSTALL}"
        ) from error
    return Path(found.abs_path), found.found_via


_NT_GNU_BUILD_ID = 3
_PT_NOTE = 4


def _build_id(path: Path) -> str:
    with path.open("rb") as file:
        found = _elf_build_id(file)
        return found or hashlib.file_digest(file, "sha256").hexdigest()


def _elf_build_id(file: BinaryIO) -> str | None:
    """Return the GNU build ID of a 64-bit little-endian ELF file, None if there is none.

    Source: ELF-64 object file format 1.5, headers and note sections. Reads a few hundred bytes of
    the 140 MB.
    """
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        file.seek(0)
        return None
    (program_headers,) = struct.unpack_from("<Q", header, 32)
    entry_size, entries = struct.unpack_from("<HH", header, 54)
    for index in range(entries):
        file.seek(program_headers + index * entry_size)
        kind, _, offset, _, _, size = struct.unpack("<IIQQQQ", file.read(40))
        if kind != _PT_NOTE:
            continue
        file.seek(offset)
        notes, at = file.read(size), 0
        while at + 12 <= len(notes):
            name_size, value_size, note_kind = struct.unpack_from("<III", notes, at)
            value_at = at + 12 + (name_size + 3) // 4 * 4
            if note_kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
                return notes[value_at : value_at + value_size].hex()
            at = value_at + (value_size + 3) // 4 * 4
    file.seek(0)
    return None
