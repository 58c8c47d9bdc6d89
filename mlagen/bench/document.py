"""What came of a run: one JSON document, and the page for people that is made of it."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlagen.bench.installed import OURS, PEER_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.bench.measure import Result

    Document = dict[str, Any]  # Any: JSON values

HOW_TO_READ = (
    "Times are medians of CUDA-event times. *cool*: groups of at most 30 ms of work after 0.15 s of idle; *hot*: after "
    "0.5 s of the same work, at the power limit. FLOPs are 2 (qk + v) heads × visible pairs of query and key. `× best "
    "peer`: speed relative to the fastest other implementation in the same run and regime, on the same values."
)


def make_document(machine: Document, command: str, results: Sequence[Result]) -> Document:
    """Everything that is known of a run.

    Args:
        machine: `machine.facts()`.
        command: What was typed.
        results: In the order in which they were measured.
    """
    return {
        "machine": machine,
        "command": command,
        "results": [asdict(result) for result in results],
    }


def short_name(gpu: str | None) -> str:
    """A GPU's name for a file: `NVIDIA B200` is `b200`."""
    words = re.findall(r"[a-z0-9]+", (gpu or "none").lower())
    return "-".join(word for word in words if word != "nvidia")


def heading(machine: Document) -> str:
    """The facts of a machine in one line, for the top of a table."""
    facts = [
        machine["date"],
        str(machine["gpu"]),
        f"driver {machine['driver']}",
        f"cubins by {machine['cubins']}",
        f"torch {machine['torch']}",
        *([f"CUDA {machine['torch_cuda']}"] if machine.get("torch_cuda") else []),
        f"cuDNN {machine['cudnn']}",
        f"Python {machine['python']}",
    ]
    facts += [f"{name} {version}" for name, version in machine.get("peers", {}).items()]
    if "power_limit_w" in machine:
        facts.append(f"power limit {machine['power_limit_w']:.0f} W")
    if "max_sm_clock_mhz" in machine:
        facts.append(f"highest SM clock {machine['max_sm_clock_mhz']:.0f} MHz")
    return ", ".join(facts)


def title(implementation: str) -> str:
    """What tables call an implementation."""
    return OURS if implementation == OURS else PEER_NAMES[implementation].title


def implementations(results: Sequence[Document]) -> list[str]:
    """Those of which something was timed, ours first."""
    timed = dict.fromkeys(one["implementation"] for one in results if one["tflops"] is not None)
    return [OURS, *(name for name in timed if name != OURS)]


def grouped(results: Sequence[Document]) -> dict[tuple[str, str], dict[str, Document]]:
    """Results by row and regime, then by implementation."""
    groups: dict[tuple[str, str], dict[str, Document]] = {}
    for one in results:
        groups.setdefault((one["row"], one["regime"]), {})[one["implementation"]] = one
    return groups


def table(results: Sequence[Document]) -> tuple[tuple[str, ...], list[tuple[str | None, ...]]]:
    """Columns and lines: a line a row and regime; a cell is None where nothing is known."""
    names = implementations(results)
    columns = (
        "row",
        "regime",
        "ms",
        *(f"{title(name)} TFLOP/s" for name in names),
        "× best peer",
        "SM MHz",
        "W",
        "relative L2 error",
    )
    lines = []
    for (row, regime), found in grouped(results).items():
        ours = found.get(OURS, {})
        timing = ours.get("timing") or {}
        lines.append(
            (
                row,
                regime,
                _number(timing.get("median_ms"), ".3f"),
                *(_speed(found.get(name)) for name in names),
                _number(ours.get("ratio"), ".2f"),
                _number(timing.get("sm_clock_mhz"), ".0f"),
                _number(timing.get("power_w"), ".0f"),
                _number(ours.get("rel_l2"), ".2e"),
            )
        )
    return columns, lines


def _speed(result: Document | None) -> str | None:
    if result is None or result["tflops"] is None:
        return None
    return f"{result['tflops']:.0f}" + (" (wrong)" if result["is_wrong"] else "")


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def refusals(results: Sequence[Document]) -> list[str]:
    """Why rows were not timed, each reason once, with the rows."""
    rows: dict[tuple[str, str], list[str]] = {}
    for one in results:
        if one["refused"]:
            key = (title(one["implementation"]), one["refused"])
            rows.setdefault(key, []).append(one["row"])
    return [
        f"{name}, {'; '.join(dict.fromkeys(refused))}: {reason}"
        for (name, reason), refused in rows.items()
    ]


def markdown_table(results: Sequence[Document]) -> str:
    """The table in Markdown; columns of which nothing is known are left out."""
    columns, lines = table(results)
    known = [index for index in range(len(columns)) if any(line[index] for line in lines)]
    marks = ["---" if index < 2 else "---:" for index in known]
    rows = [[columns[index] for index in known], marks]
    rows += [[line[index] or "" for index in known] for line in lines]
    first, second, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, second.replace(" ", ""), *rest])


def markdown(document: Document, *, picture: str) -> str:
    """The page of one run.

    Args:
        document: What `make_document` gave.
        picture: Name of the file with its plots.
    """
    results = document["results"]
    parts = [
        f"# {document['machine']['gpu']}: `{document['command']}`",
        heading(document["machine"]),
        HOW_TO_READ,
        markdown_table(results),
        f"![TFLOP/s by row]({picture})",
    ]
    if reasons := refusals(results):
        parts += ["Not timed:", "\n".join(f"- {reason}" for reason in reasons)]
    return "\n\n".join(parts) + "\n"
