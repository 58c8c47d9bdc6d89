"""What all spec models share: strictness, short forms, lists that expand, errors at a field."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import (  # Any: Pydantic's own schema types are dicts
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
)

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Location = tuple[str | int, ...]

# In the JSON Schema of a short form: the rest of a `$ref` into `$defs`, put there once all definitions exist.
SAME_AS = "x-same-as"

MAX_VALUES = 1_000


class SpecModel(BaseModel):
    """Base of everything a user writes: no coercion, no unknown field, no NaN, no change after creation."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )


class Problem(NamedTuple):
    """One broken rule.

    Attributes:
        location: Path from the model that checks to the field at fault.
        message: What is wrong, with the value found.
        advice: What to do.
        at_key: Whether the last step of the location is itself at fault, not its value.
    """

    location: Location
    message: str
    advice: str
    at_key: bool = False


def problem_error(message: str, advice: str, *, at_key: bool = False) -> PydanticCustomError:
    """The Pydantic error for one broken rule; `diagnostics` prints both texts."""
    context = {"message": message, "advice": advice, "at_key": at_key}
    return PydanticCustomError("spec_rule", "{message}; {advice}", context)


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """`did you mean 'causal'? `, or nothing if no word is near."""
    near = difflib.get_close_matches(str(word), list(words), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'? " if near else ""


def show(value: object) -> str:
    """A value as a user would write it, short."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str() if len(value) > 60:
            return repr(value[:57] + "...")
        case _:
            return repr(value)


def raise_problems(title: str, problems: Iterable[Problem]) -> None:
    """Raise one `ValidationError` that holds every problem at its own field, or nothing.

    Pydantic takes a `ValidationError` raised inside a validator apart and keeps the locations.
    """
    details = [
        InitErrorDetails(
            type=problem_error(one.message, one.advice, at_key=one.at_key),
            loc=one.location,
            input=None,
        )
        for one in problems
    ]
    if details:
        raise PydanticValidationError.from_exception_data(title, details)


@dataclass(frozen=True)
class ShortForm:
    """Metadata of a union: how its short spellings become the long one.

    Attributes:
        expand: Written value to long form; whatever it does not know it returns as it is.
        json_schemas: JSON Schemas of the short spellings.
    """

    expand: Callable[[object], object]
    json_schemas: tuple[dict[str, Any], ...]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Run `expand` before validation."""
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Accept the short spellings beside the long one."""
        return {"anyOf": [*self.json_schemas, handler(schema)]}


def name_form(field: str, names: Sequence[str]) -> ShortForm:
    """A bare word stands for a mapping with only `field`: `ragged` for `{layout: ragged}`."""
    return ShortForm(
        lambda value: {field: value} if isinstance(value, str) else value,
        ({"enum": list(names)},),
    )


def _one_or_more(value: object) -> object:
    if isinstance(value, tuple):
        return value
    items = value if isinstance(value, list) else [value]
    if not items:
        raise problem_error("empty list", "leave the field out or give it a value")
    if len(items) > MAX_VALUES:
        raise problem_error(
            f"{len(items):,} values, {MAX_VALUES:,} is the limit", "shorten the list"
        )
    return tuple(items)


def _no_duplicates(values: tuple[object, ...]) -> tuple[object, ...]:
    raise_problems(
        "list",
        [
            Problem(
                (index,),
                f"means the same as entry {values.index(value)} of this list",
                "remove one of the two",
            )
            for index, value in enumerate(values)
            if value in values[:index]
        ],
    )
    return values


class _OneOrMore:
    """Metadata of a tuple: a value alone stands for a list of one; no two entries are equal."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        checked = core_schema.no_info_after_validator_function(_no_duplicates, handler(source))
        return core_schema.no_info_before_validator_function(_one_or_more, checked)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        array = handler(schema)
        item = {**array["items"]}
        described = {"description": item.pop("description")} if "description" in item else {}
        return {**described, "anyOf": [item, {**array, "items": item, "minItems": 1}]}


T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], _OneOrMore()]
