"""Bad tensors and arguments: each error names what is wrong, what was expected and what came, and how to mend it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mlagen.errors import DeviceError, DTypeError, InputError, MlagenError, ShapeError
from tests.runtime.calls import GLM_FLASH, PAGED_64, make_spec, make_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlagen.runtime.kernel import Kernels
    from mlagen.spec.model import KernelSpec
    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

    Tensors = dict[str, Any]

PLAIN = make_spec()
PAGED = make_spec(k_rope=PAGED_64, sink=True, lse=True)
RAGGED_ROPE = make_spec(k_rope="ragged", q_form="split")
PADDED = make_spec(mask="padding")
BIAS = make_spec(score_mod={"kind": "bias", "rank": 4})
RELATIVE = make_spec(score_mod={"kind": "relative_bias", "extent": 9})
DENSE = make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True})


def refusal(
    load: LoadFake, spec: KernelSpec, change: Callable[[Tensors], Tensors], kind: type[MlagenError]
) -> str:
    """The message of a call that is changed before it is made."""
    tensors: Tensors = dict(make_tensors(spec))
    with pytest.raises(kind) as error:
        load(spec).run(tensors | change(tensors))
    first, *_, last = str(error.value).splitlines()
    assert last.startswith("  "), "the last line says what to do"
    return first


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in every second element."""
    wide = tensor.repeat_interleave(2, dim=-1)
    return wide[..., ::2]


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, two bytes further."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].view(tensor.shape)


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        (
            PLAIN,
            lambda t: {"k": t["k"][:, :3]},
            "k: expected [total_k=272, num_heads=4, 192], got [272, 3, 192]",
        ),
        (
            PLAIN,
            lambda t: {"k": t["k"][:100]},
            "k: expected [total_k=272, num_heads=4, 192], got [100, 4, 192]",
        ),
        (
            PLAIN,
            lambda t: {"cu_seqlens_k": t["cu_seqlens_k"][:-1]},
            "cu_seqlens_k: expected [batch + 1=4], got [3]",
        ),
        (
            PLAIN,
            lambda t: {"cu_seqlens_q": t["cu_seqlens_q"][:, None]},
            "cu_seqlens_q: expected [batch + 1], got [4, 1]",
        ),
        (
            PLAIN,
            lambda t: {"cu_seqlens_q": t["cu_seqlens_q"][:0]},
            "cu_seqlens_q: expected [batch + 1], got [0]",
        ),
        (
            PLAIN,
            lambda t: {"cu_seqlens_q": strided(t["cu_seqlens_q"])},
            "cu_seqlens_q: expected contiguous elements, got stride 2",
        ),
        (
            PLAIN,
            lambda t: {"q": strided(t["q"])},
            "q: expected a contiguous last dimension, got strides (1536, 384, 2)",
        ),
        (
            PLAIN,
            lambda _: {"q": torch.empty(169, 4, 196, dtype=torch.bfloat16)[..., :192]},
            "q: expected strides that are multiples of 16 bytes and not 0, got (784, 196, 1) elements of 2 bytes",
        ),
        (
            PLAIN,
            lambda t: {"v": t["v"][:, :1].expand(-1, 4, -1)},
            "v: expected strides that are multiples of 16 bytes and not 0, got (512, 0, 1) elements of 2 bytes",
        ),
        (
            RAGGED_ROPE,
            lambda t: {"q_pe": t["q_pe"][:100]},
            "q_pe: expected [total_q=169, num_heads=4, 64], got [100, 4, 64]",
        ),
        (
            RAGGED_ROPE,
            lambda t: {"kpe": t.pop("k_rope")[:5]},
            "kpe: expected [total_k=272, row_width=64], got [5, 64]",
        ),
        (
            BIAS,
            lambda t: {"bias": t["bias"][:2]},
            "bias: expected [batch=3 or 1, num_heads=4 or 1, >= 0 queries or 1, >= 0 keys], got [2, 4, 129, 200]",
        ),
        (
            BIAS,
            lambda _: {"max_seqlen_q": 130},
            "bias: expected [batch=3 or 1, num_heads=4 or 1, >= 130 queries or 1, >= 0 keys], got [3, 4, 129, 200]",
        ),
        (
            make_spec(q_layout="dense", kv="dense", score_mod={"kind": "bias", "rank": 2}),
            lambda t: {"bias": t["bias"][:, 1:]},
            "bias: expected [>= 129 queries or 1, >= 200 keys], got [129, 199]",
        ),
        (
            BIAS,
            lambda t: {"bias": strided(t["bias"])},
            "bias: expected a contiguous last dimension, got strides (206400, 51600, 400, 2)",
        ),
        (
            BIAS,
            lambda t: {"bias": t["bias"][0, 0, 0]},
            "bias: expected 2 to 4 dimensions, got [200]",
        ),
        (
            RELATIVE,
            lambda t: {"relative_bias": t["relative_bias"][:, :2]},
            "relative_bias: expected [total_q=169, num_heads=4, extent=9], got [169, 2, 9]",
        ),
        (
            PAGED,
            lambda t: {"block_table": t["block_table"][:2]},
            "block_table: expected [batch=3, max_pages=4], got [2, 4]",
        ),
        (
            PAGED,
            lambda t: {"block_table": t["block_table"][0]},
            "block_table: expected [batch, max_pages], got [4]",
        ),
        (
            PAGED,
            lambda t: {"block_table": t["block_table"].T.contiguous().T},
            "block_table: expected a contiguous last dimension, got strides (1, 3)",
        ),
        (
            PAGED,
            lambda _: {"max_seqlen_k": 257},
            "block_table: expected int32 [batch=3, >= 5], got [3, 4]",
        ),
        (
            PAGED,
            lambda t: {"k_rope": t["k_rope"][:0]},
            "k_rope: has no rows, but 272 keys need some",
        ),
        (
            PAGED,
            lambda t: {"sinks": t["sinks"][:3]},
            "sinks: expected [num_heads=4], got [3]",
        ),
        (
            PAGED,
            lambda _: {"lse": torch.empty(4, 169)},
            "lse: expected [total_q=169, num_heads=4], got [4, 169]",
        ),
        (
            PLAIN,
            lambda _: {"out": torch.empty(169, 4, 192, dtype=torch.bfloat16)},
            "out: expected [total_q=169, num_heads=4, 128], got [169, 4, 192]",
        ),
        (
            PLAIN,
            lambda _: {"out": torch.empty(1, 4, 128, dtype=torch.bfloat16).expand(169, -1, -1)},
            "out: an output whose elements overlap, strides (0, 128, 1)",
        ),
        (
            PADDED,
            lambda t: {"valid_lengths": t["valid_lengths"][:2]},
            "valid_lengths: expected [batch=3], got [2]",
        ),
        (
            PADDED,
            lambda t: {"valid_lengths": torch.stack([t["valid_lengths"]] * 2, dim=1)[:, 0]},
            "valid_lengths: expected contiguous elements, got stride 2",
        ),
        (
            DENSE,
            lambda t: {"cache_seqlens": t["cache_seqlens"][:2]},
            "cache_seqlens: expected [batch=3], got [2]",
        ),
        (
            DENSE,
            lambda t: {"v": torch.cat([t["v"], t["v"]], dim=1)[:, :200]},
            "v: expected a batch stride of 102400 elements, 200 rows of 512, got 204800",
        ),
        (
            DENSE,
            lambda t: {"k": t["k"][:2]},
            "k: expected [batch=3, seqlen_k=200, num_heads=4, 192], got [2, 200, 4, 192]",
        ),
    ],
)
def test_wrong_shapes_and_strides(
    fake: FakeDriver,
    load: LoadFake,
    spec: KernelSpec,
    change: Callable[[Tensors], Tensors],
    message: str,
) -> None:
    assert refusal(load, spec, change, ShapeError) == message
    assert not fake.launches


def test_alignment_is_checked_on_every_call(fake: FakeDriver, load: LoadFake) -> None:
    """A pointer is no part of a call's signature: the second call is as warm as any."""
    kernels, tensors = load(PLAIN), make_tensors(PLAIN)
    kernels.run(tensors)
    for name in ("q", "k", "v"):
        with pytest.raises(
            ShapeError, match=rf"{name}: its data starts at 0x\w+, no multiple of 16"
        ):
            kernels.run(tensors | {name: shifted(tensors[name])})
    kernels.run(tensors)
    assert len(fake.launches) == 2


@pytest.mark.parametrize(
    ("spec", "name", "dtype", "expected"),
    [
        (PLAIN, "k", torch.float16, "bfloat16"),
        (PLAIN, "cu_seqlens_q", torch.int64, "int32"),
        (PAGED, "block_table", torch.int64, "int32"),
        (PAGED, "sinks", torch.bfloat16, "float32"),
        (DENSE, "cache_seqlens", torch.int64, "int32"),
        (PADDED, "valid_lengths", torch.int64, "int32"),
        (BIAS, "bias", torch.bfloat16, "float32"),
        (RELATIVE, "relative_bias", torch.float64, "float32"),
    ],
)
def test_wrong_dtypes(
    load: LoadFake, spec: KernelSpec, name: str, dtype: torch.dtype, expected: str
) -> None:
    tensors = make_tensors(spec)
    with pytest.raises(DTypeError) as error:
        load(spec).run(tensors | {name: tensors[name].to(dtype)})
    got = str(dtype).removeprefix("torch.")
    first, last = str(error.value).splitlines()
    assert first == f"{name}: expected {expected}, got {got} {list(tensors[name].shape)}"
    assert last == f"  convert it with {name}.to(torch.{expected})"


@pytest.mark.parametrize("name", ["k", "cu_seqlens_q", "out"])
def test_mixed_devices(fake: FakeDriver, load: LoadFake, name: str) -> None:
    """Case 17. To the fake driver a meta tensor lies on the other GPU."""
    tensors = make_tensors(PLAIN) | {"out": torch.empty(169, 4, 128, dtype=torch.bfloat16)}
    with pytest.raises(DeviceError, match=rf"^{name}: on meta, but q is on cpu"):
        load(PLAIN).run(tensors | {name: tensors[name].to("meta")})
    assert not fake.launches


@pytest.mark.parametrize("name", ["v", "sinks", "cu_seqlens_q", "lse"])
def test_tensors_without_memory_are_refused(fake: FakeDriver, load: LoadFake, name: str) -> None:
    """As sharded training frees parameters; a kernel would read at address 0."""
    spec = make_spec(lse=True, sink=True)
    kernels, tensors = load(spec), make_tensors(spec) | {"lse": torch.empty(169, 4)}
    kernels.run(tensors)
    released = tensors[name].clone()
    released.untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(InputError, match=f"^{name}: has elements, but no memory"):
            kernels.run(tensors | {name: released})
    kernels.run(tensors)
    assert len(fake.launches) == 2


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda rows: torch.nested.nested_tensor([rows[:40], rows[40:]]), "a nested tensor"),
        (lambda rows: rows.to_sparse(), "a tensor of layout torch.sparse_coo"),
        (torch._neg_view, "a tensor to be negated when it is read"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_strides_do_not_describe_are_refused(
    fake: FakeDriver, load: LoadFake, odd: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    kernels, tensors = load(PLAIN), make_tensors(PLAIN)
    odd_tensors = {name: odd(tensors[name]) for name in ("q", "k", "v")}
    for known in (0, 1):
        with pytest.raises(InputError, match=f"^q: {words}"):
            kernels.run(odd_tensors)
        assert len(kernels._known) == len(fake.launches) == known
        kernels.run(tensors)


def test_tensors_on_the_host_are_refused(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, tensors = load(PLAIN), make_tensors(PLAIN)
    monkeypatch.setattr(fake, "ordinal_of", lambda _device: None)
    with pytest.raises(DeviceError, match="q: on cpu, and the kernels run on CUDA devices"):
        kernels.run(tensors)
    arrays = {name: np.zeros(1) for name in tensors} | {"q": np.zeros((2, 2, 2))}
    arrays |= {name: np.zeros((2, 2, 2)) for name in ("k", "v")}
    with pytest.raises(DeviceError, match="load with backend='sim' or 'reference'"):
        kernels.run(arrays)


def test_a_gpu_without_kernels_is_refused(fake: FakeDriver, load: LoadFake) -> None:
    fake.capability = (8, 0)
    with pytest.raises(
        DeviceError, match=r"cuda:0 has compute capability 8\.0\n  use a GPU of 9\.0"
    ):
        load(PLAIN).run(make_tensors(PLAIN))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("q", "q: missing"),
        ("k", "k: missing"),
        ("v", "v: missing"),
        ("cu_seqlens_q", "cu_seqlens_q: missing, and q [169, 4, 192] is a ragged batch"),
        ("cu_seqlens_k", "cu_seqlens_k: missing; the only fitting kernel needs cu_seqlens_k"),
        ("block_table", "block_table: missing; the only fitting kernel needs block_table"),
        ("k_rope", "k_rope: missing, and block_table is given"),
        ("sinks", "sinks: missing; the only fitting kernel needs sinks"),
    ],
)
def test_missing_tensors(load: LoadFake, missing: str, message: str) -> None:
    tensors = make_tensors(PAGED)
    del tensors[missing]
    with pytest.raises(InputError) as error:
        load(PAGED).run(tensors)
    assert str(error.value).splitlines()[0] == message


def test_a_missing_rope_part_of_q_is_named(load: LoadFake) -> None:
    tensors = make_tensors(RAGGED_ROPE)
    del tensors["q_pe"]
    with pytest.raises(InputError, match="q_pe: missing; the only fitting kernel needs q_pe"):
        load(PLAIN, RAGGED_ROPE).run(tensors)


def test_advice_names_no_option_where_none_helps(load: LoadFake) -> None:
    tensors = make_tensors(PAGED)
    del tensors["block_table"]
    with pytest.raises(InputError) as error:
        load(PAGED).run(tensors)
    assert str(error.value).splitlines()[1] == "  pass block_table="


def test_offsets_without_a_dimension_are_refused(load: LoadFake) -> None:
    spec = make_spec(k_rope="dense")
    with pytest.raises(ShapeError, match=r"cu_seqlens_q: expected \[batch \+ 1\], got \[\]"):
        load(spec).run(make_tensors(spec) | {"cu_seqlens_q": torch.tensor(3)})


def test_arrays_among_tensors_are_refused(load: LoadFake) -> None:
    tensors = make_tensors(PLAIN) | {"cu_seqlens_k": np.zeros(4, dtype=np.int32)}
    with pytest.raises(DeviceError, match="cu_seqlens_k: a ndarray, but q is a Tensor"):
        load(PLAIN).run(tensors)


@pytest.mark.parametrize("rope", ["dense", PAGED_64], ids=["dense", "paged"])
def test_an_empty_cache_cannot_serve_keys(load: LoadFake, rope: Any) -> None:
    """Its tensor map would stand on other memory, where a row of it exists."""
    spec = make_spec(k_rope=rope)
    tensors = make_tensors(spec)
    if rope == "dense":
        tensors["k_rope"] = tensors["k_rope"][:, :0]
    else:
        tensors["k_rope"], tensors["block_table"] = (
            tensors["k_rope"][:0],
            tensors["block_table"][:, :0],
        )
    with pytest.raises(ShapeError, match="k_rope: has no rows, but 272 keys need some"):
        load(spec).run(tensors)


def test_pages_of_rope_rows_are_those_of_the_keys(load: LoadFake) -> None:
    spec = make_spec(kv=PAGED_64, k_rope=PAGED_64)
    tensors = make_tensors(spec)
    with pytest.raises(ShapeError, match=r"k_rope: expected \[pages=7, .*, got \[6, 64, 576\]"):
        load(spec).run(tensors | {"k_rope": tensors["k_rope"][:6]})


def test_more_keys_than_pages_in_a_row_of_the_table(load: LoadFake) -> None:
    spec = make_spec(kv=PAGED_64)
    with pytest.raises(ShapeError, match=r"block_table: expected int32 \[batch=3, >= 5\], got"):
        load(spec).run(make_tensors(spec), max_seqlen_k=257)


def test_more_rows_than_the_kernel_counts(fake: FakeDriver, load: LoadFake) -> None:
    tensors = {name: tensor.to("meta") for name, tensor in make_tensors(PLAIN).items()}
    for name, width in (("k", 192), ("v", 128)):
        tensors[name] = torch.empty(2**30, 4, width, dtype=torch.bfloat16, device="meta")
    fake.ordinal = -1  # meta tensors pass for device 0
    with pytest.raises(ShapeError, match="1073741824 is more than 1073741823 for total_k"):
        load(PLAIN).run(tensors)


def test_rows_beyond_a_static_length_are_not_left_out(load: LoadFake) -> None:
    spec = make_spec(max_seqlen=56)
    with pytest.raises(
        InputError, match="the kernel's max_seqlen: 3 sequences of at most 56 cannot fill 169 rows"
    ):
        load(spec).run(make_tensors(spec))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_dimensions_are_counted_before_a_kernel_is_chosen(load: LoadFake, name: str) -> None:
    """Which of several configurations suits a call is read off its shapes."""
    kernels = load(*(make_spec(config={"tile_n": tile_n}) for tile_n in (64, 128)))
    tensors = make_tensors(PLAIN)
    with pytest.raises(ShapeError, match=f"{name}: expected 3 to 4 dimensions, got"):
        kernels.run(tensors | {name: tensors[name][:, 0]})


def test_both_forms_of_q_are_refused(load: LoadFake) -> None:
    tensors = make_tensors(PLAIN)
    with pytest.raises(InputError, match="q: given together with q_nope or q_pe"):
        load(PLAIN).run(tensors, q_pe=tensors["q"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seqlen_q": 1}, "cu_seqlen_q: no such argument\n  did you mean cu_seqlens_q?"),
        ({"kv_cache": 1}, "kv_cache: the latent cache of decode is not available yet"),
        ({"softmax_scale": math.nan}, "softmax_scale: expected 1e-30 to 1e+30, got nan"),
        ({"softmax_scale": 0.0}, "softmax_scale: expected 1e-30 to 1e+30, got 0.0"),
        ({"softmax_scale": math.inf}, "softmax_scale: expected 1e-30 to 1e+30, got inf"),
        ({"softmax_scale": 1e39}, "softmax_scale: expected 1e-30 to 1e+30, got 1e+39"),
        ({"softmax_scale": 10**400}, "softmax_scale: expected a number, got 1000"),
        ({"softmax_scale": 1e-46}, "softmax_scale: expected 1e-30 to 1e+30, got 1e-46"),
        ({"softmax_scale": torch.tensor(1.0)}, "softmax_scale: expected a number, got a tensor"),
        ({"sm_scale": 1.0, "softmax_scale": 1.0}, "softmax_scale: given twice, also as sm_scale"),
        ({"q_scale": 0.5}, "q_scale: given, but the kernel takes bfloat16, which has no scale"),
        ({"k_scale": torch.tensor(1.0)}, "k_scale: expected a number, got a tensor"),
        ({"v_scale": 0.0}, "v_scale: expected 1e-30 to 1e+30, got 0.0"),
        ({"v_descale": 1.0, "v_scale": 1.0}, "v_scale: given twice, also as v_descale"),
        ({"return_lse": 1}, "return_lse: expected True or False, got 1"),
        ({"max_seqlen_q": torch.tensor(128)}, "max_seqlen_q: expected an int, got a tensor"),
        ({"max_seqlen_q": 128.0}, "max_seqlen_q: expected an int, got 128.0"),
        ({"max_seqlen_q": -1}, "max_seqlen_q: expected 0 to 2147483647, got -1"),
        ({"max_seqlen_q": 56}, "max_seqlen_q: 3 sequences of at most 56 cannot fill 169 rows"),
        ({"mask": "casual"}, "mask: 'casual' is not a mask\n  did you mean 'causal'?"),
        (
            {"mask": {"kind": "sliding_window", "left": -1, "right": 0}},
            "mask.left: -1 is less than 0\n  write at least 0",
        ),
        ({"mask": {"all": ["causal", "paddings"]}}, "mask.all[1]: 'paddings' is not a mask"),
        ({"score_mod": {"kind": "softcap"}}, "score_mod.cap: missing\n  add cap"),
        ({"score_mod": ["alibi", "softcup"]}, "score_mod[1]: 'softcup' is not a score mod"),
        ({"mask": "causal", "causal": True}, "mask: given together with causal"),
        ({"window_size": 5}, r"window_size: expected (left, right), got 5"),
        ({"softcap": -1.0}, "softcap: expected a finite number >= 0, got -1.0"),
        ({"softcap": 1.0, "score_mod": "alibi"}, "score_mod: given together with softcap"),
        ({"kv_length_counts": "all"}, "kv_length_counts: 'all' is not one of total, prefix"),
        ({"out": [1, 2]}, "out: expected a tensor, got list"),
        ({"out": torch.UntypedStorage(8)}, "out: expected a tensor, got UntypedStorage"),
    ],
)
def test_wrong_arguments(load: LoadFake, arguments: Tensors, message: str) -> None:
    with pytest.raises(InputError) as error:
        load(PLAIN).run(make_tensors(PLAIN), **arguments)
    assert str(error.value).startswith(message)
    assert str(error.value).splitlines()[-1].startswith("  ")


def test_scales_that_float32_cannot_hold_together(fake: FakeDriver, load: LoadFake) -> None:
    fake.capability = (10, 0)
    spec = make_spec(arch="sm_100a", dtype="float8_e4m3fn")
    with pytest.raises(InputError, match=r"softmax_scale \* q_scale \* k_scale: .* is not 1e-30"):
        load(spec).run(make_tensors(spec), q_scale=1e-20, k_scale=1e-20)


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
def test_lengths_below_those_of_a_dense_batch(load: LoadFake, name: str) -> None:
    spec = make_spec(q_layout="dense", kv="dense")
    tensors = make_tensors(spec, q_lens=(130, 130), k_lens=(130, 130))
    kernels = load(spec)
    kernels.run(tensors, **{name: 130})
    with pytest.raises(
        InputError, match=f"{name}: 129 is less than the 130 rows of every sequence"
    ):
        kernels.run(tensors, **{name: 129})


def test_an_argument_in_the_mapping_and_as_a_keyword_is_refused(load: LoadFake) -> None:
    tensors = make_tensors(PLAIN)
    with pytest.raises(InputError, match="v: given twice, in the mapping and as a keyword"):
        load(PLAIN).run(tensors, v=tensors["v"])


def test_host_integers_of_any_kind_are_lengths(fake: FakeDriver, load: LoadFake) -> None:
    """Case 23: NumPy integers are ints, a tensor is refused; neither makes a kernel."""
    kernels, tensors = load(PLAIN), make_tensors(PLAIN)
    for length in (np.int64(129), np.int32(130), 131, np.array(132)):
        kernels.run(tensors, max_seqlen_q=length)
    assert [launch.arguments["max_seqlen_q"] for launch in fake.launches] == [129, 130, 131, 132]
    assert len(fake.loaded) == 1


def test_calls_with_scales_of_any_kind_are_remembered(fake: FakeDriver, load: LoadFake) -> None:
    kernels, tensors = load(PLAIN), make_tensors(PLAIN)
    for scale in (0.5, np.float64(0.5), np.float32(0.5)):
        kernels.run(tensors, softmax_scale=scale)
    assert len(kernels._known) == 1


def test_gradients_are_refused_unless_they_are_off(fake: FakeDriver, load: LoadFake) -> None:
    kernels, tensors = load(PAGED), make_tensors(PAGED)
    tensors["sinks"] = torch.nn.Parameter(tensors["sinks"])
    with torch.no_grad():
        kernels.run(tensors)
    for _ in range(2):
        with pytest.raises(InputError, match="sinks: requires grad, and there is no backward pass"):
            kernels.run(tensors)
    assert len(fake.launches) == 1


def test_aliases_and_keywords_are_the_same_call(fake: FakeDriver, load: LoadFake) -> None:
    kernels, tensors = load(PAGED), make_tensors(PAGED)
    out = torch.empty(169, 4, 128, dtype=torch.bfloat16)
    lse = torch.empty(169, 4)
    kernels.run(tensors, out=out, lse=lse)
    names = {
        "k": "k_nope",
        "k_rope": "kpe",
        "block_table": "page_table",
        "cu_seqlens_q": "qo_indptr",
        "cu_seqlens_k": "kv_indptr",
    }
    renamed = {names.get(name, name): tensor for name, tensor in tensors.items()}
    kernels.run(**renamed, out=out, lse=lse, return_softmax_lse=True)
    first, second = fake.launches
    assert first == second


def test_prefix_lengths_and_shared_offsets_by_what_is_given(
    fake: FakeDriver, load: LoadFake
) -> None:
    prefix = make_spec(kv_length_counts="prefix")
    shared = make_spec(kv={"layout": "ragged", "row_offsets": False})
    kernels = load(prefix, shared)
    tensors = make_tensors(prefix, q_lens=(4, 5), k_lens=(9, 9))
    kernels.run(tensors)
    kernels.run(make_tensors(shared, q_lens=(4, 5), k_lens=(4, 5)))
    first, second = fake.launches
    assert first.arguments["cache_seqlens"] == tensors["cache_seqlens"].data_ptr()
    assert "cu_seqlens_k" not in second.arguments


def test_other_head_dims_are_refused_with_the_known_ones(load: LoadFake) -> None:
    """Case 27: a width that no kernel has."""
    kernels: Kernels = load(PLAIN, make_spec(geometry=GLM_FLASH))
    tensors = make_tensors(PLAIN)
    tensors["q"] = torch.empty(169, 4, 160, dtype=torch.bfloat16)
    with pytest.raises(MlagenError, match=r"with: qk/v dims 160/128\n.*has qk/v dims 192/128"):
        kernels.run(tensors)
