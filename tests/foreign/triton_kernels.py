"""Kernels in Triton's language, written for these tests: what they compile to is PTX that we have not made."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: ANN001, ANN201, N803 (Triton's own conventions: untyped pointers, upper-case constants)


@triton.jit
def softmax_rows(x, out, columns, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * row_stride + column, mask=inside, other=float("-inf"))
    shifted = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * row_stride + column, shifted / tl.sum(shifted, axis=0), mask=inside)


@triton.jit
def product(
    a,
    b,
    c,
    m,
    n,
    k,
    a_row,
    a_column,
    b_row,
    b_column,
    c_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + depth
        a_tile = tl.load(
            a + rows[:, None] * a_row + at[None, :] * a_column,
            mask=(rows[:, None] < m) & (at[None, :] < k),
            other=0.0,
        )
        b_tile = tl.load(
            b + at[:, None] * b_row + columns[None, :] * b_column,
            mask=(at[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(a_tile, b_tile, total)
    tl.store(
        c + rows[:, None] * c_row + columns[None, :],
        total.to(c.dtype.element_ty),
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )


@triton.jit
def product_by_tma(
    a,
    b,
    c,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in tl.range(0, k, BLOCK_K, warp_specialize=SPECIALIZE):
        total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
    c.store([row, column], total.to(tl.bfloat16))


@triton.jit
def product_persistent(
    a,
    b,
    c,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CTAS: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles = tiles_m * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, CTAS, flatten=True, warp_specialize=SPECIALIZE):
        row = tile % tiles_m * BLOCK_M
        column = tile // tiles_m * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, k, BLOCK_K):
            total = tl.dot(a.load([row, start]), b.load([column, start]).T, total)
        c.store([row, column], total.to(tl.bfloat16))


@triton.jit
def product_split(
    a,
    b,
    c,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(tl.program_id(2) * BLOCK_K, k, BLOCK_K * SPLIT):
        at = start + tl.arange(0, BLOCK_K)
        a_tile = tl.load(a + rows[:, None] * k + at[None, :])
        b_tile = tl.load(b + columns[None, :] * k + at[:, None])
        total = tl.dot(a_tile, b_tile, total)
    tl.atomic_add(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    lse,
    queries,
    keys,
    scale_log2,
    HEAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    head = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    lanes = tl.arange(0, HEAD)
    q += head * queries * HEAD
    k += head * keys * HEAD
    v += head * keys * HEAD
    q_tile = tl.load(
        q + rows[:, None] * HEAD + lanes[None, :], mask=rows[:, None] < queries, other=0.0
    )
    largest = tl.full((BLOCK_Q,), float("-inf"), dtype=tl.float32)
    norm = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q, HEAD), dtype=tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, keys - queries + (tl.program_id(0) + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        k_tile = tl.load(
            k + at[None, :] * HEAD + lanes[:, None], mask=at[None, :] < keys, other=0.0
        )
        scores = tl.dot(q_tile, k_tile) * scale_log2
        seen = at[None, :] < keys
        if CAUSAL:
            seen = seen & (at[None, :] <= rows[:, None] + keys - queries)
        scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        factor = tl.exp2(largest - new_largest)
        norm = norm * factor + tl.sum(weights, axis=1)
        v_tile = tl.load(
            v + at[:, None] * HEAD + lanes[None, :], mask=at[:, None] < keys, other=0.0
        )
        total = tl.dot(weights.to(v.dtype.element_ty), v_tile, total * factor[:, None])
        largest = new_largest
    out += head * queries * HEAD
    tl.store(
        out + rows[:, None] * HEAD + lanes[None, :],
        (total / norm[:, None]).to(out.dtype.element_ty),
        mask=rows[:, None] < queries,
    )
    tl.store(lse + head * queries + rows, largest + tl.log2(norm), mask=rows < queries)


@triton.jit
def product_by_made_descriptors(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    a_map = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    b_map = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
    c_map = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    row = tl.program_id(0) * BLOCK_M
    column = tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        total = tl.dot(a_map.load([row, start]), b_map.load([column, start]).T, total)
    c_map.store([row, column], total.to(tl.bfloat16))


@triton.jit
def attention_by_tma(
    q,
    k,
    v,
    out,
    lse,
    queries,
    keys,
    scale_log2,
    HEAD: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):
    head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK_Q
    rows = first + tl.arange(0, BLOCK_Q)
    q_tile = q.load([head * queries + first, 0])
    largest = tl.full((BLOCK_Q,), float("-inf"), dtype=tl.float32)
    norm = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q, HEAD), dtype=tl.float32)
    for start in tl.range(0, keys, BLOCK_K, warp_specialize=SPECIALIZE):
        scores = tl.dot(q_tile, k.load([head * keys + start, 0]).T) * scale_log2
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        factor = tl.exp2(largest - new_largest)
        norm = norm * factor + tl.sum(weights, axis=1)
        total = total * factor[:, None]
        total = tl.dot(weights.to(tl.bfloat16), v.load([head * keys + start, 0]), total)
        largest = new_largest
    out.store([head * queries + first, 0], (total / norm[:, None]).to(tl.bfloat16))
    tl.store(lse + head * queries + rows, largest + tl.log2(norm))


@triton.jit
def running_sums(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0)
    tl.store(out + row * columns + column, tl.cumsum(values, axis=0), mask=inside)
