"""The tables of `docs/validation.md`, from recordings and results; the prose around them is written by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.validation import mutant_compare
from benchmarks.validation.micro import load_recording
from benchmarks.validation.micro_compare import lines
from benchmarks.validation.whole import is_good
from mlagen.sim.elements import decode_elements
from mlagen.sim.products import multiply_add
from mlagen.sim.tensor_core_sum import aligned_sum
from tests.hardware import wgmma_precision
from tests.hardware.compare import ulp_distances
from tests.hardware.known import DIFFERENT, LARGEST_ERROR, LARGEST_ULP, REFUSED
from tests.hardware.values import UNSIGNED, width

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hardware.recordings import Recording
    from tests.hardware.wgmma import Form

FAMILIES = {
    "alu": "register-only opcodes, 2,048 elements each (65,536 of approximations)",
    "wgmma": "wgmma: layouts, swizzles, offsets, types, shapes",
    "wgmma-precision": "wgmma: what is kept of sums",
    "warp": "shuffles, votes, matches, reductions in a warp",
    "matrix": "ldmatrix, stmatrix",
    "memory": "loads and stores, every width and space",
    "atomic": "atomics",
    "bulk": "bulk copies and reductions",
    "cp-async": "cp.async",
    "tma-load": "tensor copies: loads",
    "tma-store": "tensor copies: stores",
    "tma-reduce": "tensor copies: reductions",
    "mbarrier": "mbarriers",
    "named-barrier": "barriers of some warps",
    "fault": "what ends a kernel on both",
    "cluster": "clusters",
    "program": "small programs with divergence and calls",
}


def publish(recordings: Path, results: Path, page: Path) -> None:
    """Put the tables between the page's markers `<!-- NAME -->` and `<!-- end -->`."""
    recording = load_recording(recordings)
    tables = {
        "facts": _facts(recording),
        "micro": _micro(results / "micro.jsonl", recording),
        "ulps": _ulps(),
        "sums": _sums(recording),
        "whole": _whole(results),
        "mutants": mutant_compare.section(recordings, results),
    }
    page.write_text(with_tables(page.read_text(), tables))


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The page with these tables; one without content leaves what is there.

    Raises:
        ValueError: The page has no place for a table.
    """
    for name, table in tables.items():
        if not table:
            continue
        if f"<!-- {name} -->\n" not in text:
            raise ValueError(
                f"the page lacks a line <!-- {name} --> and one <!-- end --> behind it"
            )
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        _, _, after = rest.partition("<!-- end -->")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- end -->{after}"
    return text


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def _facts(recording: Recording) -> str:
    facts = recording.facts
    return (
        f"GPU: {facts['gpu']}, driver {facts['driver']}, recorded {facts['date']}; each case was asked twice, "
        f"{len(recording.unstable)} of {len(recording.outputs)} answered differently."
    )


def _micro(path: Path, recording: Recording) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines(path):
        name, outcome = str(line["name"]), str(line["outcome"])
        if name in LARGEST_ULP or name in LARGEST_ERROR:
            outcome = "approximate"
        counts[name.split("/")[0]][outcome] += 1
    rows = [
        f"| {family}: {FAMILIES.get(family, '')} | {sum(found.values())} | {found['equal']} | {found['approximate']} |"
        f" {found['different']} | {found['refused']} |"
        for family, found in counts.items()
    ]
    whole: Counter[str] = sum(counts.values(), Counter())
    outcomes = [whole[one] for one in ("equal", "approximate", "different", "refused")]
    rows.append(f"| all | {whole.total()} | {' | '.join(map(str, outcomes))} |")
    table = _table("| family | cases | bit-equal | approximations | different | refused |", rows)
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, why in (DIFFERENT | REFUSED).items():
        reasons[why].append(f"`{name.removeprefix('alu/')}`")
    known = [f"- {why}: {', '.join(names)}." for why, names in reasons.items()]
    faults = sum("ILLEGAL_INSTRUCTION" in why for why in recording.failures.values())
    return (
        f"{table}\n\nDifferent or refused, all of them:\n\n"
        + "\n".join(known)
        + (f"\n\nNot among them: {faults} copies that ended as illegal instructions, see below.")
    )


def _ulps() -> str:
    rows = [f"| `{name.removeprefix('alu/')}` | {ulp} ulp |" for name, ulp in LARGEST_ULP.items()]
    rows += [
        f"| `{name.removeprefix('alu/')}` | 2^{np.log2(error):.1f} |"
        for name, error in LARGEST_ERROR.items()
    ]
    return _table("| instruction | largest distance |", rows)


def _sums(recording: Recording) -> str:
    rows = []
    for form in wgmma_precision.FORMS:
        found = [_rates(form, probe, recording) for probe in wgmma_precision.probes(form)]
        elements, plain, hardware = np.sum([one for one in found if one is not None], axis=0)
        rows.append(
            f"| {form.a} | {form.d} | {int(elements):,} | {100 * plain / elements:.2f} % | "
            f"{100 * hardware / elements:.2f} % |"
        )
    return _table("| inputs | sums | elements | bit-equal, `f32` | bit-equal, `hardware` |", rows)


def _rates(
    form: Form, probe: wgmma_precision.Probe, recording: Recording
) -> tuple[int, int, int] | None:
    """Elements, and how many of them each way of summing gets right."""
    answer = recording.outputs.get(f"wgmma-precision/{form.name}/{probe.name}")
    if answer is None:
        return None
    unsigned = UNSIGNED[width(form.d)]
    row, column = wgmma_precision.rows_and_columns()
    bits = np.frombuffer(answer[0], unsigned).reshape(len(probe.a), *row.shape)
    gpu = np.empty((len(probe.a), 64, wgmma_precision.N), unsigned)
    gpu[:, row, column] = bits
    equal = [0, 0]
    for cta in range(len(probe.a)):
        start = _decoded(probe.c[cta], form.d)
        for way in range(2):
            total = start
            for step in range(probe.a.shape[1]):
                a, b = _decoded(probe.a[cta, step], form.a), _decoded(probe.b[cta, step], form.b)
                with np.errstate(all="ignore"):
                    if way:
                        total = aligned_sum(a, b, total, form.a, form.b, form.d)
                    else:
                        total = multiply_add(a, b, total, "f32")
                        if form.d == "f16":
                            total = total.astype(np.float16).astype(np.float32)
            mine = total.astype(np.float16) if form.d == "f16" else total
            equal[way] += int((ulp_distances(gpu[cta], mine.view(unsigned), form.d) == 0).sum())
    return gpu.size, equal[0], equal[1]


def _decoded(patterns: Any, kind: str) -> Any:  # arrays of whatever the kind is
    with np.errstate(all="ignore"):
        if kind == "f32":
            return patterns.astype(np.uint32).view(np.float32)
        return decode_elements(patterns.astype(UNSIGNED[width(kind)]), kind)


def _whole(results: Path) -> str:
    rows = []
    for mode in ("fast", "hardware"):
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines(results / f"whole-{mode}.jsonl"):
            groups[str(line["dtype"])].append(line)
        for dtype, found in groups.items():
            ulps = np.sum([line["ulps"] for line in found], axis=0)
            kernels = len({line["kernel"] for line in found})
            ratio = max(line["lse_ratio"] or 0 for line in found)
            rows.append(
                f"| `{mode}` | {dtype} | {kernels} | {len(found)} | {100 * ulps[0] / ulps.sum():.3f} % | "
                + " | ".join(f"{count:,}" for count in ulps)
                + f" | {ratio:.2f} | {sum(not is_good(line) for line in found)} |"
            )
    head = "| sums | output | kernels | calls | bit-equal | 0 ulp | 1 | 2 | more | worst LSE error | calls outside |"
    return _table(head, rows)
