"""Checks of the tensors of a call against the kernel chosen for it: shapes, dtypes, devices, never values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlagen.dtypes import DTYPES
from mlagen.errors import DeviceError, DTypeError, InputError, ShapeError
from mlagen.plan.arguments import takes_cache_seqlens
from mlagen.runtime.arguments import LARGEST_SCALE, SMALLEST_SCALE
from mlagen.runtime.host_tensor import converted
from mlagen.runtime.parameters import score_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlagen.runtime.arguments import Call
    from mlagen.spec.model import KernelSpec

# Rows and heads: positions, window widths and the coordinates of clipped maps add up inside 32 bits.
LARGEST_EXTENT = 2**30 - 1

_INTEGERS = ("cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "valid_lengths", "block_table")
_PER_SEQUENCE = ("cache_seqlens", "valid_lengths")
_PER_HEAD = ("sinks", "alibi_slopes")
_FLOATS = (*_PER_HEAD, "bias", "relative_bias", "lse")


@dataclass(frozen=True, slots=True)
class Extents:
    """The sizes of a call.

    Attributes:
        batch: Sequences.
        num_heads: Query heads.
        rows_q: Query rows of the whole tensor.
        seqlen_q: Queries of each sequence in a dense batch; 0 in a ragged one.
        rows_k: Key rows of the whole tensor.
        seqlen_k: Key rows of each sequence of dense keys; for paged ones, those that the block table has room for; 0
            for ragged ones.
    """

    batch: int
    num_heads: int
    rows_q: int
    seqlen_q: int
    rows_k: int
    seqlen_k: int


def check_presence(call: Call) -> None:
    """Raise InputError if a tensor that every call needs is missing, or two forms of one are mixed."""
    tensors = call.tensors
    if "q" in tensors and ("q_nope" in tensors or "q_pe" in tensors):
        raise InputError("q: given together with q_nope or q_pe\n  pass q, or q_nope and q_pe")
    if "q" not in tensors and "q_nope" not in tensors:
        raise InputError("q: missing\n  pass q [.., num_heads, qk_head_dim], or q_nope and q_pe")
    for name in ("k", "v"):
        if name not in tensors:
            raise InputError(f"{name}: missing\n  pass {name} [.., num_heads, head_dim]")
    for name, tensor in tensors.items():
        odd = oddity(tensor)
        if odd is not None:
            message = f"{call.written[name]}: {odd}, and kernels read memory as strides say"
            raise InputError(f"{message}\n  pass a plain tensor of the same values")
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            message = f"{call.written[name]}: expected a tensor, got {type(tensor).__name__}"
            raise InputError(f"{message}\n  pass torch tensors or NumPy arrays")
    _check_one_kind(call)
    for name in ("q", "q_nope", "q_pe", "k", "k_rope", "v"):
        least = 2 if name == "k_rope" else 3
        if name in tensors and not least <= tensors[name].ndim <= 4:
            got = list(tensors[name].shape)
            message = f"{call.written[name]}: expected {least} to 4 dimensions, got {got}"
            raise ShapeError(f"{message}\n  shapes are listed in the documentation of Kernels.run")
    if "block_table" in tensors and "k_rope" not in tensors and tensors["v"].ndim < 4:
        message = "k_rope: missing, and block_table is given"
        raise InputError(f"{message}\n  pass the cache as k_rope=, or k and v in pages")
    if "bias" in tensors and not 2 <= tensors["bias"].ndim <= 4:
        message = (
            f"{call.written['bias']}: expected 2 to 4 dimensions, got {list(tensors['bias'].shape)}"
        )
        raise ShapeError(f"{message}\n  pass [q, k], [batch, q, k] or [batch, num_heads, q, k]")
    if "relative_bias" in tensors and tensors["relative_bias"].ndim < 1:
        message = f"{call.written['relative_bias']}: expected 3 or 4 dimensions, got a number"
        raise ShapeError(f"{message}\n  pass [total_q, num_heads, extent]")
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if name in tensors and tensors[name].ndim != 1:
            message = f"{call.written[name]}: expected [batch + 1], got {list(tensors[name].shape)}"
            raise ShapeError(f"{message}\n  pass running totals of the lengths, from 0")
    query = "q" if "q" in tensors else "q_nope"
    if tensors[query].ndim == 3 and "cu_seqlens_q" not in tensors:
        message = f"cu_seqlens_q: missing, and {call.written[query]} {list(tensors[query].shape)} is a ragged batch"
        raise InputError(
            f"{message}\n  pass int32 [batch + 1], or {query} [batch, seqlen_q, num_heads, head_dim]"
        )


def oddity(tensor: Any) -> str | None:
    """Why elements of a torch tensor are not what its strides find in memory; None if they are."""
    if not hasattr(tensor, "is_nested"):  # no tensor of torch
        return None
    if tensor.is_nested:  # it may have no shape
        return "a nested tensor"
    if str(tensor.layout) != "torch.strided":
        return f"a tensor of layout {tensor.layout}"
    return "a tensor to be negated when it is read" if tensor.is_neg() else None


def _check_one_kind(call: Call) -> None:
    """Raise unless all are torch tensors, or all are NumPy arrays."""
    first = "q" if "q" in call.tensors else "q_nope"
    query = call.tensors[first]
    for name, tensor in call.tensors.items():
        if hasattr(tensor, "data_ptr") != hasattr(query, "data_ptr"):
            kinds = (
                f"a {type(tensor).__name__}, but {call.written[first]} is a {type(query).__name__}"
            )
            advice = "pass torch tensors or NumPy arrays, not both"
            raise DeviceError(f"{call.written[name]}: {kinds}\n  {advice}")


def check_tensors(spec: KernelSpec, call: Call) -> Extents:
    """Hold every tensor against the spec.

    Returns:
        The sizes of the call.

    Raises:
        ShapeError, DTypeError, DeviceError, InputError: Each names the tensor, what was expected
            and what came.
    """
    checker = _Checker(spec, call)
    checker.check_devices()
    checker.check_dtypes()
    extents = checker.check_shapes()
    checker.check_outputs(extents)
    checker.check_lengths(extents)
    checker.check_scales()
    return extents


class _Checker:
    """The checks of one call; errors carry the caller's own names."""

    def __init__(self, spec: KernelSpec, call: Call) -> None:
        """Hold what every check needs."""
        self._spec = spec
        self._call = call
        self._tensors: Mapping[str, Any] = call.tensors

    def _name(self, name: str) -> str:
        return self._call.written.get(name, name)

    def check_devices(self) -> None:
        """All tensors on the device of the queries."""
        first = "q" if "q" in self._tensors else "q_nope"
        device = getattr(self._tensors[first], "device", None)
        for name, tensor in self._tensors.items():
            here = getattr(tensor, "device", None)
            if here == device:
                continue
            message = f"{self._name(name)}: on {here}, but {self._name(first)} is on {device}"
            raise DeviceError(f"{message}\n  move it with {self._name(name)}.to({str(device)!r})")

    def check_dtypes(self) -> None:
        """The dtype of each tensor."""
        for name, tensor in self._tensors.items():
            if name in _INTEGERS:
                expected = "int32"
            elif name in _FLOATS:
                expected = "float32"
            else:
                expected = str(self._spec.output_dtype if name == "out" else self._spec.dtype)
            got = str(tensor.dtype).removeprefix("torch.")
            if got != expected:
                message = f"{self._name(name)}: expected {expected}, got {got} {list(tensor.shape)}"
                advice = converted(self._name(name), tensor, expected)
                raise DTypeError(f"{message}\n  convert it with {advice}")

    def _expect(self, name: str, *dims: tuple[str, int] | int) -> None:
        """Raise unless the tensor has this shape; a named size appears in the message with its name."""
        sizes = [dim if isinstance(dim, int) else dim[1] for dim in dims]
        shape = [int(size) for size in self._tensors[name].shape]
        if shape == sizes:
            return
        text = ", ".join(str(dim) if isinstance(dim, int) else f"{dim[0]}={dim[1]}" for dim in dims)
        message = f"{self._name(name)}: expected [{text}], got {shape}"
        raise ShapeError(f"{message}\n  {self._shape_advice(name)}")

    def _shape_advice(self, name: str) -> str:
        if name == "lse":
            return "mlagen's layout is [total_q, num_heads], without the padding of other libraries"
        if name == "out":
            return "pass one of that shape, or leave it out to have it allocated"
        if name in _PER_HEAD:
            return "pass one value for each head"
        return "sizes with a name come from the other tensors: one of them may be the wrong one"

    def _axis(self, name: str, axis: int, ndim: int, form: str) -> int:
        """One size of a tensor that must have `ndim` dimensions."""
        tensor = self._tensors[name]
        if tensor.ndim != ndim:
            message = (
                f"{self._name(name)}: expected {form}, got {[int(size) for size in tensor.shape]}"
            )
            raise ShapeError(
                f"{message}\n  {'pass cu_seqlens_q for a ragged batch' if ndim == 4 else 'reshape it'}"
            )
        return int(tensor.shape[axis])

    def check_shapes(self) -> Extents:
        """The shape of each input, and that they agree."""
        spec, geometry = self._spec, self._spec.geometry
        query = "q" if "q" in self._tensors else "q_nope"
        if spec.q_layout == "dense":
            form = "[batch, seqlen_q, num_heads, head_dim]"
            batch, seqlen_q = (self._axis(query, axis, 4, form) for axis in (0, 1))
            rows_q = batch * seqlen_q
            leading: tuple[tuple[str, int], ...] = (("batch", batch), ("seqlen_q", seqlen_q))
        else:
            rows_q, seqlen_q = self._axis(query, 0, 3, "[total_q, num_heads, head_dim]"), 0
            batch = self._offsets("cu_seqlens_q")
            leading = (("total_q", rows_q),)
        num_heads = int(self._tensors[query].shape[-2])
        heads = ("num_heads", num_heads)
        widths = {
            "q": geometry.qk_head_dim,
            "q_nope": geometry.qk_nope_head_dim,
            "q_pe": geometry.qk_rope_head_dim,
        }
        for name in ("q",) if query == "q" else ("q_nope", "q_pe"):
            self._expect_present(name)
            self._expect(name, *leading, heads, widths[name])
        rows_k, seqlen_k = self._check_keys(batch, heads)
        extents = Extents(batch, num_heads, rows_q, seqlen_q, rows_k, seqlen_k)
        self._check_rope(extents)
        self._check_vectors(extents)
        self._check_bias(extents)
        self._check_relative_bias(extents)
        self._check_sizes(extents)
        return extents

    def _expect_present(self, name: str) -> None:
        if name not in self._tensors:
            raise InputError(f"{name}: missing\n  pass it, or one fused q")

    def _offsets(self, name: str) -> int:
        """The batch size that `cu_seqlens` of shape [batch + 1] means."""
        length = self._axis(name, 0, 1, "[batch + 1]")
        if length == 0:
            message = f"{self._name(name)}: expected [batch + 1], got [0]"
            raise ShapeError(f"{message}\n  an empty batch has offsets [0]")
        return length - 1

    def _check_keys(self, batch: int, heads: tuple[str, int]) -> tuple[int, int]:
        spec = self._spec
        if spec.kv.layout == "dense":
            seqlen_k = self._axis("v", 1, 4, "[batch, seqlen_k, num_heads, v_head_dim]")
            leading: tuple[tuple[str, int], ...] = (("batch", batch), ("seqlen_k", seqlen_k))
            rows = batch * seqlen_k
        elif spec.kv.layout == "paged":
            assert spec.kv.page_size is not None
            pages = self._axis("v", 0, 4, "[pages, page_size, num_heads, v_head_dim]")
            leading = (("pages", pages), ("page_size", spec.kv.page_size))
            rows = pages * spec.kv.page_size
            width = self._check_block_table(batch, 0, spec.kv.page_size)
            seqlen_k = width * spec.kv.page_size if pages else 0
        else:
            rows, seqlen_k = self._axis("v", 0, 3, "[total_k, num_heads, v_head_dim]"), 0
            leading = (("total_k", rows),)
            if spec.kv.row_offsets:
                self._expect("cu_seqlens_k", ("batch + 1", batch + 1))
        fused = spec.k_rope.layout == "fused"
        width = spec.geometry.qk_head_dim if fused else spec.geometry.qk_nope_head_dim
        self._expect("v", *leading, heads, spec.geometry.v_head_dim)
        self._expect("k", *leading, heads, width)
        return rows, seqlen_k

    def _check_rope(self, extents: Extents) -> None:
        rope = self._spec.k_rope
        if rope.layout == "fused":
            return
        assert rope.row_width is not None
        tensor = self._tensors["k_rope"]
        if extents.num_heads % rope.num_heads:
            message = f"q: {extents.num_heads} heads are no multiple of the {rope.num_heads} rope heads of the kernel"
            raise ShapeError(
                f"{message}\n  pass a multiple, or add a kernel with another k_rope.num_heads"
            )
        if rope.layout == "ragged":
            leading: tuple[tuple[str, int] | int, ...] = (("total_k", extents.rows_k),)
        elif rope.layout == "dense":
            seqlen = extents.seqlen_k if self._spec.kv.layout == "dense" else int(tensor.shape[1])
            leading = (("batch", extents.batch), ("seqlen_k", seqlen))
        else:
            assert rope.page_size is not None
            pages = int(tensor.shape[0])
            if self._spec.kv.layout == "paged":  # which the same table finds
                pages = int(self._tensors["v"].shape[0])
            else:
                is_known = self._spec.kv.layout == "dense" and not self._spec.kv.seqlens
                longest = extents.seqlen_k if is_known else 0
                self._check_block_table(extents.batch, longest, rope.page_size)
            leading = (("pages", pages), ("page_size", rope.page_size))
        has_heads = tensor.ndim == len(leading) + 2
        inner = (("rope heads", rope.num_heads),) if has_heads or rope.num_heads > 1 else ()
        self._expect("k_rope", *leading, *inner, ("row_width", rope.row_width))
        # A tensor without elements has no address, so no map can say that its rows end at once.
        if 0 in tensor.shape and extents.rows_k > 0:
            message = f"{self._name('k_rope')}: has no rows, but {extents.rows_k} keys need some"
            raise ShapeError(f"{message}\n  pass the rope rows of the keys")

    def _check_block_table(self, batch: int, longest: int, page_size: int) -> int:
        """The pages of a row of the table, which must be enough for `longest` keys and what the caller says."""
        width = self._axis("block_table", 1, 2, "[batch, max_pages]")
        longest = max(longest, self._call.options.max_seqlen_k or 0)
        if width * page_size < longest:
            needed = -(-longest // page_size)
            got = list(self._tensors["block_table"].shape)
            message = f"{self._name('block_table')}: expected int32 [batch={batch}, >= {needed}], got {got}"
            raise ShapeError(f"{message}\n  {needed} pages of {page_size} hold {longest} keys")
        self._expect("block_table", ("batch", batch), ("max_pages", width))
        return width

    def _check_vectors(self, extents: Extents) -> None:
        for name in _PER_SEQUENCE:
            if name in self._tensors:
                self._expect(name, ("batch", extents.batch))
        for name in _PER_HEAD:
            if name in self._tensors:
                self._expect(name, ("num_heads", extents.num_heads))

    def _check_bias(self, extents: Extents) -> None:
        """That a bias has a row for every query and a column for every key that the host knows of."""
        if "bias" not in self._tensors:
            return
        options, spec = self._call.options, self._spec
        queries = extents.seqlen_q or options.max_seqlen_q or 0
        has_known_keys = spec.kv.layout == "dense" and not takes_cache_seqlens(spec)
        keys = extents.seqlen_k if has_known_keys else options.max_seqlen_k or 0
        got = [int(size) for size in self._tensors["bias"].shape]
        batch, heads = ("batch", extents.batch), ("num_heads", extents.num_heads)
        outer = {2: (), 3: (batch,), 4: (batch, heads)}[len(got)]
        fits = [have in (1, want) for have, (_, want) in zip(got, outer, strict=False)]
        if all(fits) and (got[-2] == 1 or got[-2] >= queries) and got[-1] >= keys:
            return
        sizes = [f"{name}={size} or 1" for name, size in outer]
        text = ", ".join([*sizes, f">= {queries} queries or 1", f">= {keys} keys"])
        message = f"{self._name('bias')}: expected [{text}], got {got}"
        advice = "rows are the queries of a sequence, columns its keys; what all share has size 1"
        raise ShapeError(f"{message}\n  {advice}")

    def _check_relative_bias(self, extents: Extents) -> None:
        if "relative_bias" not in self._tensors:
            return
        leading: tuple[tuple[str, int], ...] = (("total_q", extents.rows_q),)
        if self._spec.q_layout == "dense":
            leading = (("batch", extents.batch), ("seqlen_q", extents.seqlen_q))
        (extent,) = (mod.extent for mod in self._spec.score_mods if mod.kind == "relative_bias")
        heads = ("num_heads", extents.num_heads)
        self._expect("relative_bias", *leading, heads, ("extent", extent))

    def _check_sizes(self, extents: Extents) -> None:
        """What the kernel counts in 32 bits."""
        for what, size in (
            ("total_q", extents.rows_q),
            ("total_k", extents.rows_k),
            ("seqlen_k", extents.seqlen_k),
            ("heads", extents.num_heads),
        ):
            if size > LARGEST_EXTENT:
                message = f"q, k: {size} is more than {LARGEST_EXTENT} for {what}"
                raise ShapeError(f"{message}\n  split the batch")

    def check_outputs(self, extents: Extents) -> None:
        """Shapes of `out` and `lse`."""
        leading: tuple[tuple[str, int], ...] = (("total_q", extents.rows_q),)
        if self._spec.q_layout == "dense":
            leading = (("batch", extents.batch), ("seqlen_q", extents.seqlen_q))
        heads = ("num_heads", extents.num_heads)
        if "out" in self._tensors:
            self._expect("out", *leading, heads, self._spec.geometry.v_head_dim)
        if "lse" in self._tensors:
            self._expect("lse", *leading, heads)

    def check_lengths(self, extents: Extents) -> None:
        """That the `max_seqlen` given on the host can be true of these tensors."""
        options, spec = self._call.options, self._spec
        longest_q, longest_k = options.max_seqlen_q, options.max_seqlen_k
        if spec.q_layout == "dense":
            self._check_longest("max_seqlen_q", longest_q, extents.seqlen_q)
        else:
            use = "or slice q to the rows that sequences use"
            self._check_filled(
                "max_seqlen_q", longest_q, extents, f"pass the longest length, {use}"
            )
            if isinstance(spec.max_seqlen, int):
                advice = f"load a kernel with max_seqlen: dynamic, {use}"
                self._check_filled("the kernel's max_seqlen", spec.max_seqlen, extents, advice)
        # How many rows of ragged keys are in use, only the device knows; no kernel needs their longest.
        if spec.kv.layout == "dense" and not spec.kv.seqlens:
            self._check_longest("max_seqlen_k", longest_k, extents.seqlen_k)

    def check_scales(self) -> None:
        """That scales of operands are given only where they mean something, and that kernels can compute with them."""
        spec, options = self._spec, self._call.options
        for name in options.scales:
            if not DTYPES[spec.dtype].is_scaled:
                message = f"{name}: given, but the kernel takes {spec.dtype}, which has no scale"
                raise InputError(f"{message}\n  leave it out, or pass float8_e4m3fn tensors")
        scale = score_scale(spec, options)
        if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
            message = f"softmax_scale * q_scale * k_scale: {scale} is not {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}"
            raise InputError(f"{message}\n  float32 cannot hold it")

    def _check_filled(self, name: str, limit: int | None, extents: Extents, advice: str) -> None:
        """Raise InputError if sequences of at most `limit` rows must leave rows of q out."""
        batch, rows = extents.batch, extents.rows_q
        if limit is not None and limit * batch < rows:
            message = f"{name}: {batch} sequences of at most {limit} cannot fill {rows} rows"
            raise InputError(f"{message}\n  {advice}")

    def _check_longest(self, name: str, given: int | None, length: int) -> None:
        if given is not None and given < length:
            message = f"{name}: {given} is less than the {length} rows of every sequence"
            advice = "leave it out: dense batches take their length from the tensor"
            raise InputError(f"{message}\n  {advice}")
