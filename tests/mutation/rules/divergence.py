"""Collective operations that not all lanes, or not all warps, come to; and the work of one lane done by all."""

from __future__ import annotations

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import at_calls, guarded, replaced

_OF_WARPGROUPS = (
    "wgmma_fence|wgmma_commit|wgmma_wait|wgmma_p_v|wgmma_q_k|store_matrix|named_barrier_sync"
    "|named_barrier_arrive|release_registers|claim_registers"
    "|wait_tensor_loads|wait_tensor_stores|tensor_load_16|tensor_load_32|tensor_store"
)
_OF_ONE_WARP = "tensor_memory_allocate|tensor_memory_free"

RULES = (
    Rule(
        "lane-missing",
        "one lane does not come to a collective operation",
        at_calls(
            f"{_OF_WARPGROUPS}|{_OF_ONE_WARP}",
            lambda source, call: guarded(source, call, "threadIdx.x % 32 != 31"),
        ),
    ),
    Rule(
        "warp-missing",
        "one warp of a warpgroup does not come to a collective operation",
        at_calls(
            _OF_WARPGROUPS, lambda source, call: guarded(source, call, "threadIdx.x / 32 % 4 != 3")
        ),
    ),
    replaced(
        "elect-removed",
        "every lane does the work of one",
        r"if \((?:uniform\(thread\(\) / 32\) == 0 && )?elect_one\(\)\)(?= \{| tma_load| prefetch| tensor_commit)",
        "if (true)",
    ),
    replaced(
        "elect-in-every-warp",
        "one lane of every warp does the work of one warp",
        r"uniform\(thread\(\) / 32\) == 0 && (?=elect_one)",
        "",
    ),
    replaced(
        "elect-mask-short",
        "elect.sync names half of the lanes",
        r"(?<=elect\.sync _\|p, )0xffffffff",
        "0x0000ffff",
    ),
    replaced(
        "shuffle-mask-short",
        "a shuffle or vote names half of the lanes",
        r"(?<=_sync\()kAllLanes",
        "0x0000ffffu",
    ),
    replaced(
        "load-warp-by-two-warps",
        "two warps do the load warp's work",
        r"if \(warp == 0\)",
        "if (warp <= 1)",
    ),
    replaced(
        "role-by-idle-warp",
        "the warp without a role does that of another, too",
        r"if \(warp == (k\w+Warp)\) (?=\{)",
        r"if (warp == \1 || warp == 15) ",
    ),
)
