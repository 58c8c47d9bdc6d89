"""One plan to one checked cubin: render, compile, lint and store, or take it from the cache."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlagen.cache import SCHEMA, Entry, KernelCache
from mlagen.compile.contraction import check_contraction
from mlagen.compile.nvrtc import KERNEL_OPTIONS, LINE_OPTIONS, compile_cuda, nvrtc_identity
from mlagen.compile.resources import NOT_ASSEMBLED, Resources, check_resources, parse_resources
from mlagen.compile.sass import LINT_VERSION, disassemble, find_nvdisasm, lint_sass
from mlagen.errors import CacheError, CompileError, MissingDependencyError, MlagenError
from mlagen.package_files import shipped_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.compile.finding import Finding
    from mlagen.plan.plan import KernelPlan
    from mlagen.settings import CompilePolicy

LintPolicy = Literal["auto", "strict"]
Output = Literal["cubin", "ptx"]
LintState = Literal["passed", "skipped"]
Render = Callable[["KernelPlan"], str]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuildKey:
    """All that decides the bytes of a cubin; `digest` names them.

    Attributes:
        source_sha256: Of the rendered CUDA text.
        arch: Architecture compiled for.
        options: NVRTC options beside it.
        compiler: `NvrtcIdentity.compiler`.
        schema: Version of the cache's layout.
    """

    source_sha256: str
    arch: str
    options: tuple[str, ...]
    compiler: str
    schema: int = SCHEMA

    @property
    def canonical(self) -> str:
        """JSON with sorted keys and no spaces, of which `digest` is the SHA-256."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """The build key."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel that can be launched.

    Attributes:
        plan: How it works and what it takes.
        source: Its CUDA text.
        cubin: Its binary; empty if only PTX was asked for.
        ptx: What the binary was assembled from; empty for a kernel from a folder of `mlagen build
            --out`.
        resources: Registers, spills, shared memory.
        key: Build key, `BuildKey.digest`.
        cached: It was not compiled now.
        seconds: How long it took here, from plan to binary.
        lint: Whether the SASS lint has passed, or was skipped because nvdisasm is not installed.
    """

    plan: KernelPlan
    source: str = field(repr=False)
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)
    resources: Resources
    key: str
    cached: bool
    seconds: float
    lint: LintState


@dataclass(frozen=True, slots=True)
class FailedKernel:
    """A kernel that did not compile, or that a check refused; `error` says why."""

    plan: KernelPlan
    error: MlagenError
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelCompiler:
    """One plan to one checked kernel, through the cache.

    Attributes:
        cache: Where kernels are kept.
        policy: When to compile.
        lint: Whether a missing nvdisasm is an error.
        render: Plan to CUDA text.
        generator: Digest of the code behind `render`, so that a text known to be in the cache need
            not be rendered to be found; None to render always.
        output: `cubin`, or for the simulator `ptx`: the same instructions with their source lines, not assembled.
    """

    cache: KernelCache
    policy: CompilePolicy
    lint: LintPolicy
    render: Render
    generator: str | None = None
    output: Output = "cubin"

    def check_tools(self) -> None:
        """Raise MissingDependencyError if what every kernel needs is not here."""
        nvrtc_identity()
        if self.lint == "strict" and find_nvdisasm() is None:
            raise MissingDependencyError(
                "nvdisasm: not found, and this build must check the SASS of its kernels\n"
                "  pip install nvidia-cuda-nvdisasm"
            )

    def build(self, plan: KernelPlan, *, waiting: Callable[[], None]) -> BuiltKernel | FailedKernel:
        """Return the kernel, or why there is none.

        Args:
            plan: What to build.
            waiting: Called if another process is compiling it.
        """
        begin = time.perf_counter()
        cached = True
        try:
            entry = self._recalled(plan)
            if entry is None:
                source = self.render(plan)
                key = self._key(plan, _sha256(source))
                entry = self._stored(plan, key)
                if entry is None and self.policy == "never":
                    raise _not_built(plan, self.cache)  # returned below, like others
                if entry is None:
                    with self.cache.lock(plan.spec.hash, key, waiting=waiting):
                        entry = self._stored(plan, key)
                        if entry is None:
                            entry, cached = self._compile(plan, source, key), False
                self._remember(plan, source)
        except (CompileError, CacheError) as error:
            return FailedKernel(plan, error, time.perf_counter() - begin)
        return BuiltKernel(
            plan=plan,
            source=entry.source,
            cubin=entry.cubin,
            ptx=entry.ptx,
            resources=entry.resources,
            key=entry.key,
            cached=cached,
            seconds=time.perf_counter() - begin,
            lint="skipped" if entry.lint is None else "passed",
        )

    def _recalled(self, plan: KernelPlan) -> Entry | None:
        """Return the cache's entry without rendering, if this mlagen has rendered the plan before.

        Rendering in a fresh process takes 50 ms, most of it to compile the templates; this takes 5.
        """
        if self.generator is None:
            return None
        source_sha256 = self.cache.read_source_hash(plan.spec.hash, self._origin(plan))
        if source_sha256 is None:
            return None
        return self._stored(plan, self._key(plan, source_sha256))

    def _key(self, plan: KernelPlan, source_sha256: str) -> str:
        arch, options = self._target(plan)
        return _build_key(source_sha256, arch=arch, options=options).digest

    def _target(self, plan: KernelPlan) -> tuple[str, tuple[str, ...]]:
        """Architecture and options for NVRTC."""
        if self.output == "ptx":
            return plan.arch.virtual_name, LINE_OPTIONS
        return plan.arch.name, KERNEL_OPTIONS

    def _remember(self, plan: KernelPlan, source: str) -> None:
        if self.generator is not None:
            self.cache.write_source_hash(plan.spec.hash, self._origin(plan), _sha256(source))

    def _origin(self, plan: KernelPlan) -> str:
        """Return a digest of all that decides the plan's text."""
        return _sha256(f"{self.generator} {plan!r}")

    def _stored(self, plan: KernelPlan, key: str) -> Entry | None:
        """Return the cache's entry if it will do, None if there is none."""
        if self.policy == "always":
            return None
        entry = self.cache.read(plan.spec.hash, key)
        if entry is not None and self.lint == "strict" and entry.lint != lint_mark(plan):
            entry = self._checked(plan, entry)
            self.cache.write(entry)
        return entry

    def _compile(self, plan: KernelPlan, source: str, key: str) -> Entry:
        begin = time.perf_counter()
        arch, options = self._target(plan)
        compiled = compile_cuda(source, name=plan.name, arch=arch, options=options)
        entry = Entry(
            spec_hash=plan.spec.hash,
            key=key,
            name=plan.name,
            source=source,
            cubin=compiled.cubin,
            ptx=compiled.ptx,
            log=compiled.log,
            resources=parse_resources(compiled.log) if compiled.cubin else NOT_ASSEMBLED,
            lint=None,
            compile_seconds=time.perf_counter() - begin,
        )
        if self.output == "cubin":
            entry = self._checked(plan, entry)
        self.cache.write(entry)
        logger.info("%s: compiled in %.2f s", plan.name, entry.compile_seconds)
        return entry

    def _checked(self, plan: KernelPlan, entry: Entry) -> Entry:
        """Return the entry marked with the checks that it has passed.

        Raises:
            CompileError: It breaks a rule.
        """
        findings = check_resources(entry.log, entry.resources) + check_contraction(entry.ptx)
        can_lint = find_nvdisasm() is not None
        if can_lint:
            sass = disassemble(entry.cubin)
            findings += lint_sass(sass, plan.sass)
        if findings:
            raise CompileError(_violations(plan, findings))
        return replace(entry, lint=lint_mark(plan) if can_lint else None)


def build_key(source: str, *, arch: str) -> BuildKey:
    """Return the key of a kernel with that text, compiled here with this process's NVRTC."""
    return _build_key(_sha256(source), arch=arch, options=KERNEL_OPTIONS)


@functools.cache
def generator_digest() -> str:
    """Return a digest of everything that turns a spec into text: our own code, templates, Jinja.

    Contents, not times or paths: an installed copy has the same digest.
    """
    package = Path(__file__).parent
    folders = [*(package / name for name in ("spec", "plan", "render"))]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    files += [package / "arch.py", package / "dtypes.py"]
    files += sorted(shipped_folder("templates").rglob("*.j2"))
    digest = hashlib.sha256(importlib.metadata.version("jinja2").encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _build_key(source_sha256: str, *, arch: str, options: tuple[str, ...]) -> BuildKey:
    return BuildKey(
        source_sha256=source_sha256,
        arch=arch,
        options=options,
        compiler=nvrtc_identity().compiler,
    )


def lint_mark(plan: KernelPlan) -> str:
    """Return what a cached verdict of the lint must say to hold for this plan."""
    return f"lint {LINT_VERSION}, {plan.sass}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _not_built(plan: KernelPlan, cache: KernelCache) -> CacheError:
    return CacheError(
        f"{plan.name}: not in the cache {cache.folder}, and compiling is off\n"
        "  build it first with `mlagen build SPEC`, or set MLAGEN_COMPILE=auto"
    )


def _violations(plan: KernelPlan, findings: Sequence[Finding]) -> str:
    lines = "\n".join(f"  {line}" for finding in findings for line in str(finding).splitlines())
    return (
        f"{plan.name}: compiled, but not to the machine code that its plan promises\n{lines}\n"
        "  choose a smaller tile (config.tile_m, config.tile_n), or another NVRTC (MLAGEN_NVRTC)"
    )
