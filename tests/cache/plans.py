"""Plans of small kernels, compilers that take no time, and what they leave behind."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import TYPE_CHECKING

from mlagen import kernel_compiler
from mlagen.compile.nvrtc import Compiled
from mlagen.plan import plan_kernel
from mlagen.sass_facts import SassFacts
from mlagen.spec.model import HeadGeometry, KernelSpec
from tests.compile.sources import store_kernel

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from mlagen.plan.plan import KernelPlan

GEOMETRY = HeadGeometry(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, kv_lora_rank=512)
LOG = """\
ptxas info    : Function properties for kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
"""


def tiny_plan(page_size: int | None = None) -> KernelPlan:
    """Return a real plan but for what machine code must show: that of `tiny_source` has nothing.

    Each power of two from 8 to 256 gives another plan.
    """
    rope = {"layout": "fused"} if page_size is None else {"layout": "paged", "page_size": page_size}
    spec = KernelSpec.model_validate({"arch": "sm_90a", "geometry": GEOMETRY, "k_rope": rope})
    return dataclasses.replace(plan_kernel(spec), sass=SassFacts())


def tiny_plans(count: int) -> list[KernelPlan]:
    """Return up to six different plans."""
    return [tiny_plan(8 << index) for index in range(count)]


def tiny_source(plan: KernelPlan) -> str:
    """Return CUDA text that compiles in a moment, another one for each plan."""
    return store_kernel(plan.name)


def fake_compile(source: str, *, name: str, arch: str, **_: object) -> Compiled:
    """Return what no compiler made, always the same for the same source; takes some milliseconds."""
    digest = hashlib.sha256(source.encode()).digest()
    for _round in range(5_000):
        digest = hashlib.sha256(digest).digest()
    return Compiled(digest * 4096, f"// {name} for {arch}", LOG)


class CompileCounter:
    """A compiler that counts its calls, by kernel name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of NVRTC and of nvdisasm."""
        self.names: list[str] = []
        monkeypatch.setattr(kernel_compiler, "compile_cuda", self)
        monkeypatch.setattr(kernel_compiler, "find_nvdisasm", lambda: None)

    def __call__(self, source: str, *, name: str, arch: str, **_: object) -> Compiled:
        """Count and compile."""
        self.names.append(name)
        return fake_compile(source, name=name, arch=arch)


class Collector(logging.Handler):
    """Keeps the warnings of a whole test; `caplog.records` is another list in each phase."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and below."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
