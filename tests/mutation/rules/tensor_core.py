"""wgmma: fences, commits and waits; registers touched while products are in flight; accumulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import gone, next_line, previous_line, replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Edit, Source


def _fence_late(source: Source) -> Iterator[list[Edit]]:
    """Behind the products that it should precede."""
    for call in source.calls("wgmma_fence"):
        start, end = source.statement(call)
        to = next_line(source, end, r"wgmma_commit\(")
        if to is not None:
            yield source.moved(start, end, to)


def _commit_early(source: Source) -> Iterator[list[Edit]]:
    for call in source.calls("wgmma_commit"):
        start, end = source.statement(call)
        to = previous_line(source, start, r"wgmma_fence\(")
        if to is not None:
            yield source.moved(start, end, to)


def _moved_up(source: Source, statement: str, over: str) -> Iterator[list[Edit]]:
    for found in source.find(statement):
        to = previous_line(source, found.start(), over)
        if to is not None:
            yield source.moved(found.start(), found.end(), to)


def _correct_late(source: Source) -> Iterator[list[Edit]]:
    """Behind the product that accumulates on what it scales."""
    for found in source.find(r"softmax\.correct\(output\);"):
        to = next_line(source, found.end(), r"named_barrier_arrive\(|wgmma_wait")
        if to is not None:
            yield source.moved(found.start(), found.end(), to)


RULES = (
    Rule("product-fence-removed", "no wgmma.fence before products", gone("wgmma_fence")),
    Rule("product-fence-late", "wgmma.fence behind the products", _fence_late),
    Rule("commit-removed", "products are in no group", gone("wgmma_commit")),
    Rule("commit-early", "the group is closed before its products", _commit_early),
    Rule("product-wait-removed", "nobody waits for products", gone("wgmma_wait")),
    replaced(
        "product-wait-loose",
        "a wait lets one group more be unfinished",
        r"(?<=wgmma_wait<)\d+(?=>)",
        r"\g<0> + 1",
    ),
    replaced(
        "product-wait-tight",
        "a wait lets no group be unfinished",
        r"(?<=wgmma_wait<)[1-9](?=>)",
        "0",
    ),
    replaced(
        "ties-removed",
        "the compiler is not told that a wait fills registers",
        r"\btie_registers\(\w+\);",
        ";",
    ),
    Rule("correct-late", "the output is scaled while a product writes it", _correct_late),
    Rule(
        "pack-early",
        "probabilities are replaced while a product reads them",
        lambda source: _moved_up(source, r"\bpack_probability\(score\);", r"wgmma_wait<0>"),
    ),
    Rule(
        "scores-early",
        "scores are read while a product writes them",
        lambda source: _moved_up(
            source, r"\b(?:score_to_probability|finish_scores)<[^;]*;", r"wgmma_wait<1>"
        ),
    ),
    replaced(
        "accumulate-always",
        "the first product of a block adds to old scores",
        r"wgmma_(q_k|p_v)<false>",
        r"wgmma_\1<true>",
    ),
    replaced(
        "accumulate-never",
        "later products of a block forget the earlier ones",
        r"wgmma_(q_k|p_v)<true>",
        r"wgmma_\1<false>",
    ),
    replaced(
        "operand-negated",
        "the products change their sign",
        r"(accumulate|%\d+), 1, 1(?=, \d, \d|;\})",
        r"\1, 1, -1",
    ),
)
