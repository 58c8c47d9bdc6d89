"""Faulty kernels: what the GPU did against what the simulator says, and the tables of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.validation.micro_compare import lines
from benchmarks.validation.mutants import RECORDING, agrees

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KEPT = (
    "group",
    "fault",
    "kernel",
    "problem",
    "simulator",
    "outcome",
    "seconds",
    "launches",
    "wrong",
    "distinct",
    "same_code",
    "luck",
    "detail",
)


def load_recording(folder: Path) -> dict[str, Any]:  # Any: JSON values
    """Facts and results in a folder and in its subfolders, a later run over an earlier one."""
    facts: dict[str, Any] = {}
    results: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in sorted(folder.glob(f"**/{RECORDING}")):
        found = json.loads(path.read_text())
        facts = found["facts"] or facts
        for one in found["results"]:
            results[tuple(one[name] for name in ("group", "fault", "kernel", "problem"))] = one
    return {"facts": facts, "results": list(results.values())}


def compare_all(recordings: Path, results: Path, *, words: Sequence[str] = ()) -> int:
    """Write a line a job into `results`; print the table, and who disagrees. Returns how many do."""
    compared = []
    for one in load_recording(recordings)["results"]:
        name = f"{one['group']}: {one['fault'] or 'no fault'}; {one['kernel']}: {one['problem']}"
        if not words or any(word in name for word in words):
            kept = {field: one[field] for field in _KEPT}
            compared.append({"name": name, "agrees": agrees(one["group"], one["outcome"]), **kept})
    results.write_text("".join(json.dumps(line) + "\n" for line in compared))
    print(agreement_table(compared))
    print()
    print(lucky_table(compared))
    apart = [line for line in compared if line["agrees"] is False]
    for line in apart:
        print(f"simulator {line['simulator']}, GPU {line['outcome']}: {line['name']}")
        print(f"  {line['detail']}")
    print(f"{len(compared)} jobs, {len(apart)} disagree")
    return len(apart)


def agreement_table(compared: Sequence[dict[str, Any]]) -> str:
    """By rule: what the simulator says, and what the GPU did."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in compared:
        if line["agrees"] is not None:
            rule = line["fault"].partition(" @ ")[0]
            groups[f"`{rule}`" if rule else "none", line["simulator"]].append(line)
    rows = []
    for (rule, simulator), found in groups.items():
        outcomes = Counter(line["outcome"] for line in found)
        seen = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        kernels = len({line["kernel"] for line in found})
        agreeing = sum(line["agrees"] for line in found)
        rows.append(
            f"| {rule} | {kernels} | {len(found)} | {simulator} | {seen} | {agreeing} of {len(found)} |"
        )
    head = "| fault | kernels | cases | simulator | GPU | agree |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def lucky_table(compared: Sequence[dict[str, Any]]) -> str:
    """By mutant: the simulator's finding, how many launches were right on the GPU, and why that may be."""
    mutants: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in compared:
        if line["group"] == "lucky":
            mutants[line["fault"]].append(line)
    rows = []
    for fault, found in mutants.items():
        first = found[0]
        luck = first["luck"]
        if first["same_code"]:
            luck += "; this ptxas makes the same machine code of it"
        place = fault.replace("|", "\\|")
        rows.append(f"| `{place}` | {first['simulator']} | {_launches(found)} | {luck} |")
    head = "| mutant | simulator | GPU: right launches | why |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def _launches(found: Sequence[dict[str, Any]]) -> str:
    right = sum(
        line["launches"] - line["wrong"] for line in found if line["outcome"] in ("ok", "wrong")
    )
    failed = [line["outcome"] for line in found if line["outcome"] not in ("ok", "wrong")]
    text = f"{right} of {sum(line['launches'] for line in found)}"
    return text + "".join(f", {outcome}" for outcome in failed)


def section(recordings: Path, results: Path) -> str:
    """The part of `docs/validation.md` about faulty kernels; empty if none were compared."""
    compared: list[dict[str, Any]] = list(lines(results / "mutants.jsonl"))
    if not compared:
        return ""
    facts = load_recording(recordings)["facts"]
    held = [line["seconds"] for line in compared if line["outcome"] == "trap"]
    times = f" after {min(held):.1f} to {max(held):.1f} s" if held else ""
    judged = [line for line in compared if line["agrees"] is not None]
    agreeing = sum(bool(line["agrees"]) for line in judged)
    return f"""\
GPU: {facts["gpu"]}, driver {facts["driver"]}, recorded {facts["date"]}.

```
python -m benchmarks.validate_simulator prepare mutants .carry               # choose, simulate, compile
python -m benchmarks.validate_simulator record mutants .carry                # on the GPU, into $OUT
python -m benchmarks.validate_simulator compare mutants RECORDINGS RESULTS
```

Mutants that the simulator calls deadlocks under three schedules (the first of each kind's places), and clean kernels,
as debug renders: a wait loop that goes on for 2^31 cycles traps. A deadlock must end so (`trap`; they did{times}),
a clean kernel must give the right result (`ok`). Agreeing: {agreeing} of {len(judged)}.

{agreement_table(compared)}

Faults that the simulator reports and that luck may hide on a GPU, as plain renders; every launch is held against the
float64 reference:

{lucky_table(compared)}"""
