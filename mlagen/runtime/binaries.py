"""Where a kernel's machine code comes from: a folder of built kernels, the cache, or NVRTC on the spot."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Literal

from mlagen.errors import CacheError, MissingDependencyError, NoKernelError
from mlagen.plan.name import kernel_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlagen.build import BuiltKernel
    from mlagen.cache import KernelCache
    from mlagen.plan.plan import KernelPlan
    from mlagen.spec.model import KernelSpec

JitPolicy = Literal["auto", "never"]

logger = logging.getLogger(__name__)


class Binaries:
    """Plans and cubins of the loaded specs, each fetched once. Thread safe."""

    def __init__(
        self,
        *,
        built: Iterable[BuiltKernel],
        cache: KernelCache | None,
        jit: JitPolicy,
        source: str,
    ) -> None:
        """Hold what a folder gives; compile nothing yet.

        Args:
            built: Kernels of a folder; they are used whatever NVRTC stands here, or none. Those that
                have PTX run in the simulator, too.
            cache: Where others are looked up; None for the one that settings name.
            jit: Whether `get` may compile what the cache lacks.
            source: Where the specs come from, for messages.
        """
        built = list(built)
        self._found = {kernel.plan.spec.hash: (kernel.plan, kernel.cubin) for kernel in built}
        self._with_lines = {kernel.plan.spec.hash: kernel for kernel in built if kernel.ptx}
        self._cache = cache
        self._jit = jit
        self._source = source
        self._lock = threading.Lock()

    def get(self, spec: KernelSpec, *, capturing: bool = False) -> tuple[KernelPlan, bytes]:
        """The plan and the cubin of a kernel.

        Args:
            spec: Which.
            capturing: A graph is being captured: nothing is compiled.

        Raises:
            NoKernelError: It is not built, and may not be built now.
            CompileError, PlanError, UnsupportedError: It cannot be built.
        """
        found = self._found.get(spec.hash)
        if found is not None:
            return found
        with self._lock:
            if spec.hash not in self._found:
                (kernel,) = self._fetch([spec], capturing=capturing)
                self._found[spec.hash] = (kernel.plan, kernel.cubin)
            return self._found[spec.hash]

    def get_with_lines(self, spec: KernelSpec) -> BuiltKernel:
        """A kernel whose PTX knows its source lines, for the simulator; apart from the others in the cache.

        Raises:
            NoKernelError: It is not built, and may not be built now.
            CompileError, PlanError, UnsupportedError: It cannot be built.
        """
        with self._lock:
            if spec.hash not in self._with_lines:
                (kernel,) = self._fetch([spec], capturing=False, output="ptx")
                self._with_lines[spec.hash] = kernel
            return self._with_lines[spec.hash]

    def get_all(self, specs: Sequence[KernelSpec]) -> list[tuple[KernelPlan, bytes]]:
        """Plans and cubins of all these kernels; what has to be compiled is compiled in parallel."""
        with self._lock:
            lacking = [spec for spec in specs if spec.hash not in self._found]
            for kernel in self._fetch(lacking, capturing=False) if lacking else ():
                self._found[kernel.plan.spec.hash] = (kernel.plan, kernel.cubin)
            return [self._found[spec.hash] for spec in specs]

    def _fetch(
        self, specs: Sequence[KernelSpec], *, capturing: bool, **how: Any
    ) -> list[BuiltKernel]:
        """Build them, `how` as `build_specs` takes it."""
        from mlagen.build import (
            build_specs,  # it imports NVRTC, which a folder of kernels does not need
        )

        if self._jit == "auto" and not capturing:
            return build_specs(specs, cache=self._cache, **how)
        try:
            return build_specs(specs, cache=self._cache, policy="never", **how)
        except (
            CacheError,
            MissingDependencyError,
        ) as error:  # not in the cache, or no NVRTC to ask for its key
            names = ", ".join(kernel_name(spec) for spec in specs)
            why = (
                "a CUDA graph is being captured" if capturing else "compiling is off (jit='never')"
            )
            message = f"{names}: not built, and {why}"
            advice = f"build it before: mlagen build {self._source}, or kernels.warmup()"
            reason = str(error).splitlines()[0]
            raise NoKernelError(f"{message}\n  {reason}\n  {advice}") from error
