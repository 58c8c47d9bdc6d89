"""Warm calls launch what first calls would, and are refused what first calls are refused."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import mlagen.runtime.known_calls
from mlagen.errors import MlagenError
from mlagen.runtime.device import devices_of
from mlagen.runtime.known_calls import KNOWN_CALLS, RECENT_CALLS, KnownCalls
from tests.runtime.calls import PAGED_64, make_spec, make_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.launch_record import TensorMapSpec
    from mlagen.runtime.kernel import Kernels
    from mlagen.spec.model import KernelSpec
    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver, Launch

    Arguments = dict[str, Any]

DENSE: dict[str, Any] = {"q_layout": "dense", "kv": "dense"}
SPECS = {
    "dense": make_spec(**DENSE, mask="causal"),
    "dense with lengths": make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True}),
    "ragged": make_spec(),
    "split q, rope rows": make_spec(q_form="split", k_rope="ragged"),
    "rope in pages": make_spec(k_rope=PAGED_64, lse=True, sink=True, mask="causal"),
    "keys in pages": make_spec(kv=PAGED_64),
    "prefix": make_spec(kv_length_counts="prefix"),
    "padding": make_spec(mask="padding"),
    "bias": make_spec(score_mod={"kind": "bias", "rank": 4}),
    "relative bias": make_spec(score_mod={"kind": "relative_bias", "extent": 9}),
    "slopes": make_spec(score_mod={"kind": "alibi", "slopes": "tensor"}),
    "transient": make_spec(scheduler="transient"),
    "parts": make_spec(**DENSE, partition={"kind": "split_kv", "splits": 4}),
    "sm_100a": make_spec(arch="sm_100a", config={"cta_group": 2}, lse=True),
    "fp8": make_spec(arch="sm_100a", dtype="float8_e4m3fn", k_rope=PAGED_64),
}
PLAIN = SPECS["rope in pages"]


@pytest.fixture(params=["torch's guards", "without them"], autouse=True)
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as torch is, once as a torch without guards would be."""
    if request.param == "without them":
        monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)


def call_of(spec: KernelSpec, *, seed: int = 0) -> Arguments:
    """Arguments with outputs given, so that two calls can have the same addresses."""
    tensors = make_tensors(spec, q_lens=(40, 0, 129), k_lens=(107, 65, 200), seed=seed)
    query = tensors["q" if "q" in tensors else "q_nope"]
    rows = tuple(query.shape[:-1])
    tensors["out"] = torch.empty(*rows, 128, dtype=getattr(torch, str(spec.output_dtype)))
    if spec.lse:
        tensors["lse"] = torch.empty(rows)
    return tensors


def outcome(fake: FakeDriver, kernels: Kernels, arguments: Arguments) -> Launch | tuple[type, str]:
    """What a call launches, or how it is refused."""
    before = len(fake.launches)
    try:
        kernels.run(arguments)
    except MlagenError as error:
        assert len(fake.launches) == before
        return type(error), str(error)
    (launch,) = fake.launches[before:]
    ignored = ("states", "arrivals")  # new memory in each call
    return dataclasses.replace(
        launch,
        arguments={name: value for name, value in launch.arguments.items() if name not in ignored},
    )


@pytest.mark.parametrize("kind", SPECS)
def test_warm_calls_launch_what_first_calls_do(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec = SPECS[kind]
    fake.capability = (10, 0) if spec.arch == "sm_100a" else (9, 0)
    kernels = load(spec)
    calls = [call_of(spec, seed=seed) for seed in range(3)]
    warm = [outcome(fake, kernels, calls[index]) for index in (0, 1, 2, 2, 1, 0)][3:]
    assert len(kernels._known) == 1
    monkeypatch.setattr(KnownCalls, "find", lambda *_: None)
    assert warm == [outcome(fake, load(spec), call) for call in reversed(calls)]
    assert len({repr(launch) for launch in warm}) == 3


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with room between the rows."""
    room = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 64, dtype=tensor.dtype)
    room[..., : tensor.shape[-1]] = tensor
    return room[..., : tensor.shape[-1]]


def released(tensor: torch.Tensor) -> torch.Tensor:
    """The same form, without memory."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def heads_outermost(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of another order."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


NEARLY: dict[str, Callable[[Arguments], Arguments]] = {
    "other memory": lambda call: {"v": call["v"].clone()},
    "memory that TMA cannot reach": lambda call: {
        "v": torch.empty(call["v"].numel() + 1, dtype=torch.bfloat16)[1:].view(call["v"].shape)
    },
    "room between rows": lambda call: {"k": wide(call["k"])},
    "heads outermost": lambda call: {"k": heads_outermost(call["k"])},
    "lse with heads outermost": lambda call: {"lse": heads_outermost(call["lse"])},
    "gaps in rows": lambda call: {"k": call["k"].repeat_interleave(2, dim=-1)[..., ::2]},
    "fewer keys": lambda call: {name: call[name][:50] for name in ("k", "v")},
    "keys without values": lambda call: {"k": call["k"][:50]},
    "one dimension more": lambda call: {"k": call["k"][None]},
    "another dtype": lambda call: {"k": call["k"].to(torch.float16)},
    "a dtype of the same size": lambda call: {"cu_seqlens_q": call["cu_seqlens_q"].float()},
    "another dtype of the output": lambda call: {"out": call["out"].float()},
    "another device": lambda call: {"k": call["k"].to("meta")},
    "an array": lambda call: {"cu_seqlens_q": call["cu_seqlens_q"].numpy()},
    "a list": lambda _: {"cu_seqlens_q": [0, 40, 40, 169]},
    "a tensor missing": lambda _: {"sinks": None},
    "gradients": lambda call: {"sinks": call["sinks"].clone().requires_grad_()},
    "one tensor twice": lambda call: {"cu_seqlens_k": call["cu_seqlens_q"]},
    "a wrong tensor twice": lambda call: {"k": call["v"][..., :64], "v": call["v"][..., :64]},
    "released memory": lambda call: {"v": released(call["v"])},
    "released memory of a pointer": lambda call: {"sinks": released(call["sinks"])},
    "zeros without memory": lambda call: {"sinks": torch._efficientzerotensor(4)},
    "negated when read": lambda call: {"v": torch._neg_view(call["v"])},
    "a negated pointer": lambda call: {"sinks": torch._neg_view(call["sinks"])},
    "sparse": lambda call: {"sinks": call["sinks"].to_sparse()},
    "compressed": lambda call: {"block_table": call["block_table"].to_sparse_csr()},
    "LSE over sinks": lambda call: {"sinks": call["lse"][0]},
    "output over offsets": lambda call: {
        "cu_seqlens_q": call["out"].view(-1).view(torch.int32)[8:12]
    },
    "output over input": lambda call: {"out": call["v"].view(-1)[:86528].view(169, 4, 128)},
    "another name": lambda call: {"kpe": call["k_rope"], "k_rope": None},
    "two names": lambda call: {"kpe": call["k_rope"]},
    "no such name": lambda _: {"max_seqlens_q": 129},
    "the mask as an object": lambda _: {"mask": PLAIN.mask},
    "the mask as a dict": lambda _: {"mask": {"kind": "causal"}},
    "another mask": lambda _: {"mask": "none"},
    "an int for a flag": lambda _: {"return_lse": 1},
    "a float for a flag": lambda _: {"return_lse": 1.0},
    "NumPy's int for a flag": lambda _: {"return_lse": np.int64(1)},
    "another length": lambda _: {"max_seqlen_q": 130},
    "the length as a float": lambda _: {"max_seqlen_q": 129.0},
    "the length as NumPy's": lambda _: {"max_seqlen_q": np.int32(129)},
    "the length in a tensor": lambda _: {"max_seqlen_q": torch.tensor(129)},
    "a length too short": lambda _: {"max_seqlen_q": 1},
    "a flag for a length": lambda _: {"max_seqlen_q": True},
    "another scale": lambda _: {"softmax_scale": 0.25},
    "no scale": lambda _: {"softmax_scale": None},
    "not a number": lambda _: {"softmax_scale": float("nan")},
    "the scale in a tensor": lambda _: {"softmax_scale": torch.tensor(0.5)},
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("change", NEARLY)
def test_calls_that_are_nearly_known_are_as_if_none_were(
    fake: FakeDriver, load: LoadFake, change: str
) -> None:
    options = {"mask": "causal", "return_lse": True, "max_seqlen_q": 129, "softmax_scale": 0.5}
    call = call_of(PLAIN) | options
    other = call | NEARLY[change](call)
    warm = load(PLAIN)
    first = outcome(fake, warm, call)
    assert outcome(fake, warm, other) == outcome(fake, load(PLAIN), other)
    assert outcome(fake, warm, call) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q.resize_(100, 4, 192),
        lambda q: q.set_(torch.randn(169, 4, 192).to(torch.bfloat16)),
        lambda q: setattr(q, "data", heads_outermost(q)),
        lambda q: setattr(q, "data", q.float()),
        lambda q: q.transpose_(0, 1),
        lambda q: q.requires_grad_(),
    ],
    ids=["resize_", "set_", "strides of data", "dtype of data", "transpose_", "requires_grad_"],
)
def test_a_tensor_may_change_between_calls(
    fake: FakeDriver, load: LoadFake, change: Callable[[torch.Tensor], Any]
) -> None:
    call, warm = call_of(PLAIN), load(PLAIN)
    outcome(fake, warm, call)
    change(call["q"])
    assert outcome(fake, warm, call) == outcome(fake, load(PLAIN), call)


def test_an_option_may_change_in_place(fake: FakeDriver, load: LoadFake) -> None:
    masks = [{"kind": "sliding_window", "left": left, "right": 0} for left in (5, 9)]
    kernels, mask = load(*(make_spec(mask=mask) for mask in masks)), dict(masks[0])
    call = call_of(SPECS["ragged"]) | {"mask": mask}
    for left in (5, 9, 5):
        mask["left"] = left
        kernels.run(call)
    first, second, third = (launch.entry for launch in fake.launches)
    assert first == third
    assert first != second


@pytest.mark.usefixtures("meta_memory")
def test_options_as_a_spec_holds_them_are_remembered(fake: FakeDriver, load: LoadFake) -> None:
    kernels, call = load(PLAIN), call_of(PLAIN)
    for _ in range(2):
        kernels.run(call, mask=PLAIN.mask, score_mod=PLAIN.score_mod)
    assert len(kernels._known) == 1


@pytest.mark.usefixtures("meta_memory")
def test_devices_are_told_apart(fake: FakeDriver, load: LoadFake) -> None:
    """To the fake driver a meta tensor lies on the second GPU."""
    kernels, call = load(PLAIN), make_tensors(PLAIN)
    elsewhere = {name: tensor.to("meta") for name, tensor in call.items()}
    for arguments in (call, elsewhere, call, elsewhere):
        kernels.run(arguments)
    assert [launch.context for launch in fake.launches] == [100, 101, 100, 101]
    assert fake.context == 100


def test_modes_of_autograd_are_the_same_call(fake: FakeDriver, load: LoadFake) -> None:
    kernels, call = load(PLAIN), call_of(PLAIN)
    modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    for mode in (*modes, *modes):
        with mode():
            kernels.run(call)
    assert len(kernels._known) == 1
    assert len({repr(launch) for launch in fake.launches}) == 1


def test_one_tensor_under_two_names(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries and keys of one length each, as in self-attention."""
    spec = SPECS["ragged"]
    tensors = make_tensors(spec, q_lens=(40, 129), k_lens=(40, 129))
    same = tensors | {"cu_seqlens_k": tensors["cu_seqlens_q"]}
    kernels = load(spec)
    kernels.run(same)
    monkeypatch.setattr(
        mlagen.runtime.known_calls, "_signature", lambda _: pytest.fail("a look-up")
    )
    for call in (same, tensors, same):
        kernels.run(call)
    for launch, call in zip(fake.launches[1:], (same, tensors, same), strict=True):
        assert launch.arguments["cu_seqlens_k"] == call["cu_seqlens_k"].data_ptr()


def test_calls_in_turn_are_not_looked_up(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, call = load(PLAIN), call_of(PLAIN)
    options = [{"max_seqlen_q": 129 + index} for index in range(RECENT_CALLS)]
    for option in options:
        kernels.run(call | option)
    monkeypatch.setattr(
        mlagen.runtime.known_calls, "_signature", lambda _: pytest.fail("a look-up")
    )
    for option in options * 2:
        kernels.run(call | option)
    lengths = [launch.arguments["max_seqlen_q"] for launch in fake.launches]
    assert lengths == [129, 130, 131, 132] * 3


def test_old_calls_are_found_and_there_is_an_end_to_them(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlagen.runtime.known_calls, "KNOWN_CALLS", 10)
    kernels, call = load(PLAIN), call_of(PLAIN)
    for length in (*range(129, 139), 129):
        kernels.run(call | {"max_seqlen_q": length})
    assert len(kernels._known) == 10 < KNOWN_CALLS
    kernels.run(call | {"max_seqlen_q": 139})
    assert len(kernels._known) == 1
    kernels.run(call | {"max_seqlen_q": 129})
    lengths = [launch.arguments["max_seqlen_q"] for launch in fake.launches]
    assert lengths == [*range(129, 139), 129, 139, 129]


def test_no_tensor_is_kept(fake: FakeDriver, load: LoadFake) -> None:
    kernels, call = load(PLAIN), call_of(PLAIN)
    call["out"], lse = kernels.run({**call, "out": None}, return_lse=True)
    for _ in range(2):
        kernels.run(call)
    kept = [weakref.ref(tensor) for tensor in (*call.values(), lse)]
    del call, lse
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


def test_threads_do_not_mix_their_addresses(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread comes with other addresses when the first has written some of its own."""
    kernels = load(PLAIN)
    calls = [call_of(PLAIN, seed=seed) for seed in range(2)]
    for call in calls:
        kernels.run(call)
    wanted, device = {repr(launch) for launch in fake.launches}, devices_of(fake).get(0)
    lock, encode, encoded = device.launch_lock, fake.encode_tensor_map, len(fake.encoded)
    has_come = threading.Event()

    class Turns:
        def __enter__(self) -> None:
            if threading.current_thread() is second:
                has_come.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def run_second() -> None:
        kernels.run(calls[1])
        has_come.set()

    def encode_second_map(spec: TensorMapSpec) -> bytes:
        if len(fake.encoded) == encoded + 1 and second.ident is None:
            second.start()
            has_come.wait()
        return encode(spec)

    second = threading.Thread(target=run_second)
    monkeypatch.setattr(device, "launch_lock", Turns())
    monkeypatch.setattr(fake, "encode_tensor_map", encode_second_map)
    kernels.run(calls[0])
    second.join()
    assert len(fake.launches) == 4
    assert {repr(launch) for launch in fake.launches[2:]} == wanted
