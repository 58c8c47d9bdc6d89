"""8-bit operands on Hopper: V transposed with its keys in another order, products added to the output in registers."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

RULES = (
    replaced(
        "transposed-column-other",
        "a column of V gets the bytes of its neighbour",
        r"(?<=even_bytes = )0x6420",
        "0x7531",
    ),
    replaced(
        "transposed-keys-in-order",
        "the keys of V lie in their own order, not in that of the probabilities",
        r"(?<=_bytes = )0x(\d)(\d)(\d)(\d)",
        r"0x\1\3\2\4",
    ),
    replaced(
        "transposed-without-exchange",
        "rows are stored as if no lanes had exchanged their columns",
        r"\(odd \^ upper\)",
        "odd",
    ),
    replaced(
        "transposed-half-other",
        "both halves of 32 keys are stored at one place",
        r"(?<=first_key % 64 / 16) \+ lane\(\) / 16",
        "",
    ),
    replaced(
        "transposed-unswizzled",
        "rows of V are read or written as if nothing were swizzled",
        r"chunk \^ row / 2 % 4",
        "chunk",
    ),
    replaced(
        "transposed-by-one",
        "all transpose warps turn the same columns",
        r"index \* kColumns \+ column",
        "column",
    ),
    replaced(
        "transposed-keys-left",
        "the last keys of a block are not turned",
        r"key < kTileN; key \+= 32",
        "key < kTileN - 32; key += 32",
    ),
    replaced(
        "product-factor-missing",
        "a product is added to an output that has not been corrected",
        r"fmaf\(sum, factor\[i / 2 % 2\], product\[i\]\)",
        "sum + product[i]",
    ),
    replaced(
        "product-factor-of-other-row",
        "the factors of a thread's two rows change places",
        r"factor\[i / 2 % 2\]",
        "factor[1 - i / 2 % 2]",
    ),
    replaced(
        "product-factor-late",
        "the output is corrected for the scores of the next block",
        r"const float factor\[2\] = \{[^}]*\};",
        "const float(&factor)[2] = softmax.correction;",
    ),
    replaced(
        "product-forgotten",
        "the output keeps its last product only",
        r"sum = fmaf\([^;]*;",
        "sum = product[i];",
    ),
    replaced(
        "probability-unscaled",
        "probabilities are not scaled, of which small ones vanish then",
        r" - kProbabilityShift",
        "",
    ),
)
