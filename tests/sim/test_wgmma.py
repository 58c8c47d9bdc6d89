"""`wgmma`: values from copies through descriptors to registers, exact on integers, and every rule broken once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from mlagen.errors import UnsupportedPtxError
from mlagen.launch_record import TensorMapSpec
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.products import multiply_add
from mlagen.sim.schedule import Pct
from mlagen.sim.tensor_core_sum import aligned_sum
from tests.sim.ptx_kernel import BASE, kinds, launch, only, prepare_barrier, wait_barrier

if TYPE_CHECKING:
    from mlagen.sim.simulate import SimulationResult

RNG = np.random.default_rng(11)
BARRIER = BASE
A_AT = 2048
B_AT = 2048 + 64 * 1024

# Type -> NumPy type, type of the tensor map.
TYPES: dict[str, tuple[Any, str]] = {
    "bf16": (ml_dtypes.bfloat16, "bfloat16"),
    "f16": (np.float16, "float16"),
    "tf32": (np.float32, "float32"),
    "e4m3": (ml_dtypes.float8_e4m3fn, "uint8"),
    "e5m2": (ml_dtypes.float8_e5m2, "uint8"),
    "s8": (np.int8, "uint8"),
    "u8": (np.uint8, "uint8"),
}
FENCE, COMMIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"


def d_position(n: int, d_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of D in `[register, thread, place]` (PTX ISA 9.7.15.5.1.1, as formulas)."""
    values = np.arange(n // 2)[:, None]
    thread = np.arange(128)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (values // 2 % 2)
    column = 8 * (values // 4) + 2 * (thread % 4) + values % 2
    places = 2 if d_type == "f16" else 1
    shape = (n // 2 // places, places, 128)
    return (
        row.reshape(shape).swapaxes(1, 2),
        np.broadcast_to(column, row.shape).reshape(shape).swapaxes(1, 2),
    )


def a_position(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and k of A in `[register, thread, place]`."""
    places = 4 // size
    register, thread, place = np.ogrid[:4, :128, :places]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    k = 4 * places * (register // 2) + places * (thread % 4) + place
    shape = (4, 128, places)
    return np.broadcast_to(row, shape), np.broadcast_to(k, shape)


@dataclass(frozen=True)
class Operand:
    """A matrix `[rows, k]` in global memory as a copy takes it, and where it lies in shared memory afterwards."""

    values: np.ndarray
    element_type: str
    swizzle: int
    mn_major: bool
    at: int

    @property
    def stored(self) -> np.ndarray:
        """Neighbours in memory behind each other in the last dimension."""
        return np.ascontiguousarray(self.values.T if self.mn_major else self.values)

    @property
    def columns(self) -> int:
        """Elements of a box's row."""
        return (self.swizzle or 16) // self.values.itemsize

    @property
    def box_bytes(self) -> int:
        """Of one box, in shared memory."""
        return len(self.stored) * (self.swizzle or 16)

    def spec(self, address: int) -> TensorMapSpec:
        """The tensor map."""
        lines, elements = self.stored.shape
        size = self.values.itemsize
        return TensorMapSpec(
            address,
            TYPES[self.element_type][1],
            (elements, lines),
            (elements * size,),
            (self.columns, lines),
            self.swizzle,
        )

    def loads(self, name: str) -> str:
        """The copies of all boxes."""
        count = self.stored.shape[1] // self.columns
        return "".join(
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
            f" [{self.at + number * self.box_bytes}], [%x_{name}, {{{number * self.columns}, 0}}], [{BARRIER}];\n"
            for number in range(count)
        )

    def descriptor(self, k: int) -> int:
        """For the 32 bytes of K from an element on."""
        line = self.swizzle or 16
        if self.mn_major:
            start = self.at + k * line
            lbo, sbo = (self.box_bytes, 8 * line) if self.swizzle else (128, self.box_bytes)
        else:
            box, inside = divmod(k, self.columns)
            start = self.at + box * self.box_bytes + inside * self.values.itemsize
            lbo, sbo = (0, 8 * line) if self.swizzle else (self.box_bytes, 128)
        code = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | code << 62


def draw(element_type: str, rows: int, k: int) -> np.ndarray:
    low = 0 if element_type == "u8" else -3
    return RNG.integers(low, 4, (rows, k)).astype(TYPES[element_type][0])


def registers(name: str, count: int) -> str:
    return ", ".join(f"%{name}{number}" for number in range(count))


def move_registers(name: str, count: int, array: str, *, store: bool, offset: int = 0) -> str:
    """Registers of all threads from or to `[count, 128]` words."""
    code = f"mul.wide.u32 %x0, %r0, 4;\nadd.u64 %x1, %x_{array}, %x0;\n"
    for number in range(count):
        place = f"[%x1+{512 * number + offset}]"
        code += (
            f"st.global.u32 {place}, %{name}{number};\n"
            if store
            else f"ld.global.u32 %{name}{number}, {place};\n"
        )
    return code


def mma(opcode: str, d_count: int, a: str, b: int, tail: str, *, negated: bool = False) -> str:
    """One product with immediate descriptors."""
    code = f"mov.b64 %x3, {b};\n"
    if a.isdigit():
        code += f"mov.b64 %x2, {a};\n"
        a = "%x2"
    return code + f"{opcode} {{{registers('d', d_count)}}}, {a}, %x3, {tail};\n"


def products(
    d_type: str,
    a: Operand,
    b: Operand,
    *,
    in_registers: bool = False,
    initial: np.ndarray | None = None,
    scales: tuple[int, int] = (1, 1),
    modifier: str = "",
    **options: Any,
) -> tuple[np.ndarray, SimulationResult]:
    """`[64, n]` of A B' + initial by a chain of products, and how the run went."""
    n, size = len(b.values), a.values.itemsize
    k = 32 // size
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{modifier}.{d_type}.{a.element_type}.{b.element_type}"
    count = n // 4 if d_type == "f16" else n // 2
    tail = "%p1"
    if d_type != "s32":
        tail += f", {scales[0]}, {scales[1]}"
        if size == 2:
            majors = [b.mn_major] if in_registers else [a.mn_major, b.mn_major]
            tail += "".join(f", {int(one)}" for one in majors)
    memory = GlobalMemory()
    arrays = {"pa": a.stored, "pb": b.stored}
    maps = {
        name: one.spec(memory.add(arrays[f"p{name}"], name, read_only=True))
        for name, one in (("a", a), ("b", b))
    }
    out = np.zeros((count, 128), np.uint32)
    given = np.zeros((count, 128), np.uint32)
    rows, columns = d_position(n, d_type)
    if initial is not None:
        kind: Any = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
        given = np.ascontiguousarray(initial[rows, columns].astype(kind)).view(np.uint32)[..., 0]
    steps = range(a.values.shape[1] // k)
    fragments = np.zeros((len(steps), 4, 128), np.uint32)
    for step in steps:
        a_rows, a_k = a_position(size)
        part = np.ascontiguousarray(a.values[a_rows, step * k + a_k])
        fragments[step] = part.view(np.uint32)[..., 0]
    total = a.stored.nbytes + b.stored.nbytes
    body = prepare_barrier(BARRIER)
    body += only(
        0,
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{BARRIER}], {total};\n"
        + a.loads("a")
        + b.loads("b"),
    )
    body += wait_barrier(BARRIER) + move_registers("d", count, "given", store=False)
    body += f"setp.ne.u32 %p1, {int(initial is not None)}, 0;\n"
    for step in steps:
        where = str(a.descriptor(step * k))
        if in_registers:
            where = f"{{{registers('a', 4)}}}"
            body += move_registers("a", 4, "fragments", store=False, offset=2048 * step)
        body += FENCE + mma(opcode, count, where, b.descriptor(step * k), tail)
        if in_registers:
            body += COMMIT + WAIT
        body += "setp.eq.u32 %p1, 0, 0;\n"
    body += COMMIT + WAIT + move_registers("d", count, "out", store=True)
    result = launch(
        body,
        {**maps, "given": given, "fragments": fragments, "out": out},
        threads=128,
        shared=200 * 1024,
        memory=memory,
        **options,
    )
    found = np.zeros((64, n), {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type])
    found[rows, columns] = out[..., None].view(found.dtype)
    return found, result


def exact(a: Operand, b: Operand) -> np.ndarray:
    wide = a.values.astype(np.float64) @ b.values.astype(np.float64).T
    return wide.astype(np.float32)


def operands(
    a_type: str,
    b_type: str,
    n: int,
    *,
    swizzles: tuple[int, int] = (128, 128),
    majors: tuple[bool, bool] = (False, False),
) -> tuple[Operand, Operand]:
    size = np.dtype(TYPES[a_type][0]).itemsize
    k = max(max(swizzles) // size, 64 // size)
    return (
        Operand(draw(a_type, 64, k), a_type, swizzles[0], majors[0], A_AT),
        Operand(draw(b_type, n, k), b_type, swizzles[1], majors[1], B_AT),
    )


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("majors", list(itertools.product((False, True), repeat=2)))
def test_layouts_of_16_bits(swizzle: int, majors: tuple[bool, bool]) -> None:
    other = {0: 128, 32: 64, 64: 32, 128: 0}[swizzle]
    for n in (8, 72, 256):
        if majors[1] and n * 2 % (swizzle or 16):
            continue
        a, b = operands("bf16", "bf16", n, swizzles=(other, swizzle), majors=majors)
        found, result = products("f32", a, b)
        assert kinds(result) == []
        np.testing.assert_array_equal(found, exact(a, b))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(
    ("d_type", "a_type", "b_type"),
    [
        ("f32", "f16", "f16"),
        ("f16", "f16", "f16"),
        ("f32", "tf32", "tf32"),
        ("f32", "e4m3", "e4m3"),
        ("f32", "e5m2", "e4m3"),
        ("f16", "e4m3", "e5m2"),
        ("s32", "s8", "u8"),
        ("s32", "u8", "s8"),
    ],
)
def test_types(d_type: str, a_type: str, b_type: str, swizzle: int) -> None:
    for n, in_registers in ((96, True), (256 if swizzle == 128 else 8, False)):
        a, b = operands(a_type, b_type, n, swizzles=(swizzle, swizzle))
        found, result = products(d_type, a, b, in_registers=in_registers)
        assert kinds(result) == []
        np.testing.assert_array_equal(found, exact(a, b).astype(found.dtype))


@pytest.mark.parametrize("n", [8, 16, 24, 40, 104, 176, 208, 248])
def test_every_kind_of_n(n: int) -> None:
    a, b = operands("bf16", "bf16", n)
    for in_registers in (False, True):
        found, result = products("f32", a, b, in_registers=in_registers)
        assert kinds(result) == []
        np.testing.assert_array_equal(found, exact(a, b))


@pytest.mark.parametrize("d_type", ["f32", "f16", "s32"])
def test_old_accumulators_are_added(d_type: str) -> None:
    a_type = "s8" if d_type == "s32" else "f16"
    initial = RNG.integers(-100, 100, (64, 32)).astype(np.float32)
    for in_registers in (False, True):
        a, b = operands(a_type, a_type, 32)
        found, result = products(d_type, a, b, in_registers=in_registers, initial=initial)
        assert kinds(result) == []
        np.testing.assert_array_equal(found, (exact(a, b) + initial).astype(found.dtype))


def test_signs_of_the_product() -> None:
    a, b = operands("bf16", "bf16", 16)
    initial = RNG.integers(-100, 100, (64, 16)).astype(np.float32)
    for scales, sign in (((-1, 1), -1), ((1, -1), -1), ((-1, -1), 1)):
        found, _ = products("f32", a, b, initial=initial, scales=scales)
        np.testing.assert_array_equal(found, initial + sign * exact(a, b))


def test_integers_wrap_or_saturate() -> None:
    a, b = operands("s8", "s8", 8)
    initial = np.full((64, 8), 2**31 - 10, np.int64)
    wide = exact(a, b).astype(np.int64) + initial
    found, _ = products("s32", a, b, initial=initial)
    np.testing.assert_array_equal(found, wide.astype(np.int32))
    found, _ = products("s32", a, b, initial=initial, modifier=".satfinite")
    # Saturated after every step, so that only the first of them is easily told.
    assert (found == 2**31 - 1).any()
    assert found.min() > 0


def test_a_run_is_the_same_in_every_schedule() -> None:
    a, b = operands("bf16", "bf16", 64)
    for seed in range(3):
        found, result = products("f32", a, b, in_registers=True, schedule=Pct(seed, 3))
        assert kinds(result) == []
        np.testing.assert_array_equal(found, exact(a, b))


@pytest.mark.parametrize(
    "opcode",
    [
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.f16",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8",
    ],
)
def test_other_forms_are_refused(opcode: str) -> None:
    with pytest.raises(UnsupportedPtxError, match=opcode.split(".")[1]):
        launch(FENCE + mma(opcode, 4, "0", 0, "1, 1, 1, 0, 0"), {}, threads=128)


# Rules. One product of 64 x 16 x 16 on tiles that thread 0's warpgroup has written itself.

MMA = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"
OTHER = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
DESCRIPTOR = 128 >> 4 << 32 | 1024 >> 4 << 16  # no swizzle: core matrices of 128 bytes
A = DESCRIPTOR | A_AT >> 4
B = DESCRIPTOR | (A_AT + 8192) >> 4
FILL = f"""
mov.u32 %r1, 0;
shl.b32 %r2, %r0, 4;
add.u32 %r2, %r2, {A_AT};
fill: st.shared.v4.u32 [%r2], {{%r1, %r1, %r1, %r1}};
add.u32 %r2, %r2, 2048;
setp.lt.u32 %p0, %r2, {A_AT + 16384};
@%p0 bra fill;
"""
PUBLISH = "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
ZERO = "".join(f"mov.b32 %d{number}, 0;\n" for number in range(8))


def product(opcode: str = MMA, *, a: str = str(A), b: int = B, count: int = 8) -> str:
    majors = "0" if a.startswith("{") else "0, 0"
    return mma(opcode, count, a, b, f"1, 1, 1, {majors}")


def run(body: str, *, threads: int = 128, **options: Any) -> list[str]:
    out = np.zeros(128, np.uint32)
    return kinds(launch(body, {"out": out}, threads=threads, shared=65536, **options))


def test_the_rules_kept() -> None:
    body = FILL + ZERO + PUBLISH + FENCE + product() + product() + COMMIT
    assert run(body + WAIT) == []
    assert run(body + product() + COMMIT + "wgmma.wait_group.sync.aligned 1;\n" + WAIT) == []


def test_a_fence_is_missing() -> None:
    assert run(FILL + ZERO + PUBLISH + product() + COMMIT + WAIT) == ["wgmma-fence"]
    assert run(FILL + PUBLISH + FENCE + ZERO + product() + COMMIT + WAIT) == ["wgmma-fence"]
    # To have read an accumulator is enough.
    read = "add.f32 %d100, %d3, %d3;\n"
    assert run(FILL + ZERO + PUBLISH + FENCE + read + product() + COMMIT + WAIT) == ["wgmma-fence"]
    a = "{%a0, %a1, %a2, %a3}"
    code = "".join(f"mov.b32 %a{number}, 0;\n" for number in range(4))
    begin = FILL + ZERO + PUBLISH
    assert run(begin + FENCE + code + product(a=a) + COMMIT + WAIT) == ["wgmma-fence"]
    assert run(begin + code + FENCE + product(a=a) + COMMIT + WAIT) == []


def test_registers_in_flight_are_used() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE
    assert run(begin + product() + COMMIT + "add.f32 %d3, %d3, %d3;\n" + WAIT) == ["wgmma-reg"]
    read = "st.global.u32 [%x_out], %d5;\n"
    assert run(begin + product() + COMMIT + only(0, read) + WAIT) == ["wgmma-reg"]
    assert run(begin + product() + COMMIT + WAIT + only(0, read)) == []
    a = "{%a0, %a1, %a2, %a3}"
    given = "".join(f"mov.b32 %a{number}, 0;\n" for number in range(4)) + begin
    written = "mov.b32 %a2, 1;\n"
    assert run(given + product(a=a) + COMMIT + written + WAIT) == ["wgmma-reg"]
    assert run(given + product(a=a) + COMMIT + WAIT + written) == []
    # A may be read while a product reads it.
    read = "add.u32 %a5, %a2, %a2;\n"
    assert run(given + product(a=a) + COMMIT + read + WAIT) == []


def test_products_in_flight_share_registers() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE + product()
    assert run(begin + product(OTHER, count=4) + COMMIT + WAIT) == ["wgmma-reg"]
    a = "{%d4, %d5, %d6, %d7}"
    assert run(begin + product(OTHER, a=a, count=4) + COMMIT + WAIT) == ["wgmma-reg"]
    lent = mma(MMA, 8, "{%a0, %a1, %a2, %a3}", B, "1, 1, 1, 0").replace("%d", "%d1")
    other = f"mov.b64 %x3, {B};\n{OTHER} {{%a0, %a1, %a2, %a3}}, %x2, %x3, 0, 1, 1, 0, 0;\n"
    begin = FILL + ZERO + "".join(f"mov.b32 %d1{one}, 0;\n" for one in range(8))
    begin += "".join(f"mov.b32 %a{one}, 0;\n" for one in range(4)) + f"mov.b64 %x2, {A};\n"
    assert run(begin + PUBLISH + FENCE + lent + other + COMMIT + WAIT) == ["wgmma-reg"]


def test_nobody_waits() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE + product()
    assert run(begin + COMMIT) == ["exit-in-flight"]
    assert run(begin) == ["exit-in-flight"]
    later = begin + COMMIT + product() + COMMIT + "wgmma.wait_group.sync.aligned 1;\n"
    assert run(later) == ["exit-in-flight"]


def test_warps_disagree() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE
    chosen = "setp.lt.u32 %p2, %r0, 32;\nselp.b64 %x4, 16, 0, %p2;\n"
    text = product().replace(f"mov.b64 %x3, {B};", f"mov.b64 %x3, {B};\nadd.u64 %x3, %x3, %x4;")
    assert run(begin + chosen + text + COMMIT + WAIT) == ["wgmma-mismatch"]
    lanes = "and.b32 %r5, %r0, 1;\ncvt.u64.u32 %x4, %r5;\n"
    assert run(begin + lanes + text + COMMIT + WAIT) == ["operand-not-uniform"]


def test_a_warp_does_not_come() -> None:
    begin = FILL + ZERO + PUBLISH + "setp.ge.u32 %p2, %r0, 96;\n@%p2 bra end;\n" + FENCE
    (finding,) = launch(
        begin + product() + COMMIT + WAIT + "end:\n", {}, threads=128, shared=65536
    ).findings
    assert finding.kind == "deadlock"
    assert "which warp 3 has not executed" in finding.message


def test_a_warpgroup_lacks_threads() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE
    half = "setp.ge.u32 %p2, %r0, 112;\n@%p2 bra end;\n"
    found = run(begin + half + product() + COMMIT + WAIT + "end:\n")
    assert "wgmma-warpgroup" in found or "diverged-aligned" in found


def test_operands_in_shared_memory() -> None:
    begin = FILL + ZERO + PUBLISH + FENCE
    assert run(begin + product(b=B | 1 << 15) + COMMIT + WAIT) == ["wgmma-descriptor"]
    assert run(begin + product(b=B | 3 << 49) + COMMIT + WAIT) == ["wgmma-descriptor"]
    far = DESCRIPTOR | 0x3F00
    assert run(begin + product(b=far) + COMMIT + WAIT) == ["out-of-bounds"]
    unwritten = DESCRIPTOR | (A_AT + 16384) >> 4
    assert run(begin + product(b=unwritten) + COMMIT + WAIT) == ["uninitialised"]


def test_the_order_of_shared_memory() -> None:
    end = FENCE + product() + COMMIT + WAIT
    assert run(FILL + ZERO + "bar.sync 0;\n" + end) == ["proxy-fence"]
    assert "race" in run(FILL + ZERO + "fence.proxy.async.shared::cta;\n" + end)
    write = only(0, f"mov.u32 %r6, 7;\nst.shared.u32 [{A_AT}], %r6;\n")
    begin = FILL + ZERO + PUBLISH + FENCE + product() + COMMIT
    assert run(begin + write + WAIT) == ["race"]
    assert run(begin + WAIT + "bar.sync 0;\n" + write) == []
    # The product is one of the warpgroup: who has waited for it knows that all four warps' reads are over, as
    # pipelines rely on whose consumers release a stage by one thread of a warpgroup.
    assert run(begin + WAIT + write) == []


def test_a_warp_may_write_its_own_rows_of_a() -> None:
    """Rows 16 w to 16 w + 15 of A are read by warp w alone, so that its own fence is enough; not so for B."""
    own = """
and.b32 %r3, %r0, 15;
shr.u32 %r4, %r0, 5;
shl.b32 %r4, %r4, 8;
shl.b32 %r3, %r3, 4;
add.u32 %r4, %r4, %r3;
and.b32 %r5, %r0, 16;
shl.b32 %r5, %r5, 6;
add.u32 %r4, %r4, %r5;
mov.u32 %r6, 5;
st.shared.v4.u32 [%r4+AT], {%r6, %r6, %r6, %r6};
fence.proxy.async.shared::cta;
bar.warp.sync 0xffffffff;
"""
    begin = FILL + ZERO + PUBLISH
    end = FENCE + product() + COMMIT + WAIT
    assert run(begin + own.replace("AT", str(A_AT)) + end) == []
    assert "race" in run(begin + own.replace("AT", str(A_AT + 8192)) + end)


def ranked(mask: int) -> list[np.ndarray]:
    """D of both CTAs of a cluster, where a mask is applied to addresses in descriptors that use all fields."""
    out = np.zeros((2, 8, 128), np.float32)
    fill = f"""
shl.b32 %r2, %r0, 4;
mov.u32 %r4, memory;
add.u32 %r3, %r4, %r2;
mov.u32 %r1, 0x3f803f80;
mov.u32 %r5, 0x40004000;
st.shared.v4.u32 [%r3+1024], {{%r1, %r1, %r1, %r1}};
st.shared.v4.u32 [%r3+3072], {{%r5, %r5, %r5, %r5}};
st.shared.v4.u32 [%r3+5120], {{%r1, %r1, %r1, %r1}};
st.shared.v4.u32 [%r3+7168], {{%r1, %r1, %r1, %r1}};
fence.proxy.async.shared::cta;
bar.sync 0;
and.b32 %r6, %r4, {mask};
shr.u32 %r6, %r6, 4;
cvt.u64.u32 %x5, %r6;
mov.b64 %x6, {128 >> 4 << 32 | 1024 >> 4 << 16};
add.u64 %x2, %x6, {1024 >> 4};
add.u64 %x2, %x2, %x5;
add.u64 %x3, %x6, {3072 >> 4};
add.u64 %x3, %x3, %x5;
mov.u32 %r7, %cluster_ctarank;
mul.wide.u32 %x7, %r7, 4096;
add.u64 %x_out, %x_out, %x7;
"""
    body = fill + FENCE + f"{MMA} {{{registers('d', 8)}}}, %x2, %x3, 0, 1, 1, 0, 0;\n"
    body += COMMIT + WAIT + move_registers("d", 8, "out", store=True)
    launch(body, {"out": out}, threads=128, cluster=2, level="practice")
    return list(out)


def test_an_address_with_a_rank_must_be_masked() -> None:
    """In CTAs of rank 1 and up, variables' addresses carry the rank, which a descriptor's other fields would get."""
    assert [(one == 32).all() for one in ranked(0x3FFFF)] == [True, True]
    assert [(one == 32).all() for one in ranked(-1 & 0xFFFFFFFF)] == [True, False]


# Sums.


def test_eight_bit_floats_lose_small_addends_on_hopper() -> None:
    """As measured on an H200: 256 + 31 x 2^-8 is 256, 16 + 31 x 2^-12 is 16, and steps of 2^-3 leave 256."""
    for large, small in ((16.0, 2.0**-4), (4.0, 2.0**-6)):
        a = np.full((64, 32), small, np.float32)
        b = np.full((8, 32), small, np.float32)
        a[:, 0] = b[:, 0] = large
        assert (aligned_sum(a, b, None, "e4m3", "e4m3", "f32") == large * large).all()
        assert (multiply_add(a, b, None, "f32") > large * large).all()
    c = np.full((64, 8), 256, np.float32)
    a = np.full((64, 32), 2.0**-4, np.float32)
    b = a[:8]
    for _ in range(64):
        c = aligned_sum(a, b, c, "e4m3", "e4m3", "f32")
    assert (c == 256).all()


def test_modes_of_summation() -> None:
    a = RNG.normal(size=(64, 16)).astype(ml_dtypes.bfloat16).astype(np.float32)
    b = RNG.normal(size=(24, 16)).astype(ml_dtypes.bfloat16).astype(np.float32)
    c = RNG.normal(size=(64, 24)).astype(np.float32)
    wide = a.astype(np.float64) @ b.T.astype(np.float64) + c
    largest = np.maximum(np.abs(a[:, None] * b[None]).max(axis=2), np.abs(c))
    np.testing.assert_array_equal(multiply_add(a, b, c, "f64"), wide.astype(np.float32))
    assert (np.abs(multiply_add(a, b, c, "f32") - wide) <= 17 * 2.0**-24 * largest * 16).all()
    truncated = aligned_sum(a, b, c, "bf16", "bf16", "f32")
    assert (np.abs(truncated - wide) <= 17 * 2.0**-24 * largest + 2.0**-23 * np.abs(wide)).all()


def test_a_run_sums_as_it_is_told() -> None:
    """Products of 8-bit floats on Hopper lose what is 2^-16 of the largest; others, and other modes, do not."""
    large, small = np.full((64, 64), 2.0**-4), np.full((8, 64), 2.0**-4)
    large[:, 0] = small[:, 0] = 16
    for element_type, mode, sums in (
        ("e4m3", "fast", 256.0),
        ("e4m3", "f32", 256 + 63 / 256),
        ("bf16", "fast", 256 + 63 / 256),
    ):
        dtype = TYPES[element_type][0]
        k = 64 if element_type == "bf16" else 128
        a = np.zeros((64, k), dtype)
        b = np.zeros((8, k), dtype)
        a[:, :64], b[:, :64] = large, small
        found, _ = products(
            "f32",
            Operand(a, element_type, 128, mn_major=False, at=A_AT),
            Operand(b, element_type, 128, mn_major=False, at=B_AT),
            accumulation=mode,
        )
        assert (found == sums).all()


@pytest.mark.parametrize("mode", ["f32", "f64", "hardware"])
def test_infinities_and_nan_pass(mode: Any) -> None:
    a = np.ones((64, 16), np.float32)
    b = np.ones((8, 16), np.float32)
    a[0, 0], a[1, 3], b[2, 5] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        c = np.zeros((64, 8), np.float32)
        found = (
            aligned_sum(a, b, c, "bf16", "bf16", "f32")
            if mode == "hardware"
            else multiply_add(a, b, c, mode)
        )
    assert np.isposinf(found[0, 0])
    assert np.isnan(found[1]).all()
    assert np.isneginf(found[5, 2])
    assert np.isnan(found[0, 2])
    assert (found[2:, :2] == 16).all()
