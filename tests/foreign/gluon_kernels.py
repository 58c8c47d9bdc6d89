"""Kernels in Gluon, Triton's language of explicit layouts: tensor memory, its load shapes, CTA pairs, warp roles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.blackwell import mbarrier, tma

# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, RUF005 (conventions of the language: untyped pointers, upper-case constants)


@gluon.jit
def load_tile(pointer, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    return gl.load(pointer + rows[:, None] * COLUMNS + columns[None, :])


@gluon.jit
def store_tile(pointer, value, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = value.type.layout
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    gl.store(pointer + rows[:, None] * COLUMNS + columns[None, :], value)


@gluon.jit
def tile_product(
    a,
    b,
    out,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    DTYPE: gl.constexpr,
    VARIANT: gl.constexpr,
    A_IN_TENSOR_MEMORY: gl.constexpr,
    SWIZZLE: gl.constexpr,
    B_BY_COLUMNS: gl.constexpr,
):
    """One tile, operands through registers; D read back with one of the load shapes."""
    BITS: gl.constexpr = DTYPE.primitive_bitwidth
    operand: gl.constexpr = gl.NVMMASharedLayout(SWIZZLE, BITS, 2)
    if B_BY_COLUMNS:
        b_columns = gl.allocate_shared_memory(DTYPE, [N, K], operand, load_tile(b, N, K))
        b_shared = b_columns.permute((1, 0))
    else:
        b_shared = gl.allocate_shared_memory(DTYPE, [K, N], operand, load_tile(b, K, N))
    a_value = load_tile(a, M, K)
    d_layout: gl.constexpr = blackwell.TensorMemoryLayout([M, N], col_stride=1)
    d = blackwell.allocate_tensor_memory(gl.float32, [M, N], d_layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    if A_IN_TENSOR_MEMORY:
        a_layout: gl.constexpr = blackwell.TensorMemoryLayout([M, K], col_stride=1)
        a_operand = blackwell.allocate_tensor_memory(DTYPE, [M, K], a_layout)
        a_operand.store(gl.convert_layout(a_value, a_operand.get_reg_layout()))
    else:
        a_operand = gl.allocate_shared_memory(DTYPE, [M, K], operand, a_value)
    blackwell.fence_async_shared()
    blackwell.tcgen05_mma(a_operand, b_shared, d, use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    store_tile(out, d.load(d.get_reg_layout(instr_variant=VARIANT)), M, N)


@gluon.jit
def pair_product(a, b, out, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, DTYPE: gl.constexpr):
    """One tile of a CTA pair: each CTA holds half of A's rows and half of B's columns."""
    BITS: gl.constexpr = DTYPE.primitive_bitwidth
    a_shared_layout: gl.constexpr = gl.NVMMASharedLayout(128, BITS, 2, cga_layout=[[1, 0]])
    b_shared_layout: gl.constexpr = gl.NVMMASharedLayout(128, BITS, 2, cga_layout=[[0, 1]])
    a_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]])
    b_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]])
    a_rows = gl.arange(0, M, gl.SliceLayout(1, a_layout))
    a_columns = gl.arange(0, K, gl.SliceLayout(0, a_layout))
    b_rows = gl.arange(0, K, gl.SliceLayout(1, b_layout))
    b_columns = gl.arange(0, N, gl.SliceLayout(0, b_layout))
    a_value = gl.load(a + a_rows[:, None] * K + a_columns[None, :])
    b_value = gl.load(b + b_rows[:, None] * N + b_columns[None, :])
    a_shared = gl.allocate_shared_memory(DTYPE, [M, K], a_shared_layout, a_value)
    b_shared = gl.allocate_shared_memory(DTYPE, [K, N], b_shared_layout, b_value)
    d_layout: gl.constexpr = blackwell.TensorMemoryLayout(
        [M // 2, N], col_stride=1, cga_layout=[[1, 0]], two_ctas=True
    )
    d = blackwell.allocate_tensor_memory(gl.float32, [M, N], d_layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    blackwell.fence_async_shared(cluster=True)
    gl.barrier(cluster=True)  # the even CTA multiplies what the odd one has stored
    blackwell.tcgen05_mma(a_shared, b_shared, d, use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    store_tile(out, d.load(), M, N)


@gluon.jit
def copied_tile(x, out, M: gl.constexpr, N: gl.constexpr, SWIZZLE: gl.constexpr):
    """Shared memory to tensor memory by `tcgen05.cp`, and back through registers."""
    shared_layout: gl.constexpr = gl.NVMMASharedLayout(SWIZZLE, 32, 2)
    shared = gl.allocate_shared_memory(gl.float32, [M, N], shared_layout, load_tile(x, M, N))
    d = blackwell.allocate_tensor_memory(
        gl.float32, [M, N], blackwell.TensorMemoryLayout([M, N], col_stride=1)
    )
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    blackwell.fence_async_shared()
    blackwell.tcgen05_copy(shared, d)
    blackwell.tcgen05_commit(bar)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    store_tile(out, d.load(), M, N)


@gluon.jit
def _load_panels(a, b, a_ring, b_ring, full, empty, panels, STAGES: gl.constexpr):
    row = gl.program_id(0) * a.block_type.shape[0]
    for panel in range(panels):
        stage = panel % STAGES
        mbarrier.wait(empty.index(stage), panel // STAGES % 2 ^ 1)
        mbarrier.expect(full.index(stage), a.block_type.nbytes + b.block_type.nbytes)
        column = panel * a.block_type.shape[1]
        tma.async_load(a, [row, column], full.index(stage), a_ring.index(stage))
        tma.async_load(b, [0, column], full.index(stage), b_ring.index(stage))


@gluon.jit
def _multiply_panels(a_ring, b_ring, d, full, empty, done, panels, STAGES: gl.constexpr):
    for panel in range(panels):
        stage = panel % STAGES
        mbarrier.wait(full.index(stage), panel // STAGES % 2)
        blackwell.tcgen05_mma(
            a_ring.index(stage),
            b_ring.index(stage).permute((1, 0)),
            d,
            use_acc=panel > 0,
            mbarriers=[empty.index(stage)],
        )
    blackwell.tcgen05_commit(done)


@gluon.jit
def _store_tile_by_tma(c, d, staging, done):
    mbarrier.wait(done, 0)
    staging.store(d.load().to(c.dtype))
    blackwell.fence_async_shared()
    tma.async_store(c, [gl.program_id(0) * c.block_type.shape[0], 0], staging)
    tma.store_wait(0)


@gluon.jit
def product_in_roles(a, b, c, panels, STAGES: gl.constexpr):
    """A warp that loads, a warp that multiplies, and four that store."""
    M: gl.constexpr = a.block_type.shape[0]
    N: gl.constexpr = b.block_type.shape[0]
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    staging = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    d = blackwell.allocate_tensor_memory(
        gl.float32, [M, N], blackwell.TensorMemoryLayout([M, N], col_stride=1)
    )
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    done = mbarrier.allocate_mbarrier()
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    mbarrier.init(done, count=1)
    gl.warp_specialize(
        [
            (_store_tile_by_tma, (c, d, staging, done)),
            (_load_panels, (a, b, a_ring, b_ring, full, empty, panels, STAGES)),
            (_multiply_panels, (a_ring, b_ring, d, full, empty, done, panels, STAGES)),
        ],
        [1, 1],
        [24, 24],
    )
