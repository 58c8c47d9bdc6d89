"""Calls met before: what was decided for one holds for every call like it, wherever its tensors lie.

Alike are calls with the same names, the same options, and plain tensors of the same sizes, strides, dtypes and devices.
The checks of a first call look at nothing else, so a call like one that has passed them passes them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from operator import is_
from typing import TYPE_CHECKING, Any

from mlagen.runtime.inputs import oddity
from mlagen.spec.base import SpecModel

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from mlagen.runtime.cuda_launch import Recipe

# A serving loop meets a new total length at each step, and repeats it in every layer.
KNOWN_CALLS = 1024
RECENT_CALLS = 4

_PLAIN = frozenset({str, bool, int, float, type(None)})


class KnownCalls:
    """Recipes of calls that have passed all checks. Thread safe."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[Hashable, _KnownCall] = {}
        self._recent: tuple[_KnownCall, ...] = ()

    def find(self, arguments: dict[str, Any]) -> Recipe | None:
        """The recipe of calls like this one; None if none is known."""
        for known in self._recent:
            if known.is_like(arguments):
                return known.recipe
        if not self._known:  # perhaps because nobody has torch
            return None
        found = self._known.get(_signature(arguments))
        if found is None:
            return None
        # What is like it differs in what decides nothing, as whether torch is in inference mode.
        known = found if found.is_like(arguments) else _KnownCall(arguments, found.recipe)
        self._recent = (known, *self._recent[: RECENT_CALLS - 1])
        return known.recipe

    def add(self, arguments: dict[str, Any], recipe: Recipe) -> None:
        """Remember a call that has passed all checks, unless it has options that cannot be compared."""
        signature = _signature(arguments)
        if signature is None:
            return
        if len(self._known) >= KNOWN_CALLS:
            self._known, self._recent = {}, ()
        known = self._known[signature] = _KnownCall(arguments, recipe)
        self._recent = (known, *self._recent[: RECENT_CALLS - 1])

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)


class _KnownCall:
    """One call, to be compared with others: in a tenth of the time that a look-up by signature takes.

    Attributes:
        recipe: How such calls are launched.
    """

    def __init__(self, arguments: dict[str, Any], recipe: Recipe) -> None:
        """Note what the call is like; its tensors are not kept."""
        import torch

        self.recipe = recipe
        tensors = {
            name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)
        }
        options = {name: value for name, value in arguments.items() if name not in tensors}
        self._count = len(arguments)
        self._option_names = tuple(options)
        self._options = [_comparable(value) for value in options.values()]
        # Most options are the same object in each call. What may have changed since is no object of any call.
        self._same = [value if type(value) in _PLAIN else self for value in options.values()]
        self._guards = [
            (names, _guard([tensors[name] for name in names])) for names in _without_twins(tensors)
        ]
        # A guard knows whether a tensor requires gradients, and not whether they are on.
        self._needs_no_grad = any(tensor.requires_grad for tensor in tensors.values())
        self._is_grad_enabled = torch.is_grad_enabled

    def is_like(self, arguments: dict[str, Any]) -> bool:
        """Whether a call is like this one."""
        if len(arguments) != self._count or (self._needs_no_grad and self._is_grad_enabled()):
            return False
        argument = arguments.__getitem__
        try:
            for names, are_alike in self._guards:
                if not are_alike(*map(argument, names)):
                    return False
            options = [*map(argument, self._option_names)]
        except KeyError:
            return False
        return all(map(is_, options, self._same)) or [*map(_comparable, options)] == self._options


def _without_twins(tensors: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Names of tensors in groups, none with one tensor twice: torch's guards take no twins."""
    names = list(tensors)
    while names:
        group = {id(tensors[name]): name for name in reversed(names)}.values()
        yield tuple(group)
        names = [name for name in names if name not in group]


def _guard(tensors: Sequence[Any]) -> Callable[..., bool]:
    """A function that says whether other tensors are like these.

    torch has it in C++, for what `torch.compile` compiles: it takes 0.6 us for seven tensors where Python takes 4.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:  # it is no public part of torch
        forms = [_form(tensor) for tensor in tensors]
        return lambda *others: [*map(_form, others)] == forms
    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


def _signature(arguments: Mapping[str, Any]) -> Hashable:
    """A key that calls have in common if they are alike; None for a call that must be checked in full."""
    import torch

    parts: list[Hashable] = []
    gradients = torch.is_grad_enabled()
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            comparable = _comparable(value)
            if comparable is None:
                return None
            parts.append((name, comparable))
            continue
        form = _form(value)
        if form is None or (gradients and value.requires_grad):
            return None
        parts.append((name, form))
    return tuple(parts)


def _form(tensor: Any) -> Hashable:
    """What decides about a launch and is the tensor's; None if it is none, or none that a kernel can read."""
    if not hasattr(tensor, "data_ptr") or oddity(tensor) is not None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _comparable(value: Any) -> Hashable:
    """An option as a value that is equal only to that of the same option; None if there is no telling."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value  # 1, 1.0 and True are equal, and not the same
    if isinstance(value, Integral):
        return int, int(value)
    if isinstance(value, Real):
        return float, float(value)
    if isinstance(value, Mapping | list | tuple | SpecModel):
        return repr(value)
    return None
