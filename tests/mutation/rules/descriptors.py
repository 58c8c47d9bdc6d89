"""Matrix descriptors and operand layouts of products."""

from __future__ import annotations

from tests.mutation.rules.edits import replaced

# The high word of a matrix descriptor. Its digits, here groups: the swizzle (bits 61-63), the base offset (49-51), what
# marks tcgen05 (46), and the distance of 8-row groups (32-45). PTX ISA: wgmma and tcgen05, matrix descriptor.
_HIGH_WORD = r"0x([48])000([04])0([24])0ull"

RULES = (
    replaced("swizzle-none", "a descriptor says: no swizzle", _HIGH_WORD, r"0x0000\g<2>0\g<3>0ull"),
    replaced(
        "swizzle-64",
        "a descriptor says: 64-byte swizzle",
        _HIGH_WORD,
        r"0x8000\g<2>0\g<3>0ull",
    ),
    replaced(
        "swizzle-128",
        "a descriptor says: 128-byte swizzle",
        _HIGH_WORD,
        r"0x4000\g<2>0\g<3>0ull",
    ),
    replaced(
        "swizzle-32",
        "a descriptor says: 32-byte swizzle",
        _HIGH_WORD,
        r"0xc000\g<2>0\g<3>0ull",
    ),
    replaced(
        "stride-half",
        "8-row groups half as far apart",
        _HIGH_WORD,
        r"(0x\g<1>000\g<2>000ull | 0x\g<3>0ull / 2)",
    ),
    replaced(
        "stride-double",
        "8-row groups twice as far apart",
        _HIGH_WORD,
        r"(0x\g<1>000\g<2>000ull | 0x\g<3>0ull * 2)",
    ),
    replaced(
        "base-offset",
        "a descriptor's base offset is 1",
        _HIGH_WORD,
        r"0x\g<1>002\g<2>0\g<3>0ull",
    ),
    replaced(
        "columns-step",
        "a step of columns is taken for two",
        r"step % (\d) \* 2",
        r"step % \1 * 4",
    ),
    replaced(
        "columns-stuck", "all steps of a panel read its first columns", r"step % \d \* 2", "0"
    ),
    replaced(
        "panel-step",
        "a panel is taken for half as long",
        r"((?:step / [24]|panel|\(panel - kNopePanels\)) \* \(\w+) \* (\d)\)",
        r"\1 * \2 / 2)",
    ),
    replaced("keys-step", "a step of keys is taken for half of them", r"step \* 128", "step * 64"),
    replaced(
        "leading-half",
        "panels of V half as far apart as they are",
        r"\(kTileN \* (\d)\) << 16",
        r"(kTileN * \1 / 2) << 16",
    ),
    replaced(
        "leading-removed",
        "panels of V at one place",
        r" \| \(kTileN \* \d\) << 16",
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
        r"pack\(score\[element\], score\[element \+ 1\]",
        "pack(score[element + 1], score[element]",
    ),
    replaced(
        "q-of-other-warpgroup-rows",
        "the output of a step's rows 8 apart change places",
        r"int row = i / 2 % 2;",
        "int row = 1 - i / 2 % 2;",
    ),
)
