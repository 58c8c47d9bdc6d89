from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlagen import cache as cache_module
from mlagen.atomic_file import write_atomically
from mlagen.cache import (
    Entry,
    KernelCache,
    decode_entry,
    default_cache_folder,
    encode_entry,
)
from mlagen.compile.resources import Resources
from tests.cache.plans import Collector, files_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC_HASH, KEY = "5" * 64, "k" * 64


def entry(*, key: str = KEY, cubin: bytes = b"\x7fELF\n\0cubin") -> Entry:
    return Entry(
        spec_hash=SPEC_HASH,
        key=key,
        name="kernel",
        source="// größer",
        cubin=cubin,
        ptx=".version 9.5\n// größer",
        log="ptxas info",
        resources=Resources(168, 0, 0, 0, 1024, 16),
        lint="lint 1, 20 HGMMA",
        compile_seconds=1.25,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> KernelCache:
    return KernelCache(folder)


@pytest.fixture
def warnings_logged() -> Iterator[list[logging.LogRecord]]:
    collector = Collector()
    logger = logging.getLogger("mlagen")
    logger.addHandler(collector)
    yield collector.records
    logger.removeHandler(collector)


# The entry's file.


def test_entry_survives_its_file() -> None:
    assert decode_entry(encode_entry(entry())) == entry()


@given(st.binary(max_size=200), st.text(max_size=50), st.text(max_size=50))
def test_any_contents_survive(cubin: bytes, ptx: str, log: str) -> None:
    given_entry = Entry("s", "k", "n", log, cubin, ptx, log, Resources(1, 0, 0, 0, 0, 0), None, 0.5)
    assert decode_entry(encode_entry(given_entry)) == given_entry


@given(st.data())
def test_any_damage_is_noticed(data: st.DataObject) -> None:
    whole = encode_entry(entry())
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole + b"\0"]
        )
    )
    with pytest.raises(ValueError, match="digest"):
        decode_entry(damaged)


# Reading and writing.


def test_what_was_written_is_read(cache: KernelCache, folder: Path) -> None:
    assert cache.read(SPEC_HASH, KEY) is None
    cache.write(entry())
    assert KernelCache(folder).read(SPEC_HASH, KEY) == entry()
    (file,) = files_below(folder)
    assert file.name == f"{SPEC_HASH}-{KEY}.kernel"


def test_reading_makes_no_folder(cache: KernelCache, folder: Path) -> None:
    cache.read(SPEC_HASH, KEY)
    cache.info()
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="truncated"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"not an entry\n", id="garbage"),
        pytest.param(lambda _: encode_entry(entry(key="x" * 64)), id="another kernel"),
    ],
)
def test_damaged_entry_is_a_miss_with_one_warning(
    cache: KernelCache, folder: Path, warnings_logged: list[logging.LogRecord], damage: object
) -> None:
    cache.write(entry())
    (file,) = files_below(folder)
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    assert cache.read(SPEC_HASH, KEY) is None
    assert cache.read(SPEC_HASH, KEY) is None
    (record,) = warnings_logged
    assert f"{file} is damaged" in record.getMessage()
    cache.write(entry())
    assert cache.read(SPEC_HASH, KEY) == entry(), "rebuilt in place"


def test_entry_that_cannot_be_read_is_a_miss_with_one_warning(
    cache: KernelCache, folder: Path, warnings_logged: list[logging.LogRecord]
) -> None:
    (folder / "v1" / entry().file_name).mkdir(parents=True)
    assert cache.read(SPEC_HASH, KEY) is None
    assert cache.read(SPEC_HASH, KEY) is None
    (record,) = warnings_logged
    assert "cannot read" in record.getMessage()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_full_or_locked_disk_leaves_kernels_in_memory(
    cache: KernelCache,
    folder: Path,
    warnings_logged: list[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    other = "o" * 64
    cache.write(entry())
    cache.write(entry(key=other))
    assert cache.read(SPEC_HASH, KEY) == entry()
    assert cache.read(SPEC_HASH, other) == entry(key=other)
    assert files_below(folder) == [], "no temporary is left"
    (record,) = warnings_logged
    assert os.strerror(number) in record.getMessage()
    assert "MLAGEN_CACHE_DIR" in record.getMessage()


def test_file_in_place_of_the_folder_leaves_kernels_in_memory(
    tmp_path: Path, warnings_logged: list[logging.LogRecord]
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = KernelCache(tmp_path / "file" / "cache")
    assert cache.read(SPEC_HASH, KEY) is None
    with cache.lock(SPEC_HASH, KEY, waiting=pytest.fail):
        cache.write(entry())
    assert cache.read(SPEC_HASH, KEY) == entry()
    assert len(warnings_logged) == 1


def test_cache_without_folder_is_memory() -> None:
    cache = KernelCache(None)
    cache.write(entry())
    assert cache.read(SPEC_HASH, KEY) == entry()
    assert cache.info().folder is None


def test_publishing_sweeps_what_killed_writers_left(cache: KernelCache, folder: Path) -> None:
    cache.write(entry(key="o" * 64))
    left = folder / "v1" / f"{entry().file_name}.0123456789abcdef.tmp"
    of_another = folder / "v1" / f"{entry(key='o' * 64).file_name}.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    of_another.write_bytes(b"perhaps being written")
    cache.write(entry())
    assert not left.exists()
    assert of_another.exists()


def test_writer_whose_temporary_was_swept_goes_on(
    cache: KernelCache,
    folder: Path,
    warnings_logged: list[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def overtaken(_descriptor: int) -> None:
        monkeypatch.undo()
        KernelCache(folder).write(entry())

    monkeypatch.setattr(os, "fsync", overtaken)
    cache.write(entry())
    assert [file.name for file in files_below(folder)] == [entry().file_name]
    assert warnings_logged == []


def test_others_may_read_what_is_written(cache: KernelCache, folder: Path) -> None:
    mask = os.umask(0o022)
    try:
        cache.write(entry())
    finally:
        os.umask(mask)
    (file,) = files_below(folder)
    assert file.stat().st_mode & 0o777 == 0o644


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert files_below(tmp_path) == [path]


# Locks.


def test_lock_is_not_left_behind(cache: KernelCache, folder: Path) -> None:
    with cache.lock(SPEC_HASH, KEY, waiting=pytest.fail):
        assert [file.suffix for file in files_below(folder)] == [".lock"]
    assert files_below(folder) == []


def test_lock_that_does_not_come_free_is_done_without(
    cache: KernelCache, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LOCK_TIMEOUT_SECONDS", 0)
    waited: list[bool] = []
    with cache.lock(SPEC_HASH, KEY, waiting=pytest.fail):
        with KernelCache(folder).lock(SPEC_HASH, KEY, waiting=lambda: waited.append(True)):
            assert waited == [True]
        assert len(files_below(folder)) == 1, "the lock is still its holder's"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EIO])
def test_file_system_without_locks_is_done_without(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with cache.lock(SPEC_HASH, KEY, waiting=pytest.fail):
        cache.write(entry())
    assert cache.read(SPEC_HASH, KEY) == entry()


# Settings, and what people ask.


def test_setting_names_the_folder(cache_folder: Path) -> None:
    assert KernelCache.open().folder == cache_folder


def test_a_folder_has_one_cache(tmp_path: Path) -> None:
    assert KernelCache.open(tmp_path) is KernelCache.open(tmp_path)


def test_default_folder_is_absolute() -> None:
    folder = default_cache_folder()
    assert folder is None or folder.is_absolute()


def test_no_home_means_memory_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, warnings_logged: list[logging.LogRecord]
) -> None:
    # What platformdirs returns for a user without HOME and without an entry in the password file.
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: "~/.cache/mlagen")
    default_cache_folder.cache_clear()
    try:
        assert default_cache_folder() is None
        assert default_cache_folder() is None
    finally:
        default_cache_folder.cache_clear()
    (record,) = warnings_logged
    assert "MLAGEN_CACHE_DIR" in record.getMessage()


def test_info_counts_entries_and_bytes(cache: KernelCache, folder: Path) -> None:
    cache.write(entry())
    cache.write(entry(key="o" * 64))
    (folder / "v1" / "notes.txt").write_text("somebody else's")
    info = cache.info()
    assert [e.key for e in info.entries] == [KEY, "o" * 64]
    assert info.size_bytes == sum(e.size_bytes for e in info.entries)


def test_clear_removes_entries_and_left_overs_only(cache: KernelCache, folder: Path) -> None:
    cache.write(entry())
    (folder / "v1" / f"{entry().file_name}.0123456789abcdef.tmp").write_bytes(b"half")
    notes = folder / "v1" / "notes.txt"
    notes.write_text("somebody else's")
    removed = cache.clear()
    assert [e.key for e in removed.entries] == [KEY]
    assert files_below(folder) == [notes]
    assert cache.read(SPEC_HASH, KEY) is None


def test_clear_keeps_what_is_newer(cache: KernelCache, folder: Path) -> None:
    cache.write(entry())
    cache.write(entry(key="o" * 64))
    os.utime(folder / "v1" / entry().file_name, (1000, 1000))
    removed = cache.clear(before=2000)
    assert [e.key for e in removed.entries] == [KEY]
    assert cache.read(SPEC_HASH, "o" * 64) is not None
