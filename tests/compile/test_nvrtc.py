from __future__ import annotations

import pytest

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda, compiler_release, nvrtc_identity
from mlagen.errors import CompileError
from mlagen.package_files import shipped_folder
from tests.compile.sources import store_kernel


def test_one_compile_gives_cubin_ptx_and_report() -> None:
    compiled = compile_cuda(store_kernel("store"), name="store", arch="sm_90a")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert ".entry store(" in compiled.ptx
    assert not compiled.ptx.endswith("\0")
    assert "Used" in compiled.log
    assert "registers" in compiled.log


def test_the_other_architecture_compiles_too() -> None:
    compiled = compile_cuda(store_kernel("store"), name="store", arch="sm_100a")
    assert ".target sm_100a" in compiled.ptx


def test_output_depends_on_source_and_options_only() -> None:
    first = compile_cuda(store_kernel("store"), name="first", arch="sm_90a")
    second = compile_cuda(store_kernel("store"), name="second", arch="sm_90a")
    assert first == second


def test_options_change_the_output() -> None:
    plain = compile_cuda(store_kernel("store"), name="store", arch="sm_90a")
    lines = compile_cuda(store_kernel("store"), name="store", arch="sm_90a", options=LINE_OPTIONS)
    assert plain.cubin != lines.cubin


def test_release_is_that_of_the_identity() -> None:
    compiled = compile_cuda(store_kernel("store"), name="store", arch="sm_90a")
    assert compiler_release(compiled.ptx).startswith(f"{nvrtc_identity().version}.")
    assert compiler_release("no such line") == ""


def test_error_quotes_the_line_of_the_source() -> None:
    source = 'extern "C" __global__ void broken(\n    float* out) {\n  out[0] = nonsense;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, name="broken", arch="sm_90a")
    lines = str(caught.value).splitlines()
    assert lines[0] == 'broken.cu:3: identifier "nonsense" is undefined'
    assert 'in: extern "C" __global__ void broken(' in lines[1]
    assert any(line.endswith("3 |   out[0] = nonsense;") and ">" in line for line in lines)
    assert "report this" in lines[-1]


def test_error_names_the_template_that_has_the_line() -> None:
    template = shipped_folder("templates") / "device" / "warp.cuh.j2"
    lines = template.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith("{"))
    source = f"{lines[at]}\n  nonsense;\n}}"
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, name="broken", arch="sm_90a")
    assert f"from: templates/device/warp.cuh.j2:{at + 1}" in str(caught.value)


def test_kernel_that_does_not_fit_gets_advice_about_tiles() -> None:
    source = (
        'extern "C" __global__ void big(int* out) { __shared__ int a[99999]; out[0] = a[out[1]]; }'
    )
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, name="big", arch="sm_90a")
    assert "config.tile_n" in str(caught.value).splitlines()[-1]


def test_error_of_ptxas_quotes_the_line_of_the_ptx() -> None:
    source = 'extern "C" __global__ void broken() { asm volatile("nonsense.b32;"); }'
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, name="broken", arch="sm_90a")
    assert "broken.cu (PTX):" in str(caught.value)
    assert "nonsense.b32;" in str(caught.value)


def test_many_errors_are_cut_short() -> None:
    lines = "\n".join(f"  out[{i}] = nonsense{i};" for i in range(9))
    source = f'extern "C" __global__ void broken(float* out) {{\n{lines}\n}}'
    with pytest.raises(CompileError, match="and 4 more errors"):
        compile_cuda(source, name="broken", arch="sm_90a")


def test_function_without_device_is_an_error() -> None:
    source = 'int f() { return 1; }\nextern "C" __global__ void g(int* out) { *out = f(); }'
    with pytest.raises(CompileError, match=r"g\.cu:1: .* execution space"):
        compile_cuda(source, name="g", arch="sm_90a")


def test_unknown_architecture_names_the_compiler() -> None:
    with pytest.raises(CompileError) as caught:
        compile_cuda(store_kernel("store"), name="store", arch="sm_999a")
    message = str(caught.value)
    assert "gpu-architecture" in message
    assert str(nvrtc_identity().path) in message
    assert "pip install" in message.splitlines()[-1]
