"""Processes that share a cache: many at once, killed ones, and ones that may not write."""

from __future__ import annotations

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from mlagen import kernel_compiler
from mlagen.cache import KernelCache
from mlagen.kernel_compiler import BuiltKernel, KernelCompiler
from tests.cache.plans import Collector, fake_compile, files_below, tiny_plan, tiny_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

    from mlagen.compile.nvrtc import Compiled

PROCESSES, ROUNDS, ROUNDS_WITHOUT_LOCKS = 8, 20, 5
NOBODY = 65534


def compiler(folder: Path) -> KernelCompiler:
    cache = KernelCache(folder)
    return KernelCompiler(cache=cache, policy="auto", lint="auto", render=tiny_source)


def build(folder: Path, waiting: Callable[[], None] = lambda: None) -> BuiltKernel:
    built = compiler(folder).build(tiny_plan(), waiting=waiting)
    assert isinstance(built, BuiltKernel)
    return built


def use_fake_compiler(note: Callable[[], None] = lambda: None) -> None:
    """Take the place of NVRTC and nvdisasm, in a process that ends with the test."""

    def compile_and_note(source: str, *, name: str, arch: str, **_: object) -> Compiled:
        note()
        return fake_compile(source, name=name, arch=arch)

    patch.object(kernel_compiler, "compile_cuda", compile_and_note).start()
    patch.object(kernel_compiler, "find_nvdisasm", lambda: None).start()


def run_alone(target: Callable[..., None], *arguments: object) -> int:
    """Run a function in a fresh process and return its exit code."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def load_in_rounds(root: Path, number: int, barrier: Barrier) -> None:
    """Load one kernel from a cold cache, again and again; the last rounds without file locks."""
    use_fake_compiler()
    for round_number in range(ROUNDS + ROUNDS_WITHOUT_LOCKS):
        if round_number == ROUNDS:
            patch.object(fcntl, "flock", _no_flock).start()
        folder = root / str(round_number)
        barrier.wait(60)
        built = build(folder / "cache")
        (folder / f"{'loaded' if built.cached else 'compiled'}-{number}").write_bytes(built.cubin)


def _no_flock(_descriptor: object, _operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_eight_processes_and_a_cold_cache(tmp_path: Path) -> None:
    rounds = range(ROUNDS + ROUNDS_WITHOUT_LOCKS)
    for number in rounds:
        (tmp_path / str(number)).mkdir()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=load_in_rounds, args=(tmp_path, number, barrier))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for number in rounds:
        folder = tmp_path / str(number)
        results = {path.read_bytes() for path in folder.glob("*-*")}
        compiles = len(list(folder.glob("compiled-*")))
        assert len(results) == 1, "all have the same bytes"
        assert compiles == 1 or (number >= ROUNDS and compiles > 1), f"round {number}"
        (entry,) = files_below(folder / "cache")
        assert entry.suffix == ".kernel", "no lock and no temporary is left behind"


def die_while_writing(folder: Path) -> None:
    use_fake_compiler()
    patch.object(os, "fsync", lambda _descriptor: os.kill(os.getpid(), signal.SIGKILL)).start()
    build(folder)


def test_killed_writer_leaves_nothing_that_stays(tmp_path: Path) -> None:
    assert run_alone(die_while_writing, tmp_path) == -signal.SIGKILL
    assert {path.suffix for path in files_below(tmp_path)} == {".tmp", ".lock"}, "it died in time"
    assert run_alone(build_again, tmp_path) == 0
    (entry,) = files_below(tmp_path)
    assert entry.suffix == ".kernel"


def build_again(folder: Path) -> None:
    use_fake_compiler()

    def hangs() -> None:
        raise AssertionError("the lock of a dead process must not be waited for")

    assert not build(folder, hangs).cached
    assert build(folder).cached


def use_read_only_cache(root: Path) -> None:
    """Read a valid entry and build another kernel as a user who may write nothing."""
    compiles: list[bool] = []
    use_fake_compiler(lambda: compiles.append(True))
    collector = Collector()
    folder = root / "cache"
    build(folder)
    other = tiny_plan(64)
    for path in (folder / "v1", folder):
        path.chmod(0o555)
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    logging.getLogger("mlagen").addHandler(collector)
    shared = compiler(folder)

    assert build(folder).cached
    assert collector.records == [], "hits need no warning"
    for _ in range(2):
        assert isinstance(shared.build(other, waiting=lambda: None), BuiltKernel)
    assert len(compiles) == 2, "the second time it came from memory"
    (record,) = collector.records
    assert "cannot write to the cache" in record.getMessage()


def test_read_only_cache_serves_and_the_rest_stays_in_memory() -> None:
    # Not `tmp_path`, which only its owner may enter.
    root = Path(tempfile.mkdtemp(prefix="mlagen-test-"))
    try:
        root.chmod(0o755)
        assert run_alone(use_read_only_cache, root) == 0
    finally:
        for path in (root / "cache", root / "cache" / "v1"):
            path.chmod(0o755)
        shutil.rmtree(root)
