"""`backend="sim"`: what reaches the simulator is what reaches a GPU, and what comes back is the caller's."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mlagen
import mlagen.sim.simulate
from mlagen import kernel_compiler
from mlagen.build import build_specs
from mlagen.compile import nvrtc
from mlagen.errors import (
    DeviceError,
    DTypeError,
    FindingsError,
    InputError,
    ScheduleError,
    ShapeError,
    SimulationError,
)
from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.plan import plan_kernel
from mlagen.render import render_kernel
from mlagen.runtime.binaries import Binaries
from mlagen.runtime.kernel import Kernels
from mlagen.runtime.plan_names import names_of
from mlagen.runtime.simulator import Simulator
from mlagen.sim.report import Finding, Site
from mlagen.sim.simulate import SimulationResult
from mlagen.sim.trace import Counters
from tests.runtime.calls import PAGED_64, make_spec, make_tensors
from tests.runtime.conftest import built_kernel
from tests.runtime.fake_driver import FORMATS

if TYPE_CHECKING:
    from mlagen.sim.memory import GlobalMemory
    from mlagen.spec.model import KernelSpec
    from tests.runtime.conftest import LoadFake
    from tests.runtime.fake_driver import FakeDriver

SPEC = make_spec(lse=True)


@dataclass
class FakeSimulation:
    """Takes the place of `simulate`: notes what it was given and finds what the test says."""

    findings: tuple[Finding, ...] = ()
    left_in_counter: int = 0
    records: list[LaunchRecord] = field(default_factory=list)
    memories: list[GlobalMemory] = field(default_factory=list)
    how: list[dict[str, Any]] = field(default_factory=list)

    def __call__(
        self, ptx: str, record: LaunchRecord, memory: GlobalMemory, **how: Any
    ) -> SimulationResult:
        assert ptx == "the PTX"
        self.records.append(record)
        self.memories.append(memory)
        self.how.append(how)
        memory.buffers[-1].bytes[:4].view(np.int32)[0] = self.left_in_counter
        nothing: frozenset[int] = frozenset()
        return SimulationResult(self.findings, Counters(0, 0, 0, 0), (), nothing, nothing, nothing)

    def maps(self, spec: KernelSpec) -> dict[str, TensorMapSpec]:
        """Tensor maps of the last launch by name."""
        plan = plan_kernel(spec)
        given = self.records[-1].parameters[:-1]
        maps = dict(zip((one.name for one in plan.tensor_maps), given, strict=True))
        assert all(isinstance(one, TensorMapSpec) for one in given)
        return maps  # type: ignore[return-value]  # as asserted

    def arguments(self, spec: KernelSpec) -> dict[str, Any]:
        """The struct of the last launch."""
        plan, packed = plan_kernel(spec), self.records[-1].parameters[-1]
        assert isinstance(packed, bytes)
        codes = "".join(FORMATS.get(argument.ctype, "P") for argument in plan.arguments)
        names = [argument.name for argument in plan.arguments]
        return dict(zip(names, struct.Struct("@" + codes).unpack(packed), strict=True))


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> FakeSimulation:
    fake = FakeSimulation()
    monkeypatch.setattr(mlagen.sim.simulate, "simulate", fake)
    return fake


def load_sim(*specs: KernelSpec, simulator: Simulator | None = None) -> Kernels:
    """Kernels whose PTX is only a name."""
    built = [dataclasses.replace(built_kernel(spec), ptx="the PTX") for spec in specs]
    binaries = Binaries(built=built, cache=None, jit="never", source="specs/test.yaml")
    return Kernels(
        specs, binaries=binaries, backend=simulator or Simulator(), source="specs/test.yaml"
    )


def as_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The same values as NumPy arrays."""
    return {
        name: tensor.float().numpy().astype(ml_dtypes.bfloat16)
        if tensor.dtype == torch.bfloat16
        else tensor.numpy()
        for name, tensor in tensors.items()
    }


LAUNCHES: dict[str, dict[str, Any]] = {
    "ragged": {"lse": True},
    "paged, split, sinks": {"k_rope": PAGED_64, "q_form": "split", "sink": True, "lse": True},
    "dense with lengths": {"q_layout": "dense", "kv": {"layout": "dense", "seqlens": True}},
    "k and v in pages": {"kv": PAGED_64, "k_rope": PAGED_64, "lse": True},
    "rope heads": {"k_rope": {"layout": "ragged", "num_heads": 2}, "kv_length_counts": "prefix"},
    "padding": {"mask": {"all": ["causal", "padding"]}},
    "parts": {"partition": {"kind": "split_kv", "splits": 3}, "lse": True},
    "bias": {"score_mod": {"kind": "bias", "rank": 3}},
    "relative bias": {
        "score_mod": {"kind": "relative_bias", "extent": 9},
        "q_layout": "dense",
        "kv": "dense",
    },
    "slopes": {"score_mod": {"kind": "alibi", "slopes": "tensor"}, "max_seqlen": 512},
}


@pytest.mark.parametrize("options", LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_the_simulator_gets_the_launch_that_a_gpu_gets(
    fake: FakeDriver,
    load: LoadFake,
    simulation: FakeSimulation,
    options: dict[str, Any],
    kind: str,
) -> None:
    spec = make_spec(**options)
    tensors = make_tensors(spec, q_lens=(40, 8, 129), k_lens=(57, 65, 200))
    load(spec).run(tensors, softmax_scale=0.25)
    load_sim(spec).run(tensors if kind == "torch" else as_arrays(tensors), softmax_scale=0.25)
    (launch,), (record,) = fake.launches, simulation.records
    assert record.kernel == launch.entry
    assert record.block == (launch.block, 1, 1)
    assert record.grid == (min(launch.grid, 3), 1, 1)
    assert record.shared_memory_bytes == launch.shared_memory_bytes
    maps = simulation.maps(spec)
    assert maps.keys() == launch.maps.keys()
    for name, wanted in launch.maps.items():
        assert dataclasses.replace(maps[name], address=0) == dataclasses.replace(wanted, address=0)
    addresses = {
        argument.name for argument in plan_kernel(spec).arguments if argument.ctype.endswith("*")
    }
    for name, value in simulation.arguments(spec).items():
        if name not in addresses:
            assert value == launch.arguments[name], name


def test_addresses_are_those_of_the_arrays(simulation: FakeSimulation) -> None:
    """K and V as slices of one projection keep their distance, in either kind of array."""
    tensors = make_tensors(SPEC)
    for _ in range(2):
        kv = torch.arange(272 * 4 * 320).reshape(272, 4, 320).to(torch.bfloat16)
        tensors |= {"k": kv[..., :192], "v": kv[..., 192:]}
        load_sim(SPEC).run(tensors)
    array = as_arrays({"kv": kv})["kv"]
    load_sim(SPEC).run(as_arrays(tensors) | {"k": array[..., :192], "v": array[..., 192:]})
    for record, memory in zip(simulation.records, simulation.memories, strict=True):
        _, k, v, _, packed = record.parameters
        assert isinstance(k, TensorMapSpec)
        assert isinstance(v, TensorMapSpec)
        assert v.address == k.address + 192 * 2
        found = memory.locate(v.address, 2)
        assert found is not None
        buffer, offset = found
        assert len(buffer.bytes) == kv.numel() * 2
        assert float(buffer.bytes[offset : offset + 2].view(ml_dtypes.bfloat16)[0]) == 192
        assert isinstance(packed, bytes)
    assert simulation.arguments(SPEC)["lse_row_stride"] == 4


def test_inputs_cannot_be_written_and_outputs_can(simulation: FakeSimulation) -> None:
    load_sim(SPEC).run(as_arrays(make_tensors(SPEC)))
    writable = {one.name for one in simulation.memories[0].buffers if not one.read_only}
    assert writable == {"out", "lse", "tickets"}


def test_a_transient_kernel_has_no_counter_and_a_block_for_every_tile(
    simulation: FakeSimulation,
) -> None:
    spec = make_spec(lse=True, scheduler="transient")
    load_sim(spec, simulator=Simulator(ctas=2)).run(as_arrays(make_tensors(spec)))
    assert {one.name for one in simulation.memories[0].buffers if not one.read_only} == {
        "out",
        "lse",
    }
    # 40, 0 and 129 rows: for all the host knows, one full tile and three that are not, of 4 heads.
    assert simulation.records[0].grid[0] == (1 + 3) * 4


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_results_are_of_the_callers_kind(simulation: FakeSimulation, kind: str) -> None:
    tensors: Any = make_tensors(SPEC)
    if kind == "numpy":
        tensors = as_arrays(tensors)
    out, lse = load_sim(SPEC).run(tensors, return_lse=True)
    assert type(out) is type(tensors["q"])
    assert str(out.dtype).removeprefix("torch.") == "bfloat16"
    assert str(lse.dtype).removeprefix("torch.") == "float32"
    assert out.shape == (169, 4, 128)
    assert lse.shape == (169, 4)
    simulated = load_sim(SPEC).simulate(tensors, out=out, lse=lse)
    assert simulated.out is out
    assert simulated.lse is lse


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_batch_without_tiles_fills_the_outputs(simulation: FakeSimulation, kind: str) -> None:
    tensors: Any = make_tensors(SPEC, q_lens=(), k_lens=())
    tensors |= {"q": torch.ones(5, 4, 192, dtype=torch.bfloat16)}
    if kind == "numpy":
        tensors = as_arrays(tensors)
    out, lse = load_sim(SPEC).run(tensors, return_lse=True)
    assert bool((out == 0).all())
    assert bool((lse == -np.inf).all())
    assert not simulation.records


def test_how_the_simulator_runs_is_the_backends_affair(simulation: FakeSimulation) -> None:
    simulator = Simulator(schedule="pct:3", level="practice", ctas=2, trace=True)
    kernels, arrays = load_sim(SPEC, simulator=simulator), as_arrays(make_tensors(SPEC))
    kernels.run(arrays)
    kernels.simulate(arrays, simulator=Simulator(ctas=1))
    first, second = simulation.how
    assert str(first["schedule"]) == "pct:3:3"
    assert (first["checks"].level, first["trace"]) == ("practice", True)
    assert (str(second["schedule"]), second["checks"].level) == ("lazy", "strict")
    assert [record.grid[0] for record in simulation.records] == [2, 1]
    assert first["names"] == names_of(plan_kernel(SPEC), "")


def test_findings_are_raised_by_run_and_returned_by_simulate(simulation: FakeSimulation) -> None:
    site = Site(0, 4, 1, "ld.shared.b32", 700, None, 12)
    note = Finding("polling", "note", "a note", site)
    race = Finding("race", "error", "two writes", site, earlier=site, region="k[0]")
    kernels, arrays = load_sim(SPEC), as_arrays(make_tensors(SPEC))
    simulation.findings = (note,)
    kernels.run(arrays)
    simulation.findings = (note, race)
    with pytest.raises(FindingsError) as caught:
        kernels.run(arrays)
    assert "error: race: two writes (k[0])" in str(caught.value)
    assert "warp 4 (math 0)" in str(caught.value)
    assert isinstance(caught.value, SimulationError)
    simulated = kernels.simulate(arrays)
    assert simulated.result is not None
    assert simulated.result.findings == (note, race)
    assert simulated.report == str(caught.value)


def test_a_counter_that_is_not_zero_at_the_end_is_an_error(simulation: FakeSimulation) -> None:
    simulation.left_in_counter = 5
    simulated = load_sim(SPEC).simulate(as_arrays(make_tensors(SPEC)))
    assert simulated.result is not None
    assert [finding.kind for finding in simulated.result.errors] == ["tickets-left"]
    assert "the ticket counter is 5" in simulated.report


WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "mixed kinds": (
        DeviceError,
        "k: a ndarray, but q is a Tensor\n  pass torch tensors or NumPy arrays, not both",
        {"k": np.zeros((272, 4, 192), dtype=ml_dtypes.bfloat16)},
    ),
    "device": (
        DeviceError,
        r"v: on meta, and the simulator runs on the CPU\n  move it with v.cpu\(\)",
        {"v": torch.empty(272, 4, 128, dtype=torch.bfloat16, device="meta")},
    ),
    "dtype": (
        DTypeError,
        r"v: expected bfloat16, got float16 \[272, 4, 128\]",
        {"v": torch.empty(272, 4, 128, dtype=torch.float16)},
    ),
    "shape": (
        ShapeError,
        r"v: expected \[total_k=272, num_heads=4, 128\], got \[272, 5, 128\]",
        {"v": torch.empty(272, 5, 128, dtype=torch.bfloat16)},
    ),
    "strides": (
        ShapeError,
        "v: expected a contiguous last dimension",
        {"v": torch.empty(272, 128, 4, dtype=torch.bfloat16).transpose(1, 2)},
    ),
    "alignment": (
        ShapeError,
        "v: its data starts at 0x[0-9a-f]+, no multiple of 16 bytes",
        {"v": torch.empty(272 * 4 * 128 + 1, dtype=torch.bfloat16)[1:].view(272, 4, 128)},
    ),
    "gradients": (
        InputError,
        "v: requires grad",
        {"v": torch.empty(272, 4, 128, dtype=torch.bfloat16, requires_grad=True)},
    ),
}


@pytest.mark.parametrize(("kind", "message", "change"), WRONG.values(), ids=WRONG)
def test_the_checks_are_those_of_a_gpu_call(
    simulation: FakeSimulation, kind: type[Exception], message: str, change: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=message):
        load_sim(SPEC).run(make_tensors(SPEC) | change)
    assert not simulation.records


def test_advice_is_for_the_kind_that_was_given(simulation: FakeSimulation) -> None:
    kernels, arrays = load_sim(SPEC), as_arrays(make_tensors(SPEC))
    with pytest.raises(DTypeError, match=r"convert it with v.astype\(ml_dtypes.bfloat16\)"):
        kernels.run(arrays | {"v": arrays["v"].astype(np.float32)})
    turned = arrays["v"].transpose(0, 2, 1).copy().transpose(0, 2, 1)
    with pytest.raises(ShapeError, match=r"copy it with numpy.array\(v, order='C'\)"):
        kernels.run(arrays | {"v": turned})
    kernels.run(arrays | {"v": np.array(turned, order="C")})


def test_outputs_that_cannot_be_written_are_refused(simulation: FakeSimulation) -> None:
    arrays = as_arrays(make_tensors(SPEC))
    out = np.zeros((169, 4, 128), dtype=ml_dtypes.bfloat16)
    shared = arrays["v"].reshape(-1)[: 169 * 4 * 128].reshape(169, 4, 128)
    with pytest.raises(InputError, match="out: its memory overlaps that of v"):
        load_sim(SPEC).run(arrays, out=shared)
    out.flags.writeable = False
    with pytest.raises(InputError, match="out: a read-only array"):
        load_sim(SPEC).run(arrays, out=out)
    assert not simulation.records


def test_values_are_checked_when_asked_for(simulation: FakeSimulation) -> None:
    arrays = as_arrays(make_tensors(SPEC))
    arrays["cu_seqlens_k"][-1] = 1000
    kernels = load_sim(SPEC)
    kernels.run(arrays)
    with pytest.raises(InputError, match="cu_seqlens_k: ends at 1000"):
        kernels.run(arrays, validate=True)
    assert len(simulation.records) == 1


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"schedule": "random"}, ScheduleError),
        ({"level": "lenient"}, InputError),
        ({"ctas": 0}, InputError),
        ({"accumulation": "f16"}, InputError),
    ],
)
def test_a_simulator_that_cannot_be(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        mlagen.Simulator(**options)


def test_a_second_process_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_cuda = nvrtc.compile_cuda

    def counted(source: str, **how: Any) -> Any:
        compiled.append((how["arch"], how["options"]))
        return compile_cuda(source, **how)

    monkeypatch.setattr(kernel_compiler, "compile_cuda", counted)
    monkeypatch.setattr(mlagen.sim.simulate, "simulate", _check_ptx)
    arrays = as_arrays(make_tensors(SPEC))
    for _ in range(2):  # each `load` fetches anew, as a process does
        mlagen.load(SPEC, backend="sim").run(arrays)
    assert compiled == [("compute_90a", nvrtc.LINE_OPTIONS)]


def test_the_simulator_runs_the_instructions_that_are_assembled() -> None:
    """Lines aside, the PTX is that of the shipped cubin."""
    plan = plan_kernel(SPEC)
    source = render_kernel(plan)
    (with_lines,) = build_specs([SPEC], output="ptx")
    assembled = nvrtc.compile_cuda(source, name=plan.name, arch=plan.arch.name).ptx
    assert with_lines.source == source
    assert _instructions(with_lines.ptx) == _instructions(assembled)
    assert with_lines.cubin == b""


def _instructions(ptx: str) -> list[str]:
    """The lines of a kernel's body that do something."""
    body = ptx[ptx.index(".visible .entry") :]
    lines = itertools.takewhile(lambda line: ".section" not in line, body.splitlines())
    ignored = (".loc", ".file", "$L__tmp", "$L__func", "//")
    kept = (line.strip() for line in lines)
    return [line for line in kept if line and not line.startswith(ignored)]


def _check_ptx(ptx: str, record: LaunchRecord, memory: object, **_: Any) -> SimulationResult:
    assert f".visible .entry {record.kernel}" in ptx
    assert ".loc" in ptx
    nothing: frozenset[int] = frozenset()
    return SimulationResult((), Counters(0, 0, 0, 0), (), nothing, nothing, nothing)


def test_arrays_need_no_torch() -> None:
    code = """
import sys
import ml_dtypes, numpy, mlagen, mlagen.sim.simulate
from mlagen.sim.trace import Counters
from mlagen.spec.yaml import kernel_from_dict
nothing = frozenset()
result = mlagen.sim.simulate.SimulationResult((), Counters(0, 0, 0, 0), (), *3 * [nothing])
mlagen.sim.simulate.simulate = lambda *_, **__: result
geometry = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
spec = kernel_from_dict({"arch": "sm_90a", "geometry": geometry})
q, k, v = (numpy.zeros((5, 2, dim), dtype=ml_dtypes.bfloat16) for dim in (192, 192, 128))
ends = numpy.array([0, 5], dtype=numpy.int32)
out = mlagen.load(spec, backend="sim").run(q=q, k=k, v=v, cu_seqlens_q=ends, cu_seqlens_k=ends)
assert out.shape == (5, 2, 128)
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
