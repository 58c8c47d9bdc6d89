"""The correction warpgroup, and softmax threads that are a row each: factors, halves, the end of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.mutation.rule import Rule
from tests.mutation.rules.edits import at_calls, doubled, removed, replaced
from tests.mutation.source import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.source import Source


def _bounds_of_half(source: Source) -> Iterator[Edit]:
    """The rows of a half, in the question which blocks it visits."""
    for call in source.calls("blocks"):
        if source.function(call.start) == "blocks_of_half":
            yield Edit(*call.arguments[1], "0")
            yield Edit(*call.arguments[2], "kHalfM / 2")


RULES = (
    # Factors on their way.
    Rule(
        "factor-unpublished",
        "a factor is not handed over",
        at_calls("publish", removed),
    ),
    Rule("factor-published-twice", "a factor is handed over twice", at_calls("publish", doubled)),
    replaced(
        "factor-of-first-block",
        "a first block hands a factor over",
        r"if \(!is_first\) (?=publish)",
        "",
    ),
    replaced(
        "factor-of-other-row",
        "the factor of another row",
        r"(shared\.factor\[\w+\])\[thread\(\)\]",
        r"\1[thread() ^ 1]",
    ),
    replaced(
        "factor-of-other-half",
        "the factor of the other half",
        r"shared\.factor\[half\]",
        "shared.factor[1 - half]",
    ),
    replaced(
        "factor-stale",
        "the factor is that of the block before",
        r"(if \(!is_first\) publish\()correction\)",
        r"\g<1>1.0f)",
    ),
    replaced(
        "state-numbers-swapped",
        "in the end, sum and maximum change places",
        r"(shared\.factor\[half\]\[thread\(\)\] = )maximum;(\s*shared\.sum\[half\]\[thread\(\)\] = )sum;",
        r"\g<1>sum;\g<2>maximum;",
    ),
    replaced(
        "state-early",
        "the sum is written while that of the tile before may be unread",
        r"(void publish_state\(\) \{\n)( +barrier_wait[^\n]*)\n([^\n]*)\n( +shared\.sum[^\n]*)",
        r"\1\4\n\2\n\3",
    ),
    # Correction of the output.
    Rule("rescale-missing", "a block's correction is left out", at_calls("rescale", removed)),
    Rule("rescale-twice", "a block is corrected twice", at_calls("rescale", doubled)),
    replaced(
        "rescale-last-missing",
        "the correction before the last block is left out",
        r"(?<=value != 1\.0f)\)\) \{",
        ") && factor[half].parity == 0) {",
    ),
    replaced(
        "rescale-never",
        "the output keeps old references",
        r"if \(__any_sync\(kAllLanes, value != 1\.0f\)\)",
        "if (false)",
    ),
    replaced(
        "rescale-always",
        "the output is corrected by factors of 1, too",
        r"if \(__any_sync\(kAllLanes, value != 1\.0f\)\)",
        "if (true)",
    ),
    replaced(
        "rescale-by-row",
        "each row decides by itself whether to correct",
        r"__any_sync\(kAllLanes, value != 1\.0f\)",
        "value != 1.0f",
    ),
    replaced(
        "rescale-of-first-row",
        "the first row of a warp decides for all",
        r"__any_sync\(kAllLanes, value != 1\.0f\)",
        "__shfl_sync(kAllLanes, value, 0) != 1.0f",
    ),
    replaced("rescale-without-factor", "values stay as they are", r"current\[i\] \*= value;", ";"),
    replaced(
        "rescale-half",
        "the other half is corrected",
        r"\brescale\(half\)",
        "rescale(1 - half)",
    ),
    replaced(
        "rescale-of-first-block",
        "a first block is corrected, too",
        r" && block != halves\[half\]\.end - 1(?=\) rescale)",
        "",
    ),
    replaced(
        "rescale-unseen",
        "a block that the half does not see is corrected",
        r"sees\(halves\[half\], block\) && (?=block != )",
        "",
    ),
    replaced(
        "rescale-blocks",
        "the correction leaves out the last block of a tile",
        r"(?<=int block = blocks\.end - 2; block )>= (?=blocks\.begin; --block\) \{\n#pragma)",
        "> ",
    ),
    replaced(
        "start-of-empty-half",
        "a half without keys allows a product",
        r"if \(!halves\[half\]\.empty\(\)\) (?=tensor_arrive)",
        "",
    ),
    # Halves.
    Rule("half-bounds", "a half visits the blocks of other rows", _bounds_of_half),
    replaced(
        "half-without-rows",
        "a half without rows visits blocks",
        r"if \(!has_rows\(tile, half\)\) blocks\.end = blocks\.begin;",
        ";",
    ),
    replaced(
        "half-rows-always",
        "a half without rows takes part",
        r"if \(!has_rows\(tile, half\)\) continue;|if \(has_rows\(tile, half\)\) (?=finish)",
        "",
    ),
    replaced(
        "half-rows-off",
        "a half with one row takes no part",
        r"(return tile\.row \+ half \* kHalfM)( < tile\.queries\.length;)",
        r"\1 + 1\2",
    ),
    replaced(
        "half-row",
        "the second half has the first one's rows",
        r"(?<=tile\.row) \+ half(?:_of_rows)? \* kHalfM(?= \+|;)",
        "",
    ),
    replaced(
        "half-position",
        "a thread's row is another",
        r"(half(?:_of_rows)? \* kHalfM \+ )thread\(\)(?= \+ tile\.keys)",
        r"\1(thread() ^ 1)",
    ),
    replaced(
        "blocks-of-other-half",
        "a role takes the blocks of the other half",
        r"blocks_of_half\(tile, half\)",
        "blocks_of_half(tile, 1 - half)",
    ),
    replaced(
        "blocks-of-tile",
        "a half visits all blocks of its tile",
        r"KeyBlocks blocks = blocks_of_half\(tile, half\)",
        "KeyBlocks blocks(tile)",
    ),
    # The mask's status of a block.
    replaced(
        "status-visible",
        "a block at the mask's edge goes without it",
        r"mask_status\(blocks, block\) == MaskStatus::kPartial",
        "false",
    ),
    replaced(
        "status-first-block",
        "the first block goes without a mask where all rows see its keys",
        r"block == blocks\.end - 1 \|\| (?=mask_status)",
        "",
    ),
    replaced(
        "status-full-begin",
        "a block at the left edge of a mask counts as visible",
        r"block >= half\.full_begin && ",
        "",
    ),
    replaced(
        "status-full-end",
        "a block at the right edge of a mask counts as visible",
        r" && block < half\.full_end",
        "",
    ),
    replaced(
        "status-hidden-begin",
        "a block before the first one counts as seen",
        r"block < half\.begin \|\| ",
        "",
    ),
    replaced(
        "status-hidden-end",
        "a block behind the last one counts as seen",
        r" \|\| block >= half\.end(?=\))",
        "",
    ),
    # Online softmax of a row.
    replaced(
        "row-maximum-of-fewer",
        "a key is left out of the maximum",
        r"for \(int i = ([34]); i < kTileN",
        r"for (int i = \1 + 1; i < kTileN",
    ),
    replaced(
        "row-maximum-of-part",
        "a quarter of the keys is left out of the maximum",
        r"fmaxf\(largest\[2\], largest\[3\]\)",
        "largest[2]",
    ),
    replaced(
        "row-maximum-forgets",
        "the maximum is that of the block alone",
        r"largest\[4\] = \{maximum,",
        "largest[4] = {score[0],",
    ),
    replaced(
        "row-sum-forgets",
        "the sum is that of the block alone",
        r"partial\[4\] = \{sum,",
        "partial[4] = {0.0f,",
    ),
    replaced(
        "row-sum-of-part",
        "a quarter of the keys is left out of the sum",
        r"\(partial\[2\] \+ partial\[3\]\)",
        "partial[2]",
    ),
    replaced(
        "row-exponent-sign",
        "the reference is added",
        r"arguments\.softmax_scale_log2, -reference_log2",
        "arguments.softmax_scale_log2, reference_log2",
    ),
    replaced(
        "probabilities-order",
        "two neighbouring probabilities change places",
        r"pack\(low, high\)",
        "pack(high, low)",
    ),
    replaced(
        "probabilities-group",
        "a group of keys is left out",
        r"store_probabilities<(\d+)>\([^;]*;",
        ";",
    ),
    replaced(
        "probabilities-group-twice",
        "a group's exponentials are taken twice",
        r"store_probabilities<(\d+)>\([^;]*;",
        r"\g<0> \g<0>",
    ),
    replaced(
        "probabilities-of-scores",
        "scores are handed over as they are",
        r"low = exp2_approx\(low\);|high = exp2_approx\(high\);",
        ";",
    ),
    # Exponentials on the multiply-add units.
    replaced(
        "polynomial-unbounded",
        "-inf is not raised to a number that the polynomial can take",
        r"(low|high) = max_or_nan\(\1, -127\.0f\);",
        ";",
    ),
    replaced(
        "polynomial-bias",
        "powers of two are one exponent off",
        r"12582912\.0f \+ 127\.0f",
        "12582912.0f + 128.0f",
    ),
    replaced(
        "polynomial-coefficient",
        "a coefficient is left out",
        r"multiply_add\(result_low, result_high, low, high, [^;]*;",
        ";",
    ),
    replaced(
        "polynomial-fraction",
        "the whole exponent, in place of its fraction",
        r"add\(low, high, shifted_low, shifted_high\);",
        ";",
    ),
    replaced(
        "polynomial-power",
        "the power of two of the neighbour",
        r"result_high, power_low, power_high",
        "result_high, power_high, power_low",
    ),
    # fp8: probabilities above 1.
    replaced(
        "shift-removed",
        "the reference is not lowered",
        r" - kProbabilityShift",
        "",
    ),
    replaced(
        "shift-high",
        "probabilities beyond 448",
        r"(?<=kProbabilityShift = )([\d.]+f)",
        r"\1 + 3.0f",
    ),
    replaced("v-scale-removed", "V's scale is left out", r"arguments\.v_scale(?= /)", "1.0f"),
    # The end of a tile.
    replaced(
        "output-of-empty-half",
        "a half without keys takes what is in tensor memory",
        r"if \(has_keys\) \{(?=\n +(?:tensor_load_32|row = take_state))",
        "if (true) {",
    ),
    replaced(
        "output-never-loaded",
        "every half is taken for one without keys",
        r"!halves\[half\]\.empty\(\)\);",
        "false);",
    ),
    replaced(
        "output-unscaled",
        "the output is not divided",
        r"(output\[i\] \*= |fmaf\(output\[j\], )scale(?:\[i\])?(?=;|, sum)",
        r"\g<1>1.0f",
    ),
    replaced(
        "output-row",
        "rows change places on their way out",
        r"const int row = thread\(\);",
        "const int row = thread() ^ 1;",
    ),
    replaced(
        "output-panel",
        "columns go to the other panel",
        r"(\[half\]\[|half, )column / 64",
        r"\g<1>1 - column / 64",
    ),
    replaced(
        "output-chunk",
        "columns go to another chunk",
        r"(?<=const int chunk = )\(column \+ i\) % 64 / 8",
        "(column + i) % 64 / 8 ^ 1",
    ),
    replaced(
        "fresh-sum",
        "a tile begins with the last one's sum",
        r"^ +sum = 0\.0f;(?=\n +attend\()",
        ";",
    ),
    replaced(
        "fresh-maximum",
        "a tile begins with the last one's maximum",
        r"^ +maximum = -infinity\(\);",
        ";",
    ),
    replaced(
        "lse-of-other-half",
        "LSE of the other half's rows",
        r"(const int row = tile\.row \+ )half( \* kHalfM \+ thread\(\);)",
        r"\1(1 - half)\2",
    ),
)
