"""`mlagen bench`: the kernels of a spec timed beside other implementations of attention, on this machine's GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mlagen.arch import ARCHS
from mlagen.bench.document import make_document, markdown, refusals, short_name, table
from mlagen.bench.installed import OURS, PEER_NAMES, installed_peers
from mlagen.bench.plot import draw
from mlagen.bench.rows import SETS, find_kernel, names_of, parse_row
from mlagen.cli.machine import archs_of_gpu
from mlagen.cli.options import Verb, debug_option, json_option, spec_argument, words_option
from mlagen.cli.output import count, note, print_json, print_table, progress_bar
from mlagen.cli.selection import plan_selection, select_kernels
from mlagen.errors import MissingDependencyError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlagen.bench.rows import Row
    from mlagen.spec.model import KernelSpec

    Document = dict[str, Any]  # Any: JSON values

_REGIMES: dict[str, tuple[Literal["cool", "hot"], ...]] = {
    "cool": ("cool",),
    "hot": ("hot",),
    "both": ("cool", "hot"),
}


def _split(
    _ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Names with commas between; each must be known."""
    if value is None:
        return None
    known = list(SETS if parameter.name == "sets" else (*PEER_NAMES, "none"))
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return names


@click.command("bench", cls=Verb)
@spec_argument
@words_option
@click.option(
    "--rows",
    "sets",
    metavar="SET,...",
    callback=_split,
    help=f"Sets of standard rows [speed, or none with --row]: {', '.join(SETS)}.",
)
@click.option(
    "--row",
    "names",
    multiple=True,
    metavar="NAME",
    help="A row, as b4,s2048,h128,causal; a wrong one lists the words. May be repeated.",
)
@click.option(
    "--peers",
    metavar="PEER,...",
    callback=_split,
    help=f"Of {', '.join(PEER_NAMES)} or none [all that are installed].",
)
@click.option(
    "--regime",
    type=click.Choice(list(_REGIMES)),
    default="cool",
    show_default=True,
    help="In short bursts, at the power limit, or one after the other.",
)
@click.option(
    "--budget-ms",
    type=click.FloatRange(min=1),
    default=250.0,
    show_default=True,
    help="Device time of one measurement.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the result to this folder: JSON (after each row), a page and its plots.",
)
@json_option
@debug_option
def command(
    *,
    spec: Path,
    words: tuple[str, ...],
    sets: tuple[str, ...] | None,
    names: tuple[str, ...],
    peers: tuple[str, ...] | None,
    regime: str,
    budget_ms: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Time the kernels of a spec beside other attention, in one run, on the same values.

    A row is a shape; the spec's plainest kernel that fits it is timed, with the clock and the power
    it ran at. Every output is checked. Rows for which the spec has no kernel are left out.

      mlagen bench specs/deepseek.yaml
      mlagen bench specs/deepseek.yaml --rows figures --regime both --out results/
      mlagen bench model.yaml --row b4,s2048,h128,causal --row b1,s8192,h128,none --peers flex
    """
    wanted = names_of(sets or (() if names else ("speed",)))
    rows = [parse_row(name) for name in dict.fromkeys((*wanted, *names))]
    selection = select_kernels(spec, words=words)
    plan_selection(selection)  # refusals come before anything is run
    _with_kernels(rows, selection.specs, spec, names)
    archs = _archs()
    specs = select_kernels(spec, archs=archs, words=words).specs
    rows = _with_kernels(rows, specs, spec, names)
    chosen = peers if peers is not None else tuple(installed_peers())
    chosen = tuple(name for name in chosen if name != "none")
    typed = _command(spec, words, sets, names, peers, regime)
    document = _measure(specs, rows, chosen, regime, budget_ms, typed, out)
    if out:
        _write_pages(out, document)
    if as_json:
        print_json(document)
    else:
        print_table(*table(document["results"]))
    return _report(document)


def _archs() -> tuple[str, ...]:
    """The architecture of the GPU, which torch can use.

    Raises:
        MissingDependencyError: There is none, or torch cannot use it.
    """
    archs = archs_of_gpu()
    if archs is None:
        message = f"bench: no GPU here that kernels can be generated for ({', '.join(ARCHS)})"
        raise MissingDependencyError(f"{message}\n  see: mlagen doctor")
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "bench: timing kernels needs torch\n  pip install 'mlagen[torch]'"
        ) from error
    if not torch.cuda.is_available():
        raise MissingDependencyError("bench: torch cannot use the GPU\n  see: mlagen doctor")
    return archs


def _with_kernels(
    rows: Sequence[Row], specs: Sequence[KernelSpec], path: Path, named: Sequence[str]
) -> list[Row]:
    """The rows that one of the kernels can run.

    Raises:
        SpecError: There is none, or none for a row that was asked for by its name.
    """
    found = [row for row in rows if find_kernel(specs, row) is not None]
    missing = [row.name for row in rows if row not in found]
    if asked := [name for name in missing if name in named] or (missing if not found else []):
        lines = "\n".join(f"    {name}" for name in asked)
        raise SpecError(
            f"{path}: no kernel selected from it can run\n{lines}\n"
            "  ask for other rows (--rows, --row), or add a kernel with this mask, these lengths and options"
        )
    return found


def _command(
    spec: Path,
    words: Sequence[str],
    sets: Sequence[str] | None,
    names: Sequence[str],
    peers: Sequence[str] | None,
    regime: str,
) -> str:
    """What was typed, as far as it decides about what is measured."""
    parts = [f"mlagen bench {spec}", *(f"-k {word}" for word in words)]
    parts += [f"--rows {','.join(sets)}"] if sets else []
    parts += [f"--row {name}" for name in names]
    parts += [f"--peers {','.join(peers)}"] if peers else []
    parts += [f"--regime {regime}"] if regime != "cool" else []
    return " ".join(parts)


def _measure(
    specs: Sequence[KernelSpec],
    rows: Sequence[Row],
    peers: Sequence[str],
    regime: str,
    budget_ms: float,
    typed: str,
    out: Path | None,
) -> Document:
    """Time the rows; what is known is written after each, so that an interrupted run leaves what it has."""
    from mlagen.bench import machine, measure

    found = machine.facts()
    how = measure.Measurement(peers, _REGIMES[regime], budget_ms, machine.current_card())
    document = make_document(found, typed, [])
    results: list[measure.Result] = []
    with progress_bar(len(rows), what="timing") as bar:
        for row in rows:
            bar.label(row.name)
            results += measure.time_row(specs, row, how)
            bar.advance()
            document = make_document(found, typed, results)
            if out:
                out.mkdir(parents=True, exist_ok=True)
                text = json.dumps(document, indent=1) + "\n"
                _path(out, document, "json").write_text(text, encoding="utf-8")
    return document


def _path(out: Path, document: Document, suffix: str) -> Path:
    return out / f"bench-{short_name(document['machine']['gpu'])}.{suffix}"


def _write_pages(out: Path, document: Document) -> None:
    picture = _path(out, document, "svg")
    picture.write_text(draw(document), encoding="utf-8")
    page = _path(out, document, "md")
    page.write_text(markdown(document, picture=picture.name), encoding="utf-8")
    note(f"{_path(out, document, 'json')}, {page}, {picture}")


def _report(document: Document) -> int:
    """Say what was not timed and what is wrong; returns the exit status."""
    for reason in refusals(document["results"]):
        note(f"not timed: {reason}")
    wrong = [one for one in document["results"] if one["is_wrong"]]
    for one in wrong:
        error = "not finite" if one["rel_l2"] is None else f"relative L2 error {one['rel_l2']:.2e}"
        if one["of_bound"] is not None:
            error += f", an element off by {one['of_bound']:.2f} times what rounding explains"
        note(f"wrong output: {one['implementation']}, {one['row']}, {one['regime']}: {error}")
    rows = len({one["row"] for one in document["results"]})
    ours = [one for one in wrong if one["implementation"] == OURS]
    note(f"{count(rows, 'row')}, {len(ours) or 'no'} wrong output of {OURS}")
    return 1 if ours else 0
