"""The way of the output through shared memory: fragments, swizzle, rows."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

RULES = (
    replaced(
        "store-unswizzled", "chunks lie where no swizzle puts them", r"chunk \^ row % 8", "chunk"
    ),
    replaced(
        "store-swizzle-64",
        "chunks lie as under a 64-byte swizzle",
        r"chunk \^ row % 8",
        "chunk ^ row / 2 % 4",
    ),
    replaced(
        "store-lane-rows",
        "lanes give the addresses of other rows",
        r"lane % 16;",
        "(lane ^ 1) % 16;",
    ),
    replaced(
        "store-lane-chunk",
        "lanes give the addresses of other chunks",
        r"lane / 16;",
        "1 - lane / 16;",
    ),
    replaced(
        "store-scale-row",
        "rows are divided by each other's sums",
        r"fragment\[0\] \* scale\[0\]",
        "fragment[0] * scale[1]",
    ),
    replaced("store-fragment", "matrices change places", r"fragment\[4\]", "fragment[2]"),
    replaced(
        "store-slice",
        "the output goes to another slice",
        r"address = shared_address\(shared\.q\[warpgroup\]\[column / 64\]",
        "address = shared_address(shared.q[warpgroup][1 - column / 64]",
    ),
    replaced(
        "warp-rows",
        "warps write each other's rows",
        r"const int row = thread\(\) / 32 \* 16",
        "const int row = (3 - thread() / 32) * 16",
    ),
    replaced(
        "thread-row",
        "a thread's first row is another",
        r"thread\(\) % 32 / 4; \}",
        "thread() % 32 / 8; }",
    ),
    replaced(
        "thread-column",
        "a thread's first column is another",
        r"return 2 \* \(thread\(\) % 4\)",
        "return thread() % 4",
    ),
)
