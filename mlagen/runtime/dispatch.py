"""Which loaded kernel a call means: every spec is held against the tensors and options, exactly one may remain."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.errors import InputError, NoKernelError
from mlagen.plan.arguments import takes_cache_seqlens
from mlagen.plan.key_maps import page_size_of
from mlagen.plan.mask import takes_valid_lengths
from mlagen.plan.name import kernel_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlagen.runtime.arguments import Call
    from mlagen.spec.model import KernelSpec


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a kernel does not fit a call.

    Attributes:
        wanted: What the call is, as a word of the description.
        has: What the kernel is or needs instead; completes "which ...".
        option: The line of YAML that a fitting kernel would have; None if no option changes it.
        missing: The tensor that the kernel needs and the call lacks.
    """

    wanted: str
    has: str
    option: str | None = None
    missing: str | None = None


def select(
    specs: Sequence[KernelSpec],
    call: Call,
    *,
    arch: str | None,
    source: str,
    reluctance: Callable[[KernelSpec, Call], tuple[float, ...]],
) -> KernelSpec:
    """The kernel that computes this call.

    Args:
        specs: The candidates, in the order of their file.
        call: Tensors and options.
        arch: The device's architecture; None for that of the first kernel that fits, as for the reference.
        source: Where the specs come from, for messages.
        reluctance: The least of several configurations of one meaning is chosen, of equals the first.

    Raises:
        NoKernelError: None fits; names the nearest and what to add.
        InputError: Several of different meaning fit, or the nearest lacks only a tensor.
    """
    fitting = [spec for spec in specs if next(mismatches(spec, call, arch), None) is None]
    if not fitting:
        judged = [(spec, list(mismatches(spec, call, arch))) for spec in specs]
        raise _no_kernel(judged, arch, source)
    fitting = [spec for spec in fitting if spec.arch == fitting[0].arch]
    fitting = _prefer(fitting, lambda spec: spec.lse == _wants_lse(call))
    # A call that names no score mod gets none where a kernel without one is loaded; a mask must be named.
    fitting = _prefer(fitting, lambda spec: spec.score_mod.kind == "identity")
    fitting = _prefer_length(fitting, call.options.max_seqlen_q)
    _refuse_ambiguity(fitting)
    return min(fitting, key=lambda spec: reluctance(spec, call)) if len(fitting) > 1 else fitting[0]


def _wants_lse(call: Call) -> bool:
    return call.options.return_lse or "lse" in call.tensors


def _prefer(specs: list[KernelSpec], good: Callable[[KernelSpec], bool]) -> list[KernelSpec]:
    return [spec for spec in specs if good(spec)] or specs


def _prefer_length(specs: list[KernelSpec], given: int | None) -> list[KernelSpec]:
    """The tightest static length if the caller promised one, else any length, or the most there is."""
    static = [spec.max_seqlen for spec in specs if isinstance(spec.max_seqlen, int)]
    if not static:
        return specs
    if given is not None:
        return _prefer(specs, lambda spec: spec.max_seqlen == min(static))
    longest = max(static) if len(static) == len(specs) else "dynamic"
    return _prefer(specs, lambda spec: spec.max_seqlen == longest)


def _refuse_ambiguity(specs: list[KernelSpec]) -> None:
    layouts = sorted({spec.kv.layout for spec in specs})
    if len(layouts) > 1:
        message = f"k, v: their shapes may be of several layouts, and kernels for {', '.join(layouts)} are loaded"
        raise InputError(f"{message}\n  load a spec with one of these")
    for option in ("mask", "score_mod", "kv_length_counts", "output_dtype"):
        choices = list(dict.fromkeys(describe(getattr(spec, option)) for spec in specs))
        if len(choices) > 1:
            how = "out= of that dtype" if option == "output_dtype" else f"{option}="
            message = f"{option}: not given, and several loaded kernels fit: {', '.join(choices)}"
            raise InputError(f"{message}\n  pass {how}, one of these")


def describe(option: Any) -> str:
    """An option of a spec as a user would write it: `causal`, or `{kind: softcap, cap: 30.0}`."""
    if not hasattr(option, "model_dump"):
        return str(option)
    fields = option.model_dump(
        mode="json", exclude_none=option.__class__.__name__ != "SlidingWindow"
    )
    if set(fields) == {"kind"}:
        return str(fields["kind"])
    return "{" + ", ".join(f"{name}: {_yaml(value)}" for name, value in fields.items()) + "}"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def mismatches(spec: KernelSpec, call: Call, arch: str | None) -> Iterator[Mismatch]:
    """Everything in which a kernel differs from a call, as far as it decides between kernels."""
    if arch is not None and spec.arch != arch:
        yield Mismatch(arch, f"is for {spec.arch}", f"arch: {arch}")
    yield from _queries(spec, call)
    yield from _keys(spec, call)
    yield from _rope(spec, call)
    yield from _meaning(spec, call)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _queries(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    tensors, geometry = call.tensors, spec.geometry
    form = "split" if "q_nope" in tensors else "fused"
    query = tensors["q_nope" if form == "split" else "q"]
    if _dtype(query) != spec.dtype:
        yield Mismatch(_dtype(query), f"has dtype {spec.dtype}", f"dtype: {_dtype(query)}")
    if call.written.get("q") == "q_nope" and spec.q_form == "split" and geometry.qk_rope_head_dim:
        yield Mismatch("without q_pe", "needs q_pe", None, "q_pe")
        form = "split"
    if form != spec.q_form:
        takes = "q_nope and q_pe" if spec.q_form == "split" else "one q"
        yield Mismatch(f"q {form}", f"takes {takes}", f"q_form: {form}")
    width = sum(int(tensors[name].shape[-1]) for name in ("q", "q_nope", "q_pe") if name in tensors)
    if form == "split" and "q_pe" not in tensors:
        width += geometry.qk_rope_head_dim
    dims = (width, int(tensors["v"].shape[-1]))
    if dims != (geometry.qk_head_dim, geometry.v_head_dim):
        has = f"has qk/v dims {geometry.qk_head_dim}/{geometry.v_head_dim}"
        yield Mismatch(f"qk/v dims {dims[0]}/{dims[1]}", has)
    layout = "ragged" if "cu_seqlens_q" in tensors else "dense"
    if layout != spec.q_layout:
        lacks = "cu_seqlens_q" if spec.q_layout == "ragged" else None
        has = "needs cu_seqlens_q" if lacks else "takes no cu_seqlens_q"
        yield Mismatch(f"q {layout}", has, f"q_layout: {layout}", lacks)


def _keys(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    tensors = call.tensors
    layouts = _key_layouts(call)
    layout = spec.kv.layout if spec.kv.layout in layouts else layouts[0]
    offsets, counts = "cu_seqlens_k" in tensors, "cache_seqlens" in tensors
    page_size = int(tensors["v"].shape[1]) if layout == "paged" else None
    option: str | None = f"kv: {layout}"
    if page_size is not None:
        option = _paged_option("kv", page_size)
    if layout != spec.kv.layout:
        yield Mismatch(f"kv {layout}", f"has kv {spec.kv.layout}", option)
    elif page_size != spec.kv.page_size:
        yield Mismatch(f"page_size {page_size}", f"has page_size {spec.kv.page_size}", option)
    else:
        takes_offsets = layout == "ragged" and spec.kv.row_offsets
        if offsets != takes_offsets:
            has = "needs cu_seqlens_k" if takes_offsets else "takes no cu_seqlens_k"
            option = (
                f"kv: {{layout: {layout}, row_offsets: {json.dumps(offsets)}}}"
                if layout == "ragged"
                else None
            )
            yield Mismatch(
                "with cu_seqlens_k" if offsets else "without cu_seqlens_k",
                has,
                option,
                "cu_seqlens_k" if takes_offsets else None,
            )
    takes_counts = takes_cache_seqlens(spec)
    if counts != takes_counts:
        option = {
            "dense": "kv: {layout: dense, seqlens: true}",
            "ragged": "kv_length_counts: prefix",
        }.get(layout)
        yield Mismatch(
            "with cache_seqlens" if counts else "without cache_seqlens",
            "needs cache_seqlens" if takes_counts else "takes no cache_seqlens",
            option if counts else None,
            "cache_seqlens" if takes_counts else None,
        )


def _key_layouts(call: Call) -> tuple[str, ...]:
    """How K and V of a call may lie. A block table finds their pages, or those of the rope rows of a dense batch."""
    tensors = call.tensors
    if tensors["v"].ndim < 4:
        return ("ragged",)
    if "block_table" not in tensors:
        return ("dense",)
    if "k_rope" not in tensors:
        return ("paged",)
    leading, rope, table = (list(tensors[n].shape[:2]) for n in ("v", "k_rope", "block_table"))
    fits = {"dense": leading[:1] == table[:1], "paged": leading == rope}
    return tuple(layout for layout, does in fits.items() if does == any(fits.values()))


def _paged_option(operand: str, page_size: int) -> str:
    return f"{operand}: {{layout: paged, page_size: {page_size}}}"


def _rope(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    rope, tensor = spec.k_rope, call.tensors.get("k_rope")
    if tensor is None:
        if rope.layout != "fused":
            yield Mismatch(
                "rope columns in k", f"takes k_rope {rope.layout}", "k_rope: fused", "k_rope"
            )
        if "block_table" in call.tensors and page_size_of(spec) is None:
            yield Mismatch("with block_table", "takes no block_table")
        return
    paged = "block_table" in call.tensors
    if rope.layout == "paged" and not paged:
        yield Mismatch("without block_table", "needs block_table", None, "block_table")
    elif rope.layout != "paged" and paged:
        page_size = int(tensor.shape[1]) if tensor.ndim > 1 else 0
        option = _paged_option("k_rope", page_size)
        yield Mismatch(f"k_rope paged, page_size {page_size}", f"has k_rope {rope.layout}", option)
    elif rope.layout == "paged" and tensor.ndim > 2 and int(tensor.shape[1]) != rope.page_size:
        page_size = int(tensor.shape[1])
        option = _paged_option("k_rope", page_size)
        yield Mismatch(f"page_size {page_size}", f"has page_size {rope.page_size}", option)
    elif not paged and not _rope_fits(spec, call):
        yield Mismatch(f"k_rope {list(tensor.shape)}", f"has k_rope {rope.layout}")
    if rope.layout != "fused":
        yield from _rope_rows(spec, call)


def _rope_fits(spec: KernelSpec, call: Call) -> bool:
    """Whether k_rope's leading dimensions can be those of this layout: `[T, (H,) D]` or `[batch, seqlen, (H,) D]`."""
    tensor = call.tensors["k_rope"]
    if spec.k_rope.layout == "fused":
        return False
    if spec.k_rope.layout == "dense":
        if tensor.ndim == 3 and spec.kv.layout == "ragged" and "cu_seqlens_q" in call.tensors:
            return int(tensor.shape[0]) == int(call.tensors["cu_seqlens_q"].shape[0]) - 1
        return tensor.ndim in (3, 4)
    return tensor.ndim == 2 or (tensor.ndim == 3 and int(tensor.shape[1]) == spec.k_rope.num_heads)


def _rope_rows(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    rope, tensor = spec.k_rope, call.tensors["k_rope"]
    outer = 1 if rope.layout == "ragged" else 2
    width = int(tensor.shape[-1])
    heads = int(tensor.shape[outer]) if tensor.ndim == outer + 2 else 1
    if width != rope.row_width:
        yield Mismatch(
            f"k_rope rows of {width}",
            f"has row_width {rope.row_width}",
            f"k_rope: {{row_width: {width}}}",
        )
    if heads != rope.num_heads:
        yield Mismatch(
            f"{heads} rope heads",
            f"has {rope.num_heads} rope heads",
            f"k_rope: {{num_heads: {heads}}}",
        )


def _meaning(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    options, tensors = call.options, call.tensors
    for name in ("mask", "score_mod", "kv_length_counts"):
        asked, has = getattr(options, name), getattr(spec, name)
        if asked is not None and asked != has:
            yield Mismatch(
                f"{name} {describe(asked)}",
                f"has {name} {describe(has)}",
                f"{name}: {describe(asked)}",
            )
    yield from _option_tensors(spec, call)
    if _wants_lse(call) and not spec.lse:
        yield Mismatch("with LSE", "writes no LSE", "lse: true")
    longest = options.max_seqlen_q
    if isinstance(spec.max_seqlen, int) and longest is not None and longest > spec.max_seqlen:
        yield Mismatch(
            f"max_seqlen_q {longest}", f"has max_seqlen {spec.max_seqlen}", "max_seqlen: dynamic"
        )
    if "out" in tensors and _dtype(tensors["out"]) != spec.output_dtype:
        asked = _dtype(tensors["out"])
        yield Mismatch(f"out {asked}", f"writes {spec.output_dtype}", f"output_dtype: {asked}")


def _option_tensors(spec: KernelSpec, call: Call) -> Iterator[Mismatch]:
    """Tensors that come with an option: name, whether the kernel takes it, the line of YAML with it and without."""
    takes_slopes = any(mod.kind == "alibi" and mod.slopes == "tensor" for mod in spec.score_mods)
    ranks = [mod.rank for mod in spec.score_mods if mod.kind == "bias"]
    extents = [mod.extent for mod in spec.score_mods if mod.kind == "relative_bias"]
    bias, relative_bias = call.tensors.get("bias"), call.tensors.get("relative_bias")
    rank = 0 if bias is None else bias.ndim
    extent = 0 if relative_bias is None else int(relative_bias.shape[-1])
    for name, takes, option, without in (
        ("sinks", spec.sink, "sink: true", "sink: false"),
        (
            "alibi_slopes",
            takes_slopes,
            "score_mod: {kind: alibi, slopes: tensor}",
            "score_mod: alibi",
        ),
        ("bias", bool(ranks), _bias_option(rank), "score_mod: identity"),
        ("relative_bias", bool(extents), _relative_option(extent), "score_mod: identity"),
        ("valid_lengths", takes_valid_lengths(spec.mask), "mask: padding", "mask: none"),
    ):
        if (name in call.tensors) == takes:
            continue
        if takes:
            yield Mismatch(f"without {name}", f"needs {name}", without, name)
        else:
            yield Mismatch(f"with {name}", f"takes no {name}", option)
    if rank and ranks and rank != ranks[0]:
        has = f"takes a bias of {ranks[0]}"
        yield Mismatch(f"a bias of {rank} dimensions", has, _bias_option(rank))
    if extent and extents and extent != extents[0]:
        has = f"has extent {extents[0]}"
        yield Mismatch(f"relative_bias of {extent} distances", has, _relative_option(extent))


def _bias_option(rank: int) -> str:
    return f"score_mod: {{kind: bias, rank: {rank}}}"


def _relative_option(extent: int) -> str:
    return f"score_mod: {{kind: relative_bias, extent: {extent}}}"


def _no_kernel(
    judged: list[tuple[KernelSpec, list[Mismatch]]], arch: str | None, source: str
) -> InputError | NoKernelError:
    if not judged:
        return NoKernelError(f"{source}: holds no kernel\n  add one under kernels")
    nearest, found = min(judged, key=lambda pair: len(pair[1]))
    if len(found) == 1 and found[0].missing is not None:
        message = f"{found[0].missing}: missing; the only fitting kernel {found[0].has}"
        other = found[0].option
        instead = "" if other is None else f", or add to a group of {source}: {other}"
        return InputError(f"{message}\n  pass {found[0].missing}={instead}")
    wanted = ", ".join(mismatch.wanted for mismatch in found)
    lines = [
        f"nothing loaded for {nearest.op}{f' on {arch}' if arch else ''} with: {wanted}",
        f"  nearest: {kernel_name(nearest)}, which "
        + " and ".join(mismatch.has for mismatch in found),
    ]
    options = [mismatch.option for mismatch in found if mismatch.option is not None]
    if options:
        lines.append(
            f"  add to a group of kernels in {source}: {'; '.join(options)}; then: mlagen build {source}"
        )
    else:
        lines.append("  check the shapes of the tensors against the geometry of the spec")
    return NoKernelError("\n".join(lines))


def normalised(call: Call) -> Call:
    """The call without rope tensors of width 0, and with `q_nope` renamed to `q` where there is no rope part."""
    tensors, written = dict(call.tensors), dict(call.written)
    for name in ("q_pe", "k_rope"):
        if name in tensors and getattr(tensors[name], "shape", (1,))[-1:] == (0,):
            del tensors[name], written[name]
    if "q_nope" in tensors and not {"q_pe", "q"} & tensors.keys():
        tensors["q"], written["q"] = tensors.pop("q_nope"), written.pop("q_nope")
    return dataclasses.replace(call, tensors=tensors, written=written)
