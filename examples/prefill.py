"""DeepSeek-V3 attention prefill over a paged latent cache, checked and timed.

    pip install 'mlagen[torch]'
    python examples/prefill.py

One layer of DeepSeek-V3 (128 heads, 128 + 64 columns of q and k, 128 of v) as a serving engine runs it. The engine
keeps one latent row a token: 512 compressed columns and 64 rotated key columns that all heads share, in pages of 64
rows. In prefill the 512 columns are projected up to a key and a value per head; the 64 stay where they are, and the
kernel reads them from the pages.

The three parts below stand on their own:

1. four requests of different lengths in one call,
2. the same call against float64 and against torch's attention,
3. a long prompt in chunks: new tokens on old ones, two states merged into one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import mlagen
from mlagen.verify.reference import reference

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC = Path(__file__).parents[1] / "specs/deepseek.yaml"
HEADS, NOPE, ROPE, VALUE, RANK, PAGE = 128, 128, 64, 128, 512, 64
PROMPTS = (4096, 1000, 2311, 777)


@dataclass(frozen=True, slots=True)
class Layer:
    """The two projections of one layer that prefill needs."""

    key: torch.Tensor  # [rank, heads, nope]
    value: torch.Tensor  # [rank, heads, value]

    def keys_and_values(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A key (without its rotated columns) and a value per head of each latent row `[tokens, rank]`."""
        both = latent @ torch.cat((self.key, self.value), dim=-1).flatten(1)
        # Views into one tensor: the kernel takes any strides whose last dimension is contiguous.
        k_nope, v = both.unflatten(-1, (HEADS, NOPE + VALUE)).split((NOPE, VALUE), dim=-1)
        return k_nope, v


@dataclass(frozen=True, slots=True)
class Cache:
    """The latent cache of one layer.

    Attributes:
        rows: `[pages, 64, 512 + 64]`; pages are handed out in any order.
        block_table: int32 `[batch, most pages]`: the pages of each request.
    """

    rows: torch.Tensor
    block_table: torch.Tensor

    def tokens(self, request: int, length: int) -> torch.Tensor:
        """The first rows of a request, gathered: `[length, 576]`."""
        pages = self.block_table[request, : -(-length // PAGE)].long()
        return self.rows[pages].flatten(0, 1)[:length]


def fill_cache(lengths: tuple[int, ...]) -> Cache:
    """A cache that holds random rows for requests of these lengths."""
    counts = [-(-length // PAGE) for length in lengths]
    rows = torch.randn(sum(counts), PAGE, RANK + ROPE, device="cuda", dtype=torch.bfloat16)
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device="cuda")
    free = torch.randperm(sum(counts), device="cuda").to(torch.int32)
    for request, pages in enumerate(free.split(counts)):
        table[request, : len(pages)] = pages
    return Cache(rows, table)


def new_layer() -> Layer:
    """Random projections whose results have unit variance."""
    key = torch.randn(RANK, HEADS, NOPE, device="cuda", dtype=torch.bfloat16) * RANK**-0.5
    value = torch.randn(RANK, HEADS, VALUE, device="cuda", dtype=torch.bfloat16) * RANK**-0.5
    return Layer(key, value)


def offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    """Where each request starts, and the end: int32 `[batch + 1]`."""
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def batch_tensors(layer: Layer, cache: Cache, lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Everything that one call of the kernel takes, for requests whose tokens are all new."""
    latent = torch.cat([cache.tokens(i, n)[:, :RANK] for i, n in enumerate(lengths)])
    k_nope, v = layer.keys_and_values(latent)
    tokens = sum(lengths)
    return {
        "q_nope": torch.randn(tokens, HEADS, NOPE, device="cuda", dtype=torch.bfloat16),
        "q_pe": torch.randn(tokens, HEADS, ROPE, device="cuda", dtype=torch.bfloat16),
        "k_nope": k_nope,
        "v": v,
        # Cache rows as they lie: the kernel reads the last 64 columns of each.
        "k_rope": cache.rows,
        "block_table": cache.block_table,
        "cu_seqlens_q": offsets(lengths),
        "cu_seqlens_k": offsets(lengths),
    }


def prefill(kernels: mlagen.Kernels, layer: Layer) -> dict[str, torch.Tensor]:
    """Part 1: one call for the whole batch. The softmax scale, with its YaRN factor, comes from the spec."""
    cache = fill_cache(PROMPTS)
    tensors = batch_tensors(layer, cache, PROMPTS)
    out, lse = kernels.run(tensors, mask="causal", return_lse=True)
    print(
        f"prefill of {PROMPTS} tokens: out {list(out.shape)} {out.dtype}, lse {list(lse.shape)} {lse.dtype}"
    )
    return tensors


def check(kernels: mlagen.Kernels, tensors: dict[str, torch.Tensor]) -> None:
    """Part 2: four heads against the definition in float64."""
    spec = next(
        spec
        for spec in kernels.specs
        if spec.k_rope.page_size == PAGE
        and spec.q_form == "split"
        and spec.mask.kind == "causal"
        and spec.lse
    )
    out, lse = kernels.run(tensors, mask="causal", return_lse=True)
    heads = [0, 1, 64, 127]
    per_head = {"q_nope", "q_pe", "k_nope", "v"}
    part = {name: x[:, heads] if name in per_head else x for name, x in tensors.items()}
    part["k"] = part.pop("k_nope")
    exact, exact_lse = reference(spec, part)
    error = (out[:, heads].double() - exact).norm() / exact.norm()
    lse_error = (lse[:, heads].double() - exact_lse).abs().max()
    print(
        f"against float64: relative L2 error {error:.1e} (bf16 allows 2.5e-3), LSE within {lse_error:.1e}"
    )
    assert float(error) <= 2.5e-3
    assert float(lse_error) <= 2e-4


def compare_times(kernels: mlagen.Kernels, layer: Layer, length: int = 8192) -> None:
    """Part 2, continued: one prompt of 8k tokens, beside torch's fastest attention on tensors prepared for it."""
    cache = fill_cache((length,))
    tensors = batch_tensors(layer, cache, (length,))
    q = torch.cat((tensors["q_nope"], tensors["q_pe"]), dim=-1)
    rope = cache.tokens(0, length)[:, None, RANK:].expand(-1, HEADS, -1)
    k = torch.cat((tensors["k_nope"], rope), dim=-1)
    q, k, v = (x[None].transpose(1, 2) for x in (q, k, tensors["v"].contiguous()))
    scale = kernels.specs[0].geometry.softmax_scale

    def ours() -> torch.Tensor:
        out: torch.Tensor = kernels.run(tensors, mask="causal")
        return out

    def torchs() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out: torch.Tensor = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return out

    difference = (
        ours().float() - torchs()[0].transpose(0, 1).float()
    ).norm() / ours().float().norm()
    flops = 2 * (NOPE + ROPE + VALUE) * HEADS * length * (length + 1) / 2
    for name, call in (
        ("mlagen, from the pages", ours),
        ("torch (cuDNN), K in one tensor", torchs),
    ):
        milliseconds = time_ms(call)
        print(
            f"{length} tokens, {name}: {milliseconds:.2f} ms, {flops / milliseconds / 1e9:.0f} TFLOP/s"
        )
    print(f"the two differ by {difference:.1e}")


def time_ms(call: Callable[[], object]) -> float:
    """Median device time of a call; `benchmarks/` measures with more care."""
    for _ in range(3):
        call()
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times)


def prefill_in_chunks(
    kernels: mlagen.Kernels, layer: Layer, length: int = 6000, chunk: int = 2048
) -> None:
    """Part 3: a prompt in chunks, so that no call holds keys and values of all tokens at once.

    The tokens of a chunk attend to one another (causal) and to all tokens before them (no mask). Each of the two calls
    gives an output and the log-sum-exp of its scores, and `merge_state` weighs them into attention over both. The
    result is that of one call over everything.
    """
    cache = fill_cache((length,))
    tensors = batch_tensors(layer, cache, (length,))
    whole = kernels.run(tensors, mask="causal")
    error = 0.0
    for first in range(0, length, chunk):
        last = min(first + chunk, length)
        queries = {name: tensors[name][first:last] for name in ("q_nope", "q_pe")}
        out, lse = attend(kernels, cache, layer, queries, (first, last), mask="causal")
        for start in range(0, first, chunk):  # earlier chunks, one at a time
            before = attend(kernels, cache, layer, queries, (start, start + chunk), mask="none")
            out, lse = mlagen.merge_state(out, lse, *before)
        error = max(
            error,
            float(
                (out.float() - whole[first:last].float()).norm() / whole[first:last].float().norm()
            ),
        )
    print(f"{length} tokens in chunks of {chunk}: differs from one call by at most {error:.1e}")
    assert error <= 5e-3


def attend(
    kernels: mlagen.Kernels,
    cache: Cache,
    layer: Layer,
    queries: dict[str, torch.Tensor],
    keys: tuple[int, int],
    *,
    mask: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE of some queries on the cached tokens from `keys[0]` to `keys[1]` of request 0."""
    first, last = keys
    rows = cache.tokens(0, last)[first:]
    k_nope, v = layer.keys_and_values(rows[:, :RANK])
    out, lse = kernels.run(
        {
            **queries,
            "k_nope": k_nope,
            "v": v,
            "k_rope": rows[:, RANK:],  # one rope row a token, a view
            "cu_seqlens_q": offsets((len(queries["q_pe"]),)),
            "cu_seqlens_k": offsets((last - first,)),
        },
        mask=mask,
        return_lse=True,
    )
    return out, lse


def main() -> None:
    """Run the three parts."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "this example needs an NVIDIA GPU and a CUDA build of torch; see: mlagen doctor"
        )
    torch.manual_seed(0)
    kernels = mlagen.load(SPEC)
    layer = new_layer()
    with torch.inference_mode():
        tensors = prefill(kernels, layer)
        check(kernels, tensors)
        compare_times(kernels, layer)
        prefill_in_chunks(kernels, layer)


if __name__ == "__main__":
    main()
