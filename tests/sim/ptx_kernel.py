"""Kernels written as PTX, for units whose tests need forms that a compiler would not choose."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from mlagen.launch_record import LaunchRecord, TensorMapSpec
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import Lazy
from mlagen.sim.simulate import Checks, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.sim.schedule import Schedule
    from mlagen.sim.simulate import SimulationResult

    Argument = np.ndarray[Any, Any] | TensorMapSpec

# Dynamic shared memory begins here: behind the system's first KiB, aligned to 1024.
BASE = 1024

_TEXT = """.version 8.7
.target {arch}
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry test({parameters}) .maxntid {threads}, 1, 1 {cluster}
{{
.reg .pred %p<16>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .b32 %d<160>; .reg .b32 %a<8>; .reg .b64 %x<32>;
{addresses}
mov.u32 %r0, %tid.x;
{body}
ret;
}}
"""


def launch(
    body: str,
    arguments: Mapping[str, Argument],
    *,
    threads: int = 32,
    shared: int = 32768,
    arch: str = "sm_90a",
    cluster: int = 1,
    memory: GlobalMemory | None = None,
    schedule: Schedule = Lazy(),  # noqa: B008 (a frozen value)
    level: str = "strict",
    **options: Any,  # of `simulate`
) -> SimulationResult:
    """Run PTX instructions in one cluster.

    Args:
        body: Instructions. `%r0` is the thread; `%x_NAME` the generic address of each argument, `memory` shared memory.
        arguments: Arrays, which are written in place, and tensor maps.
        threads: Of a CTA.
        shared: Bytes of dynamic shared memory.
        arch: Target.
        cluster: CTAs.
        memory: Where arrays have been mapped already, for tensor maps.
        schedule: Who goes when.
        level: Of the checks.
        options: Of `simulate`.
    """
    memory = memory or GlobalMemory()
    declared, addresses = [], []
    values: list[TensorMapSpec | bytes] = []
    for name, value in arguments.items():
        addresses.append(f".reg .b64 %x_{name};")
        if isinstance(value, TensorMapSpec):
            declared.append(f".param .align 128 .b8 {name}[128]")
            addresses.append(f"mov.b64 %x_{name}, {name}; cvta.param.u64 %x_{name}, %x_{name};")
            values.append(value)
        else:
            declared.append(f".param .u64 {name}")
            addresses.append(f"ld.param.u64 %x_{name}, [{name}];")
            values.append(np.uint64(memory.add(value, name)).tobytes())
    text = _TEXT.format(
        arch=arch,
        parameters=", ".join(declared),
        threads=threads,
        cluster=f".reqnctapercluster {cluster}, 1, 1" if cluster > 1 else "",
        addresses="\n".join(addresses),
        body=body,
    )
    record = LaunchRecord(
        kernel="test",
        grid=(cluster, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_memory_bytes=shared,
        parameters=tuple(values),
    )
    checks = Checks.strict() if level == "strict" else Checks.practice()
    return simulate(text, record, memory, schedule=schedule, checks=checks, **options)


def kinds(result: SimulationResult) -> list[str]:
    """Kinds of a run's findings."""
    return [finding.kind for finding in result.findings]


def only(thread: int, code: str) -> str:
    """Instructions for one thread."""
    label = f"skip_{zlib.crc32(code.encode())}_{thread}"
    return f"setp.ne.u32 %p15, %r0, {thread};\n@%p15 bra {label};\n{code}\n{label}:\n"


def prepare_barrier(address: int, count: int = 1) -> str:
    """Initialise an mbarrier and let everybody know, the async proxy too."""
    code = (
        f"mbarrier.init.shared::cta.b64 [{address}], {count};\nfence.mbarrier_init.release.cluster;"
    )
    return only(0, code) + "bar.sync 0;\n"


def wait_barrier(address: int, parity: int = 0) -> str:
    """Wait for a phase."""
    label = f"wait_{address}_{parity}"
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p14, [{address}], {parity};\n"
        f"@!%p14 bra {label};\n"
    )
