from __future__ import annotations

import pytest

from mlagen.compile.nvrtc import compile_cuda
from mlagen.compile.resources import Resources, check_resources, parse_resources
from tests.compile.sources import local_array_kernel, store_kernel, wgmma_kernel

# As ptxas 13.5 writes it; older ones start the frame's line with blanks only.
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kernel' for 'sm_90a'
ptxas info    : Function properties for kernel
ptxas         .     {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1024 bytes smem, 400 bytes cmem[0]
"""
CLEAN = REPORT.format(stack=0, stores=0, loads=0)
SERIALISING = ["C7510", "C7511", "C7512", "C7513", "C7514", "C7515", "C7517", "C7518"]


def test_report_is_read() -> None:
    log = REPORT.format(stack=32, stores=60, loads=64)
    expected = Resources(
        registers=168,
        spill_store_bytes=60,
        spill_load_bytes=64,
        stack_bytes=32,
        shared_bytes=1024,
        barriers=16,
    )
    assert parse_resources(log) == expected
    assert parse_resources(log.replace("ptxas         .     ", "    ")) == expected


def test_functions_that_were_not_inlined_count() -> None:
    log = REPORT.format(stack=8, stores=4, loads=4) + REPORT.format(stack=16, stores=1, loads=2)
    resources = parse_resources(log)
    assert (resources.stack_bytes, resources.spill_store_bytes) == (16, 5)
    assert resources.spill_load_bytes == 6


@pytest.mark.parametrize("log", ["", "a.cu(1): warning #177-D: unused", CLEAN.splitlines()[0]])
def test_log_without_report_is_refused(log: str) -> None:
    with pytest.raises(ValueError, match="ptxas-options=-v"):
        parse_resources(log)


def test_clean_report_has_no_findings() -> None:
    assert check_resources(CLEAN, parse_resources(CLEAN)) == []


def test_spills_are_found_with_evidence() -> None:
    log = REPORT.format(stack=32, stores=60, loads=64)
    spills, stack = check_resources(log, parse_resources(log))
    assert spills.rule == "spills"
    assert "60 bytes stored, 64 loaded" in spills.message
    assert "60 bytes spill stores" in spills.evidence[0]
    assert stack.rule == "stack frame"


@pytest.mark.parametrize("code", SERIALISING)
def test_serialised_wgmma_is_found(code: str) -> None:
    line = f"ptxas info    : ({code}) Potential Performance Loss: reason in function 'kernel'"
    (finding,) = check_resources(f"{line}\n{CLEAN}", parse_resources(CLEAN))
    assert finding.message.startswith("serialised wgmma")
    assert finding.evidence == (line,)


def test_ignored_setmaxnreg_is_found() -> None:
    line = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"
    (finding,) = check_resources(f"{line}\n{CLEAN}", parse_resources(CLEAN))
    assert "setmaxnreg" in finding.message


def test_reason_with_an_unknown_number_is_found() -> None:
    line = "ptxas info : (C7599) wgmma.mma_async instructions are serialized due to something new"
    (finding,) = check_resources(f"{line}\n{CLEAN}", parse_resources(CLEAN))
    assert finding.message == "serialised wgmma C7599"


def test_harmless_advice_is_not_found() -> None:
    log = f"ptxas info    : (C7099) something else\na.cu(3): warning #177-D: unused\n{CLEAN}"
    assert check_resources(log, parse_resources(log)) == []


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        pytest.param(store_kernel("kernel"), set(), id="clean"),
        pytest.param(wgmma_kernel("kernel"), set(), id="clean wgmma"),
        pytest.param(local_array_kernel("kernel"), {"stack frame"}, id="local array"),
        pytest.param(
            wgmma_kernel("kernel", between="score[0] *= 2;"), {"ptxas"}, id="serialised wgmma"
        ),
    ],
)
def test_real_kernels(source: str, rules: set[str]) -> None:
    log = compile_cuda(source, name="kernel", arch="sm_90a").log
    findings = check_resources(log, parse_resources(log))
    assert {finding.rule for finding in findings} == rules
