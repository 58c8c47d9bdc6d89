"""Partitions: whether the keys of one query tile are shared out over several CTAs."""

from __future__ import annotations

from typing import Annotated, Any, Literal  # Any: JSON Schema is a dict of anything

from pydantic import BeforeValidator, Field, WithJsonSchema

from mlagen.spec.base import ShortForm, SpecModel, problem_error, show

SPLITS = "Most ranges of keys, 1 or more; auto: chosen at each call."
_MOST = 2**31 - 1  # kernels hold such a number in an int


class NoPartition(SpecModel):
    """One CTA walks all keys of a query tile (the origin's NoPartition)."""

    kind: Literal["none"] = "none"


def count_or_word(word: str, description: str) -> tuple[BeforeValidator, WithJsonSchema]:
    """Metadata of `int | Literal[word]` that reports one error, not one for each member."""

    def check(value: object) -> object:
        if value == word:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST:
            return value
        raise problem_error(
            f"expected {word} or a whole number, 1 to {_MOST}; found {show(value)}",
            f"write {word} or a number",
        )

    schema: dict[str, Any] = {
        "description": description,
        "anyOf": [{"const": word}, {"type": "integer", "minimum": 1, "maximum": _MOST}],
    }
    return BeforeValidator(check), WithJsonSchema(schema)


class SplitKV(SpecModel):
    """Several CTAs take a range of keys each; the one that is done last combines their states (the origin's SplitK)."""

    kind: Literal["split_kv"] = "split_kv"
    splits: Annotated[int | Literal["auto"], *count_or_word("auto", SPLITS)] = Field(
        "auto", description=SPLITS
    )


Partition = Annotated[
    NoPartition | SplitKV,
    Field(discriminator="kind"),
    ShortForm(
        lambda value: {"kind": value} if isinstance(value, str) else value,
        ({"enum": ["none", "split_kv"]},),
    ),
]
