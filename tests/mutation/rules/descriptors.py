"""Matrix descriptors and operand layouts of products."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

# Bits 62-63 of a descriptor, here the top of its high word. PTX ISA: wgmma, matrix descriptor.
_HIGH_WORD = r"0x40000040ull"

RULES = (
    replaced("swizzle-none", "a descriptor says: no swizzle", _HIGH_WORD, "0x00000040ull"),
    replaced("swizzle-64", "a descriptor says: 64-byte swizzle", _HIGH_WORD, "0x80000040ull"),
    replaced("swizzle-32", "a descriptor says: 32-byte swizzle", _HIGH_WORD, "0xc0000040ull"),
    replaced("stride-half", "8-row groups 512 bytes apart", _HIGH_WORD, "0x40000020ull"),
    replaced("stride-double", "8-row groups 2048 bytes apart", _HIGH_WORD, "0x40000080ull"),
    replaced("base-offset", "a descriptor's base offset is 1", _HIGH_WORD, "0x40020040ull"),
    replaced(
        "columns-step", "a step of 16 columns is taken for 32", r"step % 4 \* 2", "step % 4 * 4"
    ),
    replaced("columns-stuck", "all steps of a panel read its first columns", r"step % 4 \* 2", "0"),
    replaced(
        "panel-step",
        "a panel is taken for half as long",
        r"(step / 4 \* \(\w+) \* 8\)",
        r"\1 * 4)",
    ),
    replaced("keys-step", "a step of 16 keys is taken for 8", r"step \* 128", "step * 64"),
    replaced(
        "leading-half",
        "panels of V half as far apart as they are",
        r"\(kTileN \* 8\) << 16",
        "(kTileN * 4) << 16",
    ),
    replaced(
        "leading-removed",
        "panels of V at one place",
        r" \| \(kTileN \* 8\) << 16",
        "",
    ),
    replaced(
        "address-shift",
        "a descriptor's address in units of 32 bytes",
        r"(\(address & 0x3ffff\)) >> 4",
        r"\1 >> 5",
    ),
    replaced(
        "address-narrow",
        "a descriptor's address cut to 16 bits",
        r"address & 0x3ffff",
        "address & 0xffff",
    ),
    replaced(
        "address-unmasked",
        "the rank of a cluster's block stays in a descriptor's address",
        r"\(address & 0x3ffff\)",
        "address",
    ),
    replaced(
        "operand-transposed-k",
        "K is read as if its columns were contiguous",
        r"(accumulate, 1, 1, 0, )0",
        r"\g<1>1",
    ),
    replaced(
        "operand-transposed-q",
        "Q is read as if its columns were contiguous",
        r"(accumulate, 1, 1, )0(, 0)",
        r"\g<1>1\2",
    ),
    replaced(
        "operand-transposed-v",
        "V is read as if its keys were contiguous",
        r"(%\d+, 1, 1, 1, )1(?=;)",
        r"\g<1>0",
    ),
    replaced(
        "operands-swapped",
        "the descriptors of Q and K change places",
        r"\(score, a, b\)",
        "(score, b, a)",
    ),
    replaced(
        "probability-step",
        "probabilities of other keys than V's",
        r"probability\[step\](?=, )",
        "probability[step ^ 1]",
    ),
    replaced(
        "probability-order",
        "two neighbouring probabilities change places",
        r"pack\(score\[element\], score\[element \+ 1\]\)",
        "pack(score[element + 1], score[element])",
    ),
    replaced(
        "q-of-other-warpgroup-rows",
        "the output of a step's rows 8 apart change places",
        r"int row = i / 2 % 2;",
        "int row = 1 - i / 2 % 2;",
    ),
)
