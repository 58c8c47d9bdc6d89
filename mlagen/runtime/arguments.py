"""The arguments of `run`: their names and aliases in one table, and the options as typed values."""

from __future__ import annotations

import difflib
import functools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from mlagen.errors import InputError
from mlagen.spec.diagnostics import find_errors
from mlagen.spec.mask import Mask
from mlagen.spec.mask import simplified as simplified_mask
from mlagen.spec.score_mod import ScoreMod
from mlagen.spec.score_mod import simplified as simplified_score_mod
from mlagen.spec.source import show_path

if TYPE_CHECKING:
    from collections.abc import Mapping

# name -> other names for the same argument
TENSORS: dict[str, tuple[str, ...]] = {
    "q": (),
    "q_nope": (),
    "q_pe": (),
    "k": ("k_nope",),
    "k_rope": ("kpe",),
    "v": (),
    "block_table": ("page_table",),
    "cu_seqlens_q": ("qo_indptr",),
    "cu_seqlens_k": ("kv_indptr",),
    "cache_seqlens": ("seq_lens",),
    "valid_lengths": (),
    "sinks": (),
    "alibi_slopes": (),
    "bias": (),
    "relative_bias": (),
    "out": (),
    "lse": (),
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "mask": (),
    "score_mod": (),
    "causal": (),
    "window_size": (),
    "attention_chunk": (),
    "softcap": ("logits_soft_cap",),
    "kv_length_counts": (),
    "return_lse": ("return_softmax_lse",),
    "softmax_scale": ("sm_scale",),
    "q_scale": ("q_descale",),
    "k_scale": ("k_descale",),
    "v_scale": ("v_descale",),
    "max_seqlen_q": (),
    "max_seqlen_k": (),
    "validate": (),
}
# Names of interfaces that users come from, which no kernel takes yet.
NOT_YET = {
    "kv_cache": "the latent cache of decode",
    "ckv": "the latent cache of decode",
    "ckv_scale": "fp8 caches",
    "kpe_scale": "fp8 caches",
    "num_splits": "split-KV",
    "kv_indices": "FlashInfer's page lists",
}
SCALES = ("q_scale", "k_scale", "v_scale")
# Kernels compute with float32, where the scale must neither vanish nor overflow.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
CANONICAL = {
    alias: name
    for table in (TENSORS, OPTIONS)
    for name, aliases in table.items()
    for alias in (name, *aliases)
}


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a call that are no tensors; None means not given.

    Attributes:
        mask: The mask asked for, from `mask=` or the flags.
        score_mod: The score mod asked for, from `score_mod=` or `softcap=`.
        kv_length_counts: `total` or `prefix`.
        return_lse: Whether the caller wants the LSE back.
        softmax_scale: Overrides the geometry's own scale.
        q_scale: By which all values of q are multiplied, where the dtype has scales; None is 1.
        k_scale: Likewise of k, rope columns included.
        v_scale: Likewise of v.
        max_seqlen_q: Upper bound on the query lengths.
        max_seqlen_k: Upper bound on the key lengths.
        validate: Read lengths and page ids on the device and check them.
    """

    mask: Mask | None = None
    score_mod: ScoreMod | None = None
    kv_length_counts: str | None = None
    return_lse: bool = False
    softmax_scale: float | None = None
    q_scale: float | None = None
    k_scale: float | None = None
    v_scale: float | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    validate: bool = False

    @property
    def scales(self) -> dict[str, float]:
        """The scales of operands that are given, by name."""
        given = {name: getattr(self, name) for name in SCALES}
        return {name: scale for name, scale in given.items() if scale is not None}


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call under their canonical names.

    Attributes:
        tensors: Those given and not None.
        written: The caller's own name of each tensor.
        options: The rest.
    """

    tensors: dict[str, Any]
    written: dict[str, str]
    options: Options


def parse_call(arguments: Mapping[str, Any]) -> Call:
    """Sort the arguments of `run` into tensors and options.

    Raises:
        InputError: An unknown name, one argument given twice, or an option with a wrong value.
    """
    written: dict[str, str] = {}
    for name in arguments:
        canonical = CANONICAL.get(name)
        if canonical is None:
            raise _unknown(name)
        if canonical in written and arguments[name] is not None:
            message = f"{name}: given twice, also as {written[canonical]}\n  pass one of them"
            raise InputError(message)
        if arguments[name] is not None:
            written[canonical] = name
    tensors = {name: arguments[written[name]] for name in TENSORS if name in written}
    options = {name: arguments[written[name]] for name in OPTIONS if name in written}
    return Call(tensors, written, _parse_options(options))


def _unknown(name: str) -> InputError:
    if name in NOT_YET:
        return InputError(f"{name}: {NOT_YET[name]} is not available yet\n  leave it out")
    close = difflib.get_close_matches(name, CANONICAL, n=1)
    advice = f"did you mean {close[0]}?" if close else f"known: {', '.join(CANONICAL)}"
    return InputError(f"{name}: no such argument\n  {advice}")


def _parse_options(given: Mapping[str, Any]) -> Options:
    return Options(
        mask=_mask(given),
        score_mod=_score_mod(given),
        kv_length_counts=_choice(
            "kv_length_counts", given.get("kv_length_counts"), ("total", "prefix")
        ),
        return_lse=_flag("return_lse", given.get("return_lse", False)),
        softmax_scale=_scale("softmax_scale", given.get("softmax_scale")),
        q_scale=_scale("q_scale", given.get("q_scale")),
        k_scale=_scale("k_scale", given.get("k_scale")),
        v_scale=_scale("v_scale", given.get("v_scale")),
        max_seqlen_q=_length("max_seqlen_q", given.get("max_seqlen_q")),
        max_seqlen_k=_length("max_seqlen_k", given.get("max_seqlen_k")),
        validate=_flag("validate", given.get("validate", False)),
    )


def _mask(given: Mapping[str, Any]) -> Mask | None:
    """The mask by `mask=`, or by `causal=`, `window_size=` and `attention_chunk=` as FlashAttention means them."""
    flags = [name for name in ("causal", "window_size", "attention_chunk") if name in given]
    if "mask" in given:
        if flags:
            raise InputError(f"mask: given together with {', '.join(flags)}\n  pass mask= alone")
        return parse_mask(given["mask"])
    if not flags:
        return None
    causal = _flag("causal", given.get("causal", False))
    left, right = _window(given.get("window_size", (-1, -1)))
    chunk = _length("attention_chunk", given.get("attention_chunk", 0)) or 0
    if chunk:
        if left is not None or right is not None:
            raise InputError(
                "attention_chunk: given together with window_size\n  name the mask with mask= instead"
            )
        return parse_mask({"kind": "chunked", "size": chunk, "causal": causal})
    if causal:
        right = 0
    if left is None and right is None:
        return parse_mask("none")
    if left is None and right == 0:
        return parse_mask("causal")
    return parse_mask({"kind": "sliding_window", "left": left, "right": right})


# Any: annotated unions are no types to mypy
_UNIONS: dict[str, Any] = {"mask": Mask, "score_mod": ScoreMod}


@functools.cache
def _adapter(option: str) -> TypeAdapter[Any]:
    return TypeAdapter(_UNIONS[option])


def parse_mask(value: Any) -> Mask:
    """The mask that a word, a dict as in a spec, or a mask object names, in its plainest form."""
    return simplified_mask(_parse_union("mask", value))


def parse_score_mod(value: Any) -> ScoreMod:
    """The score mod that a word, a dict or list as in a spec, or an object names, in its plainest form."""
    return simplified_score_mod(_parse_union("score_mod", value))


def _parse_union(option: str, value: Any) -> Any:
    try:
        return _adapter(option).validate_python(value)
    except ValidationError as error:
        found = find_errors(error, _UNIONS[option], value)
        texts = [f"{show_path((option, *one.path))}{one.message}\n  {one.advice}" for one in found]
        raise InputError("\n\n".join(texts)) from error


def _window(value: Any) -> tuple[int | None, int | None]:
    try:
        left, right = value
    except (TypeError, ValueError) as error:
        message = (
            f"window_size: expected (left, right), got {value!r}\n  -1 or None means unlimited"
        )
        raise InputError(message) from error
    sides = [
        None if side is None or _integer("window_size", side) < 0 else int(side)
        for side in (left, right)
    ]
    return sides[0], sides[1]


def _score_mod(given: Mapping[str, Any]) -> ScoreMod | None:
    if "softcap" not in given:
        return parse_score_mod(given["score_mod"]) if "score_mod" in given else None
    if "score_mod" in given:
        raise InputError("score_mod: given together with softcap\n  pass score_mod= alone")
    cap = _number("softcap", given["softcap"])
    if not math.isfinite(cap) or cap < 0:
        raise InputError(f"softcap: expected a finite number >= 0, got {cap}\n  0 switches it off")
    return parse_score_mod({"kind": "softcap", "cap": cap}) if cap else parse_score_mod("identity")


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise InputError(
            f"{name}: {value!r} is not one of {', '.join(allowed)}\n  pass one of them"
        )
    return value  # type: ignore[no-any-return]  # it equals one of the strings


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected True or False, got {value!r}\n  pass a bool")
    return value


def _scale(name: str, value: Any) -> float | None:
    if value is None:
        return None
    scale = _number(name, value)
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        message = f"{name}: expected {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}, got {scale}"
        default = "the model's own scale" if name == "softmax_scale" else "1"
        raise InputError(f"{message}\n  leave it out for {default}")
    return scale


def _length(name: str, value: Any) -> int | None:
    if value is None:
        return None
    length = _integer(name, value)
    if not 0 <= length < 2**31:
        raise InputError(
            f"{name}: expected 0 to 2147483647, got {length}\n  pass the longest length as an int"
        )
    return length


def _integer(name: str, value: Any) -> int:
    """A Python int; NumPy's integers pass, tensors do not: their value may lie on a device."""
    if isinstance(value, bool) or hasattr(value, "data_ptr"):
        what = (
            "a tensor, whose value run() does not read"
            if hasattr(value, "data_ptr")
            else repr(value)
        )
        raise InputError(
            f"{name}: expected an int, got {what}\n  pass int(...), computed once outside the loop"
        )
    try:
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{name}: expected an int, got {value!r}\n  pass int(...)") from error


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | str) or hasattr(value, "data_ptr"):
        what = (
            "a tensor, whose value run() does not read"
            if hasattr(value, "data_ptr")
            else repr(value)
        )
        raise InputError(
            f"{name}: expected a number, got {what}\n  pass float(...), computed once outside the loop"
        )
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: expected a number, got {value!r}\n  pass float(...)") from error
