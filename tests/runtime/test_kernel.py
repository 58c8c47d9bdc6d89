"""`load` from every source, where machine code comes from, and the reference backend."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mlagen
import mlagen.build
from mlagen.artifacts import write_kernels
from mlagen.errors import CacheError, InputError, NoKernelError, SpecError
from mlagen.plan import plan_kernel
from mlagen.spec.yaml import spec_from_dict
from mlagen.verify.reference import reference
from tests.runtime.calls import DEEPSEEK, PAGED_64, make_spec, make_tensors
from tests.runtime.conftest import built_kernel

if TYPE_CHECKING:
    from pathlib import Path

    from mlagen.build import BuiltKernel
    from mlagen.spec.model import KernelSpec
    from tests.runtime.fake_driver import FakeDriver

SPEC: dict[str, Any] = {
    "spec": 1,
    "name": "small",
    "geometry": {"num_heads": 4, **DEEPSEEK},
    "arch": "sm_90a",
    "kernels": [{"op": "prefill", "mask": ["causal", "none"]}],
}
YAML = """\
spec: 1
name: small
geometry: {num_heads: 4, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128, kv_lora_rank: 512}
arch: sm_90a
kernels:
  - op: prefill
    mask: [causal, none]
"""


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Replace the compiler; what it was asked for, with the policy."""
    asked: list[tuple[str, str | None]] = []

    def build_specs(
        specs: list[KernelSpec], *, cache: object, policy: str | None = None
    ) -> list[BuiltKernel]:
        assert cache is None
        asked.extend((spec.hash, policy) for spec in specs)
        if policy == "never":
            raise CacheError("not in the cache")
        return [built_kernel(spec) for spec in specs]

    monkeypatch.setattr(mlagen.build, "build_specs", build_specs)
    return asked


def test_every_source_gives_the_same_kernels(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(YAML)
    file = spec_from_dict(SPEC)
    wanted = list(file.expand())
    for source in (path, str(path), SPEC, file, file.expand(), list(file.expand())):
        assert list(mlagen.load(source).specs) == wanted
    assert mlagen.load(wanted[0]).specs == (wanted[0],)


def test_a_folder_of_kernels_is_a_source(tmp_path: Path, fake: FakeDriver) -> None:
    specs = spec_from_dict(SPEC).expand()
    fake.plans.update({plan.name: plan for plan in map(plan_kernel, specs)})
    write_kernels(tmp_path, [built_kernel(spec) for spec in specs])
    loaded = mlagen.load(tmp_path, jit="never")
    assert {spec.hash for spec in loaded.specs} == {spec.hash for spec in specs}
    loaded.run(make_tensors(specs[0]), causal=True)
    assert len(fake.launches) == 1


@pytest.mark.parametrize("how", ["argument", "setting"])
def test_machine_code_comes_from_a_folder_without_a_compiler(
    tmp_path: Path,
    fake: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    compiles: list[tuple[str, str | None]],
    how: str,
) -> None:
    causal, full = spec_from_dict(SPEC).expand()
    fake.plans.update({plan.name: plan for plan in map(plan_kernel, (causal, full))})
    write_kernels(tmp_path, [built_kernel(causal)])
    if how == "setting":
        monkeypatch.setenv("MLAGEN_KERNELS", str(tmp_path))
    kernels = mlagen.load(SPEC, kernels=tmp_path if how == "argument" else None)
    kernels.run(make_tensors(causal), causal=True)
    assert not compiles
    kernels.run(make_tensors(causal), causal=False)
    assert compiles == [(full.hash, None)], "what the folder lacks comes from the cache"


def test_kernels_are_built_once_when_first_needed(
    fake: FakeDriver, compiles: list[tuple[str, str | None]]
) -> None:
    causal, full = spec_from_dict(SPEC).expand()
    fake.plans.update({plan.name: plan for plan in map(plan_kernel, (causal, full))})
    kernels, tensors = mlagen.load(SPEC), make_tensors(causal)
    assert not compiles
    for _ in range(2):
        kernels.run(tensors, causal=True)
    assert compiles == [(causal.hash, None)]
    kernels.warmup()
    assert compiles == [(causal.hash, None), (full.hash, None)]
    kernels.warmup(device=1)
    assert {context for context, _ in fake.loaded[1:]} == {101}
    assert len(compiles) == 2


def test_jit_never_compiles_nothing(
    fake: FakeDriver, compiles: list[tuple[str, str | None]], tmp_path: Path
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(YAML)
    kernels = mlagen.load(path, jit="never")
    tensors = make_tensors(kernels.specs[0])
    with pytest.raises(NoKernelError) as error:
        kernels.run(tensors, causal=True)
    first, reason, last = str(error.value).splitlines()
    assert reason == "  not in the cache"
    assert first.startswith("mla_prefill_sm90a_192x128_bf16_causal")
    assert first.endswith("not built, and compiling is off (jit='never')")
    assert last == f"  build it before: mlagen build {path}, or kernels.warmup()"
    assert compiles == [(kernels.specs[0].hash, "never")]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"spec": SPEC, "jit": "maybe"}, InputError, "jit: 'maybe' is neither auto nor never"),
        ({"spec": SPEC, "backend": "cpu"}, InputError, "backend: 'cpu' is none of"),
        ({"spec": 5}, InputError, "spec: expected a path, dict, SpecFile or KernelSpec, got int"),
        ({"spec": {"spec": 1}}, SpecError, "spec: name: missing"),
        ({"spec": SPEC, "kernels": "nowhere"}, CacheError, "nowhere"),
    ],
)
def test_wrong_arguments_of_load(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        mlagen.load(**arguments)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_reference_backend(library: str) -> None:
    spec = make_spec(mask="causal", k_rope=PAGED_64, lse=True)
    tensors = make_tensors(spec)
    exact, exact_lse = reference(spec, tensors)
    kernels = mlagen.load(spec, backend="reference")
    arguments: dict[str, Any] = dict(tensors)
    if library == "numpy":
        arguments = {name: as_numpy(tensor) for name, tensor in tensors.items()}
    out, lse = kernels.run(arguments, return_lse=True)
    if library == "numpy":
        assert out.dtype == ml_dtypes.bfloat16
        out, lse = torch.from_numpy(out.astype(np.float32)), torch.from_numpy(lse)
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=2**-23, atol=1e-7)


def as_numpy(tensor: torch.Tensor) -> Any:
    """The same values as an array; NumPy gets its bfloat16 from ml_dtypes."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()


def test_reference_backend_writes_the_outputs_given() -> None:
    spec = make_spec(lse=True)
    tensors = make_tensors(spec)
    out = torch.empty(169, 4, 192, dtype=torch.bfloat16)[..., :128]
    lse = torch.empty(4, 169).T
    kernels = mlagen.load(spec, backend="reference")
    given = kernels.run(tensors, out=out, lse=lse, return_lse=True)
    assert given[0] is out
    assert given[1] is lse
    new = kernels.run(tensors, return_lse=True)
    assert torch.equal(out, new[0])
    assert torch.equal(lse, new[1])


def test_reference_backend_checks_lengths() -> None:
    """On the host they are at hand: no option is needed."""
    spec = make_spec()
    tensors = make_tensors(spec)
    tensors["cu_seqlens_k"][-1] = 1000
    with pytest.raises(InputError, match="cu_seqlens_k: ends at 1000, but the tensor has 272 rows"):
        mlagen.load(spec, backend="reference").run(tensors)


def test_backend_auto_says_once_that_it_computes_on_the_cpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = make_spec()
    kernels = mlagen.load(spec, backend="auto")
    with caplog.at_level(logging.WARNING, logger="mlagen"):
        for _ in range(2):
            kernels.run(make_tensors(spec))
    (record,) = caplog.records
    assert record.message == "q lies on the CPU: computing with the float64 reference, not a kernel"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_import_brings_nothing_heavy_and_load_no_driver() -> None:
    """Case 18: no context before the first launch, and a child process that forks later is fine."""
    done = run_python(
        f"""
        import os, sys
        import mlagen
        heavy = ("torch", "cuda", "numpy", "pydantic", "jinja2")
        assert not [name for name in heavy if name in sys.modules], sys.modules
        from mlagen.plan import plan_kernel
        from mlagen.render import render_kernel
        kernels = mlagen.load({SPEC!r})
        for spec in kernels.specs:
            spec.hash, render_kernel(plan_kernel(spec))
        assert "torch" not in sys.modules
        assert "cuda.bindings.driver" not in sys.modules
        if os.fork() == 0:
            import torch
            os._exit(0 if not torch.cuda.is_initialized() else 1)
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert done.returncode == 0, done.stderr


def test_no_driver_is_said_with_the_remedy() -> None:
    from tests.conftest import missing_gpu

    if missing_gpu() is None:
        pytest.skip("this machine has a driver")
    spec = make_spec()
    with pytest.raises(mlagen.errors.MissingDependencyError) as error:
        mlagen.load(spec).run(make_tensors(spec))
    assert "no NVIDIA driver" in str(error.value)
    assert "backend='sim'" in str(error.value)


def test_public_names() -> None:
    for name in mlagen.__all__:
        assert getattr(mlagen, name) is not None
    assert set(mlagen.__all__) <= set(dir(mlagen))
    with pytest.raises(AttributeError, match="no attribute 'decode'"):
        _ = mlagen.decode
