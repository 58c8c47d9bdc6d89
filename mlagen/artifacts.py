"""A folder of built kernels that runs with no compiler: what `mlagen build --out` writes.

`manifest.json` names the files, `<kernel>.<head of the cubin's digest>.cubin` and `.cu`. A file is
never written twice with other contents, and the manifest is published last, by one rename: at every
moment a reader finds the old kernels or the new ones, whole.

The manifest holds each kernel's canonical spec. Its plan is made anew when the folder is opened,
and must have the interface (entry, block, shared memory, tensor maps, arguments) that the cubin was
compiled for, so a folder of another mlagen is refused rather than launched wrongly. The CUDA text
is not rendered again: a changed comment invalidates nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlagen.atomic_file import write_atomically
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compiler_release, nvrtc_identity
from mlagen.compile.resources import Resources
from mlagen.errors import CacheError, MlagenError
from mlagen.kernel_compiler import BuiltKernel
from mlagen.plan import plan_kernel
from mlagen.spec.model import KernelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.plan.plan import KernelPlan

# Count up when the layout changes, or when a kernel argument changes its meaning but not its name.
SCHEMA = 1
MANIFEST = "manifest.json"
_ATTEMPTS = 5


def write_kernels(folder: Path, kernels: Sequence[BuiltKernel]) -> None:
    """Make `folder` hold exactly these kernels.

    Kernels of an earlier build are removed, other files are left alone.

    Raises:
        CacheError: The folder cannot be written; what it held before can still be opened.
    """
    earlier = _earlier_files(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        records = [_write_kernel(folder, kernel) for kernel in kernels]
        manifest = {
            "schema": SCHEMA,
            "compiler": _compiler(kernels),
            "kernels": sorted(records, key=lambda record: str(record["name"])),
        }
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        write_atomically(folder / MANIFEST, text.encode())
    except OSError as error:
        raise CacheError(
            f"{folder}: cannot write kernels there ({error.strerror or error})\n"
            "  choose a folder with room that you may write to"
        ) from error
    current = {str(record[kind]) for record in records for kind in ("cubin", "source")}
    for name in earlier - current:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def open_kernels(folder: Path) -> list[BuiltKernel]:
    """Return the kernels of a folder, verified, by name; needs no NVRTC.

    Their `ptx` is empty.

    Raises:
        CacheError: There is no such folder, it is damaged, or another mlagen wrote it.
    """
    begin = time.perf_counter()
    text = _read_manifest(folder)
    for _ in range(_ATTEMPTS):
        try:
            return [_open_kernel(folder, record, begin) for record in _records(folder, text)]
        except CacheError:
            # A build may have replaced the manifest and swept the old files away meanwhile.
            again = _read_manifest(folder)
            if again == text:
                raise
            text = again
    raise CacheError(
        f"{folder}: it changes faster than it can be read\n  wait for the build to end"
    )


def interface(plan: KernelPlan) -> dict[str, Any]:
    """Return what host and kernel must agree on, as JSON values."""
    maps = [
        {**asdict(tensor_map), "dtype": tensor_map.dtype.name} for tensor_map in plan.tensor_maps
    ]
    return {
        "entry": plan.name,
        "threads": plan.threads,
        "shared_memory_bytes": plan.shared_memory_bytes,
        "tile_m": plan.tile_m,
        "tensor_maps": maps,
        "arguments": [[argument.name, argument.ctype] for argument in plan.arguments],
    }


def _compiler(kernels: Sequence[BuiltKernel]) -> dict[str, Any]:
    """Return who compiled the kernels: what decides their bytes, and the release for people."""
    identity = nvrtc_identity()
    return {
        "name": "nvrtc",
        "release": max((compiler_release(kernel.ptx) for kernel in kernels), default=""),
        "version": identity.version,
        "build_id": identity.build_id,
        "options": list(KERNEL_OPTIONS),
    }


def _write_kernel(folder: Path, kernel: BuiltKernel) -> dict[str, Any]:
    """Write the files of one kernel and return its record in the manifest."""
    cubin_sha256 = hashlib.sha256(kernel.cubin).hexdigest()
    source = kernel.source.encode()
    stem = f"{kernel.plan.name}.{cubin_sha256[:8]}"
    for name, data in ((f"{stem}.cubin", kernel.cubin), (f"{stem}.cu", source)):
        _write_once(folder / name, data)
    return {
        "name": kernel.plan.name,
        "arch": kernel.plan.arch.name,
        "spec": kernel.plan.spec.canonical,
        "spec_hash": kernel.plan.spec.hash,
        "key": kernel.key,
        "cubin": f"{stem}.cubin",
        "cubin_sha256": cubin_sha256,
        "source": f"{stem}.cu",
        "source_sha256": hashlib.sha256(source).hexdigest(),
        "resources": asdict(kernel.resources),
        "lint": kernel.lint,
        "interface": interface(kernel.plan),
    }


def _write_once(path: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    write_atomically(path, data)


def _earlier_files(folder: Path) -> set[str]:
    """Return the names of the files that the folder's manifest lists, none if it has no good one."""
    try:
        records = _records(folder, _read_manifest(folder))
        return {str(Path(record[kind]).name) for record in records for kind in ("cubin", "source")}
    except (CacheError, KeyError, TypeError):
        return set()


def _read_manifest(folder: Path) -> str:
    try:
        return (folder / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CacheError(
            f"{folder}: no folder of built kernels ({MANIFEST}: {error})\n"
            "  write one with: mlagen build SPEC --out FOLDER"
        ) from error


def _records(folder: Path, text: str) -> list[dict[str, Any]]:
    try:
        manifest = json.loads(text)
        schema, records = manifest["schema"], manifest["kernels"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"{MANIFEST} cannot be read ({error})") from error
    if schema != SCHEMA:
        raise _foreign(folder, f"{MANIFEST} has schema {schema}, this mlagen reads {SCHEMA}")
    if not isinstance(records, list):
        raise _damaged(folder, f"{MANIFEST} lists no kernels")
    return records


def _open_kernel(folder: Path, record: dict[str, Any], begin: float) -> BuiltKernel:
    try:
        cubin = _read_file(folder, record["cubin"], record["cubin_sha256"])
        source = _read_file(folder, record["source"], record["source_sha256"])
        plan = _plan(folder, record)
        return BuiltKernel(
            plan=plan,
            source=source.decode(),
            cubin=cubin,
            ptx="",
            resources=Resources(**record["resources"]),
            key=record["key"],
            cached=True,
            seconds=time.perf_counter() - begin,
            lint=record["lint"],
        )
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise _damaged(folder, f"{MANIFEST}: kernel {record!r:.60}: {error!r}") from error


def _read_file(folder: Path, name: str, sha256: str) -> bytes:
    if Path(name).name != name:
        raise _damaged(folder, f"{MANIFEST} names a file elsewhere: {name}")
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise _damaged(folder, f"{name}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _damaged(folder, f"{name} is not the file that {MANIFEST} lists")
    return data


def _plan(folder: Path, record: dict[str, Any]) -> KernelPlan:
    """Plan the kernel anew; refuse one that this mlagen would launch differently."""
    name = record["name"]
    try:
        spec = KernelSpec.model_validate_json(json.dumps(record["spec"]))
        plan = plan_kernel(spec)
    except (ValueError, MlagenError) as error:  # Pydantic's error is a ValueError
        raise _foreign(folder, f"{name}: its spec has no kernel here: {error}") from error
    if spec.hash != record["spec_hash"] or interface(plan) != record["interface"]:
        raise _foreign(folder, f"{name}: its interface is not the one that this mlagen launches")
    return plan


def _damaged(folder: Path, what: str) -> CacheError:
    return CacheError(
        f"{folder}: the folder of kernels is damaged\n  {what}\n"
        f"  build it again: mlagen build SPEC --out {folder}"
    )


def _foreign(folder: Path, what: str) -> CacheError:
    return CacheError(
        f"{folder}: another version of mlagen wrote these kernels\n  {what}\n"
        f"  build them again: mlagen build SPEC --out {folder}"
    )
