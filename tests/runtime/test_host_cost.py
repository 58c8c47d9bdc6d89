"""What a warm call costs on the host, on a driver that does nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.runtime.calls import PAGED_64, make_spec, make_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

# The goal is 10 us with the real driver, of which it takes about 4. Ten times what it takes here: for a loaded machine.
LIMIT_US = 50.0
# Of Python's functions and of C's that Python calls, the driver's own left out. Nine inputs and an output given.
MOST_CALLS = 30


@pytest.fixture
def warm_call(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    """A call that was made before."""
    monkeypatch.setattr(fake, "prepare_launch", lambda *_, **__: lambda _: None)
    spec = make_spec(k_rope=PAGED_64, lse=True, sink=True)
    kernels, tensors = load(spec), make_tensors(spec)
    tensors["out"] = torch.empty(169, 4, 128, dtype=torch.bfloat16)
    tensors["lse"] = torch.empty(169, 4)

    def call() -> Any:
        return kernels.run(tensors, return_lse=True)

    call()
    return call


def test_a_warm_call_is_quick(warm_call: Callable[[], Any]) -> None:
    times = []
    for _ in range(1000):
        begin = time.perf_counter()
        warm_call()
        times.append(time.perf_counter() - begin)
    median = sorted(times)[len(times) // 2] * 1e6
    assert median < LIMIT_US, f"{median:.1f} us"


def test_a_warm_call_calls_little(warm_call: Callable[[], Any]) -> None:
    """A measure that no other load on the machine changes."""
    called = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            called.append(argument.__name__ if event == "c_call" else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        warm_call()
    finally:
        sys.setprofile(None)
    assert len(called) <= MOST_CALLS, called
