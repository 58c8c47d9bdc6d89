"""Ticket counters: one a stream, one a captured launch; without a kernel, only addresses are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mlagen.runtime.tickets
from mlagen.errors import DriverError, NoKernelError
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.device import devices_of
from mlagen.runtime.kernel import Kernels
from mlagen.runtime.tickets import COUNTER_BYTES, POOL_COUNTERS, TicketCounters
from tests.runtime.calls import make_spec, make_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver


def tickets(fake: FakeDriver) -> list[int | float]:
    return [launch.arguments["tickets"] for launch in fake.launches]


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return make_tensors(make_spec())


def test_eager_calls_use_the_counter_of_their_stream(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor]
) -> None:
    kernels, others = load(make_spec()), load(make_spec(mask="causal"))
    for stream, loaded in ((7, kernels), (8, kernels), (7, others), (8, kernels)):
        fake.stream = stream
        loaded.run(tensors)
    first, second, third, fourth = tickets(fake)
    assert first == third, "launches on one stream run one after another"
    assert second == fourth
    assert first != second


def test_a_new_stream_with_the_handle_of_an_old_one_gets_its_own_counter(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor]
) -> None:
    """Work of a destroyed stream may still run when its handle is given to another; ids are never reused."""
    kernels = load(make_spec())
    for stream_id in (1, 2):
        fake.stream_ids[fake.stream] = stream_id
        kernels.run(tensors)
    first, second = tickets(fake)
    assert first != second


def test_every_captured_launch_has_a_counter_of_its_own(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor]
) -> None:
    kernels = load(make_spec())
    kernels.run(tensors)
    fake.capturing.add(fake.stream)
    for _ in range(3):
        kernels.run(tensors)
    fake.capturing.clear()
    kernels.run(tensors)
    found = tickets(fake)
    assert found[0] == found[4]
    assert len(set(found)) == 4


def test_counters_are_zero_and_apart(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor]
) -> None:
    load(make_spec()).run(tensors)
    ((context, base, data),) = fake.uploads
    assert context == 100
    assert data == bytes(POOL_COUNTERS * COUNTER_BYTES)
    (address,) = tickets(fake)
    assert (int(address) - base) % COUNTER_BYTES == 0
    assert base <= address < base + len(data)


@pytest.mark.parametrize("kind", ["transient", "persistent"])
def test_kernels_without_tickets_take_no_counter(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor], kind: str
) -> None:
    kernels = load(make_spec(scheduler=kind))
    counters = devices_of(fake).get(0).counters
    kernels.run(tensors)
    before = counters.take()
    fake.capturing.add(fake.stream)
    kernels.run(tensors)
    assert abs(counters.take() - before) == COUNTER_BYTES, "the launches took none in between"
    assert all("tickets" not in launch.arguments for launch in fake.launches)
    assert len(fake.launches) == 2


def test_an_empty_pool_is_extended_during_a_capture(fake: FakeDriver) -> None:
    counters = TicketCounters(fake)
    counters.reserve()
    fake.capturing.add(fake.stream)
    taken = {counters.take() for _ in range(POOL_COUNTERS + 1)}
    assert len(taken) == POOL_COUNTERS + 1
    assert len(fake.uploads) == 2
    assert not fake.relaxed


def test_a_launch_that_is_refused_leaves_its_counter(
    fake: FakeDriver,
    load: LoadFake,
    tensors: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mlagen.runtime.tickets, "POOL_COUNTERS", 2)
    kernels = load(make_spec())
    kernels.run(tensors)
    for capturing in (False, True):
        if capturing:
            fake.capturing.add(fake.stream)
        kernels.most_blocks = 0
        with pytest.raises(DriverError, match="launching 0 blocks of mla_prefill_sm90a"):
            kernels.run(tensors)
        kernels.most_blocks = None
        kernels.run(tensors)
    eager, again, captured = tickets(fake)
    assert eager == again
    assert captured != eager
    assert len(fake.uploads) == 1


def test_loading_during_a_capture_is_relaxed(
    fake: FakeDriver, load: LoadFake, tensors: dict[str, torch.Tensor]
) -> None:
    """The fake refuses to load or allocate beside a capture unless the thread's mode is relaxed."""
    fake.capturing.add(fake.stream)
    load(make_spec()).run(tensors)
    assert len(fake.launches) == 1
    assert not fake.relaxed


def test_nothing_is_compiled_during_a_capture(
    fake: FakeDriver, tensors: dict[str, torch.Tensor], cache_folder: Path
) -> None:
    spec = make_spec()
    binaries = Binaries(built=(), cache=None, jit="auto", source="specs/test.yaml")
    kernels = Kernels([spec], binaries=binaries, backend="cuda", source="specs/test.yaml")
    fake.capturing.add(fake.stream)
    with pytest.raises(NoKernelError, match="a CUDA graph is being captured") as error:
        kernels.run(tensors)
    assert "mlagen build specs/test.yaml, or kernels.warmup()" in str(error.value)
    assert not list(cache_folder.rglob("*.kernel"))
