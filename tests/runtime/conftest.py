"""Loaded kernels over the fake driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import mlagen.runtime.driver
from mlagen.build import BuiltKernel
from mlagen.compile.resources import Resources
from mlagen.plan import plan_kernel
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.kernel import Kernels
from tests.runtime.fake_driver import FakeDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.spec.model import KernelSpec

    LoadFake = Callable[..., Kernels]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The driver of the test."""
    driver = FakeDriver({})
    monkeypatch.setattr(mlagen.runtime.driver, "system_driver", lambda: driver)
    return driver


@pytest.fixture
def meta_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give meta tensors an address: they pass for tensors of another GPU, or too large for this machine."""
    address_of = torch.Tensor.data_ptr
    monkeypatch.setattr(
        torch.Tensor,
        "data_ptr",
        lambda tensor: 0x1000 if tensor.is_meta else address_of(tensor),
    )


@pytest.fixture
def load(fake: FakeDriver) -> LoadFake:
    """Load specs whose cubins are only names."""

    def load_specs(*specs: KernelSpec) -> Kernels:
        plans = [plan_kernel(spec) for spec in specs]
        fake.plans.update({plan.name: plan for plan in plans})
        built = [built_kernel(spec) for spec in specs]
        binaries = Binaries(built=built, cache=None, jit="never", source="specs/test.yaml")
        return Kernels(specs, binaries=binaries, backend="cuda", source="specs/test.yaml")

    return load_specs


def built_kernel(spec: KernelSpec) -> BuiltKernel:
    """A kernel that only the fake driver can load."""
    plan = plan_kernel(spec)
    return BuiltKernel(
        plan=plan,
        source="",
        cubin=f"cubin of {plan.name}".encode(),
        ptx="",
        resources=Resources(168, 0, 0, 0, shared_bytes=0, barriers=1),
        key="0" * 64,
        cached=True,
        seconds=0.0,
        lint="passed",
    )
