"""What reaches the driver: tensor maps, argument bytes, grids; and that nothing else about the process changes."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mlagen.errors import DriverError, InputError
from mlagen.plan import plan_kernel
from mlagen.runtime.parameters import ArgumentStruct
from tests.runtime.calls import DEEPSEEK, GLM_FLASH, PAGED_64, make_spec, make_tensors
from tests.runtime.fake_driver import H200_SMS, FakeDriver

if TYPE_CHECKING:
    from mlagen.launch_record import TensorMapSpec
    from tests.runtime.conftest import LoadFake


def test_arguments_of_a_ragged_call(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(lse=True, sink=True, k_rope=PAGED_64)
    tensors = make_tensors(spec)
    out, lse = load(spec).run(tensors, return_lse=True)
    (launch,) = fake.launches
    assert launch.arguments == {
        "softmax_scale_log2": pytest.approx(192**-0.5 * math.log2(math.e), rel=1e-6),
        "inverse_scale_log2": pytest.approx(192**0.5 * math.log(2), rel=1e-6),
        "num_heads": 4,
        "batch": 3,
        "total_q": 169,
        "cu_seqlens_q": tensors["cu_seqlens_q"].data_ptr(),
        "max_seqlen_q": 169,
        "total_k": 272,
        "cu_seqlens_k": tensors["cu_seqlens_k"].data_ptr(),
        "block_table": tensors["block_table"].data_ptr(),
        "block_table_stride": 4,
        "block_table_width": 4,
        "num_pages": 7,
        "lse": lse.data_ptr(),
        "lse_row_stride": 4,
        "lse_head_stride": 1,
        "sinks": tensors["sinks"].data_ptr(),
        "tickets": launch.arguments["tickets"],
    }
    assert out.shape == (169, 4, 128)
    assert out.dtype == torch.bfloat16
    assert lse.shape == (169, 4)
    assert lse.dtype == torch.float32
    assert launch.stream == fake.stream


def test_dimensions_that_all_share_have_stride_0(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(score_mod={"kind": "bias", "rank": 4})
    tensors = make_tensors(spec)
    bias = tensors["bias"]  # [3, 4, 129, 200]
    strides = [f"bias_{name}_stride" for name in ("batch", "head", "row")]
    for given, expected, queries in (
        (bias, [4 * 129 * 200, 129 * 200, 200], 129),
        (bias[:, :1, :, 8:], [4 * 129 * 200, 0, 200], 129),
        (bias[:1, :, :1], [0, 129 * 200, 0], 2**31 - 1),
        (bias[:1].expand(3, 4, 129, 200), [0, 129 * 200, 200], 129),
    ):
        load(spec).run(tensors | {"bias": given})
        arguments = fake.launches[-1].arguments
        assert [arguments[name] for name in strides] == expected
        assert (arguments["bias_queries"], arguments["bias_keys"]) == (queries, given.shape[-1])
        assert arguments["bias"] == given.data_ptr()


def test_strides_of_a_relative_bias(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(score_mod={"kind": "relative_bias", "extent": 9})
    tensors = make_tensors(spec)
    tensors["relative_bias"] = torch.zeros(169, 5, 12)[:, :4, :9]
    load(spec).run(tensors)
    arguments = fake.launches[-1].arguments
    assert arguments["relative_bias"] == tensors["relative_bias"].data_ptr()
    assert arguments["relative_bias_row_stride"] == 60
    assert arguments["relative_bias_head_stride"] == 12


FP8 = make_spec(arch="sm_100a", dtype="float8_e4m3fn", k_rope=PAGED_64)


def test_scales_of_fp8_become_two_arguments(fake: FakeDriver, load: LoadFake) -> None:
    fake.capability = (10, 0)
    scales = {"q_scale": 0.5, "k_descale": np.float32(0.25), "v_scale": 3}
    out = load(FP8).run(make_tensors(FP8), softmax_scale=2.0, **scales)
    load(FP8).run(make_tensors(FP8))
    scaled, plain = (launch.arguments for launch in fake.launches)
    assert scaled["softmax_scale_log2"] == pytest.approx(0.25 * math.log2(math.e), rel=1e-6)
    assert (scaled["v_scale"], plain["v_scale"]) == (3.0, 1.0)
    assert out.dtype == torch.bfloat16


def test_tensor_maps_of_fp8_are_of_bytes(fake: FakeDriver, load: LoadFake) -> None:
    fake.capability = (10, 0)
    tensors = make_tensors(FP8)
    load(FP8).run(tensors)
    maps = fake.launches[0].maps
    types = {name: (one.element_type, one.swizzle_bytes) for name, one in maps.items()}
    assert types.pop("out") == ("bfloat16", 128)
    assert types == dict.fromkeys(("q", "k", "k_rope", "v"), ("uint8", 64))
    assert maps["k_rope"].address == tensors["k_rope"].data_ptr() + 512
    assert maps["k_rope"].strides_bytes[1:] == (576, 64 * 576)
    assert maps["k"].strides_bytes == (128, 512)


def test_tensor_maps_of_a_ragged_call(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(q_form="split", k_rope=PAGED_64)
    tensors = make_tensors(spec)
    out = load(spec).run(tensors)
    maps = fake.launches[0].maps
    assert maps["q_nope"].address == tensors["q_nope"].data_ptr()
    assert maps["q_nope"].dims == (128, 4, 2**30, 2**31 - 1, 2**31 - 1)
    assert maps["q_nope"].strides_bytes == (256, 1024, 2**34 - 1024, 1024)
    assert maps["q_nope"].box == (64, 1, 64, 1, 1)
    assert maps["q_pe"].dims[:2] == (64, 4)
    assert maps["k"].dims == (128, 4, 272)
    assert maps["k"].strides_bytes == (256, 1024)
    assert maps["k_rope"].address == tensors["k_rope"].data_ptr() + 512 * 2
    assert maps["k_rope"].dims == (64, 1, 64, 7)
    assert maps["k_rope"].strides_bytes[1:] == (576 * 2, 64 * 576 * 2)
    assert maps["out"].address == out.data_ptr()
    assert maps["out"].dims[:2] == (128, 4)


@pytest.mark.parametrize(
    ("q_lens", "max_seqlen_q", "tiles"),
    [
        ((128,), None, 1 * 4),
        ((65, 64), None, 3 * 4),  # for all the host knows, 128 rows and a single one
        ((65, 64), 65, 2 * 4),
        ((1, 1, 1), 1, 3 * 4),
        ((40, 0, 129), None, 4 * 4),
        ((10_000,), None, H200_SMS),
    ],
)
def test_grid_is_the_bound_on_tiles(
    fake: FakeDriver,
    load: LoadFake,
    q_lens: tuple[int, ...],
    max_seqlen_q: int | None,
    tiles: int,
) -> None:
    spec = make_spec()
    tensors = make_tensors(spec, q_lens=q_lens, k_lens=(5,) * len(q_lens))
    load(spec).run(tensors, max_seqlen_q=max_seqlen_q)
    assert fake.launches[0].grid == tiles
    assert fake.launches[0].block == 384


def test_a_transient_kernel_gets_a_block_for_every_tile(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(scheduler="transient")
    kernels = load(spec)
    kernels.most_blocks = 2  # of kernels whose blocks walk several tiles
    kernels.run(make_tensors(spec, q_lens=(10_000,), k_lens=(5,)))
    assert fake.launches[0].grid == 79 * 4


@pytest.mark.parametrize(("most_blocks", "grid"), [(None, 2 * 4 * 4), (7, 6), (1, 2)])
def test_pairs_of_blocks(
    fake: FakeDriver, load: LoadFake, most_blocks: int | None, grid: int
) -> None:
    fake.capability = (10, 0)
    spec = make_spec(arch="sm_100a", config={"cta_group": 2})
    kernels = load(spec)
    kernels.most_blocks = most_blocks
    kernels.run(make_tensors(spec, q_lens=(1500, 20), k_lens=(5, 7)), max_seqlen_q=1500)
    (launch,) = fake.launches
    # For all the host knows, 1520 rows are two full tiles of 512 and one more for each of two sequences; four heads.
    assert (launch.grid, launch.cluster, launch.block) == (grid, 2, 512)


def test_static_max_seqlen_bounds_the_grid(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(max_seqlen=128)
    load(spec).run(make_tensors(spec, q_lens=(128,), k_lens=(128,)))
    assert fake.launches[0].grid == 4


def test_dense_call(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(q_layout="dense", kv={"layout": "dense", "seqlens": True}, lse=True)
    tensors = make_tensors(spec, q_lens=(130, 130), k_lens=(300, 299))
    out, lse = load(spec).run(tensors, return_lse=True)
    (launch,) = fake.launches
    assert launch.grid == 2 * 2 * 4
    assert launch.maps["q"].dims == (192, 4, 130, 2)
    assert launch.maps["k"].dims == (192, 4, 300, 2)
    assert launch.arguments["seqlen_q"] == 130
    assert launch.arguments["seqlen_k"] == 300
    assert launch.arguments["lse_batch_stride"] == 130 * 4
    assert out.shape == (2, 130, 4, 128)
    assert lse.shape == (2, 130, 4)


def test_strided_inputs_and_outputs_are_described_as_they_are(
    fake: FakeDriver, load: LoadFake
) -> None:
    """K and V as slices of one projection, out in a padded buffer, lse with the heads outermost."""
    spec = make_spec(lse=True, k_rope="ragged")
    tensors = make_tensors(spec)
    kv = torch.randn(272, 4, 256).to(torch.bfloat16)
    tensors |= {"k": kv[..., :128], "v": kv[..., 128:]}
    out = torch.empty(169, 4, 192, dtype=torch.bfloat16)[..., :128]
    lse = torch.empty(4, 169).T
    load(spec).run(tensors, out=out, lse=lse)
    (launch,) = fake.launches
    assert launch.maps["k"].strides_bytes == (512, 2048)
    assert launch.maps["v"].address == kv.data_ptr() + 256
    assert launch.maps["out"].strides_bytes[:2] == (384, 1536)
    assert launch.arguments["lse"] == lse.data_ptr()
    assert launch.arguments["lse_row_stride"] == 1
    assert launch.arguments["lse_head_stride"] == 169


def test_keys_and_values_in_pages(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(kv=PAGED_64)
    tensors = make_tensors(spec)  # 7, 65 and 200 keys: 1, 2 and 4 pages
    load(spec).run(tensors)
    (launch,) = fake.launches
    assert launch.maps["k"].dims == (192, 4, 64, 7)
    assert launch.maps["v"].dims == (128, 4, 64, 65, 7)
    assert launch.maps["v"].address == tensors["v"].data_ptr() - 64 * 1024
    assert launch.arguments["seqlen_k"] == 4 * 64
    assert launch.arguments["num_pages"] == 7
    assert launch.arguments["block_table_stride"] == 4
    assert launch.arguments["cache_seqlens"] == tensors["cache_seqlens"].data_ptr()


def test_a_cache_without_pages_has_no_room(fake: FakeDriver, load: LoadFake) -> None:
    """Its tensor map would stand on other memory, where a row of it exists."""
    spec = make_spec(kv=PAGED_64)
    tensors = make_tensors(spec)
    load(spec).run(tensors | {name: tensors[name][:0] for name in ("k", "v")})
    assert fake.launches[0].arguments["seqlen_k"] == 0


@pytest.mark.usefixtures("meta_memory")
def test_offsets_past_two_gigabytes_stay_exact(fake: FakeDriver, load: LoadFake) -> None:
    """Cases 15 and 16: 70 000 pages and 2^24 rows of q; tensors that are only described take no memory."""
    spec = make_spec(k_rope={"layout": "paged", "page_size": 64})
    tensors = {name: tensor.to("meta") for name, tensor in make_tensors(spec).items()}
    fake.ordinal = -1  # meta tensors pass for device 0
    rows = 2**24
    tensors["q"] = torch.empty(rows, 4, 192, dtype=torch.bfloat16, device="meta")
    tensors["k_rope"] = torch.empty(70_000, 64, 576, dtype=torch.bfloat16, device="meta")
    fake.encode_tensor_map = lambda spec: fake.encoded.append(spec) or bytes(128)  # type: ignore[method-assign, func-returns-value]  # keeps the spec only
    fake.prepare_launch = lambda *_, **__: lambda _: None  # type: ignore[method-assign]  # nothing to read back
    kernels = load(spec)
    kernels.run(tensors)
    by_dims = {found.dims[-1]: found for found in fake.encoded}
    assert by_dims[70_000].strides_bytes[-1] == 64 * 576 * 2


@pytest.mark.parametrize("geometry", [DEEPSEEK, GLM_FLASH], ids=["192x128", "256x256"])
def test_rope_of_width_0_has_no_map(
    fake: FakeDriver, load: LoadFake, geometry: dict[str, int]
) -> None:
    """Case 27: a rope tensor of width 0, or none, is the same; q_nope alone is q."""
    spec = make_spec(geometry=geometry)
    tensors = make_tensors(spec)
    kernels = load(spec)
    kernels.run(tensors)
    kernels.run(tensors, k_rope=None, q_pe=None)
    assert set(fake.launches[0].maps) == {"q", "k", "v", "out"}
    if geometry is GLM_FLASH:
        tensors["q_nope"] = tensors.pop("q")
        empty = torch.empty(272, 0, dtype=torch.bfloat16)
        kernels.run(tensors, k_rope=empty, q_pe=torch.empty(169, 4, 0, dtype=torch.bfloat16))
        assert fake.launches[-1].arguments["softmax_scale_log2"] == pytest.approx(
            256**-0.5 * math.log2(math.e), rel=1e-6
        )


def test_softmax_scale_comes_from_the_model_unless_given(fake: FakeDriver, load: LoadFake) -> None:
    """Case 25: DeepSeek-V3's YaRN factor of 40 gives 0.135234, never a scale from 576."""
    scaling = {"type": "yarn", "factor": 40.0, "mscale_all_dim": 1.0}
    spec = make_spec(geometry=DEEPSEEK | {"rope_scaling": scaling})
    kernels, tensors = load(spec), make_tensors(spec)
    for argument in ({}, {"softmax_scale": 0.5}, {"sm_scale": 0.25}):
        kernels.run(tensors, **argument)
    scales = [
        launch.arguments["softmax_scale_log2"] / math.log2(math.e) for launch in fake.launches
    ]
    assert scales == pytest.approx([0.135234, 0.5, 0.25], rel=1e-5)


def test_runs_on_the_tensors_device_and_leaves_the_current_one(
    fake: FakeDriver, load: LoadFake
) -> None:
    """Case 17: tensors on cuda:1 while cuda:0 is current; also in a thread without a context."""
    spec = make_spec()
    kernels, tensors = load(spec), make_tensors(spec)
    fake.ordinal = 1
    for current in (100, 0):
        fake.context = current
        kernels.run(tensors)
        assert fake.context == current
        assert not fake.relaxed
    assert [launch.context for launch in fake.launches] == [101, 101]
    assert {context for context, _ in fake.loaded} == {101}
    assert {context for context, _, _ in fake.uploads} == {101}


def test_context_is_restored_after_a_failure(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec()
    kernels, tensors = load(spec), make_tensors(spec)
    fake.ordinal = 1
    for call in ("cuModuleLoadData", "cuMemAlloc", "cuLaunchKernelEx"):
        fake.refuse = call
        with pytest.raises(DriverError, match=call):
            kernels.run(tensors)
        assert fake.context == 100
        assert not fake.relaxed
    fake.refuse = None
    kernels.run(tensors)
    assert len(fake.launches) == 1


def test_tensor_maps_are_written_for_what_has_moved(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec()
    kernels, tensors = load(spec), make_tensors(spec)
    out = torch.empty(169, 4, 128, dtype=torch.bfloat16)
    for _ in range(3):
        kernels.run(tensors, out=out)
    assert len(fake.encoded) == 4
    moved = tensors | {"v": tensors["v"].clone()}
    for arguments in (moved, tensors, moved, moved):
        kernels.run(arguments, out=out)
    assert len(fake.encoded) == 4 + 3
    assert fake.launches[-1].maps["v"].address == moved["v"].data_ptr()
    assert fake.launches[-3].maps["v"].address == tensors["v"].data_ptr()


def test_parameters_that_are_half_written_serve_no_call(
    fake: FakeDriver, load: LoadFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec()
    kernels, tensors = load(spec), make_tensors(spec)
    tensors["out"] = torch.empty(169, 4, 128, dtype=torch.bfloat16)
    moved = {name: tensor.clone() for name, tensor in tensors.items()}
    for arguments in (tensors, moved):
        kernels.run(arguments)
    wanted, encode = fake.launches[::-1], fake.encode_tensor_map

    def refuse(spec: TensorMapSpec) -> bytes:
        if spec.address == tensors["k"].data_ptr():
            raise DriverError("cuTensorMapReplaceAddress: refused\n  advice")
        return encode(spec)

    monkeypatch.setattr(fake, "encode_tensor_map", refuse)
    with pytest.raises(DriverError, match="refused"):
        kernels.run(tensors)
    assert len(fake.launches) == 2
    monkeypatch.setattr(fake, "encode_tensor_map", encode)
    for arguments in (moved, tensors):
        kernels.run(arguments)
    assert fake.launches[2:] == wanted


def test_a_pointer_reused_for_another_shape_gets_another_map(
    fake: FakeDriver, load: LoadFake
) -> None:
    spec = make_spec()
    kernels = load(spec)
    tensors = make_tensors(spec, q_lens=(40,), k_lens=(50,))
    kernels.run(tensors)
    shorter = tensors | {"k": tensors["k"][:20], "v": tensors["v"][:20]}
    kernels.run(shorter)
    assert fake.launches[-1].maps["k"].address == tensors["k"].data_ptr()
    assert fake.launches[-1].maps["k"].dims[-1] == 20
    assert fake.launches[-1].arguments["total_k"] == 20


def test_two_kernels_of_one_spec_keep_their_own_functions(fake: FakeDriver, load: LoadFake) -> None:
    """Case 22: two specs that differ only in the mask, called in turn from two threads."""
    causal, full = make_spec(mask="causal"), make_spec(mask="none")
    kernels, tensors = load(causal, full), make_tensors(causal)

    def call(mask: str) -> None:
        for _ in range(50):
            kernels.run(tensors, mask=mask)

    threads = [threading.Thread(target=call, args=(mask,)) for mask in ("causal", "none")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = [launch.entry for launch in fake.launches]
    assert len(set(entries)) == 2
    assert all(entries.count(entry) == 50 for entry in set(entries))
    assert len(fake.loaded) == 2


def test_empty_batches_launch_nothing_and_fill_the_outputs(
    fake: FakeDriver, load: LoadFake
) -> None:
    spec = make_spec(lse=True)
    kernels = load(spec)
    nothing = make_tensors(spec, q_lens=(), k_lens=())
    out, lse = kernels.run(nothing, return_lse=True)
    assert out.shape == (0, 4, 128)
    assert lse.shape == (0, 4)
    rows_of_nobody = nothing | {"q": torch.ones(5, 4, 192, dtype=torch.bfloat16)}
    out, lse = kernels.run(rows_of_nobody, return_lse=True)
    assert bool((out == 0).all())
    assert bool(torch.isneginf(lse).all())
    assert not fake.launches


def test_no_keys_at_all_launches_on_good_pointers(fake: FakeDriver, load: LoadFake) -> None:
    """Case 4: all lengths 0, a cache of zero pages, a page table of width 0."""
    spec = make_spec(k_rope=PAGED_64, lse=True)
    tensors = make_tensors(spec, q_lens=(4,) * 16, k_lens=(0,) * 16)
    assert tensors["k_rope"].shape == (0, 64, 576)
    assert tensors["block_table"].shape == (16, 0)
    out = load(spec).run(tensors)
    (launch,) = fake.launches
    assert launch.maps["k_rope"].dims == (64, 1, 64, 1)
    assert launch.maps["k"].dims == (128, 4, 1)
    assert launch.maps["v"].address == out.data_ptr()


def test_single_head_and_single_row_tensors_with_odd_strides(
    fake: FakeDriver, load: LoadFake
) -> None:
    """Strides of dimensions of size 1 mean nothing: the encoder gets ones that it accepts."""
    spec = make_spec()
    tensors = make_tensors(spec, q_lens=(1,), k_lens=(1,), heads=1)
    tensors["q"] = torch.as_strided(tensors["q"], (1, 1, 192), (3, 5, 1))
    load(spec).run(tensors)
    assert fake.launches[0].maps["q"].strides_bytes[0] == 384


def test_out_that_shares_memory_with_an_input_is_refused(load: LoadFake) -> None:
    spec = make_spec()
    tensors = make_tensors(spec)
    kernels = load(spec)
    kernels.run(tensors, out=torch.empty(169, 4, 128, dtype=torch.bfloat16))
    shared = tensors["v"].view(-1)[: 169 * 4 * 128].view(169, 4, 128)
    with pytest.raises(InputError, match=r"out: its memory overlaps that of v"):
        kernels.run(tensors, out=shared)


def test_lse_kernel_serves_a_call_without_lse(fake: FakeDriver, load: LoadFake) -> None:
    spec = make_spec(lse=True)
    out = load(spec).run(make_tensors(spec))
    assert isinstance(out, torch.Tensor)
    assert fake.launches[0].arguments["lse"] != 0


@pytest.mark.parametrize("other", ["q", "out"])
def test_lse_that_shares_memory_with_another_tensor_is_refused(load: LoadFake, other: str) -> None:
    spec = make_spec(lse=True)
    tensors = make_tensors(spec)
    tensors["out"] = torch.empty(169, 4, 128, dtype=torch.bfloat16)
    tensors["lse"] = tensors[other].view(torch.float32)[..., 0]
    names = {
        "q": "lse: its memory overlaps that of q",
        "out": "out: its memory overlaps that of lse",
    }
    with pytest.raises(InputError, match=names[other]):
        load(spec).run(tensors)


@pytest.mark.parametrize("name", ["sinks", "bias", "cu_seqlens_k"])
def test_outputs_over_what_pointers_find_are_refused(load: LoadFake, name: str) -> None:
    """A block may still read there when another has written."""
    score_mod = {"kind": "bias", "rank": 2} if name == "bias" else "identity"
    spec = make_spec(lse=True, sink=name == "sinks", score_mod=score_mod)
    tensors, lse = make_tensors(spec), torch.empty(400, 169)[:4].T
    place = {
        "sinks": lse.T[3, :4],
        "bias": torch.as_strided(lse, (129, 200), (200, 1)),
        "cu_seqlens_k": lse.T.view(torch.int32)[3, -4:],
    }
    with pytest.raises(InputError, match=f"lse: its memory overlaps that of {name}"):
        load(spec).run(tensors | {"lse": lse, name: place[name]})
    behind = torch.as_strided(lse, tensors[name].shape, tensors[name].stride(), 4 * 169)
    load(spec).run(tensors | {"lse": lse, name: behind.view(tensors[name].dtype)})


def test_a_struct_is_padded_to_its_widest_field() -> None:
    """Without a pointer it is aligned to four bytes, as the compiler has it."""
    dense: dict[str, Any] = {"q_layout": "dense", "kv": "dense"}
    for kind, size in (("persistent", 6 * 4), ("queued", 6 * 4 + 8)):
        plan = plan_kernel(make_spec(**dense, scheduler=kind))
        assert ArgumentStruct(plan, {}).size_bytes == size, [one.name for one in plan.arguments]
