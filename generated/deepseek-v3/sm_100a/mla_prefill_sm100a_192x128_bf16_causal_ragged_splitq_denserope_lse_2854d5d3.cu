// mla_prefill_sm100a_192x128_bf16_causal_ragged_splitq_denserope_lse_2854d5d3
// MLA prefill for sm_100a: qk 128+64, v 128, bfloat16
//
// Rendered by mlagen; edits here are lost.
//
// Spec
//   arch: "sm_100a"
//   config: {}
//   dtype: "bfloat16"
//   geometry: {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"factor": 40.0, "mscale_all_dim": 1.0, "type": "yarn"}, "v_head_dim": 128}
//   k_rope: {"layout": "dense", "num_heads": 1, "page_size": null, "row_width": 576}
//   kv: {"layout": "ragged", "page_size": null, "row": "plain", "row_offsets": true, "seqlens": false}
//   kv_length_counts: "total"
//   lse: true
//   mask: {"kind": "causal"}
//   max_seqlen: "dynamic"
//   op: "prefill"
//   output_dtype: "bfloat16"
//   partition: {"kind": "none"}
//   q_form: "split"
//   q_layout: "ragged"
//   scheduler: {"kind": "queued", "order": "longest_first"}
//   score_mod: {"kind": "identity"}
//   sink: false
//
// Tile       256 query rows x 128 keys; K and V take turns in 3 slots
// Roles      warpgroups 0-1, 184 registers a thread: scores of 128 rows each to probabilities, in tensor memory
//            warpgroup 2, 88 registers a thread: rescales both outputs, in the end brings them to shared memory
//            warpgroup 3, 56 registers a thread: a warp each draws tiles and loads, issues products, stores; one is idle
// Registers  about 168 of a softmax thread: a row of scores and some packed probabilities
// Shared     Q 96 + KV 96 + K_ROPE 32 + barriers 2.3 = 227 of 227 KiB
// Tensor     S0 0-127, P0 64-127, S1 128-255, P1 192-255, O0 256-383, O1 384-511 of 512 columns
//
// Barriers   (arrivals and bytes of one phase)
//   q_full[2]       1  49152  load warp -> MMA warp (correction, if there is no key)
//   q_empty[2]      1      0  store warp -> load warp
//   kv_full[3]      1  49152  load warp (V: 32768 bytes) -> MMA warp
//   kv_empty[3]     1      0  products -> load warp
//   s_full[2]       1      0  products -> softmax warps
//   p_ready[2]      8      0  softmax and correction warps -> MMA warp
//   p_last[2]       4      0  softmax warps -> MMA warp
//   factor_full[2]  4      0  softmax warps -> correction warps
//   factor_empty[2]  4      0  correction warps -> softmax warps
//   o_full[2]       1      0  products -> correction warps
//   o_staged[2]     4      0  correction warps -> store warp
//   tile_full[2]    1      0  load warp -> all other warps
//   tile_empty[2]  14      0  all other warps -> load warp
//
// Step       2560 tensor-core cycles, 2048 of exp2, 80 KiB of K and V from L2
//
// Schedule
//   load warp   tile -> K(n) -> V(n) -> Q0, Q1 -> { K(n-1) -> V(n-1) }
//   MMA warp    S0 = Q0 K(n)' -> S1 = Q1 K(n)' -> { O0 += P0 V(n) -> S0 = Q0 K(n-1)' -> O1 += P1 V(n) -> S1 }
//   softmax     S -> maximum -> factor to correction -> P, in two parts -> sum; in the end both to correction
//   correction  { O *= factor }; in the end O / sum -> shared memory -> store warp
//   last tile   128 rows: { O0 += P0 V(n) -> S0 = Q0 K(n-2)' -> O1 += P1 V(n-1) -> S1 = Q0 K(n-3)' }
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

constexpr int kTileM = 256;  // query rows of a block
constexpr int kHalfM = 128;  // of a half: the M of tcgen05, a softmax warpgroup
constexpr int kTileN = 128;  // keys of a step
constexpr int kOutputs = 2;  // one a half of the key tiles
constexpr int kFirstPartKeys = 96;  // whose probabilities are handed over first
constexpr int kKvSlots = 3;  // in which K and V take turns
constexpr int kRopeBuffers = 2;
constexpr int kTileSlots = 2;  // announced tiles
constexpr int kQkNopeHeadDim = 128;
constexpr int kQkHeadDim = 192;  // nope and rope columns of Q and K
constexpr int kVHeadDim = 128;
constexpr int kNopePanels = 2;
constexpr int kElementBytes = 2;
constexpr int kTensorMemoryColumns = 512;  // all there are
constexpr int kScoreColumn = 0;  // first of both halves' scores
constexpr int kProbabilityOffset = 64;  // columns from scores to their probabilities
constexpr int kOutputColumn = 256;  // first of both outputs
constexpr int kLoadWarp = 12;
constexpr int kMmaWarp = 13;
constexpr int kStoreWarp = 14;
constexpr int kSoftmaxRegisters = 184;  // a thread, after setmaxnreg
constexpr int kCorrectionRegisters = 88;
constexpr int kIssueRegisters = 56;
constexpr float kRescaleThreshold = 0.5f;  // base-2 growth of a maximum that is let pass

constexpr uint32 kQHalfBytes = kElementBytes * kHalfM * kQkHeadDim;
constexpr uint32 kKBytes = kElementBytes * kTileN * kQkHeadDim;
constexpr uint32 kVBytes = kElementBytes * kTileN * kVHeadDim;

constexpr int kThreads = 128 * 4;

// The scalars and pointers of a launch.
struct Arguments {
  float softmax_scale_log2;  // softmax_scale * log2(e)
  int num_heads;  // query heads
  int batch;  // sequences
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
                                         int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
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

__device__ __forceinline__ void load_batched(void* destination, const TensorMap& map, uint64& barrier, int column,
                                             int head, int row, const Rows& rows) {
  tma_load(destination, map, barrier, column, head, row, rows.batch);
}

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

// ----- Tensor memory: 128 lanes x 512 columns of 32 bits. An address is lane << 16 | column; warp w of a warpgroup
// reaches lanes 32 w to 32 w + 31.

// Takes columns and writes the address of the first to `address`, in shared memory; nothing may be taken afterwards.
// One warp. PTX ISA: tcgen05.alloc, tcgen05.relinquish_alloc_permit.
__device__ __forceinline__ void tensor_memory_allocate(uint32& address) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(&address)),
               "n"(kTensorMemoryColumns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// Gives them back; the next block on this multiprocessor waits for it. One warp. PTX ISA: tcgen05.dealloc.
__device__ __forceinline__ void tensor_memory_free(uint32 address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(kTensorMemoryColumns)
               : "memory");
}

// Tensor memory has an order of its own, to which barriers belong only between these two.
// PTX ISA: tcgen05.fence.
__device__ __forceinline__ void fence_tensor_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void fence_tensor_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// Waits for a phase behind which this thread uses tensor memory.
__device__ __forceinline__ void tensor_wait(uint64& barrier, uint32 parity) {
  barrier_wait(barrier, parity);
  fence_tensor_after();
}

// Arrives once for a warp that has used tensor memory, and has waited for its loads and stores.
__device__ __forceinline__ void tensor_arrive(uint64& barrier) {
  fence_tensor_before();
  warp_arrive(barrier);
}

// Waits for this warp's loads, after which others may overwrite what they read; or for its stores.
// PTX ISA: tcgen05.wait.
__device__ __forceinline__ void wait_tensor_loads() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_tensor_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

// Ties registers to this point: the compiler does not know that tensor cores write them until the wait before it.
template <int kCount>
__device__ __forceinline__ void tie_registers(float (&value)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(value[i])::"memory");
}

// Loads 16, or 32, columns of this thread's lane: a part of one row of an accumulator. The values count behind `wait_tensor_loads`.
// PTX ISA: tcgen05.ld.
__device__ __forceinline__ void tensor_load_16(float* value, uint32 address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, [%16];"
      : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3]), "=f"(value[4]), "=f"(value[5]), "=f"(value[6]), "=f"(value[7]),
        "=f"(value[8]), "=f"(value[9]), "=f"(value[10]), "=f"(value[11]), "=f"(value[12]), "=f"(value[13]), "=f"(value[14]), "=f"(value[15])
      : "r"(address)
      : "memory");
}

__device__ __forceinline__ void tensor_load_32(float* value, uint32 address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, [%32];"
      : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3]), "=f"(value[4]), "=f"(value[5]), "=f"(value[6]), "=f"(value[7]),
        "=f"(value[8]), "=f"(value[9]), "=f"(value[10]), "=f"(value[11]), "=f"(value[12]), "=f"(value[13]), "=f"(value[14]), "=f"(value[15]),
        "=f"(value[16]), "=f"(value[17]), "=f"(value[18]), "=f"(value[19]), "=f"(value[20]), "=f"(value[21]), "=f"(value[22]), "=f"(value[23]),
        "=f"(value[24]), "=f"(value[25]), "=f"(value[26]), "=f"(value[27]), "=f"(value[28]), "=f"(value[29]), "=f"(value[30]), "=f"(value[31])
      : "r"(address)
      : "memory");
}

// Stores columns of this thread's lane. PTX ISA: tcgen05.st.
__device__ __forceinline__ void tensor_store(uint32 address, const float (&value)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16"
      "};" ::"r"(address),
      "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "f"(value[4]), "f"(value[5]), "f"(value[6]), "f"(value[7]),
      "f"(value[8]), "f"(value[9]), "f"(value[10]), "f"(value[11]), "f"(value[12]), "f"(value[13]), "f"(value[14]), "f"(value[15])
      : "memory");
}

__device__ __forceinline__ void tensor_store(uint32 address, const uint32 (&value)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16"
      "};" ::"r"(address),
      "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3]), "r"(value[4]), "r"(value[5]), "r"(value[6]), "r"(value[7]),
      "r"(value[8]), "r"(value[9]), "r"(value[10]), "r"(value[11]), "r"(value[12]), "r"(value[13]), "r"(value[14]), "r"(value[15])
      : "memory");
}

// ----- Products. One thread issues them; those on one accumulator run in the order of their issue, and one may
// overwrite what an earlier one reads as its A in tensor memory. Anything else waits for `tensor_commit`.

// The low word of a matrix descriptor: bits 0-13 hold the address in units of 16 bytes. Bits 18 and above of a shared
// address would name another block of a cluster.
__device__ __forceinline__ uint32 descriptor_low(uint32 address) { return (address & 0x3ffff) >> 4; }

// A matrix descriptor: 128-byte swizzle, 8-row groups 1024 bytes apart. Bits 16-29 of `low` hold the distance of
// 64-column panels where the operand has its columns contiguous. PTX ISA: tcgen05, shared memory descriptor.
__device__ __forceinline__ uint64 matrix_descriptor(uint32 low) {
  constexpr uint64 kSwizzle128Stride1024 = 0x40004040ull << 32;
  return kSwizzle128Stride1024 | low;
}

// An instruction descriptor for 16-bit operands and fp32 sums: D is m x n. PTX ISA: tcgen05, instruction descriptor.
__device__ __forceinline__ constexpr uint32 instruction_descriptor(int m, int n, bool b_has_contiguous_columns) {
  constexpr uint32 kSumsAreFp32 = 1u << 4;
  constexpr uint32 kOperandsAreBf16 = 1u << 7 | 1u << 10;
  return kSumsAreFp32 | kOperandsAreBf16 | static_cast<uint32>(b_has_contiguous_columns) << 16 |
         static_cast<uint32>(n / 8) << 17 | static_cast<uint32>(m / 16) << 24;
}

// d = (accumulate ? d : 0) + a[m x 16] b[n x 16]', a and b in shared memory. PTX ISA: tcgen05.mma.
template <uint32 kInstruction>
__device__ __forceinline__ void tensor_multiply(uint32 d, uint64 a, uint64 b, bool accumulate) {
  asm volatile(
      "{.reg .pred accumulate; setp.ne.b32 accumulate, %3, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %4, accumulate;}" ::"r"(d),
      "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kInstruction)
      : "memory");
}

// The same with a in tensor memory, two elements to a column.
template <uint32 kInstruction>
__device__ __forceinline__ void tensor_multiply(uint32 d, uint32 a, uint64 b, bool accumulate) {
  asm volatile(
      "{.reg .pred accumulate; setp.ne.b32 accumulate, %3, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %4, accumulate;}" ::"r"(d),
      "r"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kInstruction)
      : "memory");
}

// Arrives once when all products that this thread has issued are complete, with `fence_tensor_before` in it.
// PTX ISA: tcgen05.commit.
__device__ __forceinline__ void tensor_commit(uint64& barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(&barrier))
               : "memory");
}

// Q K' of a half and a block: Q and K have their columns contiguous in a row. P V: V has its rows contiguous in a column.
constexpr uint32 kScoreInstruction = instruction_descriptor(kHalfM, kTileN, false);
constexpr uint32 kOutputInstruction = instruction_descriptor(kHalfM, kVHeadDim, true);

// Writes 16 bytes to shared memory. PTX ISA: st.
__device__ __forceinline__ void store_16_bytes(uint32 address, uint32 a, uint32 b, uint32 c, uint32 d) {
  asm volatile("st.shared::cta.v4.b32 [%0], { %1, %2, %3, %4 };" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
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

// Two values rounded to bfloat16, `low` in the lower half. Volatile, so that it stays behind the wait that frees
// its registers. PTX ISA: cvt.
__device__ __forceinline__ uint32 pack(float low, float high) {
  uint32 packed;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Arithmetic on two floats at once, which takes one issue slot. PTX ISA: fma.rn.f32x2, add.rn.f32x2.
__device__ __forceinline__ void multiply_add(float& low, float& high, float factor, float addend) {
  asm("{.reg .b64 pair, factors, addends;\n"
      "mov.b64 pair, { %0, %1 };\n"
      "mov.b64 factors, { %2, %2 };\n"
      "mov.b64 addends, { %3, %3 };\n"
      "fma.rn.f32x2 pair, pair, factors, addends;\n"
      "mov.b64 { %0, %1 }, pair;}"
      : "+f"(low), "+f"(high)
      : "f"(factor), "f"(addend));
}

__device__ __forceinline__ void add(float& low, float& high, float other_low, float other_high) {
  asm("{.reg .b64 pair, others;\n"
      "mov.b64 pair, { %0, %1 };\n"
      "mov.b64 others, { %2, %3 };\n"
      "add.rn.f32x2 pair, pair, others;\n"
      "mov.b64 { %0, %1 }, pair;}"
      : "+f"(low), "+f"(high)
      : "f"(other_low), "f"(other_high));
}

// The scores of a softmax thread are one whole row: what masks and score mods need to know.
constexpr int kRowsPerThread = 1;
constexpr int kRowDistance = 0;
__device__ __forceinline__ constexpr int score_element(int, int i) { return i; }
__device__ __forceinline__ constexpr int score_column(int i) { return i; }

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

// Heads whose keys and values are visited together, so that they stay in L2: what fits 64 MiB, at most 16.
__device__ __forceinline__ int heads_in_section(int seqlen_k) {
  constexpr int kKeysOfOneHead = (64 << 20) / (kElementBytes * (kQkNopeHeadDim + kVHeadDim));
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

// The blocks of kTileN keys that a query tile, or some rows of it, visits, from the last to the first. Those in
// [full_begin, full_end) are visible to every row and need no mask. All roles ask this one function.
struct KeyBlocks {
  int begin, full_begin, full_end, end;

  __device__ __forceinline__ explicit KeyBlocks(const Tile& tile, int first_row = 0, int rows = kTileM) {
    const int offset = tile.keys.length - tile.queries.length;
    const int first = tile.row + first_row + offset;
    const int last = min(tile.row + first_row + rows, tile.queries.length) - 1 + offset;
    const int visible_begin = max(first_visible_key(first), 0);
    const int visible_end = min(end_of_visible_keys(last), tile.keys.length);
    begin = visible_begin / kTileN;
    end = visible_end > visible_begin ? ceil_div(visible_end, kTileN) : begin;
    full_begin = max(ceil_div(max(first_visible_key(last), 0), kTileN), begin);
    full_end = max(max(min(end_of_visible_keys(first), tile.keys.length), 0) / kTileN, begin);
  }

  __device__ __forceinline__ bool empty() const { return end <= begin; }
};

// ---------------------------------------------------------------------------------------------------------------------
// Shared memory
// ---------------------------------------------------------------------------------------------------------------------

// Matrices lie in panels of 64 columns, a row of a panel being the 128 bytes over which TMA and tensor cores swizzle.
struct __align__(1024) SharedMemory {
  uint16 q[2][3][128][64];  // of each half; then its output
  uint16 kv[3][2][128][64];  // nope columns of keys, and values, in turn
  uint16 k_rope[2][1][128][64];  // rope columns of keys
  uint64 q_full[2];  // load warp -> MMA warp (correction, if there is no key)
  uint64 q_empty[2];  // store warp -> load warp
  uint64 kv_full[3];  // load warp (V: 32768 bytes) -> MMA warp
  uint64 kv_empty[3];  // products -> load warp
  uint64 s_full[2];  // products -> softmax warps
  uint64 p_ready[2];  // softmax and correction warps -> MMA warp
  uint64 p_last[2];  // softmax warps -> MMA warp
  uint64 factor_full[2];  // softmax warps -> correction warps
  uint64 factor_empty[2];  // correction warps -> softmax warps
  uint64 o_full[2];  // products -> correction warps
  uint64 o_staged[2];  // correction warps -> store warp
  uint64 tile_full[2];  // load warp -> all other warps
  uint64 tile_empty[2];  // all other warps -> load warp
  Tile tile[2];  // announced tiles
  float factor[2][128];  // of each row: what its output lacks, in the end its maximum
  float sum[2][128];  // of each row, in the end: of exponentials
  uint32 tensor_memory[1];  // address of the first column
};
static_assert(sizeof(SharedMemory) == 232448, "the plan's shared-memory map");
static_assert(sizeof(Tile) == 32, "the plan's size of a tile");

__device__ __forceinline__ void init_barriers(SharedMemory& shared) {
  for (uint64& barrier : shared.q_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.q_empty) barrier_init(barrier, 1);
  for (uint64& barrier : shared.kv_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.kv_empty) barrier_init(barrier, 1);
  for (uint64& barrier : shared.s_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.p_ready) barrier_init(barrier, 8);
  for (uint64& barrier : shared.p_last) barrier_init(barrier, 4);
  for (uint64& barrier : shared.factor_full) barrier_init(barrier, 4);
  for (uint64& barrier : shared.factor_empty) barrier_init(barrier, 4);
  for (uint64& barrier : shared.o_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.o_staged) barrier_init(barrier, 4);
  for (uint64& barrier : shared.tile_full) barrier_init(barrier, 1);
  for (uint64& barrier : shared.tile_empty) barrier_init(barrier, 14);
  fence_barrier_init();
}

// ---------------------------------------------------------------------------------------------------------------------
// What all roles agree on
// ---------------------------------------------------------------------------------------------------------------------

// A tile is two halves of kHalfM query rows. Each has scores, probabilities and output of its own in tensor memory and
// visits only the blocks that its rows see. A last tile of a sequence may have rows for the first half only: then its key
// blocks are dealt to both halves in turn, the last block to the first half, and in the end the two outputs are added.
__device__ __forceinline__ bool has_rows(const Tile& tile, int half) {
  return tile.row + half * kHalfM < tile.queries.length;
}

__device__ __forceinline__ bool takes_turns(const Tile& tile) { return !has_rows(tile, 1); }

// For a half that has rows.
__device__ __forceinline__ KeyBlocks blocks_of_half(const Tile& tile, int half) {
  return KeyBlocks(tile, half * kHalfM, kHalfM);
}

// Where blocks are dealt in turn.
__device__ __forceinline__ bool is_first_of_output(const KeyBlocks& blocks, int block) {
  return block + kOutputs >= blocks.end;
}

// What a half sees of a block.
enum class MaskStatus {
  kHidden,
  kPartial,
  kVisible
};

__device__ __forceinline__ MaskStatus mask_status(const KeyBlocks& half, int block) {
  if (block < half.begin || block >= half.end) return MaskStatus::kHidden;
  return block >= half.full_begin && block < half.full_end ? MaskStatus::kVisible : MaskStatus::kPartial;
}

__device__ __forceinline__ bool sees(const KeyBlocks& half, int block) {
  return mask_status(half, block) != MaskStatus::kHidden;
}

// First columns of a half's regions.
__device__ __forceinline__ uint32 scores_of(uint32 tensor_memory, int half) {
  return tensor_memory + kScoreColumn + half * kTileN;
}
__device__ __forceinline__ uint32 probabilities_of(uint32 tensor_memory, int half) {
  return scores_of(tensor_memory, half) + kProbabilityOffset;
}
__device__ __forceinline__ uint32 output_of(uint32 tensor_memory, int half) {
  return tensor_memory + kOutputColumn + half * kVHeadDim;
}

// The first lane that a warp of a warpgroup reaches, as part of an address.
__device__ __forceinline__ uint32 lanes_of_warp() { return uniform(threadIdx.x / 32 % 4 * 32) << 16; }

// Takes announced tiles, for one warp.
struct TileReader {
  RingPosition<kTileSlots> slot;

  __device__ __forceinline__ Tile next(SharedMemory& shared) {
    barrier_wait(shared.tile_full[slot.stage], slot.parity);
    const Tile& announced = shared.tile[slot.stage];
    Tile tile;
    tile.queries = uniform(announced.queries);
    tile.keys = uniform(announced.keys);
    tile.head = uniform(announced.head);
    tile.row = uniform(announced.row);
    warp_arrive(shared.tile_empty[slot.stage]);
    slot.advance();
    return tile;
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Load warp
// ---------------------------------------------------------------------------------------------------------------------

// Draws tickets, announces tiles and keeps the ring full, running ahead of the products.
struct LoadWarp {
  SharedMemory& shared;
  const Arguments& arguments;
  const TensorMap& q_nope_map;
  const TensorMap& q_pe_map;
  const TensorMap& k_map;
  const TensorMap& k_rope_map;
  const TensorMap& v_map;
  RingPosition<kKvSlots> kv;  // K and V of a block take turns
  RingPosition<kRopeBuffers> rope;
  RingPosition<1> q[2];
  RingPosition<kTileSlots> slot;

  __device__ __forceinline__ void announce(const Tile& tile) {
    barrier_wait(shared.tile_empty[slot.stage], slot.parity ^ 1);
    if (elect_one()) {
      shared.tile[slot.stage] = tile;
      barrier_arrive(shared.tile_full[slot.stage]);
    }
    slot.advance();
  }

  // The query rows of both halves. One that sees no key needs none; its rows are handed over as they are.
  __device__ __forceinline__ void load_q(const Tile& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!has_rows(tile, half)) continue;
      barrier_wait(shared.q_empty[half], q[half].parity ^ 1);
      if (elect_one()) {
        uint64& full = shared.q_full[half];
        const int row = tile.row + half * kHalfM;
        if (blocks_of_half(tile, half).empty()) {
          barrier_arrive(full);
        } else {
          barrier_arrive_expect_bytes(full, kQHalfBytes);
          load_clipped(shared.q[half][0], q_nope_map, full, 0, tile.head, row, tile.queries);
          load_clipped(shared.q[half][1], q_nope_map, full, 64, tile.head, row, tile.queries);
          load_clipped(shared.q[half][2], q_pe_map, full, 0, tile.head, row, tile.queries);
        }
      }
      q[half].advance();
    }
  }

  // The nope columns go into a slot of the ring, the rope columns into a buffer of their own; one barrier counts both.
  // The buffer is free when the slot is: it was used by products that came before those that freed the slot.
  __device__ __forceinline__ void load_k(const Tile& tile, int block) {
    const int row = block * kTileN;
    barrier_wait(shared.kv_empty[kv.stage], kv.parity ^ 1);
    uint64& full = shared.kv_full[kv.stage];
    if (elect_one()) {
      barrier_arrive_expect_bytes(full, kKBytes);
      load_packed(shared.kv[kv.stage][0], k_map, full, 0, tile.head, row, tile.keys);
      load_packed(shared.kv[kv.stage][1], k_map, full, 64, tile.head, row, tile.keys);
      load_batched(shared.k_rope[rope.stage][0], k_rope_map, full, 0, 0, row, tile.keys);
    }
    kv.advance();
    rope.advance();
  }

  __device__ __forceinline__ void load_v(const Tile& tile, int block) {
    const int row = block * kTileN;
    barrier_wait(shared.kv_empty[kv.stage], kv.parity ^ 1);
    if (elect_one()) {
      uint64& full = shared.kv_full[kv.stage];
      barrier_arrive_expect_bytes(full, kVBytes);
      load_clipped(shared.kv[kv.stage][0], v_map, full, 0, tile.head, row, tile.keys);
      load_clipped(shared.kv[kv.stage][1], v_map, full, 64, tile.head, row, tile.keys);
    }
    kv.advance();
  }

  // In the order in which products use them. The first K and V are asked for before Q, whose place the output of the
  // previous tile may still occupy.
  __device__ __forceinline__ void load_tile(const Tile& tile) {
    const KeyBlocks blocks(tile);
    if (!blocks.empty()) {
      load_k(tile, blocks.end - 1);
      load_v(tile, blocks.end - 1);
    }
    load_q(tile);
    for (int block = blocks.end - 2; block >= blocks.begin; --block) {
      load_k(tile, block);
      load_v(tile, block);
    }
  }

  __device__ __forceinline__ void load() {
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
// MMA warp
// ---------------------------------------------------------------------------------------------------------------------

// The low descriptor word of 128 rows of Q: K-major, panels of 64 columns.
__device__ __forceinline__ uint32 descriptor_q(const SharedMemory& shared, int half) {
  return descriptor_low(shared_address(shared.q[half]));
}

// Issues all products, from one lane. While one half's softmax runs, the tensor cores serve the other. The scores of a
// block overwrite the probabilities of the half's block before, whose product was issued before them.
struct MmaWarp {
  SharedMemory& shared;
  const uint32 tensor_memory;
  TileReader tiles;
  RingPosition<kKvSlots> kv;
  RingPosition<kRopeBuffers> rope;
  RingPosition<1> q[2];
  RingPosition<1> p[2];

  // Scores of a half: Q K', in steps of 16 columns, four to a panel.
  __device__ __forceinline__ void multiply_q_k(int half, int half_of_q) {
    if (elect_one()) {
      const uint32 q_low = descriptor_q(shared, half_of_q);
      const uint32 k_low = descriptor_low(shared_address(shared.kv[kv.stage]));
      const uint32 rope_low = descriptor_low(shared_address(shared.k_rope[rope.stage]));
#pragma unroll
      for (int step = 0; step < kQkHeadDim / 16; ++step) {
        const int panel = step / 4;
        const uint32 a = q_low + panel * (kHalfM * 8) + step % 4 * 2;
        const uint32 b = panel < kNopePanels ? k_low + panel * (kTileN * 8)
                                             : rope_low + (panel - kNopePanels) * (kTileN * 8);
        tensor_multiply<kScoreInstruction>(scores_of(tensor_memory, half), matrix_descriptor(a),
                                           matrix_descriptor(b + step % 4 * 2), step != 0);
      }
      tensor_commit(shared.s_full[half]);
    }
  }

  // Output of a half: += P V, in steps of 16 keys. The first part needs the output rescaled and most of P, the second
  // the rest of P. V has its columns contiguous: a step of 16 keys is 2048 bytes.
  __device__ __forceinline__ void multiply_p_v(int half, int v_slot, bool accumulate) {
    const uint32 v_low = descriptor_low(shared_address(shared.kv[v_slot])) | (kTileN * 8) << 16;
    const uint32 output = output_of(tensor_memory, half);
    const uint32 probabilities = probabilities_of(tensor_memory, half);
    tensor_wait(shared.p_ready[half], p[half].parity);
    if (elect_one()) {
#pragma unroll
      for (int step = 0; step < kFirstPartKeys / 16; ++step) {
        tensor_multiply<kOutputInstruction>(output, probabilities + step * 8, matrix_descriptor(v_low + step * 128),
                                            accumulate || step != 0);
      }
    }
    tensor_wait(shared.p_last[half], p[half].parity);
    if (elect_one()) {
#pragma unroll
      for (int step = kFirstPartKeys / 16; step < kTileN / 16; ++step) {
        tensor_multiply<kOutputInstruction>(output, probabilities + step * 8, matrix_descriptor(v_low + step * 128),
                                            true);
      }
    }
    p[half].advance();
  }

  // Frees a slot once all products issued so far are complete.
  __device__ __forceinline__ void release(int slot) {
    if (elect_one()) tensor_commit(shared.kv_empty[slot]);
  }

  // Scores of a half's next block, where blocks are dealt in turn: of the first half's rows.
  __device__ __forceinline__ void begin_own_block(int half) {
    tensor_wait(shared.kv_full[kv.stage], kv.parity);
    multiply_q_k(half, 0);
    release(kv.stage);
    kv.advance();
    kv.advance();
    rope.advance();
  }

  __device__ __forceinline__ void end_own_block(int half, RingPosition<kKvSlots>& v, const KeyBlocks& blocks, int block) {
    tensor_wait(shared.kv_full[v.stage], v.parity);
    multiply_p_v(half, v.stage, !is_first_of_output(blocks, block));
    release(v.stage);
    if (block - 2 < blocks.begin && elect_one()) tensor_commit(shared.o_full[half]);
    v.advance();
    v.advance();
  }

  // Scores run two blocks ahead, one for each half, and so the ring's position is that of the next K; V follows.
  __device__ __forceinline__ void attend_in_turn(const KeyBlocks& blocks) {
    static_assert(kKvSlots >= 3, "two K and a V");
    RingPosition<kKvSlots> v = kv;
    v.advance();
    tensor_wait(shared.q_full[0], q[0].parity);
    begin_own_block(0);
    if (blocks.end - 1 > blocks.begin) begin_own_block(1);
    for (int pair = blocks.end - 1; pair >= blocks.begin; pair -= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = pair - half;
        if (block >= blocks.begin) end_own_block(half, v, blocks, block);
        if (block - 2 >= blocks.begin) begin_own_block(half);
      }
    }
  }

  __device__ __forceinline__ void advance_k() {
    kv.advance();
    rope.advance();
  }

  // Scores of `block`, for a half that sees it; Q is waited for where the half begins.
  __device__ __forceinline__ void begin_block(int half, const KeyBlocks& blocks, int block) {
    if (!sees(blocks, block)) return;
    if (block == blocks.end - 1) tensor_wait(shared.q_full[half], q[half].parity);
    multiply_q_k(half, half);
  }

  __device__ __forceinline__ void end_block(int half, const KeyBlocks& blocks, int block, int v_slot) {
    if (!sees(blocks, block)) return;
    multiply_p_v(half, v_slot, block != blocks.end - 1);
    if (block == blocks.begin && elect_one()) tensor_commit(shared.o_full[half]);
  }

  __device__ __forceinline__ void attend(const KeyBlocks& blocks, const KeyBlocks& first_half,
                                         const KeyBlocks& second_half) {
    tensor_wait(shared.kv_full[kv.stage], kv.parity);
    begin_block(0, first_half, blocks.end - 1);
    begin_block(1, second_half, blocks.end - 1);
    release(kv.stage);
    advance_k();
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      const bool has_next = block > blocks.begin;
      const int v_slot = kv.stage;
      tensor_wait(shared.kv_full[v_slot], kv.parity);
      kv.advance();
      end_block(0, first_half, block, v_slot);
      if (has_next) {
        tensor_wait(shared.kv_full[kv.stage], kv.parity);
        begin_block(0, first_half, block - 1);
      }
      end_block(1, second_half, block, v_slot);
      release(v_slot);
      if (has_next) {
        begin_block(1, second_half, block - 1);
        release(kv.stage);
        advance_k();
      }
    }
  }

  __device__ __forceinline__ void mma() {
    for (Tile tile = tiles.next(shared); tile.keys.batch != kNoTile; tile = tiles.next(shared)) {
      const KeyBlocks blocks(tile);
      if (takes_turns(tile)) {
        if (!blocks.empty()) attend_in_turn(blocks);
      } else if (!blocks.empty()) {
        attend(blocks, blocks_of_half(tile, 0), blocks_of_half(tile, 1));
      }
      q[0].advance();
      if (has_rows(tile, 1)) q[1].advance();
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Softmax warpgroups
// ---------------------------------------------------------------------------------------------------------------------

// Online softmax in base 2 of the 128 rows of a half: a thread is a row. Scores become probabilities in place, in tensor
// memory; what the output still lacks goes to the correction warpgroup through shared memory.
// Source: online softmax (Milakov and Gimelshein, arXiv 1805.02867), with the conditional rescale of FlashAttention-4.
struct SoftmaxWarpgroup {
  SharedMemory& shared;
  const Arguments& arguments;
  const uint32 tensor_memory;
  const int half;
  TileReader tiles;
  RingPosition<1> s;
  RingPosition<1> factor;

  // Of the row.
  float maximum;  // raw score that the exponents refer to; may lag behind the largest by kRescaleThreshold
  float sum;      // of 2^(score * scale - reference), in fp32, before rounding to bfloat16
  int position;   // among the keys
  int seqlen_k;

  __device__ __forceinline__ int thread() const { return threadIdx.x % 128; }

  // The exponents' reference in base 2. A row that has seen no key refers to 0, so that -inf - -inf never occurs. The
  // product is rounded on its own (no fused multiply-add), the same at every use: for large scores its error is
  // large, but the same in every factor, and cancels.
  __device__ __forceinline__ float reference(float raw) const {
    return raw == -infinity() ? 0.0f : __fmul_rn(raw, arguments.softmax_scale_log2);
  }

  // Hands a factor to the correction thread of the same row.
  __device__ __forceinline__ void publish(float value) {
    barrier_wait(shared.factor_empty[half], factor.parity ^ 1);
    shared.factor[half][thread()] = value;
    warp_arrive(shared.factor_full[half]);
    factor.advance();
  }

  // Hands it, in the place of a last factor, what softmax knows of the row.
  __device__ __forceinline__ void publish_state() {
    barrier_wait(shared.factor_empty[half], factor.parity ^ 1);
    shared.factor[half][thread()] = maximum;
    shared.sum[half][thread()] = sum;
    warp_arrive(shared.factor_full[half]);
    factor.advance();
  }

  // Adopts the row's new maximum if some row of the warp has grown by 2^kRescaleThreshold: until then probabilities
  // exceed 1, which neither fp32 sums nor bfloat16 mind. Gives the factor that sum and output then need.
  __device__ __forceinline__ float raise_maximum(const float (&score)[kTileN]) {
    float largest[4] = {maximum, score[0], score[1], score[2]};
#pragma unroll
    for (int i = 3; i < kTileN; ++i) largest[i % 4] = fmaxf(largest[i % 4], score[i]);
    const float raised = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
    const bool grew = (raised - maximum) * arguments.softmax_scale_log2 > kRescaleThreshold;
    if (!__any_sync(kAllLanes, grew)) return 1.0f;
    const float growth = reference(raised) - reference(maximum);
    const float correction = maximum == -infinity() ? 0.0f : exp2_approx(-growth);
    maximum = raised;
    sum = __fmul_rn(sum, correction);
    return correction;
  }

  // Probabilities of 32 keys, to tensor memory; their fp32 values stay in `score`.
  template <int kFirstKey>
  __device__ __forceinline__ void store_probabilities(float (&score)[kTileN], float reference_log2, uint32 address) {
    uint32 packed[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& low = score[kFirstKey + 2 * i];
      float& high = score[kFirstKey + 2 * i + 1];
      multiply_add(low, high, arguments.softmax_scale_log2, -reference_log2);
      low = exp2_approx(low);
      high = exp2_approx(high);
      packed[i] = pack(low, high);
    }
    tensor_store(address + kFirstKey / 2, packed);
  }

  __device__ __forceinline__ void load_scores(float (&score)[kTileN]) {
    const uint32 address = scores_of(tensor_memory, half) + lanes_of_warp();
    tensor_wait(shared.s_full[half], s.parity);
    s.advance();
#pragma unroll
    for (int key = 0; key < kTileN; key += 32) tensor_load_32(score + key, address + key);
    wait_tensor_loads();
    tie_registers(score);
  }

  // One block: scores to probabilities. `is_first`: there is no output yet that could lack a factor.
  template <bool kMasked>
  __device__ __forceinline__ void attend_block(int block, bool is_first) {
    float score[kTileN];
    load_scores(score);
    if constexpr (kMasked) hide_masked(score, position, block * kTileN, seqlen_k);
    // Published before the exponentials, so that the output is rescaled meanwhile.
    const float correction = raise_maximum(score);
    if (!is_first) publish(correction);

    const float reference_log2 = reference(maximum);
    const uint32 address = probabilities_of(tensor_memory, half) + lanes_of_warp();
    store_probabilities<0>(score, reference_log2, address);
    store_probabilities<32>(score, reference_log2, address);
    store_probabilities<64>(score, reference_log2, address);
    wait_tensor_stores();
    tensor_arrive(shared.p_ready[half]);
    store_probabilities<96>(score, reference_log2, address);
    wait_tensor_stores();
    tensor_arrive(shared.p_last[half]);

    // While the product runs.
    float partial[4] = {sum, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kTileN; i += 4) {
      add(partial[0], partial[1], score[i], score[i + 1]);
      add(partial[2], partial[3], score[i + 2], score[i + 3]);
    }
    sum = (partial[0] + partial[1]) + (partial[2] + partial[3]);
  }

  __device__ __forceinline__ void attend(const Tile& tile, const KeyBlocks& blocks, bool in_turn) {
    const int first = blocks.end - 1 - (in_turn ? half : 0);
    for (int block = first; block >= blocks.begin; block -= in_turn ? 2 : 1) {
      const bool is_first = block == first;
      // The last of the keys always carry the mask.
      if (block == blocks.end - 1 || mask_status(blocks, block) == MaskStatus::kPartial) {
        attend_block<true>(block, is_first);
      } else {
        attend_block<false>(block, is_first);
      }
    }
    if (first >= blocks.begin) publish_state();
  }

  __device__ __forceinline__ void softmax() {
    for (Tile tile = tiles.next(shared); tile.keys.batch != kNoTile; tile = tiles.next(shared)) {
      const bool in_turn = takes_turns(tile);
      const int half_of_rows = in_turn ? 0 : half;
      const KeyBlocks blocks = blocks_of_half(tile, half_of_rows);
      if (blocks.empty()) continue;
      position = tile.row + half_of_rows * kHalfM + thread() + tile.keys.length - tile.queries.length;
      seqlen_k = tile.keys.length;
      maximum = -infinity();
      sum = 0.0f;
      attend(tile, blocks, in_turn);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Correction warpgroup and store warp
// ---------------------------------------------------------------------------------------------------------------------

// What softmax knows of a row over the keys that a half has visited; to begin with, none.
struct RowState {
  float maximum = -infinity();
  float sum = 0.0f;
};

// Rescales the outputs of both halves in tensor memory between two products, and in the end brings them to shared memory:
// a thread is a row of each half. The softmax threads never touch an output.
struct CorrectionWarpgroup {
  SharedMemory& shared;
  const Arguments& arguments;
  const uint32 tensor_memory;
  TileReader tiles;
  RingPosition<1> factor[2];
  RingPosition<1> o[2];
  RingPosition<1> q[2];

  __device__ __forceinline__ int thread() const { return threadIdx.x % 128; }

  // What the softmax thread of the same row has published.
  __device__ __forceinline__ float take_factor(int half) {
    barrier_wait(shared.factor_full[half], factor[half].parity);
    const float value = shared.factor[half][thread()];
    warp_arrive(shared.factor_empty[half]);
    factor[half].advance();
    return value;
  }

  __device__ __forceinline__ RowState take_state(int half) {
    barrier_wait(shared.factor_full[half], factor[half].parity);
    const RowState state = {shared.factor[half][thread()], shared.sum[half][thread()]};
    warp_arrive(shared.factor_empty[half]);
    factor[half].advance();
    return state;
  }

  // Multiplies the output by the row's factor and lets the next product add to it. The product before is complete: the
  // factor follows from scores that were committed behind it.
  __device__ __forceinline__ void rescale(int half) {
    const float value = take_factor(half);
    fence_tensor_after();
    if (__any_sync(kAllLanes, value != 1.0f)) {
      const uint32 address = output_of(tensor_memory, half) + lanes_of_warp();
      float output[2][16];
      tensor_load_16(output[0], address);
#pragma unroll
      for (int piece = 0; piece < kVHeadDim / 16; ++piece) {
        float (&current)[16] = output[piece % 2];
        wait_tensor_loads();
        tie_registers(current);
        // The next piece is under way while this one is multiplied.
        if (piece + 1 < kVHeadDim / 16) tensor_load_16(output[(piece + 1) % 2], address + (piece + 1) * 16);
#pragma unroll
        for (int i = 0; i < 16; ++i) current[i] *= value;
        tensor_store(address + piece * 16, current);
      }
      wait_tensor_stores();
    }
    tensor_arrive(shared.p_ready[half]);
  }

  // The exponents' reference in base 2. A row that has seen no key refers to 0, so that -inf - -inf never occurs. The
  // product is rounded on its own (no fused multiply-add), the same at every use: for large scores its error is
  // large, but the same in every factor, and cancels.
  __device__ __forceinline__ float reference(float raw) const {
    return raw == -infinity() ? 0.0f : __fmul_rn(raw, arguments.softmax_scale_log2);
  }

  // What sums and outputs that refer to `from` lack where they are to refer to `to`.
  __device__ __forceinline__ float decay(float from, float to) const {
    return from == -infinity() ? 0.0f : exp2_approx(reference(from) - reference(to));
  }

  // Natural logarithm of the row's sum of exponentials; -inf for a row that sees no key. A sink is not part of it.
  __device__ __forceinline__ void store_lse(const Tile& tile, int half, const RowState& state) const {
    const int row = tile.row + half * kHalfM + thread();
    if (row >= tile.queries.length) return;
    const float lse = (reference(state.maximum) + log2_approx(state.sum)) * kLn2;  // log2(0) is -inf
    const int query = tile.queries.offset + row;
    const int64 element = query * arguments.lse_row_stride;
    arguments.lse[element + tile.head * arguments.lse_head_stride] = lse;
  }

  // By what the output of a row is multiplied in the end: 0 if it has seen no key.
  __device__ __forceinline__ float scale_of(const Tile& tile, const RowState& state) const {
    float denominator = state.sum;
    return denominator == 0.0f ? 0.0f : 1.0f / denominator;
  }

  // Lays columns of the row into a half's place in Q, now out of use, as TMA expects them: panels of 64 columns whose
  // 16-byte chunks are swizzled.
  template <int kColumns>
  __device__ __forceinline__ void stage_columns(int half, int column, const float (&output)[kColumns]) {
    const int row = thread();
#pragma unroll
    for (int i = 0; i < kColumns; i += 8) {
      const int chunk = (column + i) % 64 / 8;
      const uint32 address = shared_address(shared.q[half][column / 64][row]) + ((chunk ^ row % 8) << 4);
      store_16_bytes(address, pack(output[i], output[i + 1]), pack(output[i + 2], output[i + 3]),
                     pack(output[i + 4], output[i + 5]), pack(output[i + 6], output[i + 7]));
    }
  }

  __device__ __forceinline__ void hand_to_store(int half) {
    fence_async_proxy();
    warp_arrive(shared.o_staged[half]);
  }

  // Lays the sum of the first `outputs` outputs, each times its scale, into the first half's place.
  __device__ __forceinline__ void add_write_outputs(const float (&scale)[kOutputs], int outputs) {
#pragma unroll
    for (int column = 0; column < kVHeadDim; column += 16) {
      float sum[16] = {};
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        if (i < outputs) {
          float output[16];
          tensor_load_16(output, output_of(tensor_memory, i) + lanes_of_warp() + column);
          wait_tensor_loads();
          tie_registers(output);
#pragma unroll
          for (int j = 0; j < 16; ++j) sum[j] = fmaf(output[j], scale[i], sum[j]);
        }
      }
      stage_columns(0, column, sum);
    }
    hand_to_store(0);
  }

  // Takes together what the halves that had blocks know of a row, and adds their outputs.
  __device__ __forceinline__ void finish_in_turn(const Tile& tile, int blocks) {
    RowState own[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half < blocks) own[half] = take_state(half);
    }
    const float maximum = fmaxf(own[0].maximum, own[1].maximum);
    const float share[2] = {decay(own[0].maximum, maximum), decay(own[1].maximum, maximum)};
    const RowState row = {maximum, __fmul_rn(own[0].sum, share[0]) + __fmul_rn(own[1].sum, share[1])};
    const float divided = scale_of(tile, row);
    const float scale[kOutputs] = {share[0] * divided, share[1] * divided};
    const int outputs = min(blocks, kOutputs);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      if (i < outputs) {
        tensor_wait(shared.o_full[i], o[i].parity);
        o[i].advance();
      }
    }
    if (outputs == 0) barrier_wait(shared.q_full[0], q[0].parity);
    add_write_outputs(scale, outputs);
    q[0].advance();
    store_lse(tile, 0, row);
  }

  __device__ __forceinline__ void correct_in_turn(const Tile& tile, const KeyBlocks& blocks) {
    for (int pair = blocks.end - 1; pair >= blocks.begin; pair -= 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int block = pair - half;
        if (block < blocks.begin) continue;
        if (is_first_of_output(blocks, block)) {
          // The output of the tile before has been read: the product may overwrite it.
          tensor_arrive(shared.p_ready[half]);
        } else {
          rescale(half);
        }
      }
    }
    finish_in_turn(tile, blocks.end - blocks.begin);
  }

  // Lays a half's output, times `scale`, into its place. Rows that have seen no key are 0.
  __device__ __forceinline__ void scale_write_output(int half, float scale, bool has_keys) {
#pragma unroll
    for (int column = 0; column < kVHeadDim; column += 32) {
      float output[32] = {};
      if (has_keys) {
        tensor_load_32(output, output_of(tensor_memory, half) + lanes_of_warp() + column);
        wait_tensor_loads();
        tie_registers(output);
#pragma unroll
        for (int i = 0; i < 32; ++i) output[i] *= scale;
      }
      stage_columns(half, column, output);
    }
    hand_to_store(half);
  }

  __device__ __forceinline__ void finish(const Tile& tile, int half, bool has_keys) {
    RowState row;
    if (has_keys) {
      row = take_state(half);
      tensor_wait(shared.o_full[half], o[half].parity);
      o[half].advance();
    } else {
      barrier_wait(shared.q_full[half], q[half].parity);
    }
    q[half].advance();
    scale_write_output(half, scale_of(tile, row), has_keys);
    store_lse(tile, half, row);
  }

  __device__ __forceinline__ void correct_halves(const Tile& tile, const KeyBlocks& blocks) {
    const KeyBlocks halves[2] = {blocks_of_half(tile, 0), blocks_of_half(tile, 1)};
    // The outputs of the tile before have been read: the first product may overwrite them.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!halves[half].empty()) tensor_arrive(shared.p_ready[half]);
    }
    for (int block = blocks.end - 2; block >= blocks.begin; --block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (sees(halves[half], block) && block != halves[half].end - 1) rescale(half);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      finish(tile, half, !halves[half].empty());
    }
  }

  __device__ __forceinline__ void correction() {
    for (Tile tile = tiles.next(shared); tile.keys.batch != kNoTile; tile = tiles.next(shared)) {
      const KeyBlocks blocks(tile);
      if (takes_turns(tile)) {
        correct_in_turn(tile, blocks);
      } else {
        correct_halves(tile, blocks);
      }
    }
  }
};

// Has TMA store what the correction warpgroup has laid out, and frees its place for the next Q.
struct StoreWarp {
  SharedMemory& shared;
  const TensorMap& out_map;
  TileReader tiles;
  RingPosition<1> o[2];

  __device__ __forceinline__ void store() {
    for (Tile tile = tiles.next(shared); tile.keys.batch != kNoTile; tile = tiles.next(shared)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!has_rows(tile, half)) continue;
        barrier_wait(shared.o_staged[half], o[half].parity);
        o[half].advance();
        if (elect_one()) {
          const int row = tile.row + half * kHalfM;
#pragma unroll
          for (int panel = 0; panel < kVHeadDim / 64; ++panel) {
            store_clipped(out_map, shared.q[half][panel], panel * 64, tile.head, row, tile.queries);
          }
          tma_store_commit();
          tma_store_wait_read();
          barrier_arrive(shared.q_empty[half]);
        }
      }
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// Entry
// ---------------------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(kThreads, 1) mla_prefill_sm100a_192x128_bf16_causal_ragged_splitq_denserope_lse_2854d5d3(
    const __grid_constant__ TensorMap q_nope_map,
    const __grid_constant__ TensorMap q_pe_map,
    const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap k_rope_map,
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
  if (warp == kMmaWarp) tensor_memory_allocate(shared.tensor_memory[0]);
  fence_tensor_before();
  __syncthreads();
  fence_tensor_after();
  const uint32 tensor_memory = uniform(shared.tensor_memory[0]);

  if (warpgroup < 2) {
    claim_registers<kSoftmaxRegisters>();
    SoftmaxWarpgroup{shared, arguments, tensor_memory, warpgroup}.softmax();
  } else if (warpgroup == 2) {
    release_registers<kCorrectionRegisters>();
    CorrectionWarpgroup{shared, arguments, tensor_memory}.correction();
  } else {
    release_registers<kIssueRegisters>();
    if (warp == kLoadWarp) {
      if (elect_one()) prefetch_tensor_map(q_nope_map);
      if (elect_one()) prefetch_tensor_map(q_pe_map);
      if (elect_one()) prefetch_tensor_map(k_map);
      if (elect_one()) prefetch_tensor_map(k_rope_map);
      if (elect_one()) prefetch_tensor_map(v_map);
      if (elect_one()) prefetch_tensor_map(out_map);
      LoadWarp{shared, arguments, q_nope_map, q_pe_map, k_map, k_rope_map, v_map}.load();
    } else if (warp == kMmaWarp) {
      MmaWarp{shared, tensor_memory}.mma();
    } else if (warp == kStoreWarp) {
      StoreWarp{shared, out_map}.store();
    }
  }

  // Nobody uses tensor memory any more. Its address is read again: kept, it would cost every role a register.
  fence_tensor_before();
  __syncthreads();
  if (uniform(threadIdx.x / 32) == kMmaWarp) tensor_memory_free(shared.tensor_memory[0]);
}
