"""Expansion of a spec file: the cross product of every group's lists, less what it excludes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mlagen.spec.base import Location, Problem, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlagen.spec.model import KernelGroup, KernelSpec, SpecFile
    from mlagen.spec.options import ArchName

MAX_KERNELS = 10_000


@dataclass(frozen=True, slots=True)
class Expansion:
    """The kernels of a file in order, and everything found wrong with them."""

    kernels: tuple[KernelSpec, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One point of a cross product.

    Attributes:
        choice: Option to (index in its list, value), in the order of the fields.
        spec: The kernel, or None if the options do not fit together.
        pattern_view: What `exclude` compares with.
        problems: Why there is no kernel.
    """

    choice: dict[str, tuple[int, object]]
    spec: KernelSpec | None
    pattern_view: dict[str, object]
    problems: tuple[Problem, ...]


def expand_file(file: SpecFile, kernel_type: type[KernelSpec]) -> Expansion:
    """Expand all groups for all architectures, in file order; deterministic, at most `MAX_KERNELS` candidates."""
    counts = [_size(group) for group in file.kernels]
    total = sum(counts) * len(file.arch)
    if total > MAX_KERNELS:
        return Expansion((), (_too_many(file, counts, total),))
    candidates = {
        (arch, index): list(_candidates(file, arch, index, kernel_type))
        for arch in file.arch
        for index in range(len(file.kernels))
    }
    problems = _rope_head_problems(file)
    excluded: set[int] = set()
    for index, group in enumerate(file.kernels):
        mine = [one for arch in file.arch for one in candidates[arch, index]]
        problems += _apply_exclusions(index, group, mine, excluded)
    kept = {
        key: [one for one in group if id(one) not in excluded] for key, group in candidates.items()
    }
    problems += [problem for group in kept.values() for one in group for problem in one.problems]
    kernels, repeated = _collect(kept)
    return Expansion(kernels, tuple(dict.fromkeys(problems + repeated)))


def _size(group: KernelGroup) -> int:
    return math.prod(len(values) for values in group.options.values())


def _too_many(file: SpecFile, counts: list[int], total: int) -> Problem:
    largest = counts.index(max(counts))
    lists = " x ".join(
        f"{name} {len(values)}"
        for name, values in file.kernels[largest].options.items()
        if len(values) > 1
    )
    return Problem(
        ("kernels", largest),
        f"the file expands to {total:,} kernels, {MAX_KERNELS:,} is the limit",
        f"shorten the lists (here {lists}) or split the file",
    )


def _rope_head_problems(file: SpecFile) -> list[Problem]:
    return [
        Problem(
            ("kernels", group_index, "k_rope", index, "num_heads"),
            f"{rope.num_heads} does not divide num_heads {heads}",
            f"write a divisor of {math.gcd(*file.geometry.num_heads)}",
        )
        for group_index, group in enumerate(file.kernels)
        for index, rope in enumerate(group.k_rope)
        for heads in [next((n for n in file.geometry.num_heads if n % rope.num_heads), None)]
        if heads is not None
    ]


def _candidates(
    file: SpecFile, arch: str, group_index: int, kernel_type: type[KernelSpec]
) -> Iterator[_Candidate]:
    options = file.kernels[group_index].options
    for values in itertools.product(*(enumerate(values) for values in options.values())):
        choice = dict(zip(options, values, strict=True))
        written = {name: value for name, (_, value) in choice.items()}
        try:
            spec = kernel_type.model_validate({"arch": arch, "geometry": file.geometry, **written})
        except ValidationError as error:
            problems = tuple(_locate(error, group_index, choice))
            yield _Candidate(choice, None, {"arch": arch, **_dumped(written)}, problems)
        else:
            yield _Candidate(choice, spec, spec.canonical, ())


def _locate(
    error: ValidationError, group_index: int, choice: dict[str, tuple[int, object]]
) -> Iterator[Problem]:
    """The kernel's errors at the places of the group where its options were written."""
    for detail in error.errors(include_url=False):
        option, *rest = detail["loc"]
        location: Location = ("kernels", group_index, option)
        if option in choice:
            location += (choice[str(option)][0], *rest)
        context = detail.get("ctx", {})
        yield Problem(
            location,
            context.get("message", detail["msg"]),
            context.get("advice", "change one of the options"),
            context.get("at_key", False),
        )


def _dumped(written: dict[str, object]) -> dict[str, object]:
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        for name, value in written.items()
    }


def _apply_exclusions(
    group_index: int, group: KernelGroup, candidates: list[_Candidate], excluded: set[int]
) -> list[Problem]:
    """Add what the group leaves out to `excluded`; the problems are entries that match nothing or everything."""
    problems = []
    for index, entry in enumerate(group.exclude):
        matching = {id(one) for one in candidates if _matches_all(entry, one.pattern_view)}
        excluded |= matching
        if not matching:
            problems.append(_matches_nothing(group_index, index, entry, candidates))
    if group.exclude and all(id(one) in excluded for one in candidates):
        problems.append(
            Problem(
                ("kernels", group_index, "exclude"),
                "leaves nothing of this group",
                "remove the group, or exclude less",
            )
        )
    return problems


def _matches_all(entry: dict[str, object], view: dict[str, object]) -> bool:
    return all(name in view and _matches_any(value, view[name]) for name, value in entry.items())


def _matches_any(pattern: object, value: object) -> bool:
    if isinstance(pattern, list) and not isinstance(value, list):
        return any(_matches(item, value) for item in pattern)
    return _matches(pattern, value)


def _matches(pattern: object, value: object) -> bool:
    """Whether every part that the pattern names is so in the value; a word names a kind or a layout."""
    match pattern, value:
        case dict(), dict():
            return all(key in value and _matches(part, value[key]) for key, part in pattern.items())
        case str(), dict():
            return value.get("kind", value.get("layout")) == pattern
        case list(), list():
            return len(pattern) == len(value) and all(map(_matches, pattern, value))
        case _:
            return pattern == value and isinstance(pattern, bool) == isinstance(value, bool)


def _matches_nothing(
    group_index: int, index: int, entry: dict[str, object], candidates: list[_Candidate]
) -> Problem:
    location: Location = ("kernels", group_index, "exclude", index)
    for name, pattern in entry.items():
        views = [one.pattern_view.get(name) for one in candidates]
        if not any(_matches_any(pattern, view) for view in views):
            here = list(dict.fromkeys(map(_brief, views)))
            return Problem(
                (*location, name),
                f"no kernel of this group has {name} {_brief(pattern)}",
                f"{did_you_mean(_brief(pattern), here)}{name} is here {', '.join(here)}",
            )
    return Problem(
        location, "no kernel of this group matches all of this entry", "remove the entry"
    )


def _brief(value: object) -> str:
    match value:
        case dict():
            inner = ", ".join(f"{key}: {_brief(item)}" for key, item in value.items())
            return value["kind"] if set(value) == {"kind"} else f"{{{inner}}}"
        case list():
            return f"[{', '.join(map(_brief, value))}]"
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case _:
            return str(value)


def _collect(
    kept: Mapping[tuple[ArchName, int], list[_Candidate]],
) -> tuple[tuple[KernelSpec, ...], list[Problem]]:
    """The kernels in order, each once, and a problem for each pair of groups that give the same one."""
    first: dict[KernelSpec, int] = {}
    problems: dict[tuple[int, int], Problem] = {}
    for (_, index), group in kept.items():
        for one in group:
            if one.spec is None:
                continue
            if one.spec in first:
                pair = first[one.spec], index
                problems.setdefault(pair, _repeated(*pair, one))
            else:
                first[one.spec] = index
    return tuple(first), list(problems.values())


def _repeated(first: int, second: int, candidate: _Candidate) -> Problem:
    options = ", ".join(
        f"{name} {_brief(candidate.pattern_view[name])}" for name in candidate.choice
    )
    if first == second:
        where, advice = f"kernels[{first}] twice", "write it once"
    else:
        where, advice = f"kernels[{first}] and kernels[{second}]", "exclude it in one of them"
    return Problem(("kernels", second), f"the same kernel arises from {where}: {options}", advice)
