"""Custom masks and score mods as text: kept as written with the types of their parameters, not parsed yet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mlagen.spec.base import Problem, SpecModel, name_form, raise_problems

VARIABLES = ("b", "h", "q", "k", "q_len", "kv_len")

ExpressionText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4096,
        description="Expression of `b h q k q_len kv_len` (absolute positions inside the sequence), of the "
        "parameters and, in score mods, of `score`.",
    ),
]


class Parameter(SpecModel):
    """One run-time value that an expression names."""

    dtype: Literal["int32", "float32"] = Field(description="Element type.")
    rank: int = Field(0, ge=0, le=4, description="Dimensions of the tensor, 0 to 4; 0 is a scalar.")


def _names_are_free(params: dict[str, Parameter]) -> dict[str, Parameter]:
    raise_problems(
        "params",
        [
            Problem((name,), f"'{name}' is a variable of every expression", "rename the parameter")
            for name in params
            if name in VARIABLES
        ]
        + [
            Problem(
                (name,),
                f"'{name}' is not a name",
                "use lower-case letters, digits and underscores, a letter first",
            )
            for name in params
            if not (
                name.isidentifier() and name.isascii() and name == name.lower() and name[0] != "_"
            )
        ],
    )
    return dict(sorted(params.items()))


Parameters = Annotated[
    dict[str, Annotated[Parameter, name_form("dtype", ("int32", "float32"))]],
    AfterValidator(_names_are_free),
]
