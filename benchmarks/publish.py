"""Turn a run's `report.json` into a page of docs/performance, its index, and the table at the top of README.md.

    python -m benchmarks.publish benchmarks/results/report.json
    python -m benchmarks.publish                                    # again, from what is committed

The report is kept beside its page: numbers in documents come from there only, so that each has its date, GPU, driver,
compiler and command. README.md shows the newest run that has its rows.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from mlagen.bench.document import (
    HOW_TO_READ,
    grouped,
    heading,
    markdown_table,
    refusals,
    short_name,
)
from mlagen.bench.installed import OURS
from mlagen.bench.plot import draw

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/performance"
README = ROOT / "README.md"
SPEED = {
    "figures": "Prefill",
    "flex": "Prefill, FlexAttention",
    "speed": "Prefill, more shapes",
    "forms": "Operands, masks, score mods",
}

Document = dict[str, Any]  # JSON values


def main() -> None:
    """Rewrite what is made of reports."""
    parser = argparse.ArgumentParser(description="Write measured figures into the documents.")
    parser.add_argument("report", type=Path, nargs="?", help="report.json of benchmarks.device_run")
    new = parser.parse_args().report
    if new:
        report: Document = json.loads(new.read_text(encoding="utf-8"))
        name = f"{report['machine']['date'][:10]}-{short_name(report['machine']['gpu'])}"
        (FOLDER / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


def pages() -> dict[Path, str]:
    """Every file that is made of the committed reports, as it should be."""
    reports = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
    }
    found: dict[Path, str] = {}
    for name, report in reports.items():
        found |= {FOLDER / f"{name}.{file}": text for file, text in pictures(report).items()}
        found[FOLDER / f"{name}.md"] = page(name, report)
    index = FOLDER / "README.md"
    found[index] = with_block(index.read_text("utf-8"), "runs", runs(reports))
    newest = [(name, report) for name, report in reports.items() if "figures" in report["results"]][
        -1
    ]
    found[README] = with_block(README.read_text("utf-8"), "figures", readme_block(*newest))
    return found


def pictures(report: Document) -> dict[str, str]:
    """Plots of a report, by the end of their file's name."""
    results = report["results"]
    return {
        f"{stage}.svg": draw({**results[stage], "machine": report["machine"]})
        for stage in SPEED
        if stage in results
    }


def page(name: str, report: Document) -> str:
    """The page of one run."""
    results = report["results"]
    parts = [
        f"# {report['machine']['gpu']}, {report['machine']['date'][:10]}",
        f"Written by `python -m benchmarks.publish` from [{name}.json]({name}.json); the numbers of one run, each with "
        "the command that repeats it. [How they are made](README.md).",
        heading(report["machine"]),
        *([report["note"]] if "note" in report else []),
        HOW_TO_READ,
    ]
    for stage, title in SPEED.items():
        if stage not in results:
            continue
        timed = results[stage]["results"]
        parts += [
            f"## {title}",
            command_of(report, stage),
            markdown_table(timed),
            f"![{title}: TFLOP/s by row]({name}.{stage}.svg)",
        ]
        if reasons := refusals(timed):
            parts += ["Not timed:", "\n".join(f"- {reason}" for reason in reasons)]
    if "host" in results:
        parts += ["## Host time of a call", command_of(report, "host"), host_table(results["host"])]
    parts += ["## Tests and checkers", stage_table(report)]
    return "\n\n".join(parts) + "\n"


def command_of(report: Document, name: str) -> str:
    """The command of a stage."""
    (stage,) = [stage for stage in report["stages"] if stage["name"] == name]
    command = stage["command"].split(" --json")[0]
    return f"`{command}`"


def host_table(result: Document) -> str:
    """Median host time of each form of a call."""
    lines = [f"| call | µs, median of 1,000 (goal {result['goal_us']:.0f}) |", "|---|---:|"]
    lines += [f"| {name} | {median:.1f} |" for name, median in result["median_us"].items()]
    return "\n".join(lines)


def stage_table(report: Document) -> str:
    """What ran, and how it ended."""
    lines = ["| command | result |", "|---|---|"]
    for stage in report["stages"]:
        last = stage["tail"].splitlines()[-1].replace("|", "\\|") if stage["tail"] else ""
        lines.append(f"| `{stage['command'].split(' --json')[0]}` | {stage['status']}: {last} |")
    return "\n".join(lines)


def runs(reports: dict[str, Document]) -> str:
    """The index: newest first."""
    lines = ["| date | GPU | what was run |", "|---|---|---|"]
    for name, report in reversed(reports.items()):
        machine = report["machine"]
        stages = ", ".join(stage["name"] for stage in report["stages"])
        lines.append(f"| [{machine['date']}]({name}.md) | {machine['gpu']} | {stages} |")
    return "\n".join(lines)


def readme_block(name: str, report: Document) -> str:
    """The figures that the README shows."""
    lines = [
        "DeepSeek-V3's shape, one sequence, 128 heads, 192/128, bf16, in short bursts:",
        "",
        "| prefill | mlagen | torch SDPA (cuDNN) | |",
        "|---|---:|---:|---:|",
    ]
    for (row, regime), found in grouped(report["results"]["figures"]["results"]).items():
        if regime == "cool":
            ours, cudnn = found[OURS]["tflops"], found["torch_cudnn"]["tflops"]
            lines.append(
                f"| {shown(row)} | {ours:.0f} TFLOP/s | {cudnn:.0f} TFLOP/s | {ours / cudnn:.2f} × |"
            )
    more = f"More in [docs/performance](docs/performance/{name}.md)."
    lines += ["", f"{heading(report['machine'])}; `python -m benchmarks.prefill`. {more}"]
    return "\n".join(lines)


def shown(row: str) -> str:
    """A row of one sequence in words: `b1,s2048,h128,causal` is `causal 2k tokens`."""
    found = re.fullmatch(r"b1,s(\d+),h128,(\w+)", row)
    assert found, row
    mask = "dense" if found[2] == "none" else found[2]
    return f"{mask} {int(found[1]) // 1024}k tokens"


def with_block(text: str, name: str, block: str) -> str:
    """A document with what stands between its markers of this name replaced."""
    begin = text.index("\n", text.index(f"<!-- {name}:begin")) + 1
    return text[:begin] + block + "\n" + text[text.index(f"<!-- {name}:end -->") :]


if __name__ == "__main__":
    main()
