"""What ptxas reports about a kernel: its resources, and advice that must not appear."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlagen.compile.finding import Finding

# Losses that ptxas reports as mere information. Each costs a kernel most of its speed, or a
# warpgroup its registers.
_ADVICE = {
    "C7508": "setmaxnreg is ignored",
    "C7510": "serialised wgmma: a group crosses a function boundary",
    "C7511": "serialised wgmma: not enough registers",
    "C7512": "serialised wgmma: a branch that may diverge while a group is open",
    "C7513": "serialised wgmma: input registers are written while a group is open",
    "C7514": "serialised wgmma: accumulators are read while a group is open",
    "C7515": "serialised wgmma: accumulators are written while a group is open",
    "C7517": "serialised wgmma: ptxas had to add a wait",
    "C7518": "serialised wgmma: a group is open on a divergent path",
}
_CODE = re.compile(r"\((C7\d{3})\)")
_ANY_SERIALISED = re.compile(r"wgmma.*serialized", re.IGNORECASE)
_FRAME = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a multiprocessor.

    Attributes:
        registers: Registers a thread has at launch; `setmaxnreg` moves them between warpgroups
            afterwards.
        spill_store_bytes: Bytes a thread spills.
        spill_load_bytes: Bytes a thread loads back.
        stack_bytes: Stack frame of a thread.
        shared_bytes: Static shared memory of a block; dynamic shared memory is the plan's.
        barriers: Named barriers.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    barriers: int


# What PTX takes that nobody has assembled: unknown, and no zero of it is a measurement.
NOT_ASSEMBLED = Resources(0, 0, 0, 0, shared_bytes=0, barriers=0)


def parse_resources(log: str) -> Resources:
    """Return what the log of one compiled kernel says; functions that were not inlined count, too.

    Raises:
        ValueError: The log has no report: it was compiled without `--ptxas-options=-v`.
    """
    registers = [int(n) for n in _REGISTERS.findall(log)]
    frames = list(_FRAME.finditer(log))
    if not registers or not frames:
        raise ValueError("the log has no report of ptxas: compile with --ptxas-options=-v")
    return Resources(
        registers=max(registers),
        spill_store_bytes=sum(int(frame["stores"]) for frame in frames),
        spill_load_bytes=sum(int(frame["loads"]) for frame in frames),
        stack_bytes=max(int(frame["stack"]) for frame in frames),
        shared_bytes=max((int(n) for n in _SHARED.findall(log)), default=0),
        barriers=max((int(n) for n in _BARRIERS.findall(log)), default=0),
    )


def check_resources(log: str, resources: Resources) -> list[Finding]:
    """Return what slows this kernel behind its source's back: spills, a stack, serialised wgmma."""
    findings = _check_advice(log)
    evidence = tuple(line.strip() for line in log.splitlines() if _FRAME.search(line))
    if resources.spill_store_bytes or resources.spill_load_bytes:
        spilled = f"{resources.spill_store_bytes} bytes stored, {resources.spill_load_bytes} loaded"
        findings.append(Finding("spills", f"{spilled} a thread, expected none", evidence))
    if resources.stack_bytes:
        message = f"{resources.stack_bytes} bytes a thread, expected none"
        findings.append(Finding("stack frame", message, evidence))
    return findings


def _check_advice(log: str) -> list[Finding]:
    lines: dict[str, list[str]] = {}
    for line in log.splitlines():
        found = _CODE.search(line)
        code = found[1] if found else ""
        # The text counts as well as the code: a later ptxas may number a new reason.
        if code in _ADVICE or _ANY_SERIALISED.search(line):
            lines.setdefault(code, []).append(line.strip())
    return [
        Finding("ptxas", _ADVICE.get(code, f"serialised wgmma {code}".rstrip()), tuple(evidence))
        for code, evidence in lines.items()
    ]
