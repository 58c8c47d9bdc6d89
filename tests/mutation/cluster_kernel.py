"""Descriptors in a cluster: no shipped kernel has clusters, so the product of a shipped one is put into a small one.

The device functions are those of a rendered kernel, word for word, so that rules find in them what they find there.
"""

from __future__ import annotations

import numpy as np

from tests.mutation.source import load

CTAS = 2
KEYS = 16
COLUMNS = 128
ROWS = 64

_PRELUDE = f"""\
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
constexpr int kTileN = {KEYS};
constexpr int kOutputsPerThread = {COLUMNS // 2};

"""
_BORROWED = (
    "shared_address",
    "fence_async_proxy",
    "wgmma_fence",
    "wgmma_commit",
    "wgmma_wait",
    "tie_registers",
    "descriptor_low",
    "matrix_descriptor",
    "wgmma_p_v",
)
# Row r of the product's left side is 1 at column r % 16: row r of `out` is row r % 16 of V.
_KERNEL = f"""
extern "C" __global__ void __cluster_dims__({CTAS}, 1, 1) __launch_bounds__(128, 1)
multiply(const uint16* v, float* out) {{
  __shared__ __align__(1024) uint16 panels[{COLUMNS // 64}][kTileN][64];
  v += blockIdx.x * kTileN * {COLUMNS};
  out += blockIdx.x * {ROWS} * {COLUMNS};
  for (int i = threadIdx.x; i < kTileN * {COLUMNS}; i += 128) {{
    const int row = i / {COLUMNS}, column = i % {COLUMNS};
    panels[column / 64][row][(column % 64 / 8 ^ row % 8) * 8 + column % 8] = v[i];
  }}
  fence_async_proxy();
  __syncthreads();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const int distance = lane / 4 - 2 * (lane % 4);
  const uint32 ones = distance == 0 ? 0x3f80u : distance == 1 ? 0x3f800000u : 0u;
  const uint32 left[4] = {{ones, 0, 0, ones}};
  float product[kOutputsPerThread];
  for (int i = 0; i < kOutputsPerThread; ++i) product[i] = 0.0f;
  tie_registers(product);
  const uint32 v_low = descriptor_low(shared_address(panels)) | (kTileN * 8) << 16;
  wgmma_fence();
  wgmma_p_v(product, left, matrix_descriptor(v_low));
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < kOutputsPerThread; ++i)
    out[(row + 8 * (i / 2 % 2)) * {COLUMNS} + 8 * (i / 4) + 2 * (lane % 4) + i % 2] = product[i];
}}
"""


def cluster_kernel(rendered: str) -> str:
    """A kernel of two blocks in a cluster, each with a product of its own.

    Args:
        rendered: A shipped bfloat16 kernel with 128 columns of V.
    """
    source = load(rendered)
    functions = []
    for name in _BORROWED:
        start, end = source.body(name)
        text = rendered[start:end].partition("\n}\n")
        one_line = text[0].partition("\n")[0]
        body = one_line if one_line.endswith("}") else text[0] + "\n}"
        template = rendered[:start].splitlines()[-1]
        functions.append(f"{template}\n{body}" if template.startswith("template") else body)
    return _PRELUDE + "\n\n".join(functions) + _KERNEL


def expected(
    v: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """What `out` should hold: `[block, 64 rows, 128 columns]`, for V `[block, 16, 128]`."""
    return v[:, np.arange(ROWS) % KEYS]
