"""The parser: what compilers write, whole files and single constructs."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlagen.compile.nvrtc import LINE_OPTIONS, compile_cuda
from mlagen.errors import PtxError
from mlagen.sim.parser import parse
from mlagen.sim.ptx import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_GENERATED = Path(__file__).parents[2] / "generated" / "deepseek-v3" / "sm_90a"
_HEAD = ".version 8.6\n.target sm_90a, debug\n.address_size 64\n"


def _function(body: str, *, before: str = "", limits: str = "", parameters: str = "") -> Function:
    text = f"{_HEAD}{before}\n.visible .entry kernel({parameters})\n{limits}\n{{\n{body}\n}}\n"
    return parse(text).functions["kernel"]


_REGISTERS = (
    ".reg .pred %p<4>; .reg .b16 %rs<4>;\n.reg .f32 %f<200>; .reg .b32 %r<9>; .reg .b64 %rd<9>;\n"
)


def _one(statement: str) -> Instruction:
    (instruction,) = _function(_REGISTERS + statement).instructions
    return instruction


def _shape(operand: object) -> object:
    """An operand in short: names of registers, values of numbers."""
    match operand:
        case Register() | Special() | Symbol() | Label():
            return operand.name
        case Immediate():
            return operand.value
        case Sink():
            return "_"
        case Vector():
            return [_shape(element) for element in operand.elements]
        case Address():
            place = (_shape(operand.base), operand.offset)
            coordinates = tuple(_shape(one) for one in operand.coordinates)
            return (*place, coordinates) if coordinates else place
        case Pair():
            return (_shape(operand.first), "|", _shape(operand.second))
        case Negated():
            return f"!{operand.operand.name}"
    raise AssertionError(operand)


def _shapes(statement: str) -> list[object]:
    return [_shape(operand) for operand in _one(statement).operands]


@pytest.mark.parametrize(
    ("pattern", "arch"),
    [("*bf16_causal_ragged_fused_lse_*", "compute_90a"), ("*splitq_paged16_lse_*", "compute_90a")],
)
def test_every_statement_of_a_shipped_kernel_is_read(pattern: str, arch: str) -> None:
    (path,) = _GENERATED.glob(pattern + ".cu")
    text = compile_cuda(path.read_text(), name=path.stem, arch=arch, options=LINE_OPTIONS).ptx
    module = parse(text)
    (function,) = module.functions.values()
    body = re.sub(r"//[^\n]*", "", text[text.index("{") :])
    body = re.sub(r"\.section.*", "", body, flags=re.DOTALL)
    # What ends with a semicolon is a declaration or an instruction.
    declared = len(re.findall(r"\.reg\b[^;]*;", body)) + len(re.findall(r"\.pragma\b[^;]*;", body))
    assert len(function.instructions) == body.count(";") - declared
    assert function.name == path.stem
    assert (module.target, function.min_ctas) == ("sm_90a", 1)
    assert [one.index for one in function.instructions] == list(range(len(function.instructions)))
    lines = text.splitlines()
    for instruction in function.instructions:
        assert instruction.opcode in lines[instruction.line - 1]
        assert instruction.source_line is not None
    mma = [one for one in function.instructions if one.opcode.startswith("wgmma.mma_async")]
    assert all(isinstance(one.operands[0], Vector) for one in mma)
    assert {
        len(one.operands[0].elements) for one in mma if isinstance(one.operands[0], Vector)
    } == {32, 64}


@pytest.mark.parametrize(
    ("statement", "shapes"),
    [
        ("add.s32 %r1, %r2, -8;", ["%r1", "%r2", -8]),
        ("mov.u32 %r1, %tid.x;", ["%r1", "%tid.x"]),
        ("mov.u32 %r1, %laneid;", ["%r1", "%laneid"]),
        ("mov.u64 %rd1, shared_bytes;", ["%rd1", "shared_bytes"]),
        ("ld.global.v2.f32 {%f1, %f2}, [%rd1+-8];", [["%f1", "%f2"], ("%rd1", -8)]),
        ("ld.global.f32 %f1, [%rd1 + 16];", ["%f1", ("%rd1", 16)]),
        ("ld.global.f32 %f1, [%rd1-4];", ["%f1", ("%rd1", -4)]),
        ("ld.shared.u32 %r1, [table+0x10];", ["%r1", ("table", 16)]),
        ("ld.param.u32 %r1, [kernel_param_0];", ["%r1", ("kernel_param_0", 0)]),
        ("st.shared.b32 [1024], %r1;", [(1024, 0), "%r1"]),
        ("shfl.sync.idx.b32 %r2|%p1, %r3, %r4, 31, -1;", [("%r2", "|", "%p1"), "%r3", "%r4", 31, -1]),
        ("elect.sync _|%p1, 0xffffffff;", [("_", "|", "%p1"), 0xFFFF_FFFF]),
        ("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;", [("%p1", "|", "%p2"), "%r1", "%r2", "!%p3"]),
        ("mov.b64 {%r1, _}, %rd1;", [["%r1", "_"], "%rd1"]),
        (
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%r1], [%rd1, {%r2, %r3, %r4}], [%r5];",
            [("%r1", 0), ("%rd1", 0, ("%r2", "%r3", "%r4")), ("%r5", 0)],
        ),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r2], %rd1, %r3, %p1;",
         [("%r1", 0), ("%r2", 0), "%rd1", "%r3", "%p1"]),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1], 3;", ["_", ("%r1", 0), 3]),
        ("call.uni (retval0), helper, (param0, param1);", [["retval0"], "helper", ["param0", "param1"]]),
        ("mov.u32 %r1, WARP_SZ;", ["%r1", 32]),
        ("wgmma.fence.sync.aligned;", []),
        ("mov.b32\t%r1 ,\n\t%r2\n;", ["%r1", "%r2"]),
    ],
)  # fmt: skip
def test_operands(statement: str, shapes: list[object]) -> None:
    assert _shapes(statement) == shapes


def test_vectors_of_128_elements() -> None:
    names = [f"%f{index}" for index in range(128)]
    opcode = "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
    statement = f"{opcode} {{{', '.join(names)}}}, %rd1, %rd2, %p1, 1, 1, 0, 0;"
    assert _shapes(statement) == [names, "%rd1", "%rd2", "%p1", 1, 1, 0, 0]


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.sampled_from(["", "U"]))
def test_integers_in_every_base(value: int, suffix: str) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    for digits in (f"{size}{suffix}", f"{size:#x}{suffix}", f"0{size:o}{suffix}"):
        assert _shapes(f"mov.u64 %rd1, {sign}{digits};")[1] == value


@given(st.floats(width=32, allow_nan=False))
def test_floats_as_their_bits_and_in_decimals(value: float) -> None:
    single = struct.unpack("<I", struct.pack("<f", value))[0]
    double = struct.unpack("<Q", struct.pack("<d", value))[0]
    assert _one(f"mov.f32 %f1, 0f{single:08X};").operands[1] == Immediate(single, is_float=True)
    written = f"0d{double:016X}"
    expected = Immediate(double, is_float=True, is_double=True)
    assert _one(f"mov.f64 %rd1, {written};").operands[1] == expected
    if abs(value) < 1e15:
        decimal = struct.unpack("<Q", struct.pack("<d", float(f"{value:.6f}")))[0]
        assert _one(f"mov.f64 %rd1, {value:.6f};").operands[1] == Immediate(
            decimal, is_float=True, is_double=True
        )


def test_negative_float_literals_have_their_sign() -> None:
    assert _one("mov.f32 %f1, -0f3F800000;").operands[1] == Immediate(0xBF80_0000, is_float=True)


def test_labels_and_registers_are_scoped_by_braces() -> None:
    function = _function(
        _REGISTERS
        + """
        {.reg .pred p;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2;
        @p bra DONE;
        bra WAIT;
        DONE: }
        { .reg .pred p; { .reg .b32 p; WAIT: mov.b32 p, 1; bra WAIT; } @!p bra DONE; DONE: }
        ret;
        """
    )
    targets = {
        one.index: one.operands[0].index
        for one in function.instructions
        if one.opcode == "bra" and isinstance(one.operands[0], Label)
    }
    assert targets == {1: 3, 2: 0, 4: 3, 5: 6}
    first, second = function.instructions[1].guard, function.instructions[5].guard
    assert first is not None
    assert second is not None
    assert first[0] != second[0]
    assert (first[0].kind, first[1], second[1]) == ("pred", False, True)
    inner = function.instructions[3].operands[0]
    assert isinstance(inner, Register)
    assert inner.kind == "b32"


def test_a_branch_reaches_labels_outside_its_braces() -> None:
    function = _function(_REGISTERS + "{ { @%p1 bra $END; } }\nmov.b32 %r1, 0;\n$END:\nret;")
    assert function.instructions[0].operands == (Label("$END", 2),)


def test_lines_come_from_the_last_loc() -> None:
    function = _function(
        _REGISTERS
        + """.file 1 "a//b.cu"
        mov.b32 %r1, 0;
        .loc 1 12 3
        // a comment; with { everything: in it
        $L_tmp: mov.b32 %r1, 1; /* and
        another */ mov.b32 %r1, 2;
        .loc\t1 77 5, function_name $L__info_string0, inlined_at 1 12 3
        $L_label:
        mov.b32 %r1, 3;
        .loc 1 0 5
        mov.b32 %r1, 4;
        """
    )
    assert [one.source_line for one in function.instructions] == [None, 12, 12, 77, 77]
    start = function.instructions[0].line
    assert [one.line - start for one in function.instructions] == [0, 3, 4, 7, 9]


def test_brx_takes_its_targets_from_a_list() -> None:
    function = _function(
        _REGISTERS
        + "LIST: .branchtargets A, B, A;\nbrx.idx %r1, LIST;\nA: mov.b32 %r1, 0;\nB: ret;"
    )
    assert function.instructions[0].operands[1] == Vector(
        (Label("A", 1), Label("B", 2), Label("A", 1))
    )


def test_parameters_lie_at_their_alignment() -> None:
    function = _function(
        "ret;",
        parameters="""
        .param .u32 first,
        .param .align 64 .b8 second[128],
        .param .u64 .ptr .global .align 16 third,
        .param .u8 fourth, .param .align 8 .b8 fifth[3]""",
    )
    assert [(one.name, one.offset, one.size) for one in function.parameters] == [
        ("first", 0, 4),
        ("second", 64, 128),
        ("third", 192, 8),
        ("fourth", 200, 1),
        ("fifth", 208, 3),
    ]


def test_variables_of_all_spaces() -> None:
    module = parse(
        _HEAD
        + """
        .global .align 4 .u32 one = 128;
        .visible .global .align 4 .f32 half = 0f3F000000;
        .const .align 8 .f64 precise[2] = {0d3FF0000000000000, -1};
        .global .align 1 .b8 text[6] = {104, 105, 0x21};
        .global .align 4 .b8 zeros[12];
        .const .u16 inferred[] = {1, 2, 3};
        .global .align 16 .v4 .f32 vector;
        .shared .align 16 .b8 table[4][25];
        .extern .shared .align 1024 .b8 dynamic[];
        .visible .entry kernel() { .local .align 16 .b8 __local_depot0[40]; .shared .b32 own; .reg .b64 %SP; ret; }
        """
    )
    data = {name: one.data for name, one in module.variables.items() if one.data}
    assert data == {
        "one": struct.pack("<I", 128),
        "half": struct.pack("<f", 0.5),
        "precise": struct.pack("<dq", 1.0, -1),
        "text": b"hi!\0\0\0",
        "inferred": struct.pack("<3H", 1, 2, 3),
    }
    places = {name: (one.space, one.offset, one.size) for name, one in module.variables.items()}
    assert places["half"] == ("global", 4, 4)
    assert places["zeros"] == ("global", 16, 12)
    assert places["inferred"] == ("const", 16, 6)
    assert places["vector"] == ("global", 32, 16)
    assert places["table"] == ("shared", 0, 100)
    assert places["dynamic"] == ("shared", 1024, 0)
    own = module.functions["kernel"].variables
    assert [(one.name, one.space, one.size, one.align) for one in own] == [
        ("__local_depot0", "local", 40, 16),
        ("own", "shared", 4, 4),
    ]


def test_limits_of_a_kernel() -> None:
    function = _function(
        "ret;",
        limits=".maxntid 384, 1, 1\n.minnctapersm 2 .explicitcluster .reqnctapercluster 2, 1, 1\n.maxnreg 168",
    )
    assert (function.max_threads, function.min_ctas, function.cluster, function.max_registers) == (
        384,
        2,
        (2, 1, 1),
        168,
    )
    assert _function("ret;", limits=".reqntid 128").max_threads == 128
    plain = _function("ret;")
    assert (plain.max_threads, plain.min_ctas, plain.cluster, plain.max_registers) == (None,) * 4


def test_functions_and_declarations() -> None:
    module = parse(
        _HEAD
        + """
        .extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b) ;
        .func (.param .b32 func_retval0) helper(.param .b32 helper_param_0, .param .b64 helper_param_1)
        .noinline
        { .reg .b32 %r<3>; ld.param.u32 %r1, [helper_param_0]; st.param.b32 [func_retval0+0], %r1; ret; }
        .visible .entry kernel() { ret; }
        """
    )
    assert list(module.functions) == ["helper", "kernel"]
    helper = module.functions["helper"]
    assert not helper.is_entry
    assert [one.name for one in helper.parameters] == ["helper_param_0", "helper_param_1"]
    assert [one.name for one in helper.results] == ["func_retval0"]


def test_sections_and_files_are_skipped() -> None:
    module = parse(
        _HEAD
        + '.file 1 "x.cu"\n.visible .entry kernel() { ret; }\n'
        + ".section .debug_abbrev\n{\n.b8 1 // first\n.b8 17\n$L__x:\n.b32 .debug_str\n}\n"
        + ".section .debug_str { .b8 0 }\n"
    )
    assert list(module.functions) == ["kernel"]
    assert (module.version, module.target) == ((8, 6), "sm_90a")


def test_only_named_registers_get_rows() -> None:
    function = _function(
        ".reg .b32 %r<10000>; .reg .b128 %q<2>; mov.b32 %r9999, %r7; mov.b128 %q1, %q0;"
    )
    assert function.register_counts == {"pred": 0, "b16": 0, "b32": 2, "b64": 4}


def test_kinds_of_registers() -> None:
    function = _function(
        ".reg .f16 a; .reg .s8 b; .reg .f16x2 c; .reg .f64 d; .reg .u16 e, e2;\n.reg .bf16x2 f;"
        "mov.b32 a, b; mov.b32 c, d; mov.b32 e2, f;"
    )
    kinds = [
        one.kind
        for each in function.instructions
        for one in each.operands
        if isinstance(one, Register)
    ]
    assert kinds == ["b16", "b16", "b32", "b64", "b16", "b32"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.b32 %r1, %r99;", "register '%r99' is not declared"),
        ("bra NOWHERE;", "label 'NOWHERE' is not defined"),
        ("A: A: ret;", "label 'A' is defined twice"),
        ("@%r1 ret;", "guard '%r1' is not a predicate"),
        ("mov.b32 %r1, {%r2;", "at the end of a vector"),
        ("ld.global.b32 %r1, [%rd1+%r2];", "is not an integer"),
        ("mov.b32 %r1, 3 4;", "unexpected '4'"),
        ("mov.b32 %r1, #5;", "cannot read"),
        (".reg .b7 %x;", "registers of type"),
        (".frobnicate 1;", "directive .frobnicate"),
        ("mov.b32 %r1, %r2", "cannot read"),
        ("{ mov.b32 %r1, %r2;", "ends inside a function"),
    ],
)
def test_faults_are_told_with_their_line(body: str, message: str) -> None:
    with pytest.raises(PtxError) as caught:
        _function(_REGISTERS + body)
    first = str(caught.value).splitlines()[0]
    assert message in first
    number = re.match(r"PTX line (\d+): ", first)
    assert number is not None
    assert 8 <= int(number[1]) <= 12


def test_text_that_is_not_ptx() -> None:
    with pytest.raises(PtxError, match="PTX line 1"):
        parse("hello world")
    with pytest.raises(PtxError, match="PTX line 2: version '8' is not two numbers"):
        parse("\n.version 8\n.target sm_90a\n")
    with pytest.raises(PtxError, match="outside of a function"):
        parse(_HEAD + "add.s32 %r1, %r2, %r3;")
