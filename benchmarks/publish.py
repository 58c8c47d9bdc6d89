"""Turn a run's `report.json` into docs/measurements.md and the table at the top of README.md.

    python -m benchmarks.publish benchmarks/results/report.json

Numbers in documents come from here only, so that each has its date, GPU, driver, compiler and command.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import heading

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/measurements.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin", "<!-- figures:end -->"
OURS = "mlagen"

Document = dict[str, Any]  # JSON values


def main() -> None:
    """Rewrite both files."""
    parser = argparse.ArgumentParser(description="Write measured figures into the documents.")
    parser.add_argument("report", type=Path, help="report.json of benchmarks.device_run")
    report: Document = json.loads(parser.parse_args().report.read_text())
    PAGE.write_text(page(report))
    README.write_text(with_block(README.read_text(), readme_block(report)))
    print(
        f"figures of {report['machine']['date']}: {PAGE.relative_to(ROOT)}, {README.relative_to(ROOT)}"
    )


def page(report: Document) -> str:
    """docs/measurements.md."""
    results = report["results"]
    parts = [
        "# Measurements",
        "Written by `python -m benchmarks.publish`; the numbers of one run, each with the command that repeats it.",
        heading(report["machine"]),
        "Times are medians of CUDA-event times. *cool*: groups of at most 30 ms of work after 0.15 s of idle; *hot*: "
        "after 0.5 s of the same work, at the power limit. FLOPs are 2 (192 + 128) heads × visible pairs of query and "
        "key. `× cuDNN`: speed relative to torch's `scaled_dot_product_attention` with its cuDNN backend, same run, "
        "same tensors.",
    ]
    for name, title in (
        ("figures", "Prefill"),
        ("speed", "Prefill, more shapes"),
        ("forms", "Operands, masks, score mods"),
    ):
        if name in results:
            parts += [
                f"## {title}",
                command_of(report, name),
                speed_table(results[name]["results"]),
            ]
    if "host" in results:
        parts += ["## Host time of a call", command_of(report, "host"), host_table(results["host"])]
    parts += ["## Tests and checkers", stage_table(report)]
    return "\n\n".join(parts) + "\n"


def command_of(report: Document, name: str) -> str:
    """The command of a stage."""
    (stage,) = [stage for stage in report["stages"] if stage["name"] == name]
    command = stage["command"].split(" --json")[0]
    return f"`{command}`"


def speed_table(results: list[Document]) -> str:
    """Time and speed of ours, and speed relative to cuDNN, a line a row and regime."""
    lines = [
        "| shape | regime | ms | TFLOP/s | × cuDNN | goal | relative L2 error |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        if result["peer"] != OURS:
            continue
        ratio = f"{result['ratio']:.2f}" if result["ratio"] else ""
        goal = f"{result['goal']:.2f}" if result["goal"] else ""
        speed = f"{result['timing']['median_ms']:.3f} | {result['tflops']:.0f} | {ratio}"
        lines.append(
            f"| {result['row']} | {result['regime']} | {speed} | {goal} | {result['rel_l2']:.2e} |"
        )
    return "\n".join(lines)


def host_table(result: Document) -> str:
    """Median host time of each form of a call."""
    lines = [f"| call | µs, median of 1,000 (goal {result['goal_us']:.0f}) |", "|---|---:|"]
    lines += [f"| {name} | {median:.1f} |" for name, median in result["median_us"].items()]
    return "\n".join(lines)


def stage_table(report: Document) -> str:
    """What ran, and how it ended."""
    lines = ["| command | result |", "|---|---|"]
    for stage in report["stages"]:
        last = stage["tail"].splitlines()[-1] if stage["tail"] else ""
        lines.append(f"| `{stage['command'].split(' --json')[0]}` | {stage['status']}: {last} |")
    return "\n".join(lines)


def readme_block(report: Document) -> str:
    """The figures that the README shows."""
    rows = [
        result for result in report["results"]["figures"]["results"] if result["regime"] == "cool"
    ]
    by_row = {
        row: {each["peer"]: each for each in rows if each["row"] == row}
        for row in {r["row"]: None for r in rows}
    }
    lines = [
        "DeepSeek-V3's shape, one sequence, 128 heads, 192/128, bf16, in short bursts:",
        "",
        "| prefill | mlagen | torch SDPA (cuDNN) | |",
        "|---|---:|---:|---:|",
    ]
    for row, found in by_row.items():
        ours, cudnn = found[OURS], found["torch_cudnn"]
        lines.append(
            f"| {row} tokens | {ours['tflops']:.0f} TFLOP/s | {cudnn['tflops']:.0f} TFLOP/s | {ours['ratio']:.2f} × |"
        )
    more = "More in [docs/measurements.md](docs/measurements.md)."
    lines += ["", f"{heading(report['machine'])}; `python -m benchmarks.prefill`. {more}"]
    return "\n".join(lines)


def with_block(text: str, block: str) -> str:
    """README with what stands between its markers replaced."""
    begin = text.index("\n", text.index(BEGIN)) + 1
    return text[:begin] + block + "\n" + text[text.index(END) :]


if __name__ == "__main__":
    main()
