from __future__ import annotations

from pathlib import Path

import pytest

from mlagen.compile import sass as sass_module
from mlagen.compile.nvrtc import compile_cuda
from mlagen.compile.sass import disassemble, find_nvdisasm, lint_sass, parse_sass
from mlagen.errors import CompileError, MissingDependencyError
from mlagen.sass_facts import SassFacts, SassLoop
from tests.compile.sources import HGMMA_PER_STEP, local_array_kernel, wgmma_kernel


def listing(*lines: str) -> str:
    """Return lines as nvdisasm prints them; those that end in a colon are labels."""
    offset, printed = 0, [".text.kernel:"]
    for line in lines:
        if line.endswith(":"):
            printed.append(line)
        else:
            guard, _, rest = line.rpartition("| ")
            printed.append(f"        /*{offset:04x}*/       {guard:>10}  {rest} ;")
            offset += 16
    return "\n".join(printed)


ARRIVE = "WARPGROUP.ARRIVE"
MULTIPLY = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24"
COMMIT = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24, gsb0"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
NOTHING = SassFacts()
LOOP = (".L_x_1:", ARRIVE, MULTIPLY, COMMIT, WAIT, "MUFU.EX2 R3, R28", "@P0| BRA `(.L_x_1)")


def multiplies(count: int) -> SassFacts:
    return SassFacts((SassLoop("math", (("HGMMA", count),)),))


def rules(*lines: str, expected: SassFacts = NOTHING) -> list[str]:
    findings = lint_sass(parse_sass(listing(*lines)), expected)
    return [finding.rule for finding in findings]


def test_listing_is_parsed() -> None:
    sass = parse_sass(listing("MOV R7, 0x1", *LOOP, "EXIT"))
    assert [i.opcode for i in sass.instructions][:3] == ["MOV", "WARPGROUP", "HGMMA"]
    assert sass.labels == {".L_x_1": 1}
    assert str(sass.instructions[6]) == "/*0060*/ @P0 BRA `(.L_x_1)"
    assert sass.highest_register == 28


def test_loops_are_backward_branches() -> None:
    sass = parse_sass(listing("@!P1| BRA `(.L_x_2)", *LOOP, ".L_x_2:", "EXIT"))
    (loop,) = sass.loops()
    assert loop.count("HGMMA") == 2
    assert loop.describe("HGMMA") == "loop 0010 to 0060: 2 HGMMA, 1 MUFU.EX2"


def test_clean_loop_has_no_findings() -> None:
    assert rules(*LOOP, expected=multiplies(2)) == []


def test_other_count_is_found_with_the_loops_seen() -> None:
    (finding,) = lint_sass(parse_sass(listing(*LOOP)), multiplies(3))
    assert finding.rule == "loop count"
    assert "that of math: 3 HGMMA (2 HGMMA in the kernel)" in finding.message
    assert finding.evidence == ("loop 0000 to 0050: 2 HGMMA, 1 MUFU.EX2",)


def test_any_loop_may_be_the_main_loop() -> None:
    inner = [line.replace("L_x_1", "L_x_3") for line in LOOP]
    assert rules(".L_x_0:", ARRIVE, COMMIT, *inner, "BRA `(.L_x_0)", expected=multiplies(2)) == []


SOFTMAX = SassFacts((SassLoop("softmax", (("LDTM.x32", 2), ("STTM.x16", 1))),))


@pytest.mark.parametrize(
    ("stores", "found"),
    [
        pytest.param(("STTM.x16 tmem[UR4], R4",), [], id="as expected"),
        pytest.param((), ["loop count"], id="one is missing"),
        pytest.param(("STTM.x8 tmem[UR4], R4",), ["loop count"], id="of another width"),
        pytest.param(("STTM.x16 tmem[UR4], R4",) * 2, ["loop count"], id="one is twice"),
    ],
)
def test_all_counts_are_of_one_loop(stores: tuple[str, ...], found: list[str]) -> None:
    loads = ("LDTM.x32 R4, tmem[UR4]",) * 2
    lines = (".L_x_1:", *loads, *stores, "@P0| BRA `(.L_x_1)", "STTM.x16 tmem[UR4], R4")
    assert rules(*lines, expected=SOFTMAX) == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        pytest.param(("USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xb8",), [], id="as planned"),
        pytest.param((), ["registers"], id="missing"),
        pytest.param(("USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xc0",), ["registers"], id="others"),
        pytest.param(
            ("USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xb8", "MOV R184, R0"), ["registers"], id="exceeded"
        ),
    ],
)
def test_registers_are_those_of_the_plan(lines: tuple[str, ...], found: list[str]) -> None:
    changes = ("USETMAXREG.DEALLOC.CTAPOOL 0x38", *lines)
    assert rules(*changes, expected=SassFacts(registers=(184, 56))) == found


def test_kernel_without_wgmma_needs_no_loop() -> None:
    assert rules("MOV R0, 0x1", "EXIT") == []


@pytest.mark.parametrize("line", ["LDL R4, [R1+0x10]", "@P0| STL.64 [R1], R4"])
def test_local_memory_is_found(line: str) -> None:
    assert rules(line) == ["local memory"]


def test_long_evidence_is_cut() -> None:
    (finding,) = lint_sass(parse_sass(listing(*["LDL R4, [R1]"] * 9)), NOTHING)
    assert "9 LDL and STL" in finding.message
    assert finding.evidence[-1] == "and 3 more"


def test_address_move_inside_a_group_is_found() -> None:
    assert rules(ARRIVE, MULTIPLY, "R2UR UR12, R16", COMMIT) == ["R2UR"]


def test_address_moves_around_groups_are_fine() -> None:
    assert rules("R2UR UR8, R1", ARRIVE, "R2UR UR9, R2", MULTIPLY, COMMIT, "R2UR UR9, R2") == []


@pytest.mark.parametrize("product", ["HGMMA", "QGMMA"])
def test_group_in_pieces_is_found(product: str) -> None:
    lines = [line.replace("HGMMA", product) for line in (ARRIVE, MULTIPLY, ARRIVE, COMMIT)]
    assert rules(*lines) == ["serialised wgmma"]


def test_second_group_may_share_the_first_ones_arrival() -> None:
    assert rules(ARRIVE, MULTIPLY, COMMIT, MULTIPLY, COMMIT, WAIT) == []


def test_arrival_on_another_path_is_not_counted() -> None:
    lines = (ARRIVE, "@P0| BRA `(.L_x_2)", ".L_x_1:", ARRIVE, MULTIPLY, COMMIT, ".L_x_2:", "EXIT")
    assert rules(*lines) == []


@pytest.mark.parametrize(
    ("source", "expected", "found"),
    [
        pytest.param(wgmma_kernel("kernel"), multiplies(HGMMA_PER_STEP), [], id="clean"),
        pytest.param(wgmma_kernel("kernel"), multiplies(5), ["loop count"], id="unexpected count"),
        pytest.param(local_array_kernel("kernel"), NOTHING, ["local memory"], id="local array"),
    ],
)
def test_real_kernels(source: str, expected: SassFacts, found: list[str]) -> None:
    sass = disassemble(compile_cuda(source, name="kernel", arch="sm_90a").cubin)
    findings = lint_sass(sass, expected)
    assert [finding.rule for finding in findings] == found


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(CompileError, match="nvdisasm: cannot read the cubin"):
        disassemble(b"nonsense")


def test_missing_nvdisasm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass_module, "find_nvdisasm", lambda: None)
    with pytest.raises(MissingDependencyError, match="pip install nvidia-cuda-nvdisasm"):
        disassemble(b"")


def test_nvdisasm_is_here() -> None:
    tool = find_nvdisasm()
    assert isinstance(tool, Path), "CI never skips the lint: the dev extra installs nvdisasm"
