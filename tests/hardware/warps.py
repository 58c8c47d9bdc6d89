"""Micro-kernels of what the lanes of a warp do together: shuffles, votes, matches, reductions, matrix moves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tests.hardware.case import PRELUDE, Buffer, Case, Pointer, output
from tests.hardware.values import patterns, raw

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODULE = "warps"
WARPS = 8  # a CTA each
LANES = 32
WINDOW_BYTES = 2048

# {half}: whether only the lanes of `members` take part, in divergent code.
_LANES = """
extern "C" __global__ void {name}(const {kind}* a, const u32* b, const u32* c, u32* out) {{
  u32 i = blockIdx.x * 32 + threadIdx.x, members = {members}, done = 0;
  {kind} x = a[i];
  u32 y = b[i], z = c[i], d = 0xdead, p = 0;
  if (members >> threadIdx.x & 1) {{
    asm volatile("{{.reg .pred p, q; setp.ne.b32 q, %4, 0; {statement}}}"
        : "=r"(d), "+r"(p) : "{letter}"(x), "r"(y), "r"(z), "r"(members));
    done = 1;
  }}
  out[3 * i] = d;
  out[3 * i + 1] = p;
  out[3 * i + 2] = done;
}}
"""

_PREDICATE = "selp.u32 %1, 1, 0, p;"
# Instructions on %2 (value), %3 and %4 (further operands; q says whether %4 is not 0), %5 (members); results in %0 and
# in %1.
SHUFFLES = {
    f"shfl.sync.{mode}.b32": f"shfl.sync.{mode}.b32 %0|p, %2, %3, %4, %5; {_PREDICATE}"
    for mode in ("up", "down", "bfly", "idx")
}
VOTES = {
    **{
        f"vote.sync.{mode}.pred": f"vote.sync.{mode}.pred p, q, %5; {_PREDICATE} mov.u32 %0, %3;"
        for mode in ("all", "any", "uni")
    },
    "vote.sync.ballot.b32": "vote.sync.ballot.b32 %0, q, %5;",
    "match.any.sync.b32": "match.any.sync.b32 %0, %3, %5;",
    "match.all.sync.b32": f"match.all.sync.b32 %0|p, %3, %5; {_PREDICATE}",
    **{
        f"redux.sync.{op}.{kind}": f"redux.sync.{op}.{kind} %0, %2, %5;"
        for op, kind in itertools.product(("add", "min", "max"), ("u32", "s32"))
    },
    **{f"redux.sync.{op}.b32": f"redux.sync.{op}.b32 %0, %2, %5;" for op in ("and", "or", "xor")},
    "elect.sync": f"elect.sync %0|p, %5; {_PREDICATE}",
    "activemask.b32": "activemask.b32 %0;",
    "bar.warp.sync": "bar.warp.sync %5; mov.u32 %0, %3;",
    **{
        f"lanemask_{order}": f"mov.u32 %0, %%lanemask_{order};"
        for order in ("eq", "lt", "le", "gt", "ge")
    },
    "laneid": "mov.u32 %0, %%laneid;",
}
WIDE = {
    "match.any.sync.b64": "match.any.sync.b64 %0, %2, %5;",
    "match.all.sync.b64": f"match.all.sync.b64 %0|p, %2, %5; {_PREDICATE}",
}
MEMBERS = {"all": 0xFFFFFFFF, "even": 0x55555555, "low": 0x0000FFFF, "some": 0xF0A1003C}

_MOVE = """
extern "C" __global__ void {name}(const uint4* before, const u32* rows, const u32* values, uint4* after, u32* out) {{
  u32 lane = threadIdx.x;
  for (u32 i = lane; i < {vectors}; i += 32) ((uint4*)shared)[i] = before[i];
  __syncthreads();
  u32 at = shared_address(shared) + 16 * rows[lane];
  u32 x[4] = {{values[4 * lane], values[4 * lane + 1], values[4 * lane + 2], values[4 * lane + 3]}};
  {statement}
  for (u32 i = 0; i < 4; ++i) out[4 * lane + i] = x[i];
  __syncthreads();
  for (u32 i = lane; i < {vectors}; i += 32) after[i] = ((uint4*)shared)[i];
}}
"""


def _matrix_moves() -> dict[str, str]:
    """Opcode to statement."""
    found = {}
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        shape = f"sync.aligned.m8n8.x{count}{trans}.shared.b16"
        loaded = ",".join(f"%{i}" for i in range(count))
        stored = ",".join(f"%{i + 1}" for i in range(count))
        results = ", ".join(f'"=r"(x[{i}])' for i in range(count))
        operands = ", ".join(f'"r"(x[{i}])' for i in range(count))
        found[f"ldmatrix.{shape}"] = (
            f'asm volatile("ldmatrix.{shape} {{{loaded}}}, [%{count}];" : {results} : "r"(at) : "memory");'
        )
        found[f"stmatrix.{shape}"] = (
            f'asm volatile("stmatrix.{shape} [%0], {{{stored}}};" :: "r"(at), {operands} : "memory");'
        )
    moved = "movmatrix.sync.aligned.m8n8.trans.b16"
    found[moved] = f'asm volatile("{moved} %0, %1;" : "=r"(x[0]) : "r"(x[1]));'
    return found


def _word(text: str) -> str:
    return text.replace(".", "_")


def _lane_kernels() -> dict[str, tuple[str, str, str]]:
    """Kernel name to opcode, members and text."""
    found = {}
    for table, kind, letter in ((SHUFFLES | VOTES, "u32", "r"), (WIDE, "u64", "l")):
        for (opcode, statement), members in itertools.product(table.items(), MEMBERS):
            name = f"{_word(opcode)}_{members}"
            text = _LANES.format(
                name=name,
                kind=kind,
                letter=letter,
                statement=statement,
                members=f"{MEMBERS[members]:#x}u",
            )
            found[name] = (opcode, members, text)
    return found


def modules() -> dict[str, str]:
    """The one module."""
    moves = (
        _MOVE.format(name=_word(opcode), statement=statement, vectors=WINDOW_BYTES // 16)
        for opcode, statement in _matrix_moves().items()
    )
    return {
        MODULE: PRELUDE + "".join(text for *_, text in _lane_kernels().values()) + "".join(moves)
    }


def _source_lanes(seed: str, members: int) -> NDArray[np.uint32]:
    """For `shfl.idx`: a member for every lane of every warp, since what others hold is undefined."""
    alive = np.array([lane for lane in range(LANES) if members >> lane & 1], np.uint32)
    return np.asarray(alive[raw(seed, WARPS * LANES) % np.uint64(len(alive))])


def _shuffle_operands(
    opcode: str, members_name: str
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Lane operands and clamps. With some lanes away, only those that read members or themselves."""
    seed, members = f"{opcode}/{members_name}", MEMBERS[members_name]
    mode = opcode.split(".")[2]
    hashes = raw(seed, WARPS)
    clamps = np.array([0x1F, 0x1F, 0x181F, 0x1C1F, 0x1E1F, 0x1F, 0x181F, 0x1C03], np.uint32)
    if mode == "up":
        clamps = clamps & np.uint32(0x1F00)
    if members_name == "all":
        if mode == "bfly":
            lanes = np.repeat((hashes % np.uint64(32)).astype(np.uint32), LANES)
        else:
            lanes = (raw(f"{seed}/lanes", WARPS * LANES) % np.uint64(40)).astype(np.uint32)
        return lanes, np.repeat(clamps, LANES)
    clamp = np.full(WARPS * LANES, 0 if mode == "up" else 0x1F, np.uint32)
    if mode == "idx":
        return _source_lanes(seed, members), clamp
    targets = _source_lanes(seed, members).astype(np.int64)
    own = np.tile(np.arange(LANES), WARPS)
    if mode == "bfly":
        return (own ^ targets).astype(np.uint32), clamp
    distance = own - targets if mode == "up" else targets - own
    return np.where(distance < 0, 0, distance).astype(np.uint32), clamp


def _lane_case(name: str, opcode: str, members: str) -> Case:
    count = WARPS * LANES
    values: NDArray[np.generic] = patterns("b64" if opcode in WIDE else "u32", f"{name}/a", count)
    if opcode in WIDE:
        values = np.where(np.arange(count) // LANES % 2, values[0], values[np.arange(count) % 5])
    if opcode in SHUFFLES:
        b, c = _shuffle_operands(opcode, members)
    else:
        # Whole warps that agree, and warps of few different values.
        warp = np.arange(count) // LANES
        spread = np.array([1, 2, 5, 1, 3, 1, 7, 2])[warp]
        hashes = raw(f"{name}/b", count)
        b = ((hashes >> np.uint64(7)) % spread.astype(np.uint64)).astype(np.uint32)
        c = np.where(warp % 4 == 3, warp // 4, b).astype(np.uint32)
    buffers = (Buffer(values), Buffer(b), Buffer(c), output(3 * count))
    return Case(
        f"warp/{opcode}/{members}",
        MODULE,
        name,
        buffers,
        tuple(Pointer(i) for i in range(4)),
        grid=(WARPS, 1, 1),
        block=(LANES, 1, 1),
    )


def cases() -> list[Case]:
    """All of them."""
    found = [
        _lane_case(name, opcode, members) for name, (opcode, members, _) in _lane_kernels().items()
    ]
    for opcode in _matrix_moves():
        rows = np.argsort(raw(f"{opcode}/rows", WINDOW_BYTES // 16))[:LANES].astype(np.uint32)
        buffers = (
            Buffer(patterns("b32", f"{opcode}/before", WINDOW_BYTES // 4)),
            Buffer(rows),
            Buffer(patterns("b32", f"{opcode}/values", 4 * LANES)),
            output(WINDOW_BYTES, np.uint8),
            output(4 * LANES),
        )
        found.append(
            Case(
                f"matrix/{opcode}",
                MODULE,
                _word(opcode),
                buffers,
                tuple(Pointer(i) for i in range(5)),
                block=(LANES, 1, 1),
                shared_bytes=WINDOW_BYTES,
            )
        )
    return found
