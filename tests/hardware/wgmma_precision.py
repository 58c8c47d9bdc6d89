"""How many bits `wgmma` keeps: products whose sizes are chosen so that the answer shows, and random ones to test it.

Matrices are bit patterns `[ctas, steps, rows, k]`; one CTA computes one 64 x 8 product, adding `steps` products to the
same accumulator. Operands lie in shared memory without swizzle, so that nothing else is in question.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import Buffer, Case, output
from tests.hardware.values import FLOATS, UNSIGNED, ordinary, patterns, raw, width
from tests.hardware.wgmma import THREADS, Form, Tile, launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Patterns = NDArray[np.uint64]

N = 8
A_STEP_BYTES, B_STEP_BYTES = 2048, 256
TILE = Tile(0, 128, 256)
FORMS = tuple(
    Form(N, d, kind, kind)
    for d, kind in (
        ("f32", "bf16"),
        ("f32", "f16"),
        ("f16", "f16"),
        ("f32", "e4m3"),
        ("f16", "e4m3"),
        ("f32", "tf32"),
    )
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Operands of one launch.

    Attributes:
        name: Of the probe; the same for every form.
        a: `[ctas, steps, 64, k]`.
        b: `[ctas, steps, 8, k]`.
        c: `[ctas, 64, 8]`, in the accumulator's type.
    """

    name: str
    a: Patterns
    b: Patterns
    c: Patterns


def power(
    kind: str, exponent: NDArray[np.int64] | int, fraction: int = 0, sign: int = 0
) -> Patterns:
    """`(1 + fraction / 8) 2^exponent`, or zero where the format has no such normal number."""
    bits, exponents = FLOATS["f32" if kind == "tf32" else kind]
    bias = (1 << (exponents - 1)) - 1
    biased = np.asarray(exponent, np.int64) + bias
    top = (1 << exponents) - (1 if kind == "e4m3" else 2)
    tail = fraction << (bits - 3) if bits >= 3 else fraction >> (3 - bits)
    pattern = (np.clip(biased, 0, top).astype(np.uint64) << np.uint64(bits)) + np.uint64(tail)
    pattern |= np.uint64(sign << (width(kind) - 1))
    return np.where((biased < 1) | (biased > top), np.uint64(0), pattern)


def rows_and_columns() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of accumulator element `[thread, j]` (PTX ISA, wgmma fragment of D)."""
    thread, j = np.meshgrid(np.arange(THREADS), np.arange(N // 2), indexing="ij")
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (j >> 1 & 1)
    return row, 8 * (j >> 2) + 2 * (thread & 3) + (j & 1)


def _image(form: Form, probe: Probe) -> NDArray[np.uint8]:
    """Shared memory of every CTA: A's steps, then B's."""
    ctas, steps, _, k = probe.a.shape
    size = width(form.a) // 8
    chunk = 16 // size
    parts = []
    for matrix in (probe.a, probe.b):
        rows = matrix.shape[2]
        blocks = matrix.reshape(ctas, steps, rows // 8, 8, k // chunk, chunk)
        ordered = np.ascontiguousarray(
            blocks.transpose(0, 1, 2, 4, 3, 5).astype(UNSIGNED[8 * size])
        )
        parts.append(ordered.reshape(ctas, -1).view(np.uint8))
    return np.concatenate(parts, axis=1)


def _accumulators(form: Form, c: Patterns) -> NDArray[np.uint32]:
    row, column = rows_and_columns()
    kind = UNSIGNED[width(form.d)]
    return np.ascontiguousarray(c[:, row, column].astype(kind)).reshape(-1).view(np.uint32)


def case(form: Form, probe: Probe) -> Case:
    """The launch of a probe."""
    ctas, steps = probe.a.shape[:2]
    size = steps * (A_STEP_BYTES + B_STEP_BYTES)
    padded = -(-size // 16) * 16
    image = np.zeros((ctas, padded), np.uint8)
    image[:, :size] = _image(form, probe)
    buffers = (
        Buffer(image),
        Buffer(np.zeros(ctas * THREADS * 4, np.uint32)),
        Buffer(_accumulators(form, probe.c)),
        output(ctas * THREADS * form.accumulators, kind="f16x2" if form.d == "f16" else form.d),
    )
    return launch(
        form,
        f"wgmma-precision/{form.name}/{probe.name}",
        buffers,
        TILE,
        TILE,
        padded,
        ctas=ctas,
        steps=steps,
        step_bytes=(A_STEP_BYTES, B_STEP_BYTES),
        b_at=steps * A_STEP_BYTES,
    )


def _narrow(kind: str, hashes: NDArray[np.uint64], reach: int) -> Patterns:
    """Floats of any significand with exponents within `reach` of 1's."""
    bits, exponents = FLOATS["f32" if kind == "tf32" else kind]
    bias = (1 << (exponents - 1)) - 1
    reach = min(reach, bias - 1)
    exponent = (hashes >> np.uint64(3)) % np.uint64(2 * reach + 1) + np.uint64(bias - reach)
    fraction = hashes >> np.uint64(20) & np.uint64((1 << bits) - 1)
    if kind == "tf32":
        fraction &= np.uint64(0x7FE000)
    sign = (hashes & np.uint64(1)) << np.uint64(width(kind) - 1)
    return np.asarray(sign | exponent << np.uint64(bits) | fraction)


def _random(
    form: Form, name: str, ctas: int, reach: int, c_reach: int | None, steps: int = 1
) -> Probe:
    """Random operands; the accumulator is zero without `c_reach`."""
    seed = f"{form.name}/{name}"
    shapes = ((ctas, steps, 64, form.k), (ctas, steps, N, form.k))
    a, b = (
        _narrow(form.a, raw(f"{seed}/{i}", int(np.prod(shape))), reach).reshape(shape)
        for i, shape in enumerate(shapes)
    )
    c = np.zeros((ctas, 64, N), np.uint64)
    if c_reach is not None:
        c = _narrow(form.d, raw(f"{seed}/c", c.size), c_reach).reshape(c.shape)
    return Probe(name, a, b, c)


# Small addends of column n: how many, their sign, the sign of the large one (0: it is missing).
_COLUMNS = (
    (1, 1, 1),
    (3, 1, 1),
    (99, 1, 1),
    (1, -1, 1),
    (99, -1, 1),
    (99, 1, -1),
    (2, 1, 1),
    (99, 1, 0),
)


def _large_and_small(form: Form, large: str) -> Probe:
    """One large addend beside small ones that shrink from row to row; `large` is `product`, `pair` or `accumulator`.

    `pair` cancels the large product with its negative, so that only the small ones are left.
    """
    kind, k = form.a, form.k
    top = {"e4m3": 7, "f16": 7}.get(kind, 20)
    spots = (0, 1, k // 2, k - 1)
    fractions, shifts = (0, 6), (0, 6)
    variants = list(itertools.product(spots, fractions, shifts))
    a = np.zeros((len(variants), 1, 64, k), np.uint64)
    b = np.zeros((len(variants), 1, N, k), np.uint64)
    c = np.zeros((len(variants), 64, N), np.uint64)
    row = np.arange(64)
    for v, (spot, fraction, shift) in enumerate(variants):
        small = power(
            kind, top - row // (2 if kind == "tf32" else 1) % (64 if top > 7 else 21), fraction
        )
        a[v, 0] = small[:, None]
        others = [i for i in range(k) if i not in (spot, (spot + 2) % k)]
        for n, (count, sign, large_sign) in enumerate(_COLUMNS):
            for i in others[:count]:
                b[v, 0, n, i] = power(kind, -shift, 0, int(sign < 0))
            if large_sign and large != "accumulator":
                b[v, 0, n, spot] = power(kind, 0, 0, int(large_sign < 0))
                if large == "pair":
                    b[v, 0, n, (spot + 2) % k] = power(kind, 0, 0, int(large_sign > 0))
            elif large_sign:
                c[v, :, n] = power(form.d, top, 0, int(large_sign < 0))
        a[v, 0, :, [spot, (spot + 2) % k]] = power(kind, top)
    return Probe(f"large-{large}", a, b, c)


def _small_accumulator(form: Form) -> Probe:
    """One product of 1 and an accumulator of many bits that shrinks from row to row, then grows beyond it."""
    ctas, k = 4, form.k
    a = np.zeros((ctas, 1, 64, k), np.uint64)
    b = np.zeros((ctas, 1, N, k), np.uint64)
    for v in range(ctas):
        a[v, 0, :, v] = power(form.a, 0)
        b[v, 0, :, v] = power(form.a, 0, 0, v & 1)
    span = 8 if form.d == "f16" else 24
    exponent = (span - np.arange(64) * 2 * span // 63)[None, :, None]
    fraction = FLOATS[form.d][0]
    bias = (1 << FLOATS[form.d][1] - 1) - 1
    hashes = raw(f"{form.name}/small-accumulator", ctas * 64 * N).reshape(ctas, 64, N)
    tail = hashes >> np.uint64(20) & np.uint64((1 << fraction) - 1)
    c = (exponent + bias).astype(np.uint64) << np.uint64(fraction) | tail
    c = c | (hashes & np.uint64(1)) << np.uint64(width(form.d) - 1)
    return Probe("small-accumulator", a, b, c)


def _special(form: Form) -> Probe:
    """Denormals, infinities and NaN among few other products."""
    ctas, k = 16, form.k
    seed = f"{form.name}/special"
    sparse_a = raw(f"{seed}/where", ctas * 64 * k) % np.uint64(4) == 0
    a = np.where(
        sparse_a, patterns(form.a, f"{seed}/a", ctas * 64 * k).astype(np.uint64), np.uint64(0)
    )
    b = ordinary(form.b, raw(f"{seed}/b", ctas * N * k))
    c = patterns(form.d, f"{seed}/c", ctas * 64 * N).astype(np.uint64)
    return Probe(
        "special", a.reshape(ctas, 1, 64, k), b.reshape(ctas, 1, N, k), c.reshape(ctas, 64, N)
    )


def probes(form: Form) -> Iterator[Probe]:
    """All probes of a form."""
    for reach in (0, 1, 3, 6, 12):
        yield _random(form, f"random-{reach}", 16, reach, None)
        yield _random(form, f"random-{reach}-accumulate", 16, reach, reach + 2)
    yield _random(form, "chain-8", 16, 1, None, steps=8)
    yield _random(form, "chain-8-wide", 16, 6, 3, steps=8)
    for large in ("product", "pair", "accumulator"):
        yield _large_and_small(form, large)
    yield _small_accumulator(form)
    yield _special(form)


def cases() -> list[Case]:
    """All probes of all forms."""
    return [case(form, probe) for form in FORMS for probe in probes(form)]
