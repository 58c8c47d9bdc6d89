"""From Pydantic's errors to findings: path as written, what was found, did you mean, what to do."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mlagen.spec.base import did_you_mean, show
from mlagen.spec.mask import NoMask
from mlagen.spec.partition import NoPartition
from mlagen.spec.score_mod import Identity
from mlagen.spec.source import Finding, Path

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# What one member of a union is called, and how its members with a short form of their own are written.
_UNIONS: dict[type[BaseModel], tuple[str, tuple[str, ...]]] = {
    NoMask: ("mask", ("{all: [...]}", "{any: [...]}", "{expr: ...}")),
    Identity: ("score mod", ("{expr: ...}",)),
    NoPartition: ("partition", ()),
}
_NOT_NAMED = ("all", "any", "expr", "chain")  # kinds that are written in another way


@dataclass(frozen=True, slots=True)
class Target:
    """What an error's location leads to.

    Attributes:
        path: The location in the written data: no steps that only models know.
        annotation: The type expected there.
        description: The field's description, empty if there is none.
    """

    path: Path
    annotation: object
    description: str


def find_errors(error: ValidationError, root: object, data: object) -> list[Finding]:
    """All errors of a validation of `data` as a model or a union, each once, in the order Pydantic gave them."""
    details = error.errors(include_url=False)
    return list(dict.fromkeys(_finding(one, root, data) for one in details if not _follows_up(one)))


def _follows_up(detail: ErrorDetails) -> bool:
    """Whether Pydantic calls a list too short only because its entries are wrong, each reported by itself."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _finding(detail: ErrorDetails, root: object, data: object) -> Finding:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    target = _resolve(detail["loc"], root, data)
    if kind == "spec_rule":
        return Finding(target.path, context["message"], context["advice"], context["at_key"])
    if kind == "extra_forbidden":
        return _unknown_field(target)
    if kind == "missing":
        advice = f"add {target.path[-1]}: {target.description}"
        return Finding(target.path, "missing", advice)
    if kind in {"union_tag_invalid", "union_tag_not_found"} or len(_members(target.annotation)) > 1:
        return _wrong_kind(target, context, value, data)
    describe = _MESSAGES[kind] if kind in _MESSAGES else _other  # noqa: SIM401  mypy loses the type in `get`
    message, fix = describe(value, context, detail)
    if isinstance(value, list) and len(target.path) > 3 and kind != "too_short":  # inside an option
        fix = "write one value: a list expands only as the whole value of an option"
    joint = " " if fix.endswith("?") else ": "
    return Finding(target.path, message, joint.join(filter(None, (fix, target.description))))


def _unknown_field(target: Target) -> Finding:
    name = target.path[-1]
    fields = sorted(_fields(target.annotation))
    advice = f"{did_you_mean(name, fields)}Fields here: {', '.join(fields) or 'none'}"
    return Finding(target.path, "unknown field", advice, at_key=True)


def _fields(annotation: object) -> dict[str, FieldInfo]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return {}


def _wrong_kind(target: Target, context: dict[str, Any], value: object, data: object) -> Finding:
    members = _members(target.annotation)
    noun, forms = next((_UNIONS[member] for member in members if member in _UNIONS), ("kind", ()))
    names = [tag for member in members if (tag := _tag(member)) not in _NOT_NAMED]
    listed = f"{noun.capitalize()}s: {', '.join([*names, *forms])}"
    path = target.path
    written = _at(data, path)
    if isinstance(written, dict) and "kind" in written:
        path = (*path, "kind")
    if isinstance(value, dict) and "tag" not in context:
        return Finding(path, f"names no {noun}", f"add kind. {listed}")
    if "tag" not in context:
        return Finding(path, f"{show(value)} is not a {noun}", listed)
    return Finding(
        path,
        f"{show(context['tag'])} is not a {noun}",
        did_you_mean(context["tag"], names) + listed,
    )


_Message = Callable[
    [Any, dict[str, Any], "ErrorDetails"], tuple[str, str]
]  # Any: whatever was written


def _wrong_type(wanted: str) -> _Message:
    def message(value: object, _context: dict[str, Any], _detail: ErrorDetails) -> tuple[str, str]:
        found, fix = f"{show(value)} is not {wanted}", f"write {wanted}"
        if wanted == "true or false" and value in ("yes", "on", "no", "off", "True", "False"):
            fix = f"write {'true' if value in ('yes', 'on', 'True') else 'false'}"
        elif wanted == "a whole number" and isinstance(value, float) and value.is_integer():
            fix = f"write {int(value)}"
        elif wanted.endswith("number") and isinstance(value, str) and value.isdecimal():
            fix = "remove the quotes"
        elif wanted == "text" and isinstance(value, int | float):
            fix = "put it in quotes"
        return found, fix

    return message


def _bound(words: str, key: str, fix: str) -> _Message:
    def message(value: object, context: dict[str, Any], _detail: ErrorDetails) -> tuple[str, str]:
        limit = context[key]
        number = int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        return f"{show(value)} is {words} {number}", f"write {fix} {number}"

    return message


def _not_one_of(value: object, context: dict[str, Any], _detail: ErrorDetails) -> tuple[str, str]:
    expected = str(context["expected"])
    words = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    if len(words) == 1:
        return f"{show(value)} is not {words[0]}", f"write {words[0]}"
    fix = did_you_mean(value, words).strip() or "write one of them"
    return f"{show(value)} is not one of {', '.join(words)}", fix


def _empty(noun: str, fix: str) -> _Message:
    def message(_value: object, _context: dict[str, Any], _detail: ErrorDetails) -> tuple[str, str]:
        return f"empty {noun}", fix

    return message


def _other_characters(
    value: object, _context: dict[str, Any], _detail: ErrorDetails
) -> tuple[str, str]:
    return f"{show(value)} has other characters than a name may have", "rename it"


def _other(value: object, _context: dict[str, Any], detail: ErrorDetails) -> tuple[str, str]:
    return f"{detail['msg']}, found {show(value)}", "change it"


_MESSAGES: dict[str, _Message] = {
    "int_type": _wrong_type("a whole number"),
    "int_from_float": _wrong_type("a whole number"),
    "float_type": _wrong_type("a number"),
    "finite_number": _wrong_type("a finite number"),
    "bool_type": _wrong_type("true or false"),
    "string_type": _wrong_type("text"),
    "dict_type": _wrong_type("a mapping"),
    "model_type": _wrong_type("a mapping"),
    "model_attributes_type": _wrong_type("a mapping"),
    "tuple_type": _wrong_type("a list"),
    "literal_error": _not_one_of,
    "greater_than": _bound("not above", "gt", "a number above"),
    "greater_than_equal": _bound("less than", "ge", "at least"),
    "less_than": _bound("not below", "lt", "a number below"),
    "less_than_equal": _bound("more than", "le", "at most"),
    "multiple_of": _bound("not a multiple of", "multiple_of", "a multiple of"),
    "too_short": _empty("list", "give at least one"),
    "string_too_short": _empty("text", "write some"),
    "string_too_long": _bound("has more characters than", "max_length", "no more characters than"),
    "string_pattern_mismatch": _other_characters,
}


def _resolve(location: tuple[int | str, ...], root: object, data: object) -> Target:
    """Walk types and data together: the location has steps (tags, indexes) that the written data has not."""
    annotation = root
    description = ""
    path: Path = ()
    for step in location:
        annotation = _unwrapped(annotation)
        members = _members(annotation)
        if len(members) > 1 and any(_tag(member) == step for member in members):
            annotation = next(member for member in members if _tag(member) == step)
            continue
        path = _follow(data, path, step)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(step))
            if field is None:
                return Target(path, annotation, "")
            annotation = field.annotation
            description = field.description or _description((*get_args(annotation), None)[0])
        else:
            arguments = get_args(annotation)
            annotation = (
                (arguments[-1] if get_origin(annotation) is dict else arguments[0])
                if arguments
                else None
            )
            description = _description(annotation) or description
    return Target(path, _unwrapped(annotation), description)


def _follow(data: object, path: Path, step: str | int) -> Path:
    """The path one step on, if the written data has that step; short forms leave some out or rename them."""
    here = _at(data, path)
    if step == "of" and isinstance(here, dict) and "of" not in here:
        return next(((*path, kind) for kind in ("all", "any") if kind in here), path)
    if isinstance(step, int) and not isinstance(here, list | tuple):
        return path
    if isinstance(step, str) and isinstance(here, list | tuple):
        return path
    return (*path, step)


def _at(data: object, path: Path) -> object:
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def _unwrapped(annotation: object) -> object:
    """Without `Annotated` and `| None`; the forward name in `AllOf.of` and `Chain.of` is already resolved."""
    if get_origin(annotation) is Annotated:
        return _unwrapped(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return _unwrapped(members[0])
    return annotation


def _description(annotation: object) -> str:
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            if isinstance(item, FieldInfo) and item.description:
                return item.description
    return ""


def _members(annotation: object) -> list[type[BaseModel]]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return []
    return [
        member
        for member in map(_unwrapped, get_args(annotation))
        if isinstance(member, type) and issubclass(member, BaseModel)
    ]


def _tag(member: type[BaseModel]) -> str:
    field = member.model_fields.get("kind")
    return str(field.default) if field else ""
