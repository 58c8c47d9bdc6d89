"""One plan to one checked cubin: render, compile, lint and store, or take it from the cache."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mlagen.cache import BuildKey, Entry, KernelCache
from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda, nvrtc_identity
from mlagen.compile.resources import Resources, check_resources, parse_resources
from mlagen.compile.sass import LINT_VERSION, disassemble, find_nvdisasm, lint_sass
from mlagen.errors import CacheError, CompileError, MissingDependencyError, MlagenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.compile.finding import Finding
    from mlagen.plan.plan import KernelPlan
    from mlagen.settings import CompilePolicy

LintPolicy = Literal["auto", "strict"]
LintState = Literal["passed", "skipped"]
Render = Callable[["KernelPlan"], str]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel that can be launched.

    Attributes:
        plan: How it works and what it takes.
        source: Its CUDA text.
        cubin: Its binary.
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
    """One plan to one checked kernel, through the cache."""

    cache: KernelCache
    policy: CompilePolicy
    lint: LintPolicy
    render: Render

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
        source = self.render(plan)
        key = build_key(source, arch=plan.arch.name).digest
        cached = True
        try:
            entry = self._stored(plan, key)
            if entry is None:
                with self.cache.lock(plan.spec.hash, key, waiting=waiting):
                    entry = self._stored(plan, key)
                    if entry is None:
                        entry, cached = self._compile(plan, source, key), False
        except (CompileError, CacheError) as error:
            return FailedKernel(plan, error, time.perf_counter() - begin)
        return BuiltKernel(
            plan=plan,
            source=source,
            cubin=entry.cubin,
            ptx=entry.ptx,
            resources=entry.resources,
            key=key,
            cached=cached,
            seconds=time.perf_counter() - begin,
            lint="skipped" if entry.lint is None else "passed",
        )

    def _stored(self, plan: KernelPlan, key: str) -> Entry | None:
        """Return the cache's entry if it will do, None if the kernel has to be compiled."""
        if self.policy == "always":
            return None
        entry = self.cache.read(plan.spec.hash, key)
        if entry is not None and self.lint == "strict" and entry.lint != lint_mark(plan):
            entry = self._checked(plan, entry)
            self.cache.write(entry)
        if entry is None and self.policy == "never":
            raise CacheError(
                f"{plan.name}: not in the cache {self.cache.folder}, and compiling is off\n"
                "  build it first with `mlagen build SPEC`, or set MLAGEN_COMPILE=auto"
            )
        return entry

    def _compile(self, plan: KernelPlan, source: str, key: str) -> Entry:
        begin = time.perf_counter()
        compiled = compile_cuda(source, name=plan.name, arch=plan.arch.name)
        entry = Entry(
            spec_hash=plan.spec.hash,
            key=key,
            name=plan.name,
            cubin=compiled.cubin,
            ptx=compiled.ptx,
            log=compiled.log,
            resources=parse_resources(compiled.log),
            lint=None,
            compile_seconds=time.perf_counter() - begin,
        )
        entry = self._checked(plan, entry)
        self.cache.write(entry)
        logger.info("%s: compiled in %.2f s", plan.name, entry.compile_seconds)
        return entry

    def _checked(self, plan: KernelPlan, entry: Entry) -> Entry:
        """Return the entry marked with the checks that it has passed.

        Raises:
            CompileError: It breaks a rule.
        """
        findings = check_resources(entry.log, entry.resources)
        can_lint = find_nvdisasm() is not None
        if can_lint:
            sass = disassemble(entry.cubin)
            findings += lint_sass(sass, hgmma_per_tile=plan.hgmma_per_tile)
        if findings:
            raise CompileError(_violations(plan, findings))
        return replace(entry, lint=lint_mark(plan) if can_lint else None)


def build_key(source: str, *, arch: str) -> BuildKey:
    """Return the key of a kernel with that text, compiled here with this process's NVRTC."""
    return BuildKey(
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        arch=arch,
        options=KERNEL_OPTIONS,
        compiler=nvrtc_identity().compiler,
    )


def lint_mark(plan: KernelPlan) -> str:
    """Return what a cached verdict of the lint must say to hold for this plan."""
    return f"lint {LINT_VERSION}, {plan.hgmma_per_tile} HGMMA"


def _violations(plan: KernelPlan, findings: Sequence[Finding]) -> str:
    lines = "\n".join(f"  {line}" for finding in findings for line in str(finding).splitlines())
    return (
        f"{plan.name}: compiled, but not to the machine code that its plan promises\n{lines}\n"
        "  choose a smaller tile (config.tile_m, config.tile_n), or another NVRTC (MLAGEN_NVRTC)"
    )
