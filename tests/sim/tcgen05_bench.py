"""A kernel that does with tcgen05 whatever its arguments say: images of shared and tensor memory in, tensor memory out.

The kernel places nothing itself, so the tests' own formulas say where elements lie.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mlagen.compile.nvrtc import KERNEL_OPTIONS, compile_cuda
from mlagen.launch_record import LaunchRecord
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.schedule import Lazy
from mlagen.sim.simulate import Checks, SimulationResult, simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlagen.sim.schedule import Schedule

IMAGE_BYTES = 48 * 1024
# Of the 512 columns that it allocates, those that it fills and reads back.
COLUMNS = 256

PRELUDE = """
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16;
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ bool elect() {
  u32 ok;
  asm volatile("{.reg .pred p; elect.sync _|p, -1; selp.u32 %0,1,0,p;}" : "=r"(ok));
  return ok;
}
__device__ __forceinline__ void init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void wait(u32 bar, u32 parity) {
  asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }"
               :: "r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void wait_loads() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_stores() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
"""


def registers(count: int, *, first: int = 0) -> str:
    """`%0, %1, ...` for an asm statement."""
    return ", ".join(f"%{first + number}" for number in range(count))


_LOAD = 'asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{names}}}, [%32];" : {outputs} : "r"(address));'
_STORE = 'asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], {{{names}}};" :: "r"(address), {inputs});'
LOAD_32 = _LOAD.format(
    names=registers(32), outputs=", ".join(f'"=r"(v[{number}])' for number in range(32))
)
STORE_32 = _STORE.format(
    names=registers(32, first=1), inputs=", ".join(f'"r"(v[{number}])' for number in range(32))
)

_SOURCE = (
    PRELUDE
    + """
struct Operation { u64 a, b; u32 d, descriptor, added, kept[8]; };
extern "C" __global__ void __launch_bounds__(128, 1) CLUSTER
bench(const uint4* images, const u32* initial, u32* result, const Operation* operations, int count, int bytes,
      int columns) {
  extern __shared__ __align__(1024) unsigned char memory[];
  u32 base = shared_address(memory), bar = base + IMAGE, slot = bar + 8, rank = 0;
  if (GROUP == 2) asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  u32 warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  images += rank * (IMAGE / 16); initial += rank * 128 * COLUMNS; result += rank * 128 * COLUMNS;
  for (int i = threadIdx.x; i < bytes / 16; i += 128) ((uint4*)memory)[i] = images[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == 0) { init(bar, 1); fence_init(); }
  if (warp == 0)
    asm volatile("tcgen05.alloc.cta_group::GROUP_.sync.aligned.shared::cta.b32 [%0], 512;" :: "r"(slot) : "memory");
  before(); __syncthreads(); after();
  u32 tensor = *(volatile u32*)(memory + IMAGE + 8);
  u32 lanes = tensor + (warp << 21);
  for (u32 c = 0; c < columns; c += 32) {
    __align__(16) u32 v[32]; u32 address = lanes + c;
    for (int i = 0; i < 8; ++i) ((uint4*)v)[i] = ((const uint4*)(initial + threadIdx.x * COLUMNS + c))[i];
    STORE_32
  }
  wait_stores();
  before(); SYNCHRONIZE; after();
  if (rank == 0 && warp == 0) {
    if (elect()) {
      for (int i = 0; i < count; ++i) {
        Operation o = operations[i];
        ISSUE
      }
      COMMIT
    }
  }
  wait(bar, 0);
  after();
  for (u32 c = 0; c < columns; c += 32) {
    __align__(16) u32 v[32]; u32 address = lanes + c;
    LOAD_32
    wait_loads();
    for (int i = 0; i < 8; ++i) ((uint4*)(result + threadIdx.x * COLUMNS + c))[i] = ((uint4*)v)[i];
  }
  before(); SYNCHRONIZE; after();
  if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::GROUP_.sync.aligned.b32 %0, 512;" :: "r"(tensor));
}
"""
)

_ISSUE = """asm volatile("{.reg .pred p; setp.ne.u32 p, %4, 0; OPCODE [%0], A_, %2, %3, MASK p TAIL;}"
          :: "r"(tensor + o.d), A, "l"(o.b), "r"(o.descriptor), "r"(o.added) KEPT : "memory");"""
_CLUSTER_SYNC = (
    'asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory")'
)


@dataclass(frozen=True, slots=True)
class Form:
    """One form of `tcgen05.mma`, `cp` or `shift`.

    Attributes:
        opcode: In full.
        a_in_tensor_memory: Whether A is an address.
        masked: Whether it has `disable-output-lane`.
        tail: What stands behind `enable-input-d`.
    """

    opcode: str
    a_in_tensor_memory: bool = False
    masked: bool = False
    tail: str = ""

    @property
    def group(self) -> int:
        """CTAs."""
        return 2 if "cta_group::2" in self.opcode else 1


@dataclass(frozen=True, slots=True)
class Operation:
    """One instruction's operands; `a` is a descriptor, or a column (and lane) of tensor memory."""

    a: int
    b: int
    d: int = 0
    descriptor: int = 0
    added: bool = False
    kept: tuple[int, ...] = field(default=(0,) * 8)

    def packed(self) -> bytes:
        """As the kernel reads it."""
        return struct.pack(
            "<QQIII8I4x", self.a, self.b, self.d, self.descriptor, self.added, *self.kept
        )


@functools.cache
def bench_ptx(form: Form) -> str:
    """The kernel for a form."""
    words = 4 * form.group if form.masked else 0
    if form.opcode.startswith("tcgen05.mma"):
        issue = _ISSUE.replace("OPCODE", form.opcode).replace("TAIL", form.tail)
        issue = issue.replace("A_", "[%1]" if form.a_in_tensor_memory else "%1")
        issue = issue.replace(
            "A,", '"r"(tensor + (u32)o.a),' if form.a_in_tensor_memory else '"l"(o.a),'
        )
        mask = f"{{{registers(words, first=5)}}}," if words else ""
        kept = "".join(f', "r"(o.kept[{number}])' for number in range(words))
        issue = issue.replace("MASK", mask).replace("KEPT", kept)
    elif form.opcode.startswith("tcgen05.cp"):
        issue = (
            f'asm volatile("{form.opcode} [%0], %1;" :: "r"(tensor + o.d), "l"(o.a) : "memory");'
        )
    else:
        issue = f'asm volatile("{form.opcode} [%0];" :: "r"(tensor + o.d) : "memory");'
    commit = f"tcgen05.commit.cta_group::{form.group}.mbarrier::arrive::one.shared::cluster"
    if form.group == 2:
        commit = f'asm volatile("{commit}.multicast::cluster.b64 [%0], %1;" :: "r"(bar), "h"((u16)3) : "memory");'
    else:
        commit = f'asm volatile("{commit}.b64 [%0];" :: "r"(bar) : "memory");'
    source = _SOURCE.replace("GROUP_", str(form.group))
    for name, text in {
        "ISSUE": issue,
        "COMMIT": commit,
        "STORE_32": STORE_32,
        "LOAD_32": LOAD_32,
        "SYNCHRONIZE": _CLUSTER_SYNC if form.group == 2 else "__syncthreads()",
        "CLUSTER": "__cluster_dims__(2, 1, 1)" if form.group == 2 else "",
        "GROUP": str(form.group),
        "COLUMNS": str(COLUMNS),
        "IMAGE": str(IMAGE_BYTES),
    }.items():
        source = source.replace(name, text)
    return compile_cuda(source, name="bench", arch="sm_100a", options=KERNEL_OPTIONS).ptx


def run_bench(
    form: Form,
    operations: list[Operation],
    *,
    images: list[NDArray[np.uint8]] | None = None,
    initial: NDArray[np.uint32] | None = None,
    checks: Checks | None = None,
    schedule: Schedule = Lazy(),  # noqa: B008 (a frozen value)
    ptx: str | None = None,
) -> tuple[NDArray[np.uint32], SimulationResult]:
    """Tensor memory `[CTA, lane, column]` after some instructions, and what was found.

    Args:
        form: The instruction.
        operations: Its operands, one entry an instruction.
        images: Shared memory of each CTA, from byte 0 of an area that lies at a multiple of 1024; multiples of 16.
        initial: Tensor memory before, `[CTA, lane, column]`, of a multiple of 32 columns; zeros if not given.
        checks: Strict ones if not given.
        schedule: Who goes when.
        ptx: Instead of the form's own kernel.
    """
    memory = GlobalMemory()
    shared = np.zeros((form.group, IMAGE_BYTES), np.uint8)
    size = max((len(image) for image in images or []), default=0)
    for number, image in enumerate(images or []):
        shared[number, : len(image)] = image
    before = np.zeros((form.group, 128, COLUMNS), np.uint32)
    columns = COLUMNS if initial is None else initial.shape[-1]
    if initial is not None:
        before[..., :columns] = initial
    result = np.zeros_like(before)
    packed = np.frombuffer(b"".join(one.packed() for one in operations), np.uint8).copy()
    pointers = [
        memory.add(array, name)
        for array, name in (
            (shared, "images"),
            (before, "initial"),
            (result, "result"),
            (packed, "operations"),
        )
    ]
    record = LaunchRecord(
        kernel="bench",
        grid=(form.group, 1, 1),
        block=(128, 1, 1),
        cluster=(form.group, 1, 1),
        shared_memory_bytes=IMAGE_BYTES + 16,
        parameters=(
            *(struct.pack("<Q", pointer) for pointer in pointers),
            *(struct.pack("<i", number) for number in (len(operations), size, columns)),
        ),
    )
    outcome = simulate(
        ptx or bench_ptx(form),
        record,
        memory,
        checks=checks or Checks.strict(),
        schedule=schedule,
    )
    return result[..., :columns], outcome
