"""Every form of a tcgen05 instruction that the simulator accepts is one that NVRTC assembles for sm_100a.

And what the assembler refuses, the simulator refuses as well. Both look at the same text.
"""

from __future__ import annotations

import functools

import pytest

from mlagen.compile.nvrtc import compile_cuda
from mlagen.errors import CompileError, UnsupportedPtxError
from mlagen.sim.lower import lower
from mlagen.sim.parser import parse
from mlagen.sim.tcgen05_layout import register_count

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")

# Names of PTX registers that every kernel below declares.
DECLARATIONS = """
  .reg .pred p; .reg .b16 h<2>; .reg .f32 f; .reg .b32 ta, tb, id, n, bar, dst, m<8>, r<256>; .reg .b64 da, db, gp;
  mov.b32 ta, 0; mov.b32 tb, 0; mov.b32 id, 0; mov.b32 n, 32; mov.b32 bar, 0; mov.b32 dst, 0; mov.b64 da, 0;
  mov.b64 db, 0; mov.b64 gp, 0; mov.b16 h1, 1; setp.ne.u32 p, n, 0;
"""


def names(prefix: str, count: int) -> str:
    return ", ".join(f"{prefix}{number}" for number in range(count))


def moves() -> dict[str, str]:
    """Loads and stores of every shape and count, with and without packing."""
    forms = {}
    for shape in SHAPES:
        split = ", 16" if shape == "16x32bx2" else ""
        for count in COUNTS:
            registers = register_count(shape, count)
            if registers is None:
                continue
            vector = f"{{{names('r', registers)}}}"
            for packing in ("", "pack::16b."):
                opcode = f"tcgen05.ld.sync.aligned.{shape}.x{count}.{packing}b32"
                forms[f"ld {shape} x{count} {packing}"] = f"{opcode} {vector}, [ta]{split};"
                opcode = f"tcgen05.st.sync.aligned.{shape}.x{count}.{'un' if packing else ''}{packing}b32"
                fill = " ".join(f"mov.b32 r{number}, 0;" for number in range(registers))
                forms[f"st {shape} x{count} {packing}"] = f"{fill} {opcode} [ta]{split}, {vector};"
    return forms


def products() -> dict[str, str]:
    """`tcgen05.mma` of every kind, group and operand."""
    forms = {}
    for kind in ("f16", "tf32", "f8f6f4", "i8"):
        for a in ("da", "[ta]"):
            for group in (1, 2):
                mma = f"tcgen05.mma.cta_group::{group}.kind::{kind}"
                words = f"{{{names('m', 4 * group)}}}"
                fill = " ".join(f"mov.b32 m{number}, 0;" for number in range(4 * group))
                forms[f"mma {kind} {a} {group}"] = f"{mma} [ta], {a}, db, id, p;"
                forms[f"mma {kind} {a} {group} lanes"] = (
                    f"{fill} {mma} [ta], {a}, db, id, {words}, p;"
                )
                if kind in {"f16", "tf32"}:
                    forms[f"mma {kind} {a} {group} scale"] = f"{mma} [ta], {a}, db, id, p, 15;"
                    forms[f"mma {kind} {a} {group} lanes scale"] = (
                        f"{fill} {mma} [ta], {a}, db, id, {words}, p, 4;"
                    )
            mma = f"tcgen05.mma.ws.cta_group::1.kind::{kind}"
            forms[f"mma.ws {kind} {a}"] = f"{mma} [ta], {a}, db, id, p;"
            forms[f"mma.ws {kind} {a} mask 0"] = f"{mma} [ta], {a}, db, id, p, 0;"
            for buffer in range(4):
                for use in ("fill", "use", "lastuse", "discard"):
                    opcode = f"{mma}.collector::b{buffer}::{use}"
                    forms[f"{opcode} {a}"] = f"{opcode} [ta], {a}, db, id, p;"
    mma = "tcgen05.mma.cta_group::1.kind::f16"
    for use in ("fill", "use", "lastuse", "discard"):
        forms[f"collector {use}"] = f"{mma}.collector::a::{use} [ta], da, db, id, p;"
    forms["literal 1"] = f"{mma} [ta], da, db, id, 1;"
    forms["literal 0"] = f"{mma} [ta], da, db, id, 0;"
    forms["immediate descriptor"] = f"{mma} [ta], da, db, 0x8200490, p;"
    forms["offsets"] = f"{mma} [ta+8], [tb+16], db, id, p;"
    return forms


def others() -> dict[str, str]:
    """Everything else."""
    forms = {}
    for group in (1, 2):
        g = f"cta_group::{group}"
        for exclusive in ("", "exclusive."):
            forms[f"alloc {g} {exclusive}"] = (
                f"tcgen05.alloc.{exclusive}{g}.sync.aligned.shared::cta.b32 [dst], n;"
            )
            forms[f"dealloc {g} {exclusive}"] = (
                f"tcgen05.dealloc.{exclusive}{g}.sync.aligned.b32 ta, n;"
            )
        for columns in (32, 64, 128, 256, 512):
            forms[f"alloc {g} {columns}"] = (
                f"tcgen05.alloc.{g}.sync.aligned.shared::cta.b32 [dst], {columns};"
            )
        forms[f"alloc {g} generic"] = f"tcgen05.alloc.{g}.sync.aligned.b32 [gp], n;"
        forms[f"relinquish {g}"] = f"tcgen05.relinquish_alloc_permit.{g}.sync.aligned;"
        one = f"tcgen05.commit.{g}.mbarrier::arrive::one"
        forms[f"commit {g}"] = f"{one}.shared::cluster.b64 [bar];"
        forms[f"commit {g} generic"] = f"{one}.b64 [gp];"
        forms[f"commit {g} multicast"] = f"{one}.shared::cluster.multicast::cluster.b64 [bar], h1;"
        for shape in (
            "128x256b",
            "4x256b",
            "128x128b",
            "64x128b.warpx2::02_13",
            "64x128b.warpx2::01_23",
            "32x128b.warpx4",
        ):
            forms[f"cp {g} {shape}"] = f"tcgen05.cp.{g}.{shape} [ta], da;"
        forms[f"shift {g}"] = f"tcgen05.shift.{g}.down [ta];"
        forms[f"shift {g} other order"] = f"tcgen05.shift.down.{g} [ta];"
    for name in ("wait::ld.sync.aligned", "wait::st.sync.aligned"):
        forms[name] = f"tcgen05.{name};"
    for name in ("fence::before_thread_sync", "fence::after_thread_sync"):
        forms[name] = f"tcgen05.{name};"
    return forms


FORMS = {**moves(), **products(), **others()}

# What NVRTC refuses, with words of its message.
REFUSED = {
    "alloc of 48": ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [dst], 48;", "48"),
    "alloc of 16": ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [dst], 16;", "16"),
    "alloc of 1024": (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [dst], 1024;",
        "1024",
    ),
    "256 registers": (
        f"tcgen05.ld.sync.aligned.16x256b.x64.b32 {{{names('r', 256)}}}, [ta];",
        "Illegal vector size",
    ),
    "too few registers": (
        "tcgen05.ld.sync.aligned.32x32b.x4.b32 {r0, r1}, [ta];",
        "vector size mismatch",
    ),
    "ld.red": (
        "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {r0, r1}, f, [ta];",
        "not supported on .target 'sm_100a'",
    ),
    "8 words with group 1": (
        f"tcgen05.mma.cta_group::1.kind::f16 [ta], da, db, id, {{{names('m', 8)}}}, p;",
        "vector size mismatch",
    ),
    "4 words with group 2": (
        f"tcgen05.mma.cta_group::2.kind::f16 [ta], da, db, id, {{{names('m', 4)}}}, p;",
        "vector size mismatch",
    ),
    "scale 16": ("tcgen05.mma.cta_group::1.kind::f16 [ta], da, db, id, p, 16;", "out of range"),
    "scale of f8f6f4": (
        "tcgen05.mma.cta_group::1.kind::f8f6f4 [ta], da, db, id, p, 4;",
        "scale-inp",
    ),
    ".ws of a pair": ("tcgen05.mma.ws.cta_group::2.kind::f16 [ta], da, db, id, p;", "cta_group::2"),
    "collector b without .ws": (
        "tcgen05.mma.cta_group::1.kind::f16.collector::b0::fill [ta], da, db, id, p;",
        "collector",
    ),
    "commit to shared::cta": (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cta.b64 [bar];",
        "State space",
    ),
    "cp without its multicast": ("tcgen05.cp.cta_group::1.64x128b [ta], da;", "64x128b"),
    "mixed groups": (
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
        " tcgen05.mma.cta_group::2.kind::f16 [ta], da, db, id, p;",
        "single CTA",
    ),
}

# What NVRTC assembles and the simulator does not execute: it says so instead of guessing.
NOT_SIMULATED = {
    "ashift": "tcgen05.mma.cta_group::1.kind::f16.ashift [ta], [tb], db, id, p;",
    "block scaling": (
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [ta], da, db, id, [tb], [tb], p;"
    ),
    "sparse": "tcgen05.mma.sp.cta_group::1.kind::f16 [ta], da, db, [tb], id, p;",
    "zero-column mask": "tcgen05.mma.ws.cta_group::1.kind::f16 [ta], da, db, id, p, gp;",
    "decompression": "tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [ta], da;",
}


def cuda_kernel(number: int, form: str) -> str:
    text = (DECLARATIONS + form).replace("\n", " ")
    return (
        f'extern "C" __global__ void k{number}() {{ asm volatile("{{{text}}}" ::: "memory"); }}\n'
    )


@functools.cache
def compiled(group: tuple[str, ...]) -> str:
    """PTX of a module with a kernel for every form."""
    source = "".join(cuda_kernel(number, form) for number, form in enumerate(group))
    return compile_cuda(source, name="forms", arch="sm_100a", options=("-std=c++17",)).ptx


def ptx_module(form: str) -> str:
    """A module as it would be without an assembler that refuses it."""
    return (
        ".version 9.4\n.target sm_100a\n.address_size 64\n.visible .entry k0()\n{\n"
        f"{DECLARATIONS}\n{form}\nret;\n}}\n"
    )


def test_every_accepted_form_is_assembled_and_decoded() -> None:
    module = parse(compiled(tuple(FORMS.values())))
    for number, (name, form) in enumerate(FORMS.items()):
        program = lower(module, f"k{number}")
        opcodes = [one.opcode for one in program.function.instructions]
        opcode = form.split(";")[-2].split()[0]
        assert opcode in opcodes, name


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_assembler_refuses_the_simulator_refuses(name: str) -> None:
    form, words = REFUSED[name]
    with pytest.raises(CompileError, match=words):
        compiled((form,))
    with pytest.raises(UnsupportedPtxError, match="tcgen05"):
        lower(parse(ptx_module(form)), "k0")


@pytest.mark.parametrize("name", NOT_SIMULATED)
def test_what_is_not_simulated_is_refused_by_name(name: str) -> None:
    form = NOT_SIMULATED[name]
    module = parse(compiled((form,)))
    with pytest.raises(UnsupportedPtxError, match=r"tcgen05\.(mma|cp)"):
        lower(module, "k0")
