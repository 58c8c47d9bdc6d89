"""Split-KV launches: how many parts, and the memory for their states."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mlagen.plan import plan_kernel
from mlagen.runtime.arguments import Call, Options
from mlagen.runtime.inputs import Extents, check_tensors
from mlagen.runtime.launch import LaunchForm
from mlagen.runtime.parameters import num_splits
from tests.runtime.calls import make_spec, make_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

AUTO = "split_kv"
FOUR = {"kind": "split_kv", "splits": 4}
# Of a state: 256 threads' 64 outputs, two maxima and two sums, in fp32.
STATE_BYTES = 256 * 68 * 4


@pytest.fixture
def arrivals(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the counters of arrivals hold when a launch begins."""
    found: list[bytes] = []
    prepare: Callable[..., Callable[[int], None]] = fake.prepare_launch

    def preparing(function: int, **how: Any) -> Callable[[int], None]:
        launch = prepare(function, **how)

        def launching(stream: int) -> None:
            launch(stream)
            address = int(fake.launches[-1].arguments["arrivals"])
            found.append(ctypes.string_at(address, 8) if address else b"")

        return launching

    monkeypatch.setattr(fake, "prepare_launch", preparing)
    return found


@pytest.mark.parametrize(
    ("tiles", "keys", "most_blocks", "splits"),
    [
        (1, 128 * 128, 132, 16),  # sqrt(2 * 128 steps)
        (1, 1_000_000, 132, 125),
        (1, 10_000_000, 1000, 128),  # the most there are
        (16, 128 * 128, 132, 8),  # blocks that run at once
        (66, 128 * 128, 132, 2),
        (67, 128 * 128, 132, 1),
        (1, 1, 132, 1),
        (1, 129, 132, 2),
        (1, 0, 132, 1),
        (0, 5, 132, 1),
    ],
)
def test_auto_splits_as_much_as_pays(tiles: int, keys: int, most_blocks: int, splits: int) -> None:
    plan = plan_kernel(make_spec(q_layout="dense", kv="dense", partition=AUTO))
    call = Call({}, {}, Options())
    extents = Extents(1, tiles, 128, 128, keys, keys)
    assert num_splits(plan, call, extents, most_blocks=most_blocks) == splits


@pytest.mark.parametrize(("promised", "splits"), [({}, 5), ({"max_seqlen_k": 500}, 2)])
def test_promised_lengths_bound_the_parts(
    fake: FakeDriver, load: LoadFake, promised: dict[str, int], splits: int
) -> None:
    spec = make_spec(partition=AUTO)
    tensors = make_tensors(spec, q_lens=(1,), k_lens=(2000,))
    load(spec).run(tensors, max_seqlen_q=1, **promised)
    assert fake.launches[-1].arguments["num_splits"] == splits  # of 16 steps, or of 4
    assert fake.launches[-1].grid == 4 * splits


def test_memory_of_every_part_that_a_batch_may_have() -> None:
    """Of both groups of 128 threads, wherever a sequence ends: 300 rows in two are 4 tiles at most."""
    spec = make_spec(partition=FOUR)
    tensors = make_tensors(spec, q_lens=(299, 1), k_lens=(2000, 0))
    call = Call(tensors, dict(zip(tensors, tensors, strict=True)), Options())
    out, lse = torch.empty(300, 4, 128), torch.empty(300, 4)
    form = LaunchForm(
        plan_kernel(spec),
        call,
        extents=check_tensors(spec, call),
        out=out,
        lse=lse,
        most_blocks=132,
    )
    parts = 4 * 4 * 4  # tiles, heads, parts
    assert 4 * form.state_floats == parts * STATE_BYTES
    assert form.arrival_ints == parts * 2


def test_states_and_arrivals_of_every_part(
    fake: FakeDriver, load: LoadFake, arrivals: list[bytes]
) -> None:
    spec = make_spec(partition=FOUR)
    kernels = load(spec)
    fake.ordinal = 1
    for capturing in (False, True):
        if capturing:
            fake.capturing.add(fake.stream)
        kernels.run(make_tensors(spec, q_lens=(1,), k_lens=(2000,)), max_seqlen_q=1)
        (launch, *_) = reversed(fake.launches)
        states, counters = (int(launch.arguments[name]) for name in ("states", "arrivals"))
        assert states
        assert counters == states + 4 * 4 * STATE_BYTES
        assert fake.cleared[-1] == (101, counters, 4 * 4 * 2 * 4, fake.stream)
        assert "num_splits" not in launch.arguments
        assert launch.grid == 4 * 4
    assert arrivals == [bytes(8), bytes(8)]


def test_one_part_takes_no_memory(fake: FakeDriver, load: LoadFake, arrivals: list[bytes]) -> None:
    spec = make_spec(partition=AUTO)
    load(spec).run(make_tensors(spec, q_lens=(10_000,), k_lens=(2000,)))
    (launch,) = fake.launches
    assert (launch.arguments["states"], launch.arguments["arrivals"]) == (0, 0)
    assert launch.arguments["num_splits"] == 1
    assert not fake.cleared
    assert arrivals == [b""]


def test_transient_kernels_get_a_block_for_every_part(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(partition=FOUR, scheduler="transient")
    load(spec).run(make_tensors(spec, q_lens=(10_000,), k_lens=(2000,)))
    assert fake.launches[0].grid == 79 * 4 * 4
