"""Every kind of finding: what it means, by which rule, what usually mends it. `docs/simulator.md` shows the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding.

    Attributes:
        meaning: What is wrong.
        source: The rule: sections of the PTX ISA, by title; `-` for what needs none.
        practice: What the level `practice` makes of it, if that is not an error as in `strict`.
        advice: What usually mends it; empty if the message says all.
    """

    meaning: str
    source: str
    practice: str = "error"
    advice: str = ""


KINDS = {
    # Order.
    "race": Kind(
        "two accesses of the same bytes, one of them a write, that nothing orders",
        "Causality order; tcgen05 memory consistency",
        advice="let the earlier one arrive at a barrier (or complete on it) and the later one wait for that phase",
    ),
    "proxy-fence": Kind(
        "an ordered generic access and one of the async proxy (TMA, wgmma, tcgen05) without a proxy fence between",
        "Async proxy; membar/fence",
        "a read of a write: error; an asynchronous write after a generic write: note, after a read: nothing",
        advice="run fence.proxy.async in each thread that made the earlier access, before it arrives",
    ),
    "tcgen05-fence": Kind(
        "ordered accesses of tensor memory without the tcgen05 fences",
        "tcgen05 memory consistency",
        "note",
        advice="tcgen05.fence::before_thread_sync before the arrival, ::after_thread_sync behind the wait",
    ),
    "in-flight": Kind(
        "an access to shared memory that an asynchronous write is about to change",
        "Async proxy",
        advice="wait for the barrier that the copy signals",
    ),
    "uninitialised": Kind(
        "a read of shared or tensor memory that nothing has written",
        "State spaces",
        advice="wait for the writer, or correct the address, stage or column",
    ),
    # mbarriers.
    "mbarrier-uninitialised": Kind(
        "no mbarrier lives at the address",
        "mbarrier.init",
        advice="initialise it first, or correct the address",
    ),
    "mbarrier-count": Kind(
        "fewer than 1 or more than 2^20 - 1 expected arrivals", "Contents of the mbarrier object"
    ),
    "mbarrier-reinitialised": Kind(
        "initialised although it is live",
        "mbarrier.init",
        advice="mbarrier.inval comes first",
    ),
    "mbarrier-init-order": Kind(
        "used by a warp that does not know of its initialisation",
        "mbarrier.init; Causality order",
        advice="initialise, then fence.mbarrier_init.release.cluster and a barrier of all users",
    ),
    "mbarrier-init-fence": Kind(
        "used by the async proxy or another CTA without a fence behind its initialisation",
        "Async proxy; membar/fence",
        "note",
        advice="run fence.mbarrier_init.release.cluster (or fence.proxy.async) in the thread that initialises",
    ),
    "mbarrier-over-arrival": Kind(
        "more arrivals than the phase expects",
        "mbarrier.arrive",
        advice="raise the count of mbarrier.init, or let fewer threads arrive",
    ),
    "mbarrier-unobserved": Kind(
        "an arrival although no wait has returned true for the phase before",
        "Phase of the mbarrier object",
        "note",
        advice="let somebody wait for each phase before anybody arrives in the next",
    ),
    "mbarrier-early": Kind(
        "an arrival that nothing orders behind the end of the phase before: it may count there",
        "Phase of the mbarrier object; Causality order",
        "note",
        advice="wait for what the phase before stands for (the full barrier, where this one says empty) first",
    ),
    "mbarrier-missed": Kind(
        "a wait that nothing orders before the end of the next phase: it may look when its parity is back",
        "Phase of the mbarrier object; Causality order",
        "note",
        advice="let every warp that waits arrive somewhere, or come to a barrier, before the buffer is used again",
    ),
    "mbarrier-complete": Kind("an arrival with .noComplete ends the phase", "mbarrier.arrive"),
    "mbarrier-bytes": Kind(
        "more bytes than announced when all have arrived, or beyond 2^20 - 1",
        "Tracking asynchronous operations by the mbarrier object",
        advice="announce with expect_tx the bytes of whole boxes, parts outside the tensor included",
    ),
    "mbarrier-exit": Kind(
        "the CTA has ended, and bytes are outstanding or too many",
        "Tracking asynchronous operations by the mbarrier object",
        advice="announce with expect_tx the bytes of whole boxes, parts outside the tensor included",
    ),
    "mbarrier-remote-wait": Kind(
        "a wait for a barrier of another CTA", "mbarrier.test_wait, try_wait"
    ),
    "mbarrier-invalidated": Kind("invalidated while threads wait for it", "mbarrier.inval"),
    "barrier-access": Kind(
        "an ordinary load or store of the bytes of a live mbarrier",
        "Size and alignment of the mbarrier object",
    ),
    "stale-wait": Kind(
        "in a deadlock: a wait for a phase that ended two phases ago",
        "mbarrier.test_wait, try_wait",
        advice="flip the parity with every phase, and let each waiter hold back the barrier's next but one",
    ),
    "deadlock": Kind(
        "nobody can go on, and nothing is in flight",
        "-",
        advice="look for the arrival that is missing: a count, parity, number of bytes, guard or early exit",
    ),
    # Named and cluster barriers.
    "barrier-count": Kind(
        "participants name different thread counts, or one that is no multiple of 32 within the CTA",
        "bar, barrier",
        advice="give all participants of the barrier the same count",
    ),
    "barrier-twice": Kind(
        "a warp arrives twice before the barrier opens, or at the cluster barrier without a wait between",
        "bar, barrier; barrier.cluster",
    ),
    "barrier-early": Kind(
        "an arrival that nothing orders behind the opening before: it may count there",
        "bar, barrier; Causality order",
        "note",
        advice="give each use of named barriers an id of its own, and let whoever arrives hear of the last opening",
    ),
    "barrier-wait": Kind("barrier.cluster.wait without an arrival before it", "barrier.cluster"),
    # Control.
    "diverged-aligned": Kind(
        "an instruction that all lanes must execute together is executed by some",
        "bar, barrier; wgmma; tcgen05",
        advice="move it out of divergent code, or make its condition the same in all lanes",
    ),
    "diverged-uniform": Kind("lanes disagree about bra.uni", "bra"),
    "operand-not-uniform": Kind(
        "lanes disagree about an operand that must be the same in all", "-"
    ),
    "membermask": Kind("an executing lane is not in its own membermask", "shfl.sync and others"),
    "shfl-inactive-lane": Kind("shfl reads a lane that does not execute it", "shfl.sync"),
    "trap": Kind("the kernel has executed trap", "trap"),
    "step-budget": Kind("the kernel does not end", "-"),
    "register-pool": Kind("setmaxnreg asks for more or fewer registers than it may", "setmaxnreg"),
    "setmaxnreg": Kind("warps of a warpgroup execute it in different places", "setmaxnreg", "note"),
    # Memory.
    "out-of-bounds": Kind("an access outside every buffer, or outside shared memory", "-"),
    "misaligned": Kind(
        "an address that is not a multiple of what the instruction asks for",
        "Addresses as operands",
    ),
    "read-only": Kind("a write to an input", "-"),
    "parameter-bounds": Kind("a load behind the parameters", "-"),
    "exited-cta": Kind(
        "an access to the shared memory of a CTA that has ended",
        "Shared state space; barrier.cluster",
        advice="let the CTAs of a cluster meet at the cluster barrier before they end",
    ),
    "exit-in-flight": Kind(
        "the CTA has ended before an operation that uses its memory or registers",
        "cp.async.bulk; wgmma.wait_group; tcgen05.commit",
        advice="wait for the operation (wait_group, wait_group.read, mbarrier) before the end",
    ),
    "bad-operand": Kind("an operand that the instruction does not allow", "-"),
    # Copies.
    "bulk-barrier": Kind(
        "the mbarrier of a copy lies in another CTA than its destination", "cp.async.bulk.tensor"
    ),
    "bulk-multicast": Kind(
        "a multicast names CTAs that the cluster does not have", "cp.async.bulk.tensor"
    ),
    "bulk-peer": Kind("the destination CTA has ended", "cp.async.bulk.tensor"),
    "tensor-map": Kind(
        "no tensor map, or one that the driver would refuse", "Tensor-map; cuTensorMapEncodeTiled"
    ),
    "tensor-coordinates": Kind("negative coordinates of a store", "Tensors", "note"),
    "tensor-chunk": Kind(
        "a box that begins between multiples of 16 bytes of a row", "seen on an H200"
    ),
    # wgmma.
    "wgmma-warpgroup": Kind("not all 128 threads of a warpgroup execute it", "wgmma.mma_async"),
    "wgmma-mismatch": Kind("the warps of a warpgroup disagree about a product", "wgmma.mma_async"),
    "wgmma-fence": Kind(
        "registers have been accessed since the last wgmma.fence",
        "wgmma.fence",
        advice="put wgmma.fence between the accesses and the product",
    ),
    "wgmma-reg": Kind(
        "an instruction touches registers of a product in flight",
        "Asynchronous warpgroup multiply: async proxy and registers",
        advice="wgmma.wait_group comes first",
    ),
    "wgmma-descriptor": Kind("a matrix descriptor that makes no sense", "Matrix descriptor"),
    # tcgen05.
    "tcgen05-issue": Kind(
        "several threads start an operation, or it names CTAs that do not exist",
        "tcgen05 issue granularity",
        advice="elect one lane",
    ),
    "tcgen05-alloc": Kind(
        "an allocation or deallocation against the rules", "tcgen05.alloc, dealloc"
    ),
    "tcgen05-address": Kind(
        "lanes or columns that the instruction may not reach",
        "Tensor memory addressing and access restrictions",
    ),
    "tcgen05-descriptor": Kind(
        "a matrix or instruction descriptor that makes no sense", "tcgen05 descriptors"
    ),
    "tcgen05-register": Kind(
        "registers of a load in flight are written",
        "tcgen05 memory consistency: register accesses",
        "note",
        advice="tcgen05.wait::ld comes first",
    ),
    "tcgen05-in-flight": Kind(
        "the CTA ends before an operation on its tensor memory", "tcgen05.dealloc"
    ),
    "assumption": Kind("a result that only hardware can confirm", "-", "note, in strict too"),
}
