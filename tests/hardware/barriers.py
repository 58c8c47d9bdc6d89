"""Micro-kernels of barriers: scripts of mbarrier operations by one thread, and named barriers between warps.

A script is a list of (operation, operand); the kernel executes it and writes down what every test said. Tokens and the
barrier's bytes are opaque, so they are only asked, never kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output, scalar
from tests.hardware.values import raw

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "barriers"
SCRIPTS = 40
OPERATIONS = (
    "init",
    "arrive",
    "arrive_token",
    "arrive_count",
    "arrive_expect",
    "expect",
    "complete",
    "drop",
    "test_parity",
    "try_parity",
    "test_token",
    "pending",
    "invalidate",
)

_SCRIPT = """
extern "C" __global__ void script(const int2* steps, u32 count, u32* answers) {
  __shared__ u64 object;
  u32 barrier = shared_address(&object);
  if (threadIdx.x != 0) return;
  u64 token = 0;
#pragma unroll 1
  for (u32 i = 0; i < count; ++i) {
    u32 n = steps[i].y, answer = 7;
    switch (steps[i].x) {
      case 0: init_barrier(barrier, n); break;
      case 1: asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory"); break;
      case 2: asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory"); break;
      case 3:
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;" : "=l"(token) : "r"(barrier), "r"(n) : "memory");
        break;
      case 4:
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"
            : "=l"(token) : "r"(barrier), "r"(n) : "memory");
        break;
      case 5:
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(n) : "memory");
        break;
      case 6:
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(n) : "memory");
        break;
      case 7:
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory");
        break;
      case 8:
        asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(answer) : "r"(barrier), "r"(n) : "memory");
        break;
      case 9:
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(answer) : "r"(barrier), "r"(n) : "memory");
        break;
      case 10:
        asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(answer) : "r"(barrier), "l"(token) : "memory");
        break;
      case 11: asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(answer) : "l"(token)); break;
      case 12: asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(barrier) : "memory"); break;
    }
    answers[i] = answer;
  }
}
"""

_NAMED = """
// Warps 0 and 1 produce, 2 and 3 consume, through two named barriers; then all vote at a third.
extern "C" __global__ void named(const u32* values, u32 rounds, u32* sums, u32* votes) {
  u32* words = (u32*)shared;
  u32 thread = threadIdx.x, sum = 0;
  if (thread < 64) {
    for (u32 round = 0; round < rounds; ++round) {
      if (round) asm volatile("bar.sync 2, 128;" ::: "memory");
      words[thread] = values[64 * round + thread];
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    }
  } else {
    for (u32 round = 0; round < rounds; ++round) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      sum = sum * 3 + words[(thread * 5 + round) % 64];
      if (round + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  }
  sums[thread] = sum;
  u32 count, all, any;
  u32 odd = values[thread] & 1;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; bar.red.popc.u32 %0, 3, p;}" : "=r"(count) : "r"(odd) : "memory");
  asm volatile("{.reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.and.pred q, 3, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(all) : "r"(odd) : "memory");
  asm volatile("{.reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.red.or.pred q, 3, 128, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(any) : "r"(odd) : "memory");
  votes[thread] = count | all << 16 | any << 17;
}

// A ring of `stages` slots: one warp fills it through full and empty barriers, three warps read.
extern "C" __global__ void ring(const u32* values, u32 items, u32 stages, u32* sums) {
  __shared__ u64 full[4], empty[4];
  u32* words = (u32*)shared;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < 4; ++s) {
      init_barrier(shared_address(&full[s]), 32);
      init_barrier(shared_address(&empty[s]), 96);
    }
  }
  __syncthreads();
  for (u32 i = 0; i < items; ++i) {
    u32 s = i % stages, parity = i / stages & 1;
    if (warp == 0) {
      wait(shared_address(&empty[s]), parity ^ 1);
      words[32 * s + lane] = values[32 * i + lane];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(&full[s])) : "memory");
    } else {
      wait(shared_address(&full[s]), parity);
      sum = sum * 5 + words[32 * s + (lane + warp) % 32];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(&empty[s])) : "memory");
    }
  }
  sums[threadIdx.x] = sum;
}
"""


def modules() -> dict[str, str]:
    """The one module."""
    return {MODULE: PRELUDE + _SCRIPT + _NAMED}


@dataclass
class _Model:
    """As much of an mbarrier as it takes to write scripts that are defined: no test after two phases, no overflow."""

    expected: int
    pending: int = 0
    transactions: int = 0
    phase: int = 0
    observed: int = -1
    token_phase: int | None = None

    def __post_init__(self) -> None:
        self.pending = self.expected

    def settle(self) -> None:
        """Start the next phase if this one is over."""
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.expected


def _script(seed: str, length: int = 60) -> Iterator[tuple[str, int]]:
    """Random operations that PTX defines: whoever arrives has seen the phase before complete."""
    random = iter(raw(seed, 8 * length).tolist())
    model = _Model(1 + next(random) % 5)
    yield "init", model.expected
    for _ in range(length):
        if model.observed < model.phase - 1:
            yield ("test_parity", "try_parity")[next(random) % 2], model.phase - 1 & 1
            model.observed = model.phase - 1
        choice = next(random) % 10
        if choice <= 1 and model.pending:
            yield ("arrive", "arrive_token")[choice], 0
            if choice:
                model.token_phase = model.phase
            model.pending -= 1
        elif choice == 2 and model.pending:
            count = 1 + next(random) % model.pending
            yield "arrive_count", count
            model.token_phase = model.phase
            model.pending -= count
        elif choice == 3 and model.pending:
            size = 16 * (next(random) % 9)
            yield "arrive_expect", size
            model.token_phase = model.phase
            model.transactions += size
            model.pending -= 1
        elif choice == 4 and model.pending:
            size = 16 * (1 + next(random) % 5)
            yield "expect", size
            model.transactions += size
        elif choice in (5, 6) and model.transactions:
            size = min(model.transactions, 16 * (1 + next(random) % 6))
            yield "complete", size
            model.transactions -= size
        elif choice == 7 and model.pending and model.expected > 1 and next(random) % 3 == 0:
            yield "drop", 0
            model.token_phase = model.phase
            model.pending -= 1
            model.expected -= 1
        elif choice == 8 and model.token_phase is not None and model.phase - model.token_phase < 2:
            yield ("test_token", "pending")[next(random) % 2], 0
        else:
            yield "test_parity", next(random) % 2
        model.settle()
        if model.token_phase is not None and model.phase - model.token_phase > 1:
            model.token_phase = None
    yield "invalidate", 0


def cases() -> list[Case]:
    """Scripts, named barriers and rings."""
    found = []
    for number in range(SCRIPTS):
        steps = list(_script(f"script/{number}"))
        if number % 2:  # the same memory becomes a barrier again
            steps += list(_script(f"script/{number}/again"))
        rows = np.array([(OPERATIONS.index(name), operand) for name, operand in steps], np.int32)
        buffers = (Buffer(rows), output(len(rows)))
        parameters = (Pointer(0), scalar(len(rows)), Pointer(1))
        found.append(
            Case(
                f"mbarrier/script{number}", MODULE, "script", buffers, parameters, block=(32, 1, 1)
            )
        )
    return found + _named_cases() + _ring_cases()


def _named_cases() -> list[Case]:
    found = []
    for rounds in (1, 2, 7):
        values = Buffer(raw(f"named/{rounds}", 64 * max(rounds, 2)).astype(np.uint32))
        buffers = (values, output(128), output(128))
        parameters = (Pointer(0), scalar(rounds), Pointer(1), Pointer(2))
        found.append(
            Case(f"named-barrier/{rounds}", MODULE, "named", buffers, parameters, shared_bytes=256)
        )
    return found


def _ring_cases() -> list[Case]:
    found = []
    for items, stages in ((1, 1), (5, 2), (9, 3), (16, 4)):
        values = Buffer(raw(f"ring/{items}", 32 * items).astype(np.uint32))
        parameters = (Pointer(0), scalar(items), scalar(stages), Pointer(1))
        name, buffers = f"mbarrier/ring{items}.{stages}", (values, output(128))
        found.append(Case(name, MODULE, "ring", buffers, parameters, shared_bytes=512))
    return found
