"""Which NVRTC is used. Each case is a process of its own, because a process has one NVRTC."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mlagen.compile.nvrtc_library import NvrtcIdentity, _elf_build_id, nvrtc_identity
from tests.compile.fresh_process import run_python, without_nvidia_wheels

PRINT_IDENTITY = """
from mlagen.errors import MlagenError
from mlagen.compile.nvrtc import compile_cuda, nvrtc_identity
try:
    identity = nvrtc_identity()
    compile_cuda('extern "C" __global__ void f() {}', name="f", arch="sm_90a")
    print(identity.found_via, identity.path, identity.compiler, sep="|")
except MlagenError as error:
    print(type(error).__name__, error, sep="|")
"""


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """Return a folder that looks like an installed CUDA toolkit."""
    library = nvrtc_identity().path
    folder = tmp_path / "cuda" / "lib64"
    folder.mkdir(parents=True)
    for file in library.parent.glob("libnvrtc*"):
        (folder / file.name).symlink_to(file)
    return folder.parent


@pytest.fixture
def no_wheels(tmp_path: Path) -> Path:
    return without_nvidia_wheels(tmp_path)


def ask(*, code: str = PRINT_IDENTITY, wheels: Path | None = None, **environment: str) -> list[str]:
    return run_python(code, wheels=wheels, environment=environment).split("|")


def test_setting_wins_over_the_wheel(toolkit: Path) -> None:
    path = toolkit / "lib64" / nvrtc_identity().path.name
    found_via, _, compiler = ask(MLAGEN_NVRTC=str(path))
    assert found_via == "MLAGEN_NVRTC"
    assert compiler == nvrtc_identity().compiler, "the same library by another path"


def test_wheel_wins_over_a_toolkit(toolkit: Path) -> None:
    found_via, path, _ = ask(CUDA_PATH=str(toolkit))
    assert found_via == "site-packages"
    assert Path(path) == nvrtc_identity().path


def test_toolkit_alone_is_enough(toolkit: Path, no_wheels: Path) -> None:
    found_via, path, compiler = ask(wheels=no_wheels, CUDA_PATH=str(toolkit))
    assert found_via == "CUDA_PATH"
    assert Path(path).is_relative_to(toolkit)
    assert compiler == nvrtc_identity().compiler


def test_without_any_the_places_searched_are_listed(no_wheels: Path) -> None:
    kind, message = ask(wheels=no_wheels)
    assert kind == "MissingDependencyError"
    for place in ("MLAGEN_NVRTC", "site-packages", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_PATH"):
        assert place in message
    assert "pip install nvidia-cuda-nvrtc" in message.splitlines()[-1]


def test_missing_file_is_named() -> None:
    kind, message = ask(MLAGEN_NVRTC="/no/such/libnvrtc.so")
    assert kind == "MissingDependencyError"
    assert message.startswith("MLAGEN_NVRTC: no such file: /no/such/libnvrtc.so")


def test_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / "libnvrtc.so.13"
    path.write_text("not a library")
    kind, message = ask(MLAGEN_NVRTC=str(path))
    assert kind == "MissingDependencyError"
    assert message.startswith(f"MLAGEN_NVRTC: {path} cannot be loaded")


def test_setting_that_comes_too_late_is_an_error() -> None:
    code = f"import cuda.pathfinder as p; p.load_nvidia_dynamic_lib('nvrtc')\n{PRINT_IDENTITY}"
    # Any other library will do: it loads, but it is not the NVRTC that was loaded before.
    libraries = nvrtc_identity().path.parent.glob("libnvrtc-builtins.so.*")
    kind, message = ask(code=code, MLAGEN_NVRTC=str(next(libraries)))
    assert kind == "MissingDependencyError"
    assert "this process uses" in message


def test_build_id_is_read_from_the_elf_notes() -> None:
    with nvrtc_identity().path.open("rb") as file:
        build_id = _elf_build_id(file)
    assert build_id == nvrtc_identity().build_id
    assert build_id is not None
    assert len(build_id) == 40


@pytest.mark.parametrize("data", [b"", b"MZ\x90", b"\x7fELF\x01\x01" + bytes(58)])
def test_other_files_have_no_build_id(data: bytes) -> None:
    assert _elf_build_id(io.BytesIO(data)) is None


def test_compiler_does_not_depend_on_the_path() -> None:
    ids = [
        NvrtcIdentity("13.5", "abc", Path(path), via).compiler
        for path, via in [("/a", "MLAGEN_NVRTC"), ("/b", "site-packages")]
    ]
    assert ids[0] == ids[1]
