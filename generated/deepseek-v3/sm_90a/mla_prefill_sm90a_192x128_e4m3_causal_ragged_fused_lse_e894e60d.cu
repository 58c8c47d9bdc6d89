// mla_prefill_sm90a_192x128_e4m3_causal_ragged_fused_lse_e894e60d
// MLA prefill for sm_90a: qk 128+64, v 128, float8_e4m3fn
//
// Rendered by mlagen; edits here are lost.
//
// Spec
//   arch: "sm_90a"
//   config: {}
//   dtype: "float8_e4m3fn"
//   geometry: {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"factor": 40.0, "mscale_all_dim": 1.0, "type": "yarn"}, "v_head_dim": 128}
//   k_rope: {"layout": "fused", "num_heads": 1, "page_size": null, "row_width": null}
//   kv: {"layout": "ragged", "page_size": null, "row": "plain", "row_offsets": true, "seqlens": false}
//   kv_length_counts: "total"
//   lse: true
//   mask: {"kind": "causal"}
//   max_seqlen: "dynamic"
//   op: "prefill"
//   output_dtype: "bfloat16"
//   partition: {"kind": "none"}
//   q_form: "fused"
//   q_layout: "ragged"
//   scheduler: {"kind": "queued", "order": "longest_first"}
//   score_mod: {"kind": "identity"}
//   sink: false
//
// Tile       128 query rows x 128 keys; 3 stages of K, 2 of V
// Roles      warpgroup 0, 40 registers a thread: one warp draws tiles and issues TMA, 1 transpose V
//            warpgroups 1-2, 232 registers a thread: Q K', softmax, P V and the output of 64 rows each
// Registers  about 230 of a math thread: output, 128 columns of P V, scores and packed probabilities
// Shared     Q 24 + K 72 + V rows 32 + V 32 + output 32 + barriers 0.2 = 193 of 227 KiB
//
// Barriers   (arrivals and bytes of one phase)
//   q_full[2]       1  12288  load warp -> its warpgroup
//   q_empty[2]      4      0  every warp of its warpgroup -> load warp
//   k_full[3]       1  24576  load warp -> math warps
//   k_empty[3]      8      0  every math warp -> load warp
//   v_rows_full[2]  1  16384  load warp -> transpose warps
//   v_rows_empty[2]  1      0  every transpose warp -> load warp
//   v_full[2]       1      0  every transpose warp -> math warps
//   v_empty[2]      8      0  every math warp -> transpose warps
//   tile_full[2]    1      0  load warp -> math and transpose warps
//   tile_empty[2]   9      0  each of them -> load warp
//
// Step       1280 tensor-core cycles, 1024 of exp2, 40 KiB of K and V from L2
//
// Schedule
//   load warp   tile -> K(n) -> Q -> { K(n-1), V(n) } -> V(first)
//   transpose   { V(n) -> V(n)', its keys in the order of the probabilities }
//   math        S = Q K(n)' -> softmax -> { S = Q K(n-1)', O += P V(n) -> softmax } -> O += P V(first) -> store
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;

// The 128 opaque bytes of a CUtensorMap. TMA reads them through their address: the kernel takes them as grid constants.
struct __align__(128) TensorMap {
  char opaque[128];
};

// ---------------------------------------------------------------------------------------------------------------------
// Constants
// ---------------------------------------------------------------------------------------------------------------------

constexpr int kTileM = 128;  // query rows of a block
constexpr int kTileN = 128;  // keys of a step
constexpr int kMathWarpgroups = 2;
constexpr int kRowsPerWarpgroup = 64;  // query rows of a warpgroup, the M of wgmma
constexpr int kKStages = 3;
constexpr int kVStages = 2;
constexpr int kTileSlots = 2;  // announced tiles
constexpr int kQkNopeHeadDim = 128;
constexpr int kQkHeadDim = 192;  // nope and rope columns of Q and K
constexpr int kVHeadDim = 128;
constexpr int kElementBytes = 1;
constexpr int kProducerRegisters = 40;  // a thread, after setmaxnreg
constexpr int kMathRegisters = 232;
constexpr int kTransposeWarps = 1;  // each has as many columns of V
constexpr int kProductColumns = 128;  // of the output, multiplied at a time and then added to it
constexpr float kProbabilityShift = 8.0f;  // probabilities are scaled by 2^it, and so is their sum

// What one thread of a math warpgroup holds of its 64 rows.
constexpr int kScoresPerThread = kTileN / 2;
constexpr int kOutputsPerThread = kVHeadDim / 2;
constexpr int kParts = kVHeadDim / kProductColumns;  // of the columns of P V

constexpr uint32 kQSliceBytes = kElementBytes * kRowsPerWarpgroup * kQkHeadDim;
constexpr uint32 kKStageBytes = kElementBytes * kTileN * kQkHeadDim;
constexpr uint32 kVStageBytes = kElementBytes * kTileN * kVHeadDim;

constexpr int kThreads = 128 * (1 + kMathWarpgroups);

// Named barriers; 0 is __syncthreads.
constexpr int kTurnBarrier = 1;       // + warpgroup: its turn at the tensor cores
constexpr int kWarpgroupBarrier = 3;  // + warpgroup: its own 128 threads
constexpr int kMathThreads = 128 * kMathWarpgroups;

// The scalars and pointers of a launch.
struct Arguments {
  float softmax_scale_log2;  // softmax_scale * log2(e) * q_scale * k_scale
  int num_heads;  // query heads
  int batch;  // sequences
  float v_scale;  // of the values
  int total_q;  // query rows of the tensor
  const int* cu_seqlens_q;  // [batch + 1] first query row of each, and the end
  int max_seqlen_q;  // queries of a sequence beyond this are left out
  int total_k;  // key rows of the tensor
  const int* cu_seqlens_k;  // [batch + 1] first key row of each, and the end
  float* lse;  // log-sum-exp of each row and head, natural logarithm
  int64 lse_row_stride;  // elements
  int64 lse_head_stride;  // elements
  int* tickets;  // 0 before and after every launch
};

// ---------------------------------------------------------------------------------------------------------------------
// Device functions
// ---------------------------------------------------------------------------------------------------------------------

constexpr uint32 kAllLanes = 0xffffffffu;

// Tells the compiler that `value` is the same in the whole warp, so that addresses and branches made of it stay in
// uniform registers; without it every descriptor is moved there lane by lane.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(kAllLanes, value, 0); }

// True in one lane of a converged warp, always the same one. PTX ISA: elect.sync.
__device__ __forceinline__ bool elect_one() {
  uint32 elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// Sum over the lanes up to and including this one.
__device__ __forceinline__ int inclusive_sum(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// Maximum over the lanes up to and including this one.
__device__ __forceinline__ int inclusive_max(int value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    value = max(value, __shfl_up_sync(kAllLanes, value, distance));
  }
  return value;
}

// Waits until `threads` threads have come to named barrier `id`. PTX ISA: barrier.sync.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Comes to named barrier `id` without waiting. PTX ISA: barrier.arrive.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Lowers, or raises, the registers that each thread of this warpgroup may hold. PTX ISA: setmaxnreg.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Address of a shared-memory object as PTX wants it.
__device__ __forceinline__ uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

// Sets how many arrivals end a phase of `barrier`. PTX ISA: mbarrier.init.
__device__ __forceinline__ void barrier_init(uint64& barrier, uint32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA. PTX ISA: fence.mbarrier_init.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once; earlier writes of this thread are visible to whoever waits. PTX ISA: mbarrier.arrive.
__device__ __forceinline__ void barrier_arrive(uint64& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives once and announces the bytes that TMA will add to this phase, clipped parts of a box included.
// PTX ISA: mbarrier.arrive.expect_tx.
__device__ __forceinline__ void barrier_arrive_expect_bytes(uint64& barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

// Arrives once for a converged warp: earlier writes of all its lanes are visible to whoever waits.
__device__ __forceinline__ void warp_arrive(uint64& barrier) {
  __syncwarp();
  if (elect_one()) barrier_arrive(barrier);
}

// Waits until the phase with this parity has ended. On a fresh barrier parity 1 passes and parity 0 blocks.
// PTX ISA: mbarrier.try_wait.parity.
__device__ __forceinline__ void barrier_wait(uint64& barrier, uint32 parity) {
  asm volatile(
      "{.reg .pred ended;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra DONE;\n"
      "bra WAIT;\n"
      "DONE: }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// A position in a ring of kStages buffers. The parity flips at each wrap, and both survive from tile to tile, since the
// barriers do: a role that skipped a buffer, or counted one twice, would read old data or wait for ever.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32 parity = 0;

  __device__ __forceinline__ void advance() {
    stage += 1;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Fetches a tensor map into the descriptor cache, which hides the first miss. PTX ISA: prefetch.tensormap.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies a box to shared memory and counts its bytes on `barrier`; elements outside the tensor arrive as zeros.
// PTX ISA: cp.async.bulk.tensor.
__device__ __forceinline__ void tma_load(void* destination, const TensorMap& map, uint64& barrier,
                                         int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

// Copies a box to shared memory and counts its bytes on `barrier`; elements outside the tensor arrive as zeros.
// PTX ISA: cp.async.bulk.tensor.
__device__ __forceinline__ void tma_load(void* destination, const TensorMap& map, uint64& barrier,
                                         int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Copies a box from shared memory; elements outside the tensor are not written. PTX ISA: cp.async.bulk.tensor.
__device__ __forceinline__ void tma_store(const TensorMap& map, const void* source,
                                          int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Closes the group of this thread's stores. PTX ISA: cp.async.bulk.commit_group.
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their shared memory, which may then be overwritten.
// PTX ISA: cp.async.bulk.wait_group.read.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Makes this thread's ordinary writes to shared memory visible to TMA and tensor cores. PTX ISA: fence.proxy.async.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The rows of one sequence inside a tensor.
struct Rows {
  int batch;   // index of the sequence
  int offset;  // its first row, where sequences lie one after the other
  int length;
};

__device__ __forceinline__ Rows uniform(const Rows& rows) {
  return Rows{uniform(rows.batch), uniform(rows.offset), uniform(rows.length)};
}

// A map of a ragged tensor in which TMA finds the end of a sequence itself. The row dimension has 2^30 rows of which a
// sequence takes the last; two more dimensions of stride 2^34 - row and row bring the address back to
// base + (offset + row) * stride, since 2^30 * 2^34 = 2^64. So rows past the end are zero when loaded, as if the tensor
// ended there (a neighbour's NaN stays out), and skipped when stored (a neighbour's rows stay as they are).
constexpr int kClippedRows = 1 << 30;

__device__ __forceinline__ void load_clipped(void* destination, const TensorMap& map, uint64& barrier, int column,
                                             int head, int row, const Rows& rows) {
  tma_load(destination, map, barrier, column, head, kClippedRows - rows.length + row, kClippedRows,
           rows.offset + rows.length);
}

// Rows past the end of a sequence are those of the next one: the mask hides them.
__device__ __forceinline__ void load_packed(void* destination, const TensorMap& map, uint64& barrier, int column,
                                            int head, int row, const Rows& rows) {
  tma_load(destination, map, barrier, column, head, rows.offset + row);
}

__device__ __forceinline__ void store_clipped(const TensorMap& map, const void* source, int column, int head, int row,
                                              const Rows& rows) {
  tma_store(map, source, column, head, kClippedRows - rows.length + row, kClippedRows, rows.offset + rows.length);
}

// Orders register accesses before the tensor-core work that follows. PTX ISA: wgmma.fence.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of multiplications. PTX ISA: wgmma.commit_group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending groups, the newest, are unfinished. PTX ISA: wgmma.wait_group.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Ties registers to this point: the compiler does not know that tensor cores write them until the wait before it.
template <int kCount>
__device__ __forceinline__ void tie_registers(float (&value)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(value[i])::"memory");
}

// The low word of a descriptor: bits 0-13 hold the address in units of 16 bytes. Bits 18 and above of a shared address
// would name another block of a cluster.
__device__ __forceinline__ uint32 descriptor_low(uint32 address) { return (address & 0x3ffff) >> 4; }

// A matrix descriptor: 64-byte swizzle, 8-row groups 512 bytes apart. PTX ISA: wgmma, matrix descriptor.
__device__ __forceinline__ uint64 matrix_descriptor(uint32 low) {
  constexpr uint64 kSwizzle64Stride512 = 0x80000020ull << 32;
  return kSwizzle64Stride512 | low;
}

// d[64 x 2 kCount] = (kAccumulate ? d : 0) + a[64 x 32] b[2 kCount x 32]', a and b in shared memory.
// PTX ISA: wgmma.mma_async.
template <bool kAccumulate, int kCount>
__device__ __forceinline__ void wgmma_q_k(float (&d)[kCount], uint64 a, uint64 b) {
  if constexpr (kCount == 64) {
    asm volatile(
        "{.reg .pred accumulate; setp.ne.b32 accumulate, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, accumulate, 1, 1;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "n"(static_cast<int>(kAccumulate)));
  } else if constexpr (kCount == 32) {
    asm volatile(
        "{.reg .pred accumulate; setp.ne.b32 accumulate, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, accumulate, 1, 1;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "n"(static_cast<int>(kAccumulate)));
  }
}

// d[64 x 128] = (kAccumulate ? d : 0) + a[64 x 32] b[128 x 32]', a in registers, b in shared memory.
// PTX ISA: wgmma.mma_async.
template <bool kAccumulate>
__device__ __forceinline__ void wgmma_p_v(float (&d)[64], const uint32 (&a)[4], uint64 b) {
  asm volatile(
      "{.reg .pred accumulate; setp.ne.b32 accumulate, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, accumulate, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(static_cast<int>(kAccumulate)));
}

// Stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
// PTX ISA: stmatrix.
__device__ __forceinline__ void store_matrix(uint32 address, uint32 a, uint32 b, uint32 c, uint32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements, each transposed; lane l gives the address of row l % 8 of matrix l / 8.
// PTX ISA: ldmatrix.
__device__ __forceinline__ void load_matrix_transposed(uint32 address, uint32 (&matrix)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3 }, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

constexpr float kLn2 = 0.6931471805599453f;

// 2^x with denormals flushed; 2^-inf is exactly 0. PTX ISA: ex2.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// PTX ISA: lg2.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four values rounded to float8_e4m3fn, the first in the lowest byte; beyond 448 they become 448. Volatile, so that it
// stays behind the wait that frees its registers. PTX ISA: cvt.
__device__ __forceinline__ uint32 pack(float first, float second, float third, float fourth) {
  uint32 packed;
  asm volatile(
      "{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, { low, high };}"
      : "=r"(packed)
      : "f"(first), "f"(second), "f"(third), "f"(fourth));
  return packed;
}

// Two values of the output rounded to bfloat16, likewise.
__device__ __forceinline__ uint32 pack_output(float low, float high) {
  uint32 packed;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The scores of a math thread lie in two rows, 8 apart, in pairs of columns: what masks and score mods need to know.
constexpr int kRowsPerThread = 2;
constexpr int kRowDistance = 8;
__device__ __forceinline__ constexpr int score_element(int row, int i) { return 4 * (i / 2) + 2 * row + i % 2; }
__device__ __forceinline__ constexpr int score_column(int i) { return 8 * (i / 2) + i % 2; }

// Which keys a query sees: an interval, given by the query's position among the keys (bottom-right: the last query
// of a sequence stands at its last key). Both ends never fall as the position rises, so those of a tile follow from
// its first and last row. A position below 0 has no key of its own.
// Causal: the key at the query's position and those before it.
__device__ __forceinline__ int first_visible_key(int) { return 0; }
__device__ __forceinline__ int end_of_visible_keys(int position) { return position + 1; }

// Hides the scores of a thread's rows that the mask does not show, and those past the sequence's keys: -inf, which
// weighs exactly 0 whatever the visible scores are. `position` is that of this thread's first row, `key` the key of its
// first column.
template <int kCount>
__device__ __forceinline__ void hide_masked(float (&score)[kCount], int position, int key, int seqlen_k) {
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const int begin = first_visible_key(position + kRowDistance * row) - key;
    const int end = min(end_of_visible_keys(position + kRowDistance * row), seqlen_k) - key;
#pragma unroll
    for (int i = 0; i < kCount / kRowsPerThread; ++i) {
      const int column = score_column(i);
      if (column >= end) score[score_element(row, i)] = -infinity();
    }
  }
}

// One unit of work: kTileM query rows of one head of one sequence. `keys.batch` is the sequence's index, or kNoTile.
struct __align__(16) Tile {
  Rows queries;
  Rows keys;
  int head;
  int row;  // of the tile's first query in its sequence
};

constexpr int kNoTile = -1;

__device__ __forceinline__ int clamp(int value, int low, int high) { return min(max(value, low), high); }

// Where sequence `batch` has its keys. Whatever the lengths on the device say, the rows lie inside the tensor.
__device__ __forceinline__ Rows key_rows(const Arguments& arguments, int batch, int seqlen_q) {
  const int begin = clamp(arguments.cu_seqlens_k[batch], 0, arguments.total_k);
  const int end = clamp(arguments.cu_seqlens_k[batch + 1], begin, arguments.total_k);
  return Rows{batch, begin, end - begin};
}

// Heads whose keys and values are visited together, so that they stay in L2: what fits 32 MiB, at most 16.
__device__ __forceinline__ int heads_in_section(int seqlen_k) {
  constexpr int kKeysOfOneHead = (32 << 20) / (kElementBytes * (kQkNopeHeadDim + kVHeadDim));
  int heads = 1;
  while (heads < 16 && seqlen_k <= kKeysOfOneHead / (2 * heads)) heads *= 2;
  return heads;
}

// Tile `index` of a sequence: section by section of heads, in a section the longest rows first, heads fastest. Under a
// causal mask the last rows see most keys; starting them first keeps the tail of the launch short.
__device__ __forceinline__ Tile tile_of_sequence(const Arguments& arguments, const Rows& queries, int index) {
  Tile tile;
  tile.queries = queries;
  tile.keys = key_rows(arguments, queries.batch, queries.length);
  const int row_tiles = ceil_div(queries.length, kTileM);
  const int heads_per_section = heads_in_section(tile.keys.length);
  const int section = index / (row_tiles * heads_per_section);
  const int index_in_section = index - section * row_tiles * heads_per_section;
  const int first_head = section * heads_per_section;
  const int heads = min(heads_per_section, arguments.num_heads - first_head);
  const int row_tile = index_in_section / heads;
  tile.head = first_head + index_in_section - row_tile * heads;
  tile.row = (row_tiles - 1 - row_tile) * kTileM;
  return tile;
}

// Finds the tile that a ticket stands for, with the whole warp: each lane counts the tiles of one sequence, 32
// a step. Tickets of a block only rise, so the search goes on where the last one ended.
struct TileFinder {
  int first_batch = 0;  // first sequence of the step
  int num_tiles = 0;    // tiles of the sequences before it; in the end, all
  int rows_end = 0;     // largest end of those sequences

  __device__ __forceinline__ explicit TileFinder(const Arguments&) {}

  // False if there are fewer tiles; `num_tiles` then holds their number.
  __device__ __forceinline__ bool find(const Arguments& arguments, int ticket, Tile& tile) {
    const int lane = threadIdx.x % 32;
    while (first_batch < arguments.batch) {
      const int batch = first_batch + lane;
      // No sequence begins before another's end, whatever the offsets say: so no two tiles write the same rows, and
      // the tiles are never more than the launch expects.
      int begin = 0;
      int end = 0;
      if (batch < arguments.batch) {
        begin = clamp(arguments.cu_seqlens_q[batch], 0, arguments.total_q);
        end = clamp(arguments.cu_seqlens_q[batch + 1], 0, arguments.total_q);
      }
      const int largest_end = max(inclusive_max(end), rows_end);
      const int end_before = __shfl_up_sync(kAllLanes, largest_end, 1);
      begin = max(begin, lane == 0 ? rows_end : end_before);
      const int length = min(max(end - begin, 0), arguments.max_seqlen_q);
      const int tiles = ceil_div(length, kTileM) * arguments.num_heads;
      const int tiles_end = num_tiles + inclusive_sum(tiles);

      const uint32 holds_ticket = __ballot_sync(kAllLanes, ticket < tiles_end);
      if (holds_ticket != 0) {
        const int owner = __ffs(holds_ticket) - 1;
        const Rows queries = {first_batch + owner, __shfl_sync(kAllLanes, begin, owner),
                              __shfl_sync(kAllLanes, length, owner)};
        tile = tile_of_sequence(arguments, queries, ticket - __shfl_sync(kAllLanes, tiles_end - tiles, owner));
        return true;
      }
      first_batch += 32;
      num_tiles = __shfl_sync(kAllLanes, tiles_end, 31);
      rows_end = __shfl_sync(kAllLanes, largest_end, 31);
    }
    return false;
  }
};

// The blocks of kTileN keys that a query tile visits, from the last to the first. Those in
// [full_begin, full_end) are visible to every row and need no mask. All roles ask this one function.
struct KeyBlocks {
  int begin, full_begin, full_end, end;

  __device__ __forceinline__ explicit KeyBlocks(const Tile& tile) {
    const int offset = tile.keys.length - tile.queries.length;
    const int first = tile.row + offset;
    const int last = min(tile.row + kTileM, tile.queries.length) - 1 + offset;
    const int visible_begin = max(first_visible_key(first), 0);
    const int visible_end = min(end_of_visible_keys(last), tile.keys.length);
    begin = visible_begin / kTileN;
    end = visible_end > visible_begin ? ceil_div(visible_end, kTileN) : begin;
    full_begin = max(ceil_div(max(first_visible_key(last), 0), kTileN), begin);
    full_end = max(max(min(end_of_visible_keys(first), tile.keys.length), 0) / kTileN, begin);
  }

  __device__ __forceinline__ bool empty() const { return end <= begin; }
};

// Online softmax in base 2 over the two rows of a thread, 8 apart. A row of scores lies over the four lanes of a quad:
// the maximum is the quad's, the sum this thread's share until the end.
// Source: online softmax (Milakov and Gimelshein, arXiv 1805.02867), the output being rescaled
// where products are added to it.
struct Softmax {
  float maximum[2];     // largest raw score, to which the exponents refer
  float sum[2];         // of 2^(score * scale - reference), in fp32, before rounding to float8_e4m3fn
  float correction[2];  // factor that the output still lacks

  __device__ __forceinline__ void reset() {
    maximum[0] = maximum[1] = -infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // The exponents' reference in base 2. A row that has seen no key refers to 0, so that -inf - -inf never occurs. The
  // product is rounded on its own (no fused multiply-add), the same at every use: for large scores its error is
  // large, but the same in every factor, and cancels.
  // Lowered by kProbabilityShift, which scales probabilities, sum and output alike.
  __device__ __forceinline__ static float reference(float maximum, float scale_log2) {
    return maximum == -infinity() ? 0.0f : __fmul_rn(maximum, scale_log2) - kProbabilityShift;
  }

  // Raises the maxima to the scores of a tile, and lowers what has been seen before. Every product is multiplied by a
  // correction when it is added to the output, so that there is nothing to save by letting a maximum lag.
  template <int kCount>
  __device__ __forceinline__ void raise_maximum(const float (&score)[kCount], float scale_log2) {
    float largest[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], score[i]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest[row] = fmaxf(largest[row], __shfl_xor_sync(kAllLanes, largest[row], 1));
      largest[row] = fmaxf(largest[row], __shfl_xor_sync(kAllLanes, largest[row], 2));
    }

#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float growth = reference(largest[row], scale_log2) - reference(maximum[row], scale_log2);
      correction[row] = maximum[row] == -infinity() ? 1.0f : exp2_approx(-growth);
      maximum[row] = largest[row];
      sum[row] = __fmul_rn(sum[row], correction[row]);
    }
  }

  // Turns the scores of a tile, to which the maxima have been raised, into probabilities.
  template <int kCount>
  __device__ __forceinline__ void exponentiate(float (&score)[kCount], float scale_log2) {
    const float reference_log2[2] = {reference(maximum[0], scale_log2), reference(maximum[1], scale_log2)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = i / 2 % 2;
      score[i] = exp2_approx(fmaf(score[i], scale_log2, -reference_log2[row]));
      sum[row] += score[i];
    }
  }

  // Adds up the shares of a quad.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(kAllLanes, sum[row], 1);
      sum[row] += __shfl_xor_sync(kAllLanes, sum[row], 2);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Shared memory
// ---------------------------------------------------------------------------------------------------------------------

// Matrices lie in panels of 64 columns, a row of a panel being the 128 bytes over which TMA and tensor cores swizzle.
struct __align__(1024) SharedMemory {
  uint8 q[2][3][64][64];  // of each warpgroup
  uint8 k[3][3][128][64];  // keys, nope panels before rope
  uint8 v_rows[2][2][128][64];  // values
  uint8 v[2][2][128][64];  // values transposed: panels of keys
  uint16 out[2][2][64][64];  // output of each warpgroup
  uint64 q_full[2];  // load warp -> its warpgroup
  uint64 q_empty[2];  // every warp of its warpgroup -> load warp
  uint64 k_full[3];  // load warp -> math warps
  uint64 k_empty[3];  // every math warp -> load warp
  uint64 v_rows_full[2];  // load warp -> transpose warps
  uint64 v_rows_empty[2];  // every transpose warp -> load warp
  uint64 v_full[2];  // every transpose warp -> math warps
  uint64 v_empty[2];  // every math warp -> transpose warps
  uint64 tile_full[2];  // load warp -> math and transpose warps
  uint64 tile_empty[2];  // each of them -> load warp
  Tile tile[2];  // announced tiles
};
static_assert(sizeof(SharedMemory) == 197632, "the plan's shared-memory map");
static_assert(sizeof(Tile) == 32, "the plan's size of a tile");

__device__ __forceinline__ void init_barriers(SharedMemory& shared) {
  for (uint64& barrier : shared.q_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.q_empty) barrier_init(barrier, 4);
  for (uint64& barrier : shared.k_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.k_empty) barrier_init(barrier, 8);
  for (uint64& barrier : shared.v_rows_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.v_rows_empty) barrier_init(barrier, 1);
  for (uint64& barrier : shared.v_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.v_empty) barrier_init(barrier, 8);
  for (uint64& barrier : shared.tile_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.tile_empty) barrier_init(barrier, 9);
  fence_barrier_init();
}

// ---------------------------------------------------------------------------------------------------------------------
// Load warp
// ---------------------------------------------------------------------------------------------------------------------

// Draws tickets, announces tiles and keeps the rings of K and V full, running ahead of the math warpgroups.
struct LoadWarp {
  SharedMemory& shared;
  const Arguments& arguments;
  const TensorMap& q_map;
  const TensorMap& k_map;
  const TensorMap& v_map;
  RingPosition<kKStages> k;
  RingPosition<kVStages> v;
  RingPosition<1> q;
  RingPosition<kTileSlots> slot;

  __device__ __forceinline__ void announce(const Tile& tile) {
    barrier_wait(shared.tile_empty[slot.stage], slot.parity ^ 1);
    if (elect_one()) {
      shared.tile[slot.stage] = tile;
      barrier_arrive(shared.tile_full[slot.stage]);
    }
    slot.advance();
  }

  // The query rows of both warpgroups. A tile without keys needs none; its slices are handed over as they are.
  __device__ __forceinline__ void load_q(const Tile& tile, bool needs_rows) {
    for (int warpgroup = 0; warpgroup < kMathWarpgroups; ++warpgroup) {
      barrier_wait(shared.q_empty[warpgroup], q.parity ^ 1);
      if (elect_one()) {
        uint64& full = shared.q_full[warpgroup];
        const int row = tile.row + warpgroup * kRowsPerWarpgroup;
        if (needs_rows) {
          barrier_arrive_expect_bytes(full, kQSliceBytes);
          load_clipped(shared.q[warpgroup][0], q_map, full, 0, tile.head, row, tile.queries);
          load_clipped(shared.q[warpgroup][1], q_map, full, 64, tile.head, row, tile.queries);
          load_clipped(shared.q[warpgroup][2], q_map, full, 128, tile.head, row, tile.queries);
        } else {
          barrier_arrive(full);
        }
      }
    }
    q.advance();
  }

  __device__ __forceinline__ void load_k(const Tile& tile, int block) {
    const int row = block * kTileN;
    barrier_wait(shared.k_empty[k.stage], k.parity ^ 1);
    uint64& full = shared.k_full[k.stage];
    if (elect_one()) {
      barrier_arrive_expect_bytes(full, kKStageBytes);
      load_packed(shared.k[k.stage][0], k_map, full, 0, tile.head, row, tile.keys);
      load_packed(shared.k[k.stage][1], k_map, full, 64, tile.head, row, tile.keys);
      load_packed(shared.k[k.stage][2], k_map, full, 128, tile.head, row, tile.keys);
    }
    k.advance();
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block) {
    const int row = block * kTileN;
    barrier_wait(shared.v_rows_empty[v.stage], v.parity ^ 1);
    if (elect_one()) {
      uint64& full = shared.v_rows_full[v.stage];
      barrier_arrive_expect_bytes(full, kVStageBytes);
      load_clipped(shared.v_rows[v.stage][0], v_map, full, 0, tile.head, row, tile.keys);
      load_clipped(shared.v_rows[v.stage][1], v_map, full, 64, tile.head, row, tile.keys);
    }
    v.advance();
  }

  // In the order in which the math warpgroups use them: K runs one block ahead of V. The first K is asked for before Q,
  // which the previous tile may still need.
  __device__ __forceinline__ void load_tile(const Tile& tile) {
    const KeyBlocks blocks(tile);
    if (blocks.empty()) {
      load_q(tile, false);
      return;
    }
    load_k(tile, blocks.end - 1);
    load_q(tile, true);
    for (int block = blocks.end - 2; block >= blocks.begin; --block) {
      load_k(tile, block);
      load_v(tile, block + 1);
    }
    load_v(tile, blocks.begin);
  }

  __device__ __forceinline__ void run() {
    const int lane = threadIdx.x % 32;
    TileFinder finder(arguments);
    Tile tile;
    int ticket = blockIdx.x;
    int drawn = -1;
    while (finder.find(arguments, ticket, tile)) {
      // Drawn before the loads, so that its latency hides behind them.
      if (lane == 0) drawn = atomicAdd(arguments.tickets, 1);
      announce(tile);
      load_tile(tile);
      ticket = gridDim.x + __shfl_sync(kAllLanes, drawn, 0);
    }
    tile.keys.batch = kNoTile;
    announce(tile);
    // Every block draws until it gets nothing, which makes num_tiles draws in all: the last leaves the counter as the
    // next launch expects it.
    if (lane == 0 && drawn == finder.num_tiles - 1) *arguments.tickets = 0;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Transpose warps
// ---------------------------------------------------------------------------------------------------------------------

// Turns V: tensor cores take 8-bit operands only with what is summed up, here the keys, contiguous. Each warp has
// its part of the columns of every key block.
struct TransposeWarp {
  SharedMemory& shared;
  const int index;
  RingPosition<kVStages> v;
  RingPosition<kTileSlots> slot;

  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }

  __device__ __forceinline__ void release(uint64& empty) const {
    if (elect_one()) barrier_arrive(empty);
  }

  __device__ __forceinline__ Tile next_tile() {
    barrier_wait(shared.tile_full[slot.stage], slot.parity);
    const Tile& announced = shared.tile[slot.stage];
    Tile tile;
    tile.queries = uniform(announced.queries);
    tile.keys = uniform(announced.keys);
    tile.head = uniform(announced.head);
    tile.row = uniform(announced.row);
    release(shared.tile_empty[slot.stage]);
    slot.advance();
    return tile;
  }

  // Rows of 64 bytes, two to a line of 128 bytes whose number swizzles their four chunks of 16 bytes.
  __device__ __forceinline__ static uint32 swizzled(uint32 panel, int row, int chunk) {
    return panel + row * 64 + ((chunk ^ row / 2 % 4) << 4);
  }

  // 32 keys of 16 columns. Lane 4 g + q loads keys 2 q and 2 q + 1 of each eight keys, in columns 2 g and 2 g + 1, and has
  // four bytes of each of the two columns then: keys 2 q, 2 q + 1, 8 + 2 q and 9 + 2 q, in the order that pack_probability
  // gives them. The upper half of the lanes exchanges the two columns: eight rows that are stored together lie in
  // different banks.
  __device__ __forceinline__ void transpose(int first_key, int column) const {
    const uint32 rows = shared_address(shared.v_rows[v.stage][column / 64]);
    const uint32 columns = shared_address(shared.v[v.stage][first_key / 64]);
    uint32 loaded[4];
    load_matrix_transposed(swizzled(rows, first_key + lane(), column % 64 / 16), loaded);
    // Of lane l, the address is that of row l % 8 of matrix l / 8: half l / 16 of the keys, one of each pair of columns.
    const int upper = lane() / 4 % 2, odd = lane() / 8 % 2;
    const int row = column + lane() % 8 * 2 + (odd ^ upper);
    const uint32 address = swizzled(columns, row, first_key % 64 / 16 + lane() / 16);
    const uint32 even_bytes = 0x6420, odd_bytes = 0x7531;
    const bool exchanges = lane() >= 16;
    const uint32 first = exchanges ? odd_bytes : even_bytes;
    const uint32 second = exchanges ? even_bytes : odd_bytes;
    store_matrix(address, __byte_perm(loaded[0], loaded[1], first), __byte_perm(loaded[0], loaded[1], second),
                 __byte_perm(loaded[2], loaded[3], first), __byte_perm(loaded[2], loaded[3], second));
  }

  __device__ __forceinline__ void transpose_block() {
    barrier_wait(shared.v_empty[v.stage], v.parity ^ 1);
    barrier_wait(shared.v_rows_full[v.stage], v.parity);
    constexpr int kColumns = kVHeadDim / kTransposeWarps;
#pragma unroll 1
    for (int key = 0; key < kTileN; key += 32) {
#pragma unroll 4  // as many as registers hold at once
      for (int column = 0; column < kColumns; column += 16) transpose(key, index * kColumns + column);
    }
    fence_async_proxy();  // tensor cores read what has been stored
    warp_arrive(shared.v_full[v.stage]);
    release(shared.v_rows_empty[v.stage]);
    v.advance();
  }

  __device__ __forceinline__ void run() {
    for (Tile tile = next_tile(); tile.keys.batch != kNoTile; tile = next_tile()) {
      const KeyBlocks blocks(tile);
      for (int block = blocks.begin; block < blocks.end; ++block) transpose_block();
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Math warpgroups
// ---------------------------------------------------------------------------------------------------------------------

// Attention of 64 query rows. While the tensor cores work on Q K' of one key block, the output of the block before is
// accumulated and the softmax runs; two warpgroups take turns, so that one's softmax hides behind the other's products.
struct MathWarpgroup {
  SharedMemory& shared;
  const Arguments& arguments;
  const TensorMap& out_map;
  const int warpgroup;
  RingPosition<kKStages> k;
  RingPosition<kVStages> v;
  RingPosition<1> q;
  RingPosition<kTileSlots> slot;

  // Registers hold fragments of the tensor cores' layout: element i of a thread lies in row
  // 16 * warp + lane / 4 + 8 * (i / 2 % 2) and column 8 * (i / 4) + 2 * (lane % 4) + i % 2.
  float output[kOutputsPerThread];
  uint32 probability[kTileN / 32][4];
  Softmax softmax;

  // Fields of the tile.
  int first_position;  // of this thread's first row among the keys
  int seqlen_k;
  int last_block;  // behind its scores, Q is done with

  __device__ __forceinline__ int thread() const { return threadIdx.x % 128; }
  __device__ __forceinline__ int first_row() const { return thread() / 32 * 16 + thread() % 32 / 4; }
  __device__ __forceinline__ int first_column() const { return 2 * (thread() % 4); }

  // Every warp releases a buffer itself: nothing else says that all four have done with it.
  __device__ __forceinline__ void release(uint64& empty) const {
    if (elect_one()) barrier_arrive(empty);
  }

  __device__ __forceinline__ Tile next_tile() {
    barrier_wait(shared.tile_full[slot.stage], slot.parity);
    const Tile& announced = shared.tile[slot.stage];
    Tile tile;
    tile.queries = uniform(announced.queries);
    tile.keys = uniform(announced.keys);
    tile.head = uniform(announced.head);
    tile.row = uniform(announced.row);
    release(shared.tile_empty[slot.stage]);
    slot.advance();
    return tile;
  }

  // score = Q K' for the first 2 kCount keys of the block. The caller waits.
  template <int kCount>
  __device__ __forceinline__ void multiply_q_k(float (&score)[kCount]) {
    const uint32 q_low = uniform(descriptor_low(shared_address(shared.q[warpgroup])));
    const uint32 k_low = descriptor_low(shared_address(shared.k[k.stage]));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQkHeadDim / 32; ++step) {
      // Two steps of 32 columns (32 bytes) in a panel, then the next panel of 64-byte rows; in units of 16 bytes.
      const uint64 a = matrix_descriptor(q_low + step / 2 * (kRowsPerWarpgroup * 4) + step % 2 * 2);
      const uint64 b = matrix_descriptor(k_low + step / 2 * (kTileN * 4) + step % 2 * 2);
      if (step == 0) {
        wgmma_q_k<false>(score, a, b);
      } else {
        wgmma_q_k<true>(score, a, b);
      }
    }
    wgmma_commit();
  }

  // product = P V, of part `part` of the columns. The caller waits. A row of V transposed is a column of V: 64 bytes a panel
  // of 64 keys, two steps of 32 keys.
  __device__ __forceinline__ void multiply_p_v(float (&product)[kProductColumns / 2], int part) {
    const uint32 v_low = descriptor_low(shared_address(shared.v[v.stage][0][part * kProductColumns]));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileN / 32; ++step) {
      const uint64 b = matrix_descriptor(v_low + step / 2 * (kVHeadDim * 4) + step % 2 * 2);
      if (step == 0) {
        wgmma_p_v<false>(product, probability[step], b);
      } else {
        wgmma_p_v<true>(product, probability[step], b);
      }
    }
    wgmma_commit();
  }

  // Waits for a product and adds it to its part of the output. Sums of tensor cores keep 13 bits of 8-bit products, which
  // is plenty for one key tile and too little for a sequence.
  __device__ __forceinline__ void add_product(float (&product)[kProductColumns / 2], int part, const float (&factor)[2]) {
    wgmma_wait<0>();
    tie_registers(product);
#pragma unroll
    for (int i = 0; i < kProductColumns / 2; ++i) {
      float& sum = output[part * (kProductColumns / 2) + i];
      sum = fmaf(sum, factor[i / 2 % 2], product[i]);
    }
  }

  // An accumulator fragment is an A fragment once four are packed, if keys change places: bytes 4 q to 4 q + 3 of 16 keys
  // are those of columns 2 q, 2 q + 1, 8 + 2 q, 9 + 2 q. V is transposed with its keys in this order, so no data moves
  // between threads. Keys without a score get probability 0.
  template <int kCount>
  __device__ __forceinline__ void pack_probability(const float (&score)[kCount]) {
#pragma unroll
    for (int step = 0; step < kTileN / 32; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int element = 16 * step + 8 * (i / 2) + 2 * (i % 2);
        probability[step][i] =
            element < kCount ? pack(score[element], score[element + 1], score[element + 4], score[element + 5]) : 0;
      }
    }
  }

  // Gives scores their final values, and raises the maxima to them.
  template <bool kMasked, int kCount>
  __device__ __forceinline__ void finish_scores(float (&score)[kCount], int block) {
    const int key = block * kTileN + first_column();
    if constexpr (kMasked) hide_masked(score, first_position, key, seqlen_k);
    softmax.raise_maximum(score, arguments.softmax_scale_log2);
  }

  // The first block, which is the last of the keys: it always carries the mask. Only its first 2 kCount keys count.
  template <int kCount>
  __device__ __forceinline__ void first_block(int block) {
    float score[kCount];
    multiply_q_k(score);
    wgmma_wait<0>();
    tie_registers(score);
    release(shared.k_empty[k.stage]);
    if (block == last_block) release(shared.q_empty[warpgroup]);
    k.advance();
    finish_scores<true>(score, block);
    softmax.exponentiate(score, arguments.softmax_scale_log2);
    pack_probability(score);
  }

  // Scores of `block` while the probabilities of the block before it meet their V.
  template <bool kMasked>
  __device__ __forceinline__ void next_block(int block) {
    float score[kScoresPerThread];
    float product[kProductColumns / 2];
    const float factor[2] = {softmax.correction[0], softmax.correction[1]};  // of the output in front of this product
    barrier_wait(shared.k_full[k.stage], k.parity);
    named_barrier_sync(kTurnBarrier + warpgroup, kMathThreads);
    multiply_q_k(score);
    barrier_wait(shared.v_full[v.stage], v.parity);
    multiply_p_v(product, 0);
    named_barrier_arrive(kTurnBarrier + 1 - warpgroup, kMathThreads);
    wgmma_wait<1>();
    tie_registers(score);
    release(shared.k_empty[k.stage]);
    if (block == last_block) release(shared.q_empty[warpgroup]);
    k.advance();
    finish_scores<kMasked>(score, block);
    // The columns that are left, the last ones beside the exponentials.
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      add_product(product, part - 1, factor);
      multiply_p_v(product, part);
    }
    softmax.exponentiate(score, arguments.softmax_scale_log2);
    add_product(product, kParts - 1, factor);
    release(shared.v_empty[v.stage]);
    v.advance();
    pack_probability(score);
  }

  __device__ __forceinline__ void attend(const Tile& tile, const KeyBlocks& blocks) {
    int block = blocks.end - 1;
    last_block = blocks.begin;
    barrier_wait(shared.k_full[k.stage], k.parity);
    // Where all keys that this warpgroup sees lie in the first half of the block, as on the diagonal for the upper ones,
    // half a product does. Decided for each tile: an offset that is no multiple of the tile moves the diagonal.
    const int last_row = tile.row + (warpgroup + 1) * kRowsPerWarpgroup - 1;
    const int last_position = last_row + tile.keys.length - tile.queries.length;
    if (min(end_of_visible_keys(last_position), tile.keys.length) <= block * kTileN + kTileN / 2) {
      first_block<kScoresPerThread / 2>(block);
    } else {
      first_block<kScoresPerThread>(block);
    }
    --block;
    for (; block >= blocks.full_end; --block) next_block<true>(block);
    for (; block >= blocks.full_begin; --block) next_block<false>(block);
    barrier_wait(shared.v_full[v.stage], v.parity);
    float product[kProductColumns / 2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      multiply_p_v(product, part);
      add_product(product, part, softmax.correction);
    }
    release(shared.v_empty[v.stage]);
    v.advance();
  }

  // Natural logarithm of the row's sum of exponentials; -inf for a row that sees no key. A sink is not part of it.
  __device__ __forceinline__ void store_lse(const Tile& tile) const {
    if (thread() % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile.row + warpgroup * kRowsPerWarpgroup + first_row() + 8 * i;
      if (row >= tile.queries.length) continue;
      const float reference = Softmax::reference(softmax.maximum[i], arguments.softmax_scale_log2);
      const float lse = (reference + log2_approx(softmax.sum[i])) * kLn2;  // log2(0) is -inf
      const int query = tile.queries.offset + row;
      const int64 element = query * arguments.lse_row_stride;
      arguments.lse[element + tile.head * arguments.lse_head_stride] = lse;
    }
  }

  // Normalises the output, lays it into its place in shared memory once TMA has read the last one there, and has TMA store
  // it.
  __device__ __forceinline__ void store_output(const Tile& tile) {
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = softmax.sum[i];
      scale[i] = sum == 0.0f ? 0.0f : arguments.v_scale / sum;
    }
    if (uniform(thread() / 32) == 0 && elect_one()) tma_store_wait_read();
    named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
    // stmatrix: lane l gives the address of row l % 16 and of the 16-byte chunk l / 16 of a 16 x 16 block. The chunk is
    // swizzled as TMA expects it.
    const int lane = thread() % 32;
    const int row = thread() / 32 * 16 + lane % 16;
#pragma unroll
    for (int column = 0; column < kVHeadDim; column += 16) {
      const int chunk = column % 64 / 8 + lane / 16;
      const uint32 address = shared_address(shared.out[warpgroup][column / 64][row]) + ((chunk ^ row % 8) << 4);
      const float* fragment = output + column / 2;
      store_matrix(address, pack_output(fragment[0] * scale[0], fragment[1] * scale[0]),
                   pack_output(fragment[2] * scale[1], fragment[3] * scale[1]),
                   pack_output(fragment[4] * scale[0], fragment[5] * scale[0]),
                   pack_output(fragment[6] * scale[1], fragment[7] * scale[1]));
    }
    fence_async_proxy();
    named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
    if (uniform(thread() / 32) == 0 && elect_one()) {
      const int first_row_of_slice = tile.row + warpgroup * kRowsPerWarpgroup;
#pragma unroll
      for (int panel = 0; panel < kVHeadDim / 64; ++panel) {
        store_clipped(out_map, shared.out[warpgroup][panel], panel * 64, tile.head, first_row_of_slice, tile.queries);
      }
      tma_store_commit();
    }
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) named_barrier_arrive(kTurnBarrier, kMathThreads);
    for (Tile tile = next_tile(); tile.keys.batch != kNoTile; tile = next_tile()) {
      const KeyBlocks blocks(tile);
      first_position = tile.row + warpgroup * kRowsPerWarpgroup + first_row() + tile.keys.length - tile.queries.length;
      seqlen_k = tile.keys.length;
      softmax.reset();
#pragma unroll
      for (int i = 0; i < kOutputsPerThread; ++i) output[i] = 0.0f;
      barrier_wait(shared.q_full[warpgroup], q.parity);
      q.advance();
      if (blocks.empty()) {
        release(shared.q_empty[warpgroup]);
      } else {
        attend(tile, blocks);
      }
      softmax.finish();
      store_lse(tile);
      store_output(tile);
    }
    if (uniform(thread() / 32) == 0 && elect_one()) tma_store_wait_read();  // shared memory has to be there until then
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Entry
// ---------------------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(kThreads, 1) mla_prefill_sm90a_192x128_e4m3_causal_ragged_fused_lse_e894e60d(
    const __grid_constant__ TensorMap q_map,
    const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap out_map,
    const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(shared_bytes);
  // Swizzled operands need the alignment that the declaration asks for.
  if (shared_address(shared_bytes) % 1024 != 0) __trap();

  const int warp = uniform(threadIdx.x / 32);
  const int warpgroup = warp / 4;
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();

  if (warpgroup == 0) {
    release_registers<kProducerRegisters>();
    if (warp == 0) {
      if (elect_one()) prefetch_tensor_map(q_map);
      if (elect_one()) prefetch_tensor_map(k_map);
      if (elect_one()) prefetch_tensor_map(v_map);
      if (elect_one()) prefetch_tensor_map(out_map);
      LoadWarp{shared, arguments, q_map, k_map, v_map}.run();
    } else if (warp <= kTransposeWarps) {
      TransposeWarp{shared, warp - 1}.run();
    }
  } else {
    claim_registers<kMathRegisters>();
    MathWarpgroup math{shared, arguments, out_map, warpgroup - 1};
    math.run();
  }
}
