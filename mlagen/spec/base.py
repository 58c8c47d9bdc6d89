"""What all spec models share: strictness, short forms, lists that expand, errors at a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar  # Any: Pydantic's own schema types are dicts

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

Location = tuple[str | int, ...]


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
    """

    location: Location
    message: str
    advice: str


def problem_error(message: str, advice: str) -> PydanticCustomError:
    """The Pydantic error for one broken rule; `diagnostics` prints both texts."""
    return PydanticCustomError(
        "spec_rule", "{message}; {advice}", {"message": message, "advice": advice}
    )


def raise_problems(title: str, problems: Iterable[Problem]) -> None:
    """Raise one `ValidationError` that holds every problem at its own field, or nothing.

    Pydantic takes a `ValidationError` raised inside a validator apart and keeps the locations.
    """
    details = [
        InitErrorDetails(type=problem_error(message, advice), loc=location, input=None)
        for location, message, advice in problems
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
        raise problem_error("an empty list expands to no kernel", "leave the field out or give it a value")
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
        return {"anyOf": [array["items"], {**array, "minItems": 1}]}


T = TypeVar("T")
OneOrMore = Annotated[tuple[T, ...], _OneOrMore()]
