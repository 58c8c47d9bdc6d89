"""Compiled kernels on disk, found by what went into them.

One file an entry, `<spec hash>-<build key>.kernel`, published by one atomic rename and verified by
its own digest when read. Nothing here raises because of the file system: an entry that cannot be
read is a miss, one that cannot be written is kept in memory, each with one warning. Readers write
nothing, so a read-only folder serves its entries.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlagen.atomic_file import TEMPORARY_SUFFIX, remove_file, write_atomically
from mlagen.compile.resources import Resources
from mlagen.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

# Count up when an entry's layout changes: other versions of mlagen then see neither each other's
# entries nor their keys.
SCHEMA = 1
LOCK_TIMEOUT_SECONDS = 60.0
_MAGIC = b"mlagen kernel"
_ENTRY, _NOTE, _LOCK = ".kernel", ".source", ".lock"


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled kernel as the cache keeps it.

    Attributes:
        spec_hash: Hash of the spec it was made for.
        key: Digest of all that decides the bytes of the cubin.
        name: Name of the kernel, for people.
        source: Its CUDA text.
        cubin: The binary.
        ptx: What it was assembled from.
        log: What the compiler said.
        resources: Registers, spills, shared memory.
        lint: What the SASS lint has approved, as `build.lint_mark` writes it; None if it was
            skipped.
        compile_seconds: How long the compile took.
    """

    spec_hash: str
    key: str
    name: str
    source: str
    cubin: bytes
    ptx: str
    log: str
    resources: Resources
    lint: str | None
    compile_seconds: float

    @property
    def file_name(self) -> str:
        """Name of the entry's file."""
        return _entry_name(self.spec_hash, self.key)


def encode_entry(entry: Entry) -> bytes:
    """Return an entry's file: a line with magic and digest, a line of JSON, then the contents."""
    contents = [entry.source.encode(), entry.cubin, entry.ptx.encode(), entry.log.encode()]
    head = {
        "spec_hash": entry.spec_hash,
        "key": entry.key,
        "name": entry.name,
        "resources": asdict(entry.resources),
        "lint": entry.lint,
        "compile_seconds": entry.compile_seconds,
        "sizes": [len(part) for part in contents],
    }
    body = json.dumps(head, sort_keys=True).encode() + b"\n" + b"".join(contents)
    return b"%s %s\n%s" % (_MAGIC, hashlib.sha256(body).hexdigest().encode(), body)


def decode_entry(data: bytes) -> Entry:
    """Return the entry in the bytes of a file.

    Raises:
        ValueError: The file is truncated, changed, or no entry at all.
    """
    first, _, body = data.partition(b"\n")
    if first != b"%s %s" % (_MAGIC, hashlib.sha256(body).hexdigest().encode()):
        raise ValueError("its digest does not match its contents")
    head_line, _, contents = body.partition(b"\n")
    head: dict[str, Any] = json.loads(head_line)  # Any: JSON
    parts = []
    for size in head["sizes"]:
        parts.append(contents[:size])
        contents = contents[size:]
    source, cubin, ptx, log = parts
    return Entry(
        spec_hash=head["spec_hash"],
        key=head["key"],
        name=head["name"],
        source=source.decode(),
        cubin=cubin,
        ptx=ptx.decode(),
        log=log.decode(),
        resources=Resources(**head["resources"]),
        lint=head["lint"],
        compile_seconds=head["compile_seconds"],
    )


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """An entry as `mlagen cache info` lists it, known from its file alone."""

    spec_hash: str
    key: str
    size_bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache holds.

    Attributes:
        folder: Where, None if kernels are kept in memory only.
        entries: Oldest first.
        size_bytes: Of all its files, those of interrupted writers included.
    """

    folder: Path | None
    entries: tuple[EntryInfo, ...]
    size_bytes: int


class KernelCache:
    """Compiled kernels in a folder, and in memory those that the folder could not take.

    Threads and processes may share a folder; threads may share an object.
    """

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, made when first written to; None keeps kernels in memory only."""
        self.folder = folder
        self._entries = None if folder is None else folder / f"v{SCHEMA}"
        self._memory: dict[str, Entry] = {}
        self._warned: set[str] = set()
        self._guard = threading.Lock()

    @classmethod
    def open(cls, folder: Path | None = None) -> KernelCache:
        """Return the process's one cache of `folder`, or of the folder that settings name.

        Where neither is given it is the platform's own folder for caches. There is one object, so
        that what the folder cannot take is kept once and said once.
        """
        folder = folder or Settings.from_environment().cache_dir or default_cache_folder()
        return _opened(folder)

    def read(self, spec_hash: str, key: str) -> Entry | None:
        """Return the entry, or None if there is none or it is damaged."""
        name = _entry_name(spec_hash, key)
        if (kept := self._memory.get(name)) is not None or self._entries is None:
            return kept
        path = self._entries / name
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(
                name, "cannot read %s (%s): the kernel is compiled again", path, error.strerror
            )
            return None
        try:
            entry = decode_entry(data)
            if (entry.spec_hash, entry.key) != (spec_hash, key):
                raise ValueError("it holds another kernel")  # noqa: TRY301
        except (ValueError, KeyError, TypeError) as error:
            self._warn(name, "%s is damaged (%s): the kernel is compiled again", path, error)
            return None
        return entry

    def write(self, entry: Entry) -> None:
        """Publish the entry; where the folder cannot be written, keep it in memory."""
        if self._entries is None:
            self._memory[entry.file_name] = entry
            return
        path = self._entries / entry.file_name
        try:
            self._entries.mkdir(parents=True, exist_ok=True)
            write_atomically(path, encode_entry(entry))
        except OSError as error:
            if error.errno == errno.ENOENT and path.exists():
                return  # another process published the same kernel and swept our temporary away
            self._memory[entry.file_name] = entry
            self._warn(
                "write",
                "cannot write to the cache %s (%s): kernels stay in memory; "
                "set MLAGEN_CACHE_DIR to a folder with room that you may write to",
                self.folder,
                error.strerror,
            )
            return
        self._sweep(entry.file_name)

    def read_source_hash(self, spec_hash: str, origin: str) -> str | None:
        """Return what `write_source_hash` noted, None if nothing."""
        if self._entries is None:
            return None
        try:
            text = (self._entries / f"{spec_hash}-{origin}{_NOTE}").read_text(encoding="ascii")
        except (OSError, ValueError):
            return None
        return text.strip()  # if it is damaged, no entry has its key

    def write_source_hash(self, spec_hash: str, origin: str, source_sha256: str) -> None:
        """Note the hash of the text that comes of `origin`, so that it can be found unrendered.

        Older notes of the spec go. Where the note cannot be written, nothing is lost but time.
        """
        if self._entries is None or not self._entries.is_dir():
            return
        note = self._entries / f"{spec_hash}-{origin}{_NOTE}"
        with contextlib.suppress(OSError):
            write_atomically(note, f"{source_sha256}\n".encode())
            for older in self._entries.glob(f"{spec_hash}-*{_NOTE}"):
                if older != note:
                    remove_file(older)

    @contextlib.contextmanager
    def lock(self, spec_hash: str, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the kernel's lock: one process compiles it, the others wait for the result.

        Where there is no lock to be had, or not in time, go on without: two compiles then make the
        same entry.

        Args:
            spec_hash: Of the entry.
            key: Of the entry.
            waiting: Called once if another process holds the lock.
        """
        lock = self._lock_file(_entry_name(spec_hash, key))
        held = lock is not None and _acquire(lock, waiting)
        try:
            yield
        finally:
            if lock is not None and held:
                # Removed before it is released, and after the entry is there: whoever still waits
                # for this file finds the entry, and so does whoever makes a new one.
                remove_file(Path(lock.lock_file))
                lock.release()

    def info(self) -> CacheInfo:
        """Return what the folder holds; nothing if it does not exist."""
        entries: list[EntryInfo] = []
        size = 0
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue  # removed meanwhile
            size += status.st_size
            if path.suffix == _ENTRY:
                spec_hash, _, key = path.stem.partition("-")
                entries.append(EntryInfo(spec_hash, key, status.st_size, status.st_mtime))
        return CacheInfo(self.folder, tuple(sorted(entries, key=lambda e: e.modified)), size)

    def clear(self, *, before: float | None = None) -> CacheInfo:
        """Remove all entries, or those last written before that time, and return what was removed.

        What interrupted writers left behind goes, too. Builds that run meanwhile only lose what
        they stored.
        """
        held = self.info()
        removed = tuple(e for e in held.entries if before is None or e.modified < before)
        names = {_entry_name(e.spec_hash, e.key) for e in removed}
        size = 0
        for path in self._files():
            if path.suffix == _ENTRY and path.name not in names:
                continue
            with contextlib.suppress(OSError):
                size_bytes = path.stat().st_size
                path.unlink()
                size += size_bytes
        self._memory.clear()
        return CacheInfo(self.folder, removed, size)

    def _files(self) -> list[Path]:
        """Return our own files in the folder; nothing else there is ours to count or remove."""
        if self._entries is None or not self._entries.is_dir():
            return []
        ours = {_ENTRY, _NOTE, _LOCK, TEMPORARY_SUFFIX}
        return sorted(path for path in self._entries.iterdir() if path.suffix in ours)

    def _sweep(self, file_name: str) -> None:
        """Remove temporaries of a published entry.

        Their writers died, or make the same bytes and can do without.
        """
        assert self._entries is not None
        for left in self._entries.glob(f"{file_name}.*{TEMPORARY_SUFFIX}"):
            remove_file(left)

    def _lock_file(self, name: str) -> Any:  # FileLock's type differs by platform
        if self._entries is None:
            return None
        import filelock  # only where something is compiled

        try:
            self._entries.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        path = self._entries / (name + _LOCK)
        try:
            # A marker file in place of flock would outlive a killed holder.
            return filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
        except TypeError:  # before filelock 3.21 there is no fallback to turn off
            return filelock.FileLock(path, thread_local=False)

    def _warn(self, subject: str, message: str, *values: object) -> None:
        with self._guard:
            if subject in self._warned:
                return
            self._warned.add(subject)
        logger.warning(message, *values)


@functools.cache
def _opened(folder: Path | None) -> KernelCache:
    return KernelCache(folder)


@functools.cache  # one warning
def default_cache_folder() -> Path | None:
    """Return the platform's cache folder for mlagen, None where there is no home to hold one."""
    import platformdirs  # only where no folder is set

    try:
        folder = Path(platformdirs.user_cache_dir("mlagen", appauthor=False))
    except (RuntimeError, KeyError):
        folder = Path("~")
    if not folder.is_absolute():
        logger.warning(
            "no home folder to keep compiled kernels in: they stay in memory; set MLAGEN_CACHE_DIR"
        )
        return None
    return folder


def _entry_name(spec_hash: str, key: str) -> str:
    return f"{spec_hash}-{key}{_ENTRY}"


def _acquire(lock: Any, waiting: Callable[[], None]) -> bool:  # see `_lock_file`
    """Return whether the lock is held now; False where it cannot be had."""
    import filelock

    try:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            logger.info("waiting for another process: %s", lock.lock_file)
            waiting()
            lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)
    except filelock.Timeout:
        logger.info("%s is still held: compiling without it", lock.lock_file)
        return False
    except (OSError, NotImplementedError) as error:
        logger.info("no lock on %s (%s): compiling without", lock.lock_file, error)
        remove_file(Path(lock.lock_file))  # made before it turned out that it cannot be locked
        return False
    return True
