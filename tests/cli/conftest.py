"""A command line to call, a small spec to call it with, and a cache in which that spec is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlagen.cache import Entry, KernelCache
from mlagen.cli.main import run
from mlagen.compile.nvrtc import compile_cuda
from mlagen.compile.resources import parse_resources
from mlagen.kernel_compiler import build_key, lint_mark
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.spec.yaml import parse_spec

SPEC = """\
spec: 1
name: small
geometry:
  num_heads: 16
  qk_nope_head_dim: 128
  qk_rope_head_dim: 64
  v_head_dim: 128
  kv_lora_rank: 512
arch: sm_90a
kernels:
  - op: prefill
    mask: [causal, none]
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def mlagen(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `mlagen` with these words, in this process."""

    def call(*words: str | Path) -> Outcome:
        capsys.readouterr()
        status = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of two kernels, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("small.yaml")
    path.write_text(SPEC, encoding="utf-8")
    return path


def fill_cache(folder: Path, *, linted: bool) -> None:
    """Put the kernels of the spec into a cache, as if they were built; an empty kernel stands in.

    What the real ones compile to is the matter of tests/compile; here it would cost time only.
    """
    cache = KernelCache(folder)
    for plan in map(plan_kernel, parse_spec(SPEC).expand()):
        arch = plan.arch.name
        empty = f'extern "C" __global__ void {plan.name}() {{}}'
        compiled = compile_cuda(empty, name=plan.name, arch=arch)
        source = render_kernel(plan)
        cache.write(
            Entry(
                spec_hash=plan.spec.hash,
                key=build_key(source, arch=arch).digest,
                name=plan.name,
                source=source,
                cubin=compiled.cubin,
                ptx=compiled.ptx,
                log=compiled.log,
                resources=parse_resources(compiled.log),
                lint=lint_mark(plan) if linted else None,
                compile_seconds=1.0,
            )
        )


@pytest.fixture(scope="session")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the kernels of the spec. Only to be read."""
    folder = tmp_path_factory.mktemp("filled-cache")
    fill_cache(folder, linted=True)
    return folder


@pytest.fixture
def built(spec: Path, filled_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spec, with its kernels in the cache."""
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(filled_cache))
    return spec
