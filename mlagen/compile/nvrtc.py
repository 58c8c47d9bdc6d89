"""CUDA text to cubin, PTX and log in one NVRTC call.

NVRTC releases the GIL, so threads compile side by side. Its output depends on source, options and
compiler only, unless something in the process has compiled with `-G` (see below).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlagen.compile.nvrtc_library import NvrtcIdentity, nvrtc_bindings, nvrtc_identity
from mlagen.errors import CompileError
from mlagen.package_files import shipped_folder

__all__ = [
    "KERNEL_OPTIONS",
    "LINE_OPTIONS",
    "Compiled",
    "NvrtcIdentity",
    "compile_cuda",
    "compiler_release",
    "nvrtc_identity",
]

# What every kernel is compiled with, beside its architecture. Not here, on purpose:
#   --use_fast_math        templates themselves name the approximate instructions (ex2.approx.ftz)
#   -default-device        a function without __device__ is a mistake that should not compile
#   -lineinfo, -G          put file names into the cubin; -G also serialises wgmma
#                          and leaves something behind in NVRTC 13.5: what the process compiles later is
#                          other code, with spills where there are registers to spare
#   --maxrregcount         __launch_bounds__ and setmaxnreg divide the registers
#   -I, --use-bundled-headers, -pch   kernels include nothing
KERNEL_OPTIONS: tuple[str, ...] = (
    # NVRTC's default since 12.0, written down so that a later default changes nothing.
    "-std=c++17",
    # Registers, stack and spills in the log. ptxas takes one option an argument.
    "--ptxas-options=-v",
)

# The same instructions, with their source lines in the PTX: for the simulator, whose reports quote them.
LINE_OPTIONS: tuple[str, ...] = (*KERNEL_OPTIONS, "-lineinfo")

_SHOWN_ERRORS = 5
_CUDA_ERROR = re.compile(
    r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<text>.*)$"
)
_PTX_ERROR = re.compile(r"^ptxas [^,]*, line (?P<line>\d+); (?:error|fatal)\s*: (?P<text>.*)$")
_RELEASE = re.compile(r"^// Cuda compilation tools, .* V([\d.]+)", re.MULTILINE)
# Wall time, in an otherwise reproducible log.
_TIMING = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The output of one compile.

    Attributes:
        cubin: ELF image for one architecture.
        ptx: What ptxas assembled, for the simulator and for people.
        log: Warnings of the front end and the report of ptxas, without timings.
    """

    cubin: bytes
    ptx: str
    log: str


def compile_cuda(
    source: str, *, name: str, arch: str, options: tuple[str, ...] = KERNEL_OPTIONS
) -> Compiled:
    """Compile `source` for `arch`; needs NVRTC, but neither a driver nor a GPU.

    Args:
        source: CUDA C++ without includes.
        name: Stem of the file name that messages show.
        arch: NVRTC's name of a real architecture, such as `sm_90a`.
        options: Further NVRTC options, one an argument.

    Raises:
        CompileError: NVRTC or ptxas refused; the message quotes the lines of the source.
        MissingDependencyError: There is no NVRTC.
    """
    identity = nvrtc_identity()
    nvrtc = nvrtc_bindings()
    file_name = f"{name}.cu"
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), file_name.encode(), 0, [], [])
    if int(status):
        raise CompileError(
            f"{file_name}: nvrtcCreateProgram failed: {status}\n  this is a bug in mlagen"
        )
    try:
        arguments = [
            f"--gpu-architecture={arch}".encode(),
            *(option.encode() for option in options),
        ]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        log = _TIMING.sub("", _text(_output(nvrtc, "ProgramLog", program)))
        ptx = _text(_output(nvrtc, "PTX", program))
        if int(status):
            raise CompileError(_refusal(source, file_name, log=log, ptx=ptx, identity=identity))
        return Compiled(_output(nvrtc, "CUBIN", program), ptx, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compiler_release(ptx: str) -> str:
    """Return the compiler's full version, such as 13.5.37, which NVRTC says only in its output."""
    found = _RELEASE.search(ptx)
    return found[1] if found else ""


def _output(nvrtc: Any, kind: str, program: Any) -> bytes:  # untyped bindings
    """Return what `nvrtcGet<kind>` gives, empty if there is nothing (as after a failed compile)."""
    status, size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
    if int(status) or size <= 1:  # a text of one byte is its terminator alone
        return b""
    buffer = bytes(size)
    (status,) = getattr(nvrtc, f"nvrtcGet{kind}")(program, buffer)  # fills the buffer in place
    return b"" if int(status) else buffer


def _text(output: bytes) -> str:
    return output.rstrip(b"\0").decode(errors="replace").strip()


def _refusal(source: str, file_name: str, *, log: str, ptx: str, identity: NvrtcIdentity) -> str:
    """Return the message of a failed compile: every error with the line it is about."""
    quoted: list[str] = []
    for line in log.splitlines():
        if found := _CUDA_ERROR.match(line):
            quoted.append(_quote(source, file_name, int(found["line"]), found["text"]))
        elif found := _PTX_ERROR.match(line):
            quoted.append(_quote(ptx, f"{file_name} (PTX)", int(found["line"]), found["text"]))
    if not quoted:
        advice = (
            f"update NVRTC ({identity.path}): pip install --upgrade nvidia-cuda-nvrtc"
            if "nvrtc: error" in log  # an option or architecture that it does not know
            else "choose a smaller tile (config.tile_m, config.tile_n), or report this with the spec"
        )
        return (
            f"{file_name}: NVRTC {identity.version} refused to compile\n{_indent(log)}\n  {advice}"
        )
    hidden = len(quoted) - _SHOWN_ERRORS
    more = [f"  and {hidden} more errors"] if hidden > 0 else []
    return "\n".join(
        [
            *quoted[:_SHOWN_ERRORS],
            *more,
            f"  compiled by NVRTC {identity.version} ({identity.path})",
            "  a rendered kernel must compile: report this as a bug of mlagen, with the spec",
        ]
    )


def _quote(text: str, file_name: str, number: int, message: str) -> str:
    """Return an error with what helps to find it.

    `file:line: message`, the definition around the line, the template it comes from, and the line
    between its neighbours.
    """
    lines = text.splitlines()
    shown = range(max(1, number - 1), min(len(lines), number + 1) + 1)
    body = [f"  {'>' if n == number else ' '} {n:5} | {lines[n - 1]}" for n in shown]
    opening = _enclosing(lines, number)
    place = [f"  in: {opening}"] if opening else []
    origin = _template_of(lines[number - 1]) or _template_of(opening or "")
    place += [f"  from: {origin}"] if origin else []
    return "\n".join([f"{file_name}:{number}: {message}", *place, *body])


def _template_of(line: str) -> str | None:
    """Return `file:line` of the template that has this very line, if one has it unchanged."""
    wanted = line.strip()
    if not wanted.strip("{}();"):
        return None
    folder = shipped_folder("templates")
    for path in sorted(folder.rglob("*.j2")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.strip() == wanted:
                return f"templates/{path.relative_to(folder).as_posix()}:{number}"
    return None


def _enclosing(lines: list[str], number: int) -> str | None:
    """Return the nearest line, not below `number`, that starts a definition in column one."""
    for line in reversed(lines[:number]):
        starts_in_column_one = line[:1].isalpha() or line[:1] == "_"
        if starts_in_column_one and line.rstrip().endswith(("{", ",", "(")):
            return line.strip()
    return None


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
