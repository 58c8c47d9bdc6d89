"""A kernel that makes a tensor map in shared memory, publishes it in global memory, and loads through it."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from mlagen.errors import UnsupportedPtxError
from mlagen.launch_record import LaunchRecord
from mlagen.sim.lower import lower
from mlagen.sim.memory import GlobalMemory
from mlagen.sim.parser import parse
from mlagen.sim.simulate import SimulationResult, simulate

# A box of 4 rows x 8 halves at (2, 1) of a 6 x 16 matrix, written out by the 32 threads as words.
PTX = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 matrix, .param .u64 map, .param .u64 out)
{
  .reg .pred p<2>; .reg .b32 r<8>; .reg .b64 d<8>;
  .shared .align 128 .b8 made[128]; .shared .align 128 .b8 tile[64]; .shared .align 8 .b8 bar[8];
  ld.param.u64 d0, [matrix]; ld.param.u64 d1, [map]; ld.param.u64 d2, [out];
  mov.u32 r0, %tid.x; setp.eq.u32 p0, r0, 0; mov.b32 r1, 0;
  shl.b32 r2, r0, 2; mov.u32 r3, made; add.u32 r3, r3, r2; st.shared.u32 [r3], r1;
  bar.warp.sync 0xffffffff;
  @!p0 bra READY;
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [made], d0;
  tensormap.replace.tile.rank.shared::cta.b1024.b32 [made], 1;
  tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [made], 0, 8;
  tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [made], 1, 4;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [made], 0, 16;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [made], 1, 6;
  tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [made], 0, 32;
  tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [made], 0, 1;
  tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [made], 1, 1;
  tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [made], 6;
  tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [made], 0;
  tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [made], 0;
  tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [made], 0;
  mbarrier.init.shared::cta.b64 [bar], 1;
  fence.mbarrier_init.release.cluster;
READY:
  bar.warp.sync 0xffffffff;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [d1], [made], 128;
  fence.proxy.tensormap::generic.acquire.gpu [d1], 128;
  mov.b32 r4, 8; mov.b32 r5, 1;
  @p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 64;
  @p0 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [d1, {r4, r5}], [bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 p1, [bar], 0;
  @!p1 bra WAIT;
  setp.lt.u32 p1, r0, 16;
  @!p1 bra END;
  mov.u32 r3, tile; add.u32 r3, r3, r2; ld.shared.u32 r6, [r3];
  mul.wide.u32 d3, r0, 4; add.u64 d3, d3, d2; st.global.u32 [d3], r6;
END:
  ret;
}
"""


def run(ptx: str) -> tuple[np.ndarray, np.ndarray, SimulationResult]:
    """The matrix, what came out, and what was found."""
    matrix = np.arange(96, dtype=np.float16).reshape(6, 16)
    made, out = np.zeros(128, np.uint8), np.zeros((4, 8), np.float16)
    memory = GlobalMemory()
    pointers = [
        memory.add(array, name) for array, name in ((matrix, "matrix"), (made, "map"), (out, "out"))
    ]
    record = LaunchRecord(
        kernel="k",
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared_memory_bytes=0,
        parameters=tuple(struct.pack("<Q", pointer) for pointer in pointers),
    )
    return matrix, out, simulate(ptx, record, memory)


def test_a_box_comes_through_a_map_that_the_kernel_makes() -> None:
    matrix, out, outcome = run(PTX)
    assert outcome.findings == ()
    np.testing.assert_array_equal(out, matrix[1:5, 8:16])


@pytest.mark.parametrize(
    ("old", "new"),
    [("elemtype.shared::cta.b1024.b32 [made], 6", "elemtype.shared::cta.b1024.b32 [made], 12"),
     ("element_stride.shared::cta.b1024.b32 [made], 1, 1", "element_stride.shared::cta.b1024.b32 [made], 1, 2"),
     ("fill_mode.shared::cta.b1024.b32 [made], 0", "fill_mode.shared::cta.b1024.b32 [made], 1")],
)  # fmt: skip
def test_a_map_with_a_field_that_is_not_simulated_is_found(old: str, new: str) -> None:
    assert old in PTX
    _, _, outcome = run(PTX.replace(old, new))
    assert "tensor-map" in {finding.kind for finding in outcome.findings}


def test_an_illegal_map_is_found() -> None:
    _, _, outcome = run(PTX.replace("[made], 0, 32;", "[made], 0, 36;"))
    assert "tensor-map" in {finding.kind for finding in outcome.findings}


@pytest.mark.parametrize("field", ["tile.colour", "im2col.rank"])
def test_unknown_fields_are_refused(field: str) -> None:
    ptx = PTX.replace("replace.tile.rank", f"replace.{field}")
    with pytest.raises(UnsupportedPtxError, match=r"tensormap\.replace"):
        lower(parse(ptx))
